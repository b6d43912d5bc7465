"""Until when a job that waits may be overtaken by shorter ones.

Shortest first has the smallest mean completion time, and lets long jobs wait for very long. First
come, first served does not, and says how long is long: had it been the rule so far, job j, asked
for at a_j, of work w_j, would be through

    F_j = C_j - a_j + (k - 1) w_j       C_j = max(C_(j-1), a_j) + w_j       [s]

after that, with w in seconds of the whole cluster at its best use, the pause of its start at its
least size among them, C by Lindley's recursion, and k the times that a job's least size takes
longer (the median of those there are). So F knows of no pause but the first. A job grows by one,
and shrinks again by another, so stays are as much longer:

    limit = LENGTH x the SHARE quantile of F x (1 + PAUSES x pause / alone)                      [s]

F over all jobs there are and were, and over half as many to come; pause and alone the medians of
what one costs, and of how long a job takes at its least size. Who would otherwise end later goes
first, most urgent first. Exempt are those that cannot end in time any more, and the few largest of
all (above the `SHARE` quantile of w): they would cost everybody else most.

Ours; the rule is that of the Fair Sojourn Protocol (Friedman and Henderson, SIGMETRICS 2003) with
first come, first served in place of equal shares.

What a change costs each job, in seconds for which it stands still, before it has paused for the
first time, too.

As its own pauses were measured; before that as those of its program's other jobs, which have as
much to copy; before that as the median program's; before anybody has paused, `PAUSE_S`. (Where
nobody knew better than `PAUSE_S`, each job had to pause once for long to learn that it had better
not.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.allocator.models.speed import Array
from services.allocator.policies.contract import PAUSE_S

LIMIT_FACTOR = 0.88
QUANTILE = 0.95
URGENT_SHARE = 0.125
"""Who has less left than this share of the limit is urgent; who is later than twice so much is
given up.
"""
RECURRING_SHARE = 0.5
"""Of the jobs so far, what share is taken to come again, while jobs keep coming."""
QUIET_GAPS = 5.0
"""Jobs have ceased to come when nobody has for so many times the usual gap."""
EXEMPTION_JOBS = 20
"""Among fewer jobs nobody is large enough to be exempt."""


class SojournInputs(NamedTuple):
    """Jobs, an entry each. `left_s`, `done_s`: work in seconds of the whole cluster, its start
    included; `alone_s`: how long it takes at its least size; `pause_s`: what a pause costs it.
    """

    asked_s: Array
    left_s: Array
    done_s: Array
    alone_s: Array
    waits: NDArray[np.bool_]
    pause_s: Array


def overdue_jobs(stays: SojournInputs, asked_s: Array, work_s: Array, now: float) -> list[int]:
    """Those that wait and must not be overtaken any more, most urgent first. `asked_s`, `work_s`:
    of `everybody`.
    """
    if not stays.waits.any():
        return []
    limit = LIMIT_FACTOR * typical_sojourn_s(stays, asked_s, work_s, now) * pause_stretch(stays)
    large = float(np.quantile(work_s, QUANTILE)) if len(work_s) >= EXEMPTION_JOBS else np.inf
    slack = stays.asked_s + limit - stays.alone_s - now
    exempt = stays.left_s + stays.done_s > large
    late = (
        stays.waits
        & ~exempt
        & (slack > -2 * URGENT_SHARE * limit)
        & (slack <= URGENT_SHARE * limit)
    )
    found = np.flatnonzero(late)
    return [int(n) for n in found[np.argsort(slack[found], kind="stable")]]


def all_arrivals(stays: SojournInputs, ended: Sequence[tuple[float, float]]) -> tuple[Array, Array]:
    """When each job was asked for that there is or was, and its whole work, by time. `ended`: that
    of others.
    """
    asked_s = np.concatenate([stays.asked_s, [at for at, _ in ended]])
    work_s = np.concatenate([stays.left_s + stays.done_s, [work for _, work in ended]])
    order = np.argsort(asked_s, kind="stable")
    return asked_s[order], work_s[order]


def typical_sojourn_s(stays: SojournInputs, asked_s: Array, work_s: Array, now: float) -> float:
    """The `SHARE` quantile of F, of the jobs so far and of those to come."""
    if future_work_s(asked_s, work_s, now) > 0:
        again = asked_s <= asked_s[0] + RECURRING_SHARE * (now - asked_s[0])
        asked_s = np.concatenate([asked_s, asked_s[again] + (now - asked_s[0])])
        work_s = np.concatenate([work_s, work_s[again]])
    times = float(np.median(stays.alone_s / stays.left_s))
    return float(np.quantile(fcfs_sojourn_s(asked_s, work_s) + (times - 1) * work_s, QUANTILE))


def pause_stretch(stays: SojournInputs) -> float:
    """Return how many times longer jobs take with their pauses."""
    alone_s = float(np.median(stays.alone_s))
    return 1.0 + PAUSES * float(np.median(stays.pause_s)) / alone_s if alone_s > 0 else 1.0


def fcfs_sojourn_s(asked_s: Array, work_s: Array) -> Array:
    """From submission to the end, had it been first come, first served, each with the whole cluster
    (Lindley 1952).
    """
    done = np.cumsum(work_s)
    return np.asarray(done + np.maximum.accumulate(asked_s - (done - work_s)) - asked_s)


def future_work_s(asked_s: Array, work_s: Array, now: float) -> float:
    """Work that will yet be asked for, in seconds of the whole cluster: as much as was so far,
    while jobs keep coming.

    They do, until nobody has come for `QUIET` times the usual gap. (What has gone on for long will
    go on for as long: Gott, Nature 363, 1993.)
    """
    comings = np.count_nonzero(np.diff(asked_s))  # after the first; who comes together, counts once
    gap_s = (asked_s[-1] - asked_s[0]) / max(1, comings)
    return float(work_s.sum()) if now - asked_s[-1] <= QUIET_GAPS * gap_s else 0.0


Ints = NDArray[np.int64]

PAUSES = 2.0
"""Where a job's steps go to another, so many jobs pause; and so often does who grows, and shrinks
again.
"""
PAUSED_TO_GROW = 2.0
"""A job has just paused while that was more than so many times what it would gain since by
growing.
"""


def settled_at_s(since_s: Array | float, paused_s: Array | float, gain: Array | float) -> Array:
    """When a job's last pause, of `paused_s`, will have been no more than a share of its time
    since; the first one is free. The share goes by `gain`: what growing would save, of its time.
    """
    return np.asarray(since_s + paused_s / np.maximum(PAUSED_TO_GROW * gain, 1e-6))


def estimate_pauses(own_s: Array, programs: Ints, kin_s: Array) -> Array:
    """Return the pause of each job [jobs].

    `own_s`: the mean of its own, `kin_s`: of its program's jobs that are over (nan: none);
    `programs`: the number of its program.
    """
    unknown = np.isnan(own_s)
    if not unknown.any():
        return own_s
    # The mean of each program: of its jobs that paused, and of those that are over as one more.
    count = int(programs.max()) + 1
    paused = programs[~unknown]
    sums = np.bincount(paused, weights=own_s[~unknown], minlength=count)
    numbers = np.bincount(paused, minlength=count).astype(np.float64)
    over = np.full(count, np.nan)
    has_kin = ~np.isnan(kin_s)
    over[programs[has_kin]] = kin_s[has_kin]
    sums = sums + np.nan_to_num(over)
    numbers += ~np.isnan(over)
    known = numbers > 0
    means = np.full(count, PAUSE_S)
    means[known] = sums[known] / numbers[known]
    means[~known] = np.median(means[known]) if known.any() else PAUSE_S
    return np.where(unknown, means[programs], own_s)
