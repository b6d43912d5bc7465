"""Paired differences: how certain each one is, and which one to measure next.

The 95 % confidence interval of the mean of n differences with the standard deviation s is

    mean +- t(0.975, n - 1) s / sqrt(n)

and the power of a paired t-test for a true difference d, by the noncentral t distribution (Cohen
1988), is P(|T| > t(0.975, n - 1)) with n - 1 degrees of freedom and the noncentrality d sqrt(n) / s.
T^2 has the noncentral F distribution with 1 and n - 1 degrees of freedom, which is used here: SciPy
returns nan for the lower tail of T where that is almost 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

from scipy import stats

K = TypeVar("K")
SURE = 0.05
ROUNDING = 1e-9
"""Standard deviation of differences that are equal but for rounding. SciPy may return nan for it."""


def half_width(differences: Sequence[float]) -> float:
    """Return half the confidence interval of the mean; infinite for a single difference."""
    count = len(differences)
    if count < 2:
        return math.inf
    quantile = float(stats.t.ppf(1 - SURE / 2, count - 1))
    return quantile * statistics.stdev(differences) / math.sqrt(count)


def power(spread: float, count: int, resolved: float) -> float:
    """Return the probability that a t-test finds a difference of `resolved`.

    `spread`: standard deviation of the differences; `count`: number of pairs.
    """
    if count < 2:
        return 0.0
    if spread <= ROUNDING:
        return 1.0
    free, shift = count - 1, resolved / spread * math.sqrt(count)
    limit = stats.t.ppf(1 - SURE / 2, free)
    return float(stats.ncf.sf(limit**2, 1, free, shift**2))


def power_of(differences: Sequence[float], resolved: float) -> float:
    if len(differences) < 2:
        return 0.0
    return power(statistics.stdev(differences), len(differences), resolved)


def least_certain(
    found: Mapping[K, Sequence[float]], resolved: float, sure: float, most: int
) -> K | None:
    """Return the key with the widest confidence interval; None if each has a power of `sure` for a
    difference of `resolved`, or `most` differences.
    """
    open_ = {
        key: half_width(each)
        for key, each in found.items()
        if len(each) < most and power_of(each, resolved) < sure
    }
    return max(open_, key=lambda key: open_[key], default=None)


def describe(differences: Sequence[float]) -> str:
    """Return mean, standard deviation and number: `+0.12 points, standard deviation 0.30, n = 3`."""
    spread = f"{statistics.stdev(differences):.2f}" if len(differences) > 1 else "-"
    mean = f"{statistics.fmean(differences):+.2f}" if differences else "-"
    return f"{mean} points, standard deviation {spread}, n = {len(differences)}"
