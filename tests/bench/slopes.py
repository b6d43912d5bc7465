"""A test for a slope in a series of measurements.

Theil and Sen: the slope is the median of the slopes between all pairs of points, so that a few
outliers do not change it (Sen, JASA 63, 1968). The first part, in which caches fill, is left out. A
series is flat if this slope, times the number of all points, is at most `SHARE` of the median or an
allowance in the unit of the series, whichever is larger.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

SHARE = 0.10
WARM_SHARE = 1 / 4
"""Share of the points at the beginning that are left out."""


def slope(values: Sequence[float]) -> float:
    """Return the slope per point; 0 for fewer than two points."""
    found = [(values[j] - values[i]) / (j - i) for i, j in combinations(range(len(values)), 2)]
    return statistics.median(found) if found else 0.0


def growth(values: Sequence[float]) -> float:
    """Return the growth over all points, from the slope without the warm-up part."""
    warm = values[round(len(values) * WARM_SHARE) :]
    return slope(warm) * len(values)


def is_flat(values: Sequence[float], allowance: float) -> bool:
    """Return whether the series does not grow. A series that shrinks is flat."""
    return not values or growth(values) <= max(allowance, SHARE * statistics.median(values))
