"""Check a training program without running it, and store it in the bucket of its namespace.

The check reads the syntax, the names that the module binds, and the number of arguments of its
plain functions. A name may be bound in any way: defined, imported, assigned, under a condition. If
names may be bound invisibly (`from x import *`, `globals()`), only the trainer can report missing
functions. A program is stored once, by its digest.
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
"""The arguments with which the trainer calls each function."""
UNSEEN = {"globals", "locals", "vars", "exec"}


class NoPython(Trouble):
    """The text is not Python, or has a syntax error."""


def check_program(body: bytes, path: Path) -> None:
    """Raise `Trouble` with the place of a syntax error, or with every missing or wrong function."""
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = ast.parse(body, path.name)
            compile(tree, path.name, "exec", dont_inherit=True)
            names = _bound_names(symtable.symtable(body, path.name, "exec"))  # type: ignore[arg-type]  # bytes, as `parse`
        except SyntaxError as error:
            raise NoPython(f"{path}:{error.lineno or 1}: {error.msg}", WRONG_USE) from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise NoPython(f"{path} is not a Python file: {error}", WRONG_USE) from error
    missing = "" if _has_hidden_names(tree) else missing_functions(path.name, names)
    reasons = [missing] if missing else []
    reasons += [*_signature_errors(tree, path), *_unsupported_arguments(tree, path)]
    if reasons:
        raise Trouble("\n".join(reasons), WRONG_USE)


def _signature_errors(tree: ast.Module, path: Path) -> Iterator[str]:
    """Yield an error for each function that the trainer cannot call. Skip decorated functions,
    because a decorator may change the arguments.
    """
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name not in CALLED or node.decorator_list:
            continue
        arguments = CALLED[node.name]
        if not _accepts_count(node.args, len(arguments)):
            call = f"{node.name}({', '.join(arguments)})"
            yield f"{path}:{node.lineno}: {node.name} is called as {call}"


def _unsupported_arguments(tree: ast.Module, path: Path) -> Iterator[str]:
    """Yield an error for each optimizer argument that the trainer would refuse."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.keyword) or node.arg != "ema_overwrite_frequency":
            continue
        if not _is_none(node.value):
            yield f"{path}:{node.value.lineno}: {NO_OVERWRITE}"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _accepts_count(arguments: ast.arguments, count: int) -> bool:
    """Return True if a function can be called with `count` positional arguments."""
    if any(default is None for default in arguments.kw_defaults):
        return False  # a keyword argument is required
    maximum = len(arguments.posonlyargs) + len(arguments.args)
    minimum = maximum - len(arguments.defaults)
    return minimum <= count and (count <= maximum or arguments.vararg is not None)


def _bound_names(table: symtable.SymbolTable) -> set[str]:
    """Return the names that the module binds, also within functions (`global`)."""
    is_module = table.get_type() == "module"
    names = set()
    for symbol in table.get_symbols():
        if _is_bound(symbol) and (is_module or symbol.is_declared_global()):
            names.add(symbol.get_name())
    return names.union(*map(_bound_names, table.get_children()))


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _has_hidden_names(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            return True
        if isinstance(node, ast.Name) and node.id in UNSEEN:
            return True
    return False


T = TypeVar("T")

MIB = 1 << 20


def read_program(path: Path) -> bytes:
    """Return the program's text. Raise `Trouble` if it is unreadable or too large to store."""
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
        f"the program {path} has {size / MIB:.1f} MiB; at most {LARGEST_PROGRAM // MIB} MiB are "
        f"possible. {ADVICE}",
        FAILED,
    )


ONE_FILE = "a program is one file of Python"
RELATIVE = "`program:` is relative to the job's file"
ADVICE = "Data belongs on a volume, not in the program."


digest = programs.digest_of

# ---------------------------------------------------------------- on the bus

LEADER_S, AGAIN_S = 3.0, 0.2
"""Seconds that a bucket without an answer may take to elect a leader, and between two attempts."""
NOTHING = digest(b"")
UNPROVISIONED = (
    "namespace {0} is not provisioned on this bus: it has no bucket for the programs of its jobs."
    " Nothing was sent.\nTo provision it, list it in WEIR_JOB_NAMESPACES and apply the overlay"
    " again, or run `weir streams create --namespace {0}` with the setup credentials; for `weir"
    " up`, name it under `quotas:` in the cluster file."
)
FULL = (
    "the programs of namespace {0} fill their bucket ({1}). Nothing was sent.\nTo make room, run"
    " `weir streams create --namespace {0} --programs-mib N` with the setup credentials."
)


async def store_program(bus: Bus, body: bytes, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Store a program in the bucket of its namespace unless it is there complete; return its
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
    """Use the bucket of a namespace. Retry for a while if it does not answer: it may be electing a
    leader.
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
