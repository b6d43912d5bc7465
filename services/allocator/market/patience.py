"""Until when a job that waits may be overtaken by shorter ones.

Shortest first has the smallest mean completion time, and lets long jobs wait for very long. First come, first served
does not, and says how long is long: had it been the rule so far, job a would be through after

    F_a = (now - a) + R(a) - W(a)       [s]

from its submission at a on, where R(a) is what remains of the jobs submitted until then and W(a) what was done
of those submitted later, both in seconds of the whole cluster. `LENGTH` times the `SHARE` quantile of F over the
jobs there are is the limit: who would otherwise end later than that goes first, most urgent first. Exempt are those
that cannot end in time any more, and the few largest (above the `SHARE` quantile of what remains): they would cost
everybody else most.

Ours; the rule is that of the Fair Sojourn Protocol (Friedman and Henderson, SIGMETRICS 2003) with first come, first
served in place of equal shares. Constants were chosen on random lists of jobs, not on the benchmark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.allocator.models.speed import Array

LENGTH = 1.2
SHARE = 0.95
NEAR = 0.125
"""Who has less left than this share of the limit is urgent; who is later than twice so much is given up."""
FEWEST = 20
"""Among fewer jobs nobody is large enough to be exempt."""


class Stays(NamedTuple):
    """Jobs, an entry each. `left_s`, `done_s`: work in seconds of the whole cluster; `alone_s`: how long it takes at
    its least size.
    """

    asked_s: Array
    left_s: Array
    done_s: Array
    alone_s: Array
    waits: NDArray[np.bool_]


def urgent(stays: Stays, ended: Sequence[tuple[float, float]], now: float) -> list[int]:
    """Those that wait and must not be overtaken any more, most urgent first. `ended`: (asked_s, its work) of others."""
    if not stays.waits.any():
        return []
    limit = LENGTH * float(np.quantile(through_s(stays, ended, now), SHARE))
    large = float(np.quantile(stays.left_s, SHARE)) if len(stays.left_s) >= FEWEST else np.inf
    slack = stays.asked_s + limit - stays.alone_s - now
    late = stays.waits & (stays.left_s <= large) & (slack > -2 * NEAR * limit) & (slack <= NEAR * limit)
    found = np.flatnonzero(late)
    return [int(n) for n in found[np.argsort(slack[found], kind="stable")]]


def through_s(stays: Stays, ended: Sequence[tuple[float, float]], now: float) -> Array:
    """F of each."""
    order = np.argsort(stays.asked_s, kind="stable")
    remaining = np.cumsum(stays.left_s[order])
    at = np.concatenate([stays.asked_s, [asked_s for asked_s, _ in ended]])
    done = np.concatenate([stays.done_s, [work for _, work in ended]])
    by_time = np.argsort(at, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(done[by_time])])
    later = total[-1] - total[np.searchsorted(at[by_time], stays.asked_s[order], side="right")]
    found = np.empty(len(order))
    found[order] = now - stays.asked_s[order] + remaining - later
    return found
