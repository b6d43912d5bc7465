"""Change one line of pure code at a time, and check that a pure test fails.

`make mutations SEED=1 N=30`. A mutation swaps a comparison, `and` and `or`, or plus and minus; adds
one to a number; or drops a `not`. The seed selects the mutations, evenly from all places in the
pure modules of the allocator, the launcher and `shared`. The mutations are made in a temporary copy
of the checkout. The pure tests in the folder of the module run first, then all of `make test-fast`.
The last line is a JSON object.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests import pure
from tests.bench.report import finish

ROOT = Path(__file__).parents[1]
MUTATED = ("services/allocator", "services/launcher", "shared")
ACTING = pure.REACHING_OUT | {"logging", "os", "structlog", "time"}
SWAPPED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
}
LIMIT_S = 600.0  # a mutation that runs longer is taken for an endless loop, and counts as killed
BROKEN_RUN = (2, 3, 4)  # exit codes of pytest that mean that it could not run the tests


class Mutation(NamedTuple):
    """Replace the bytes from `start` to `end` of a module by `text`."""

    module: str
    line: int
    start: int
    end: int
    old: str
    text: str


def pure_modules() -> list[Path]:
    """Return the modules that import nothing that acts, so that their code only decides."""
    found = [path for folder in MUTATED for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if not pure.imported_libraries(path) & ACTING]


class Source:
    """The text of a module, with the positions of its syntax tree as byte offsets."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.relative_to(ROOT))
        self.text = path.read_bytes()
        self.lines = [0]
        for line in self.text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def mutations(self) -> Iterator[Mutation]:
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                yield from self._swap(node.ops[0], node.left, node.comparators[0])
            elif isinstance(node, ast.BoolOp):
                yield from self._swap(node.op, *node.values[:2])
            elif isinstance(node, ast.BinOp):
                yield from self._swap(node.op, node.left, node.right)
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                start = self._start(node)
                yield self._mutation(start, start + len("not "), "")
            elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
                yield self._mutation(self._start(node), self._end(node), repr(node.value + 1))

    def _swap(self, operator: ast.AST, left: ast.expr, right: ast.expr) -> Iterator[Mutation]:
        old, new = SWAPPED.get(type(operator), ("", ""))
        gap = self.text[self._end(left) : self._start(right)].decode()
        if old and gap.count(old) == 1:
            start = self._end(left) + len(gap.partition(old)[0].encode())
            yield self._mutation(start, start + len(old), new)

    def _mutation(self, start: int, end: int, text: str) -> Mutation:
        line = self.text.count(b"\n", 0, start) + 1
        return Mutation(self.name, line, start, end, self.text[start:end].decode(), text)

    def _start(self, node: ast.expr) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.lines[node.end_lineno - 1] + node.end_col_offset


def copied_checkout(folder: Path) -> Path:
    """Copy tracked files, and untracked files that git does not ignore; return the folder."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def apply_mutation(copy: Path, change: Mutation) -> bytes:
    """Write the mutated module and return its previous text."""
    path = copy / change.module
    before = path.read_bytes()
    path.write_bytes(before[: change.start] + change.text.encode() + before[change.end :])
    forget_compiled(path)
    return before


def forget_compiled(path: Path) -> None:
    """Remove the compiled files of a module.

    Python compares times in whole seconds, so it could use them for the new text.
    """
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def failed_tests(copy: Path, *words: str) -> list[str] | None:
    """Return the first pure tests that fail; None if all pass."""
    command = [sys.executable, "-m", "pytest", "--pure", "-x", "-rfE", "--tb=no", *words]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    try:
        run = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return ["(no end)"]
    lines = run.stdout.splitlines()
    failed = [
        line.partition(" ")[2][:160] for line in lines if line.startswith(("FAILED", "ERROR"))
    ]
    return failed or (["(no test could run)"] if run.returncode in BROKEN_RUN else None)


def own_folder(copy: Path, module: str) -> Path:
    """Return the nearest folder of tests that mirrors the folder of a module."""
    folder = copy / "tests" / Path(module.removeprefix("services/")).parent
    while not folder.is_dir():
        folder = folder.parent
    return folder


def find_killers(copy: Path, change: Mutation) -> list[str]:
    """Return the tests that fail with this mutation; empty if it survives."""
    before = apply_mutation(copy, change)
    try:
        folder = own_folder(copy, change.module)
        return failed_tests(copy, str(folder)) or failed_tests(copy, "-n", "2") or []
    finally:
        (copy / change.module).write_bytes(before)
        forget_compiled(copy / change.module)


def main(seed: int, count: int) -> None:
    modules = pure_modules()
    places = [change for path in modules for change in Source(path).mutations()]
    chosen = random.Random(seed).sample(places, count)
    print(f"{count} of {len(places)} mutations of {len(modules)} pure modules, seed {seed}")
    killed = 0
    with tempfile.TemporaryDirectory(prefix="weir-mutations-") as folder:
        copy = copied_checkout(Path(folder))
        assert failed_tests(copy, "-n", "2") is None, "the pure tests fail without a mutation"
        for change in chosen:
            killers = find_killers(copy, change)
            killed += bool(killers)
            outcome = f"killed by {killers[0]}" if killers else "SURVIVED"
            place = f"{change.module}:{change.line}"
            print(
                f"{place}: {change.old.strip()!r} -> {change.text.strip()!r}: {outcome}", flush=True
            )
    finish({"seed": seed, "mutations": count, "killed": killed})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
