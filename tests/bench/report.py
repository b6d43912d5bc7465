"""What every benchmark does at its end: say what was measured, on one line of JSON."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from typing import Any


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
