"""Check a training program without running it, and store it in the bucket of its namespace.

The check reads the syntax, the names that the module binds, and the arguments of its plain
functions, also of those that it imports from its own other files. A name may be bound in any way:
defined, imported, assigned, under a condition. If names may be bound invisibly (`from x import *`,
`globals()`), only the trainer can report missing functions and unknown parameters. A program is
stored once, by its digest.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import symtable
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

import msgspec
from nats.errors import NoRespondersError
from nats.js.errors import APIError, NotFoundError

from services.cli.program_source import ProgramSource
from services.console.trouble import FAILED, WRONG_USE, Trouble
from services.trainer.program import (
    ANYTHING,
    ARGUMENTS,
    FUNCTIONS,
    NO_OVERWRITE,
    Params,
    Signature,
    accepts_call,
    called_names,
    compiles_model,
    mentions_params,
    missing_functions,
    missing_params,
    param_reasons,
)
from shared.bus import programs
from shared.bus.bus import Bus
from shared.bus.publisher import is_no_room
from shared.bus.subjects import DEFAULT_NAMESPACE

MOST_IMPORTS = 5
"""The most imports between files of the program that are followed to find a function."""
UNSEEN = {"globals", "locals", "vars", "exec"}


class NoPython(Trouble):
    """The text is not Python, or has a syntax error."""


def check_source(source: ProgramSource, params: Params) -> None:
    """Raise `Trouble` with the place of a syntax error, or with every missing or wrong function,
    and every parameter of the job that no function takes.
    """
    for file in sorted(source.files):
        if file.endswith(".py") and file != source.entry:
            _parse_python(source.files[file], source.place_of(file))
    check_program(source.text, source.place_of(source.entry), params, source.files, source.entry)


def check_program(
    body: bytes,
    path: Path,
    params: Params | None = None,
    files: Mapping[str, bytes] | None = None,
    entry: str = "",
) -> None:
    """Check the file with the functions as `check_source` does. `files`: of the whole program, by
    the path in it; `entry`: the path of this one.
    """
    params, files = params or {}, files or {}
    tree, names = _parse_python(body, path)
    is_hidden = _has_hidden_names(tree)
    compiles = any(map(compiles_model, (body, *files.values())))
    missing = "" if is_hidden else missing_functions(path.name, names, compiles)
    reasons = [missing] if missing else []
    called = called_names(names)
    functions = _find_functions(tree, files, entry)
    functions = {name: each for name, each in functions.items() if name in called or is_hidden}
    reasons += [
        *_signature_errors(functions, path, entry, params),
        *_unsupported_arguments(tree, path),
    ]
    if not is_hidden:
        signatures = {name: ANYTHING for name in called}
        signatures |= {name: _signature(each.node) for name, each in functions.items()}
        mentioned = any(map(mentions_params, (body, *files.values())))
        reasons += param_reasons(path.name, signatures, params, mentioned)
    if reasons:
        raise Trouble("\n".join(reasons), WRONG_USE)


def _parse_python(body: bytes, path: Path) -> tuple[ast.Module, set[str]]:
    """Return the tree of a Python file, and the names that it binds. Raise `NoPython` with the
    place of a syntax error.
    """
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = ast.parse(body, path.name)
            compile(tree, path.name, "exec", dont_inherit=True)
            return tree, _bound_names(symtable.symtable(body, path.name, "exec"))  # type: ignore[arg-type]  # bytes, as `parse`
        except SyntaxError as error:
            raise NoPython(f"{path}:{error.lineno or 1}: {error.msg}", WRONG_USE) from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise NoPython(f"{path} is not a Python file: {error}", WRONG_USE) from error


class _Function(NamedTuple):
    """A plain function of the program. `file`: empty for the one with the functions, else the path
    of another file of the program.
    """

    node: ast.FunctionDef
    file: str = ""


def _find_functions(
    tree: ast.Module, files: Mapping[str, bytes], entry: str
) -> dict[str, _Function]:
    """Return the functions that the trainer calls and whose arguments the text shows, by name."""
    found = {}
    for name in FUNCTIONS:
        function = _find_function(tree, name, files, entry, MOST_IMPORTS)
        if function is not None and not function.node.decorator_list:
            found[name] = function
    return found


def _find_function(
    tree: ast.Module, name: str, files: Mapping[str, bytes], file: str, imports: int
) -> _Function | None:
    """Return the last definition of a function at the top of a file, if it is plain. Follow an
    import from another file of the program.
    """
    found: _Function | None = None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found = _Function(node)
        elif isinstance(node, ast.ImportFrom) and not node.level and imports:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    found = _imported_function(node.module or "", alias.name, files, file, imports)
        elif name in _names_in(node):
            found = None  # bound in another way, also under a condition
    return found


def _imported_function(
    module: str, name: str, files: Mapping[str, bytes], file: str, imports: int
) -> _Function | None:
    """Return a function of another module, if that is a file of the program."""
    place = module.replace(".", "/")
    beside = str(PurePosixPath(file).parent / place)
    for path in (f"{beside}.py", f"{beside}/__init__.py", f"{place}.py", f"{place}/__init__.py"):
        if path in files:
            found = _find_function(ast.parse(files[path]), name, files, path, imports - 1)
            return found and _Function(found.node, found.file or path)
    return None


def _names_in(node: ast.stmt) -> set[str]:
    """Return the names that a statement may bind."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store | ast.Del):
            names.add(each.id)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(each.name)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in each.names}
    return names


def _signature(node: ast.FunctionDef) -> Signature:
    """Return what a function can be given."""
    arguments = node.args
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    keyword_only = [each.arg for each in arguments.kwonlyargs]
    required = positional[: len(positional) - len(arguments.defaults)]
    for name, default in zip(keyword_only, arguments.kw_defaults, strict=True):
        if default is None:
            required.append(name)
    return Signature(
        positional=tuple(positional),
        required=frozenset(required),
        keywords=frozenset([*(each.arg for each in arguments.args), *keyword_only]),
        more_positional=arguments.vararg is not None,
        more_keywords=arguments.kwarg is not None,
    )


def _signature_errors(
    functions: Mapping[str, _Function], path: Path, entry: str, params: Params
) -> Iterator[str]:
    """Yield an error for each function that the trainer cannot call with its own arguments and
    these parameters.
    """
    for name, (node, file) in functions.items():
        signature = _signature(node)
        if accepts_call(name, signature, params):
            continue
        where = path.parents[entry.count("/")] / file if file else path
        error = f"{where}:{node.lineno}: {name} is called as {name}({', '.join(ARGUMENTS[name])})"
        lacking = missing_params(name, signature, params)
        if lacking:
            error += f"; give {' and '.join(lacking)} a default, or a value in `params:`"
        yield error


def _unsupported_arguments(tree: ast.Module, path: Path) -> Iterator[str]:
    """Yield an error for each optimizer argument that the trainer would refuse."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.keyword) or node.arg != "ema_overwrite_frequency":
            continue
        if not _is_none(node.value):
            yield f"{path}:{node.value.lineno}: {NO_OVERWRITE}"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


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
