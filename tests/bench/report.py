"""The end of every benchmark: print the figures as one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog


class NoLimits(Exception):
    """CPU limits are not enforced, so the figures of this benchmark would mean nothing."""


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def refuse_unknown_programs(asked: Iterable[str], known: Iterable[str]) -> None:
    """Exit if the environment names a program that this benchmark does not have."""
    names = list(known)
    if unknown := [name for name in asked if name not in names]:
        sys.exit(f"no such program: {', '.join(unknown)}; there are {', '.join(names)}")


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def finish(figures: Mapping[str, Any]) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps(rounded), flush=True)


def finish_or_refuse(main: Coroutine[Any, Any, Mapping[str, Any]]) -> None:
    """Run a benchmark and print its figures; if CPU limits are not enforced, exit with code 1."""
    try:
        finish(asyncio.run(main))
    except NoLimits as error:
        say(str(error))
        sys.exit(1)


def finish_in_a_folder(
    prefix: str, main: Callable[[Path], Coroutine[Any, Any, Mapping[str, Any]]]
) -> None:
    """Run a benchmark in a temporary folder, and log to stderr.

    The folder is deleted at the end, unless CHAOS_KEEP is set.
    """
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    place = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        finish(asyncio.run(main(place)))
    finally:
        if os.environ.get("CHAOS_KEEP"):
            say(f"logs: {place}")
        else:
            shutil.rmtree(place)
