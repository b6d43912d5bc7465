"""The modules of the source tree and their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("services", "shared")
RUNNING = {"exec", "eval", "__import__", "execfile"}


@dataclass(frozen=True)
class Module:
    """A Python file. `name` is its dotted name, as in an import."""

    path: Path
    name: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def imports(self) -> set[str]:
        """Return the dotted names of everything that the file imports, at any depth."""
        return {name for node in ast.walk(self.tree) for name in _imported(node)}

    @property
    def libraries(self) -> set[str]:
        """Return the first part of each imported name."""
        return {name.split(".")[0] for name in self.imports}

    @property
    def runs_text(self) -> bool:
        """Return True if the module can run text as code.

        It calls `exec`, `eval` or the like, or it imports a library such as `importlib` or
        `pickle`.
        """
        called = {
            n.func.id
            for n in ast.walk(self.tree)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        return bool(
            called & RUNNING
            or self.libraries & {"importlib", "runpy", "pickle", "marshal", "code", "imp"}
        )

    @property
    def mentions(self) -> set[str]:
        """Return the imported names and the full names of their attributes that the file uses."""
        short = {name.rpartition(".")[2]: name for name in self.imports}
        taken = (
            n
            for n in ast.walk(self.tree)
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
        )
        return self.imports | {
            f"{short[n.value.id]}.{n.attr}" for n in taken if n.value.id in short
        }

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
    return [_module(path) for path in paths]


@cache
def _module(path: Path) -> Module:
    """Return the module of a file, so that each is parsed once."""
    return Module(path, dotted(path))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
