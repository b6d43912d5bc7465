"""Separate pure test modules from those that start servers, processes or TensorFlow; for `--pure`.

A test module is pure if neither it nor a module of `FOLLOWED` that it imports, directly or through
others, imports a library of `REACHING_OUT`. A test is pure if its module is, and if neither it nor
a fixture that it uses is a coroutine: every fixture that starts a server is one. Searches through
random worlds (`SEARCHES`) are not pure tests either, because they take half of the time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.architecture.source import ROOT, Module

REACHING_OUT = {
    "aiohttp",
    "asyncio",
    "http",
    "keras",
    "kubernetes",
    "multiprocessing",
    "nats",
    "playwright",
    "psutil",
    "pty",
    "socket",
    "subprocess",
    "tensorflow",
}
FOLLOWED = ("tests.", "services.trainer.worker.")
SEARCHES = "tests.allocator.fuzz"


@cache
def is_pure(path: Path) -> bool:
    """Return whether a module of `tests` is pure, according to the imports in its text."""
    used = _modules_used(path)
    if any(each.is_relative_to(ROOT.joinpath(*SEARCHES.split("."))) for each in used):
        return False
    return not any(imported_libraries(each) & REACHING_OUT for each in used)


def _modules_used(path: Path) -> set[Path]:
    """Return the module and those of `FOLLOWED` that it imports, directly or through others."""
    found: set[Path] = set()
    left = [path]
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left.extend(_followed_modules(each))
    return found


@cache
def _imported_names(path: Path) -> frozenset[str]:
    """Return the full names of all imports, also of those inside functions."""
    return frozenset(Module(path, str(path)).imports)


def imported_libraries(path: Path) -> set[str]:
    """Return the first parts of the names of all imports."""
    return {name.partition(".")[0] for name in _imported_names(path)}


def _followed_modules(path: Path) -> list[Path]:
    """Return the files of `FOLLOWED` that a module imports.

    `conftest.py` is left out: a test that uses one of its coroutines is excluded on its own.
    """
    names = [name for name in _imported_names(path) if name.startswith(FOLLOWED)]
    files = [ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names]
    return [file for file in files if file.exists() and file.name != "conftest.py"]
