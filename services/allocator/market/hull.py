"""What a job could be, as a staircase of configurations in which each step gains less speed for its cost than the last.

Configurations below the upper concave hull of speed over cost are never the best use of what they cost: a mixture of
their neighbours would be faster. On a hull the greedy rule, always the step that gains most for its cost, is optimal
up to the last step that does not fit.
"""

from __future__ import annotations

import msgspec
import numpy as np

from services.allocator.models.speed import Array
from services.allocator.placing.placement import Size
from shared.messages import Resources

ALIKE = 1.02
"""A step that gains so much more for its cost than the one before it still comes after it, so that straight lines keep
their points, and a model's rounding does not decide."""

Point = tuple[float, float]
"""Cost and speed."""


class Config(msgspec.Struct, frozen=True):
    """One size and batch: what it takes, what share of the scarcest resource that is, and its speed in examples/s.

    `apart`: its speed where devices side by side stand on several nodes though one could hold them; else None.
    """

    size: Size
    batch: int
    takes: Resources
    cost: float
    speed: float
    apart: float | None = None


def hull(cost: Array, speed: Array, base: Point = (0.0, 0.0)) -> list[int]:
    """Which points lie on the upper concave hull from `base` on, by rising cost; both arrays: [points]."""
    order = np.lexsort((-speed, cost))
    best = np.maximum.accumulate(speed[order])
    rising = order[np.flatnonzero(np.diff(best, prepend=base[1]) > 0.0)] if len(order) else order
    kept: list[int] = []
    at = [base]
    for n, point in zip(rising.tolist(), zip(cost[rising].tolist(), speed[rising].tolist(), strict=True), strict=True):
        while kept and _slope(at[-2], at[-1]) * ALIKE < _slope(at[-1], point):
            kept.pop()
            at.pop()
        kept.append(n)
        at.append(point)
    return kept


def _slope(one: Point, other: Point) -> float:
    """Speed gained for a unit of cost."""
    return (other[1] - one[1]) / max(other[0] - one[0], 1e-12)
