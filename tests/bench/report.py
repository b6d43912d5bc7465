"""What every benchmark does at its end: say what was measured, on one line of JSON."""

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
    """This benchmark means nothing where CPU limits are not enforced."""


def say(text: str) -> None:
    """Progress, for a person."""
    print(text, file=sys.stderr, flush=True)


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def finish(figures: Mapping[str, Any]) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps(rounded), flush=True)


def finish_or_refuse(main: Coroutine[Any, Any, Mapping[str, Any]]) -> None:
    """Run it and say what was measured; where that would mean nothing, say why and end with 1."""
    try:
        finish(asyncio.run(main))
    except NoLimits as error:
        say(str(error))
        sys.exit(1)


def finish_in_a_folder(
    prefix: str, main: Callable[[Path], Coroutine[Any, Any, Mapping[str, Any]]]
) -> None:
    """Run it in a folder of its own, which goes at the end unless CHAOS_KEEP is set; what is logged
    is on stderr.
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
