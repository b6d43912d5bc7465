"""The time limit for overtaking a waiting job, and the cost of a pause.

Shortest job first has the smallest mean completion time, but lets long jobs wait for very long.
First come, first served does not, and so gives a limit. Under first come, first served, job j of
work w_j, submitted at a_j, would have the sojourn time

    F_j = C_j - a_j + (k - 1) w_j       C_j = max(C_(j-1), a_j) + w_j       [s]

Here w is in seconds of the whole cluster at its best use and includes the pause of the job's start.
C follows Lindley's recursion. k is how many times longer a job takes at its least size (the median
of the present jobs). F includes no later pause, but a job grows by one pause and shrinks by
another, so the limit is longer:

    limit = LIMIT_FACTOR x the QUANTILE of F x (1 + PAUSES x pause / alone)                      [s]

F is taken over all present and past jobs, and over half as many to come; pause and alone are the
medians of the cost of a pause, and of the time that a job takes at its least size. Jobs that would
end later than the limit go first, the most urgent first. Exempt are jobs that cannot end in time
any more, and the few largest (above the `QUANTILE` of w): these would cost the others most.

Ours; the rule is that of the Fair Sojourn Protocol (Friedman and Henderson, SIGMETRICS 2003) with
first come, first served in place of equal shares.

`estimate_pauses` gives the pause (s) of each job: the mean of its own measured pauses; without any,
the mean of its program's other jobs, because they copy as much; without those, that of the median
program; else `PAUSE_S`. (With `PAUSE_S` alone, each job had to pause once to learn that pauses are
long.)
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
"""A job with less time left than this share of the limit is urgent; one that is late by more than
twice this share is given up.
"""
RECURRING_SHARE = 0.5
"""The share of the jobs so far that is taken to come again, while jobs keep coming."""
QUIET_GAPS = 5.0
"""Jobs have ceased to come if none came for this many usual gaps."""
EXEMPTION_JOBS = 20
"""With fewer jobs, none is large enough to be exempt."""


class SojournInputs(NamedTuple):
    """Jobs, an entry each. `left_s`, `done_s`: work in seconds of the whole cluster, its start
    included; `alone_s`: how long it takes at its least size; `pause_s`: the cost of a pause.
    """

    asked_s: Array
    left_s: Array
    done_s: Array
    alone_s: Array
    waits: NDArray[np.bool_]
    pause_s: Array


def overdue_jobs(sojourn: SojournInputs, asked_s: Array, work_s: Array, now: float) -> list[int]:
    """Return the waiting jobs that must not be overtaken any more, most urgent first.

    `asked_s`, `work_s`: of `all_arrivals`.
    """
    if not sojourn.waits.any():
        return []
    typical_s = typical_sojourn_s(sojourn, asked_s, work_s, now)
    limit_s = LIMIT_FACTOR * typical_s * pause_stretch(sojourn)
    large_s = np.inf
    if len(work_s) >= EXEMPTION_JOBS:
        large_s = float(np.quantile(work_s, QUANTILE))
    exempt = sojourn.left_s + sojourn.done_s > large_s
    slack_s = sojourn.asked_s + limit_s - sojourn.alone_s - now
    urgent = slack_s <= URGENT_SHARE * limit_s
    given_up = slack_s <= -2 * URGENT_SHARE * limit_s
    overdue = np.flatnonzero(sojourn.waits & ~exempt & urgent & ~given_up)
    most_urgent_first = np.argsort(slack_s[overdue], kind="stable")
    return list(overdue[most_urgent_first].tolist())


def all_arrivals(
    sojourn: SojournInputs, ended: Sequence[tuple[float, float]]
) -> tuple[Array, Array]:
    """Return submission times and whole work of all present and past jobs, by time.

    `ended`: those of past jobs.
    """
    asked_s = np.concatenate([sojourn.asked_s, [at for at, _ in ended]])
    work_s = np.concatenate([sojourn.left_s + sojourn.done_s, [work for _, work in ended]])
    order = np.argsort(asked_s, kind="stable")
    return asked_s[order], work_s[order]


def typical_sojourn_s(sojourn: SojournInputs, asked_s: Array, work_s: Array, now: float) -> float:
    """Return the `QUANTILE` of F, of the jobs so far and of those to come."""
    if future_work_s(asked_s, work_s, now) > 0:
        again = asked_s <= asked_s[0] + RECURRING_SHARE * (now - asked_s[0])
        asked_s = np.concatenate([asked_s, asked_s[again] + (now - asked_s[0])])
        work_s = np.concatenate([work_s, work_s[again]])
    times = float(np.median(sojourn.alone_s / sojourn.left_s))
    sojourn_s = fcfs_sojourn_s(asked_s, work_s) + (times - 1) * work_s
    return float(np.quantile(sojourn_s, QUANTILE))


def pause_stretch(sojourn: SojournInputs) -> float:
    """Return how many times longer jobs take with their pauses."""
    alone_s = float(np.median(sojourn.alone_s))
    pause_s = float(np.median(sojourn.pause_s))
    return 1.0 + PAUSES * pause_s / alone_s if alone_s > 0 else 1.0


def fcfs_sojourn_s(asked_s: Array, work_s: Array) -> Array:
    """Return the sojourn times under first come, first served, each job with the whole cluster
    (Lindley 1952).
    """
    done = np.cumsum(work_s)
    return np.asarray(done + np.maximum.accumulate(asked_s - (done - work_s)) - asked_s)


def future_work_s(asked_s: Array, work_s: Array, now: float) -> float:
    """Return the work of jobs to come, in seconds of the whole cluster: as much as so far, while
    jobs keep coming.

    They keep coming until none came for `QUIET_GAPS` times the usual gap. (A process that has
    lasted long will last as long again: Gott, Nature 363, 1993.)
    """
    arrivals = np.count_nonzero(
        np.diff(asked_s)
    )  # after the first; jobs that arrive together count once
    gap_s = (asked_s[-1] - asked_s[0]) / max(1, arrivals)
    return float(work_s.sum()) if now - asked_s[-1] <= QUIET_GAPS * gap_s else 0.0


Ints = NDArray[np.int64]

PAUSES = 2.0
"""The number of pauses when steps move from one job to another, or when a job grows and shrinks
again.
"""
PAUSED_TO_GROW = 2.0
"""A job counts as settled once its last pause is at most this many times what growth would have
saved it since then.
"""


def settled_at_s(since_s: Array | float, paused_s: Array | float, gain: Array | float) -> Array:
    """Return the time when a job's last pause is repaid; the first pause is free.

    `gain`: the share of its time that growth would save.
    """
    return np.asarray(since_s + paused_s / np.maximum(PAUSED_TO_GROW * gain, 1e-6))


def estimate_pauses(own_s: Array, programs: Ints, history_s: Array) -> Array:
    """Return the pause of each job [jobs].

    `own_s`: the mean of the job's own pauses, `history_s`: that of its program's jobs that are over
    (nan: none); `programs`: the number of its program.
    """
    unknown = np.isnan(own_s)
    if not unknown.any():
        return own_s
    # The mean of each program: of its jobs that paused, and of those that are over as one more.
    count = int(programs.max()) + 1
    paused = programs[~unknown]
    sums = np.bincount(paused, weights=own_s[~unknown], minlength=count)
    numbers = np.bincount(paused, minlength=count).astype(np.float64)
    ended_s = np.full(count, np.nan)
    has_history = ~np.isnan(history_s)
    ended_s[programs[has_history]] = history_s[has_history]
    sums = sums + np.nan_to_num(ended_s)
    numbers += ~np.isnan(ended_s)
    known = numbers > 0
    means = np.full(count, PAUSE_S)
    means[known] = sums[known] / numbers[known]
    means[~known] = np.median(means[known]) if known.any() else PAUSE_S
    return np.where(unknown, means[programs], own_s)
