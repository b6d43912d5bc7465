"""The source as the laws see it: what each module imports, and how long its functions are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("services", "shared")


@dataclass(frozen=True)
class Module:
    """One file. `name` is dotted, as it is imported."""

    path: Path
    name: str
    tree: ast.Module

    @property
    def imports(self) -> set[str]:
        """The dotted names of all that is imported, anywhere in the file."""
        return {name for node in ast.walk(self.tree) for name in _imported(node)}

    @property
    def libraries(self) -> set[str]:
        """Their first parts."""
        return {name.split(".")[0] for name in self.imports}

    @property
    def functions(self) -> Iterator[tuple[str, int]]:
        """Each function with its lines."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{self.name}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1

    def __str__(self) -> str:
        return self.name


def _imported(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def modules(*folders: str) -> list[Module]:
    paths = sorted(path for folder in folders or OURS for path in (ROOT / folder).rglob("*.py"))
    return [Module(path, dotted(path), ast.parse(path.read_text())) for path in paths]


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
