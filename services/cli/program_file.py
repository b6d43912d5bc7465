"""Can this be a training program? What can be told without running it: its syntax, the names that
it binds, and with how many arguments its plain functions can be called. Pure.

A name counts however it is bound: defined, imported, assigned, perhaps under a condition. Where
names may be bound that no reader sees (`from x import *`, `globals()`), the trainer is left to find
out.

Training programs in the object store of their namespace: kept once, by digest. Edge.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import symtable
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from nats.errors import NoRespondersError
from nats.js.errors import APIError, NotFoundError

from services.console.trouble import FAILED, WRONG_USE, Trouble
from services.trainer.program import NO_OVERWRITE, missing_functions
from shared.bus import programs
from shared.bus.bus import Bus
from shared.bus.publisher import is_no_room
from shared.bus.subjects import DEFAULT_NAMESPACE
from shared.messages import LARGEST_PROGRAM

CALLED = {
    **dict.fromkeys(("model", "optimizer", "examples", "evaluation", "metrics"), ()),
    "loss": ("labels", "outputs"),
    "dataset": ("start", "stop"),
}
"""With which arguments the trainer calls what."""
UNSEEN = {"globals", "locals", "vars", "exec"}


class NoPython(Trouble):
    """The text is not Python, or has a slip that keeps it from being read."""


def check_program(body: bytes, path: Path) -> None:
    """Raises `Trouble` with the place of a syntax error, or the names of the functions that are
    missing.
    """
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = ast.parse(body, path.name)
            compile(tree, path.name, "exec", dont_inherit=True)
            names = _bound_names(symtable.symtable(body, path.name, "exec"))  # type: ignore[arg-type]  # bytes, as `parse`
        except SyntaxError as error:
            raise NoPython(f"{path}:{error.lineno or 1}: {error.msg}", WRONG_USE) from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise NoPython(f"{path} is not a Python file: {error}", WRONG_USE) from error
    wrong = "" if _has_hidden_names(tree) else missing_functions(path.name, names)
    if reasons := [
        *([wrong] if wrong else ()),
        *_signature_errors(tree, path),
        *_unsupported_arguments(tree, path),
    ]:
        raise Trouble("\n".join(reasons), WRONG_USE)


def _signature_errors(tree: ast.Module, path: Path) -> Iterator[str]:
    """Functions that cannot be called as the trainer calls them; a decorator may change that, so it
    excuses one.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in CALLED and not node.decorator_list:
            wanted = CALLED[node.name]
            if not _accepts_count(node.args, len(wanted)):
                yield f"{path}:{node.lineno}: {node.name} is called as {node.name}({', '.join(wanted)})"


def _unsupported_arguments(tree: ast.Module, path: Path) -> Iterator[str]:
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


def _accepts_count(arguments: ast.arguments, count: int) -> bool:
    """Whether so many arguments by position are enough, and not too many."""
    most = len(arguments.posonlyargs) + len(arguments.args)
    by_name = any(default is None for default in arguments.kw_defaults)
    return (
        most - len(arguments.defaults) <= count <= (count if arguments.vararg else most)
        and not by_name
    )


def _bound_names(table: symtable.SymbolTable) -> set[str]:
    """Names that the module binds, also from within (`global`)."""
    whole = table.get_type() == "module"
    mine = {
        s.get_name()
        for s in table.get_symbols()
        if _is_bound(s) and (whole or s.is_declared_global())
    }
    return mine.union(*map(_bound_names, table.get_children()))


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _has_hidden_names(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        or (isinstance(node, ast.Name) and node.id in UNSEEN)
        for node in ast.walk(tree)
    )


T = TypeVar("T")

MIB = 1 << 20


def read_program(path: Path) -> bytes:
    """The program's text; raises `Trouble` for what cannot be read or is too large to travel."""
    try:
        size = path.stat().st_size
        if size <= LARGEST_PROGRAM:
            return path.read_bytes()
    except OSError as error:
        hint = ONE_FILE if isinstance(error, IsADirectoryError) else RELATIVE
        raise Trouble(
            f"cannot read the program {path}: {error.strerror}; {hint}", WRONG_USE
        ) from error
    raise Trouble(
        f"the program {path} has {size / MIB:.1f} MiB; at most {LARGEST_PROGRAM // MIB} MiB travel. {ADVICE}",
        FAILED,
    )


ONE_FILE = "a program is one file of Python"
RELATIVE = "`program:` is relative to the job's file"
ADVICE = "Data belongs on a volume, not in the program."


digest = programs.digest_of

# ---------------------------------------------------------------- on the bus

LEADER_S, AGAIN_S = 3.0, 0.2
"""For how long a bucket that does not answer may be without a leader, and when to ask again;
seconds.
"""
NOTHING = digest(b"")
UNPROVISIONED = (
    "namespace {0} is not provisioned on this bus: it has no bucket for the programs of its jobs. Nothing was sent.\n"
    "To provision it, list it in WEIR_JOB_NAMESPACES and apply the overlay again, or run "
    "`weir streams create --namespace {0}` with the setup credentials; for `weir up`, name it under `quotas:` in the "
    "cluster file."
)
FULL = (
    "the programs of namespace {0} fill their bucket ({1}). Nothing was sent.\n"
    "To make room, run `weir streams create --namespace {0} --programs-mib N` with the setup credentials."
)


async def store_program(bus: Bus, body: bytes, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Store a program in the bucket of its namespace unless it is there and whole; return its
    digest.

    Raises `Trouble` if the namespace has no bucket, or no room in it.
    """
    name = digest(body)
    await _in_bucket(namespace, lambda: programs.store_program(bus, namespace, name, body))
    return name


async def require_bucket(bus: Bus, namespace: str) -> None:
    """Raise `Trouble` if the namespace is not provisioned."""
    with contextlib.suppress(NotFoundError, msgspec.DecodeError):
        await _in_bucket(namespace, lambda: programs.read_description(bus, namespace, NOTHING))


async def _in_bucket(namespace: str, use: Callable[[], Awaitable[T]]) -> T:
    """Use the bucket of a namespace. One that does not answer may be choosing a leader: it is asked
    for a while.
    """
    until_s = time.monotonic() + LEADER_S
    while True:
        try:
            return await use()
        except programs.NotProvisioned as error:
            raise Trouble(UNPROVISIONED.format(namespace), FAILED) from error
        except NoRespondersError as error:
            if time.monotonic() > until_s:
                raise Trouble(UNPROVISIONED.format(namespace), FAILED) from error
        except APIError as error:
            if is_no_room(error):
                raise Trouble(FULL.format(namespace, error.description), FAILED) from error
            raise
        await asyncio.sleep(AGAIN_S)
