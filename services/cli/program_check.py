"""Can this be a training program? What can be told without running it: its syntax, the names that
it binds, and with how many arguments its plain functions can be called. Pure.

A name counts however it is bound: defined, imported, assigned, perhaps under a condition. Where
names may be bound that no reader sees (`from x import *`, `globals()`), the trainer is left to find
out.
"""

from __future__ import annotations

import ast
import symtable
import warnings
from collections.abc import Iterator
from pathlib import Path

from services.cli.trouble import WRONG_USE, Trouble
from services.trainer.program import NO_OVERWRITE, missing_functions

CALLED = {
    **dict.fromkeys(("model", "optimizer", "examples", "evaluation", "metrics"), ()),
    "loss": ("labels", "outputs"),
    "dataset": ("start", "stop"),
}
"""With which arguments the trainer calls what."""
UNSEEN = {"globals", "locals", "vars", "exec"}


class NoPython(Trouble):
    """The text is not Python, or has a slip that keeps it from being read."""


def check(body: bytes, path: Path) -> None:
    """Raises `Trouble` with the place of a syntax error, or the names of the functions that are
    missing.
    """
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = ast.parse(body, path.name)
            compile(tree, path.name, "exec", dont_inherit=True)
            names = _bound(symtable.symtable(body, path.name, "exec"))  # type: ignore[arg-type]  # bytes, as `parse`
        except SyntaxError as error:
            raise NoPython(f"{path}:{error.lineno or 1}: {error.msg}", WRONG_USE) from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise NoPython(f"{path} is not a Python file: {error}", WRONG_USE) from error
    wrong = "" if _hides(tree) else missing_functions(path.name, names)
    if reasons := [
        *([wrong] if wrong else ()),
        *_uncallable(tree, path),
        *_unsupported(tree, path),
    ]:
        raise Trouble("\n".join(reasons), WRONG_USE)


def _uncallable(tree: ast.Module, path: Path) -> Iterator[str]:
    """Functions that cannot be called as the trainer calls them; a decorator may change that, so it
    excuses one.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in CALLED and not node.decorator_list:
            wanted = CALLED[node.name]
            if not _takes(node.args, len(wanted)):
                yield f"{path}:{node.lineno}: {node.name} is called as {node.name}({', '.join(wanted)})"


def _unsupported(tree: ast.Module, path: Path) -> Iterator[str]:
    """Arguments of an optimizer that the trainer would refuse."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "ema_overwrite_frequency"
            and not _is_none(node.value)
        ):
            yield f"{path}:{node.value.lineno}: {NO_OVERWRITE}"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _takes(arguments: ast.arguments, count: int) -> bool:
    """Whether so many arguments by position are enough, and not too many."""
    most = len(arguments.posonlyargs) + len(arguments.args)
    by_name = any(default is None for default in arguments.kw_defaults)
    return (
        most - len(arguments.defaults) <= count <= (count if arguments.vararg else most)
        and not by_name
    )


def _bound(table: symtable.SymbolTable) -> set[str]:
    """Names that the module binds, also from within (`global`)."""
    whole = table.get_type() == "module"
    mine = {
        s.get_name() for s in table.get_symbols() if _binds(s) and (whole or s.is_declared_global())
    }
    return mine.union(*map(_bound, table.get_children()))


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _hides(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        or (isinstance(node, ast.Name) and node.id in UNSEEN)
        for node in ast.walk(tree)
    )
