"""A test for a slope in a series of measurements.

Theil and Sen: the slope is the median of the slopes between all pairs of points, so that a few odd
ones do not move it (Sen, JASA 63, 1968). A first part is left out, in which caches fill. A series
is flat when that slope, over all that was measured, comes to no more than `SHARE` of the median or,
where that is little, than an allowance in its own unit.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

SHARE = 0.10
WARM_SHARE = 1 / 4
"""Of the points, at the beginning; they are left out."""


def slope(values: Sequence[float]) -> float:
    """Per point; 0 for fewer than two."""
    found = [(values[j] - values[i]) / (j - i) for i, j in combinations(range(len(values)), 2)]
    return statistics.median(found) if found else 0.0


def growth(values: Sequence[float]) -> float:
    """By how much it grew, as the slope behind the warm part has it, over as many points as there
    are in all.
    """
    warm = values[round(len(values) * WARM_SHARE) :]
    return slope(warm) * len(values)


def is_flat(values: Sequence[float], allowance: float) -> bool:
    """Shrinking is flat, too."""
    return not values or growth(values) <= max(allowance, SHARE * statistics.median(values))
