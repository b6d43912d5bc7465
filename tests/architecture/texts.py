"""Print every text that a user of Weir can see, from the source: reasons, errors, help, columns.

    python -m tests.architecture.texts [--kind KIND] [PATH ...]

A reviewer reads the list from top to bottom: a text is short, says the cause first and the remedy
last. A formatted string is one text with the expressions in braces. Docstrings, comments and the
event names of the logs are not texts.
"""

from __future__ import annotations

import argparse
import ast
import html.parser
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.source import OURS, ROOT

ERROR, HELP, REASON, COLUMN, OTHER = "error", "help", "reason", "column", "other"
KINDS = (ERROR, HELP, REASON, COLUMN, OTHER)
HELP_KEYWORDS = {"help", "short_help", "epilog", "description", "metavar"}
REASON_NAMES = re.compile(r"reason|why|remedy|cause|verdict|note|rationale", re.IGNORECASE)
COLUMN_NAMES = re.compile(r"column|header|title", re.IGNORECASE)
TWO_WORDS = re.compile(r"[A-Za-z}][,;:)]? [({A-Za-z]")
JAVASCRIPT_STRING = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'|`([^`]*)`")


@dataclass(frozen=True, order=True)
class Text:
    """One text. `line` is the line on which its expression starts."""

    path: str
    line: int
    kind: str
    text: str


def read_texts(paths: list[Path]) -> Iterator[Text]:
    """Yield the texts of all files under `paths`, in the order of files and lines."""
    for path in sorted(file for root in paths for file in _source_files(root)):
        source, name = path.read_text(), str(path.relative_to(ROOT))
        if path.suffix == ".py":
            yield from sorted(_python_texts(name, ast.parse(source)))
        elif path.suffix == ".html":
            yield from _html_texts(name, source)
        else:
            yield from _javascript_texts(name, source)


def _source_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    return [path for path in root.rglob("*") if path.suffix in {".py", ".html", ".js"}]


def _python_texts(name: str, tree: ast.Module) -> Iterator[Text]:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        if any(isinstance(a, ast.JoinedStr) for a in _ancestors(node, parents)):
            continue  # a part of a longer text
        if isinstance(parents.get(node), ast.Expr):
            continue  # a docstring
        text = _rendered(node)
        kind = _kind(node, parents)
        if text and (TWO_WORDS.search(text) or (kind == COLUMN and text.strip())):
            yield Text(name, node.lineno, kind, text)


def _rendered(node: ast.expr) -> str:
    """Return the string, with an f-string's expressions in braces; empty for other constants."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    assert isinstance(node, ast.JoinedStr)
    return "".join(_rendered(part) for part in node.values)


def _ancestors(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while (parent := parents.get(node)) is not None:
        yield parent
        node = parent


def _kind(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    """Return the kind of the text, from the nearest statement or call that determines it."""
    for ancestor in _ancestors(node, parents):
        if isinstance(ancestor, ast.Raise):
            return ERROR
        if isinstance(ancestor, ast.keyword) and ancestor.arg:
            if ancestor.arg in HELP_KEYWORDS:
                return HELP
            if REASON_NAMES.search(ancestor.arg):
                return REASON
        if isinstance(ancestor, ast.Call):
            called = ancestor.func.attr if isinstance(ancestor.func, ast.Attribute) else ""
            if called == "add_column":
                return COLUMN
        if isinstance(ancestor, ast.stmt):
            return _kind_of_statement(ancestor)
    return OTHER


def _kind_of_statement(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign):
        names = " ".join(ast.unparse(target) for target in statement.targets)
    elif isinstance(statement, ast.AnnAssign):
        names = ast.unparse(statement.target)
    else:
        return OTHER
    if "EXAMPLES" in names:
        return HELP
    if COLUMN_NAMES.search(names):
        return COLUMN
    return REASON if REASON_NAMES.search(names) else OTHER


class _VisibleText(html.parser.HTMLParser):
    """Collect the text between tags and the attributes that a browser shows."""

    SHOWN = ("title", "aria-label", "placeholder", "alt")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        shown = [value for key, value in attrs if key in self.SHOWN and value]
        self.found += [(self.getpos()[0], value) for value in shown]

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.found.append((self.getpos()[0], data.strip()))


def _html_texts(name: str, source: str) -> Iterator[Text]:
    parser = _VisibleText()
    parser.feed(source)
    for line, text in parser.found:
        yield Text(name, line, OTHER, text)


def _javascript_texts(name: str, source: str) -> Iterator[Text]:
    for number, line in enumerate(source.splitlines(), start=1):
        code = line.partition("// ")[0]
        if code.lstrip().startswith(("import ", "*", "/*")):
            continue
        for match in JAVASCRIPT_STRING.finditer(code):
            text = next(group for group in match.groups() if group is not None)
            if TWO_WORDS.search(text):
                yield Text(name, number, OTHER, text)


def main(argv: list[str]) -> int:
    """Print the texts by file: the line, the kind, the text."""
    parser = argparse.ArgumentParser(description="every text that a user of Weir can see")
    parser.add_argument("--kind", choices=KINDS, help="only texts of this kind")
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders (services, shared)")
    args = parser.parse_args(argv)
    roots = [path.resolve() for path in args.paths] or [ROOT / name for name in OURS]
    path, count = "", 0
    for text in read_texts(roots):
        if args.kind not in (None, text.kind):
            continue
        if text.path != path:
            path = text.path
            print(f"\n{path}")
        print(f"  {text.line:>4} {text.kind:<7} {' '.join(text.text.split())}")
        count += 1
    print(f"\n{count:,} texts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
