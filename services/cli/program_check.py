"""Can this be a training program? What can be told without running it: its syntax, and the names that it binds. Pure.

A name counts however it is bound: defined, imported, assigned, perhaps under a condition. Where names may be bound that
no reader sees (`from x import *`, `globals()`), the trainer is left to find out.
"""

from __future__ import annotations

import ast
import symtable
import warnings
from pathlib import Path

from services.cli.trouble import WRONG_USE, Trouble
from services.trainer.program import lacking

UNSEEN = {"globals", "locals", "vars", "exec"}


def check(body: bytes, path: Path) -> None:
    """Raises `Trouble` with the place of a syntax error, or the names of the functions that are missing."""
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = ast.parse(body, path.name)
            compile(tree, path.name, "exec", dont_inherit=True)
            names = _bound(symtable.symtable(body, path.name, "exec"))  # type: ignore[arg-type]  # bytes, as `parse`
        except SyntaxError as error:
            raise Trouble(f"{path}:{error.lineno or 1}: {error.msg}", WRONG_USE) from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise Trouble(f"{path} is not a Python file: {error}", WRONG_USE) from error
    if not _hides(tree) and (wrong := lacking(path.name, names)):
        raise Trouble(wrong, WRONG_USE)


def _bound(table: symtable.SymbolTable) -> set[str]:
    """Names that the module binds, also from within (`global`)."""
    whole = table.get_type() == "module"
    mine = {s.get_name() for s in table.get_symbols() if _binds(s) and (whole or s.is_declared_global())}
    return mine.union(*map(_bound, table.get_children()))


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _hides(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        or (isinstance(node, ast.Name) and node.id in UNSEEN)
        for node in ast.walk(tree)
    )
