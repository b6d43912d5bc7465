"""Is a resize worth its pause?

    remaining  = total_samples - samples                       [examples]
    v          = samples/s at the present size, v' at the new one
    saved      = remaining / v - remaining / v'                [s]
    cost       = mean of this job's last hand-overs' pauses    [s]; a setting until one was measured
    it pays    <=>  saved > payback_factor * cost

An example counts with its worth in a batch of that size (`contract.sample_worth`). If the policy
predicts a speedup, v' is that times v, and v is the policy's own figure. Otherwise v and v' are
observed speeds; for a size that was never observed, v' is the speed at the nearest number of
workers, scaled linearly in workers. A job without a report has all its work before it, so growth is
assumed to pay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from services.allocator.models.fitting import SPEEDS
from services.allocator.policies.contract import JobSnapshot, Observed, Size
from services.allocator.settings import Rules
from shared.text import format_payback


class Payback(msgspec.Struct, frozen=True):
    """The result for one resize. `left_s`: the time (s) that the job still trains at its present
    size.
    """

    saved_s: float
    cost_s: float
    pays: bool
    left_s: float = math.inf

    def describe(self) -> str:
        return format_payback(self.saved_s, self.cost_s, fine=True)


def payback_of(
    job: JobSnapshot,
    new: Size,
    batch: int,
    rules: Rules,
    faster: float | None = None,
    speed_now: float | None = None,
) -> Payback:
    """Return the payback of a resize. `faster`: the speedup that the policy predicts; `speed_now`:
    the speed that it is relative to, so that the reason and the saving agree.
    """
    speed_before = None
    if job.size:
        speed_before = _learning_speed(job, job.size, job.batch)
    if speed_before and faster:
        speed_before = speed_now or speed_before
        speed_after: float | None = speed_before * faster
    else:
        speed_after = _learning_speed(job, new, batch)
    return _payback_of_speeds(
        job, rules, _credible_speed(speed_before), _credible_speed(speed_after)
    )


def _payback_of_speeds(
    job: JobSnapshot, rules: Rules, speed_before: float | None, speed_after: float | None
) -> Payback:
    """Return the payback from the samples a second now and at the new size; None: not known."""
    cost = cost_s(job, rules)
    if job.progress is None or speed_before is None or speed_after is None:
        return Payback(0.0, cost, pays=True)
    remaining = max(0, job.progress.total_samples - job.progress.samples)
    left_s = remaining / speed_before
    saved = left_s - remaining / speed_after
    pays = saved > rules.payback_factor * cost
    return Payback(saved, cost, pays, left_s)


def _credible_speed(speed: float | None) -> float | None:
    """Return the speed; None if it is not credible."""
    if speed is None or not SPEEDS[0] <= speed <= SPEEDS[1]:
        return None
    return speed


def cost_s(job: JobSnapshot, rules: Rules) -> float:
    """Return the expected pause (s) of this job."""
    return rules.pause_default_s if job.pause_s is None else job.pause_s


def _learning_speed(job: JobSnapshot, size: Size, batch: int) -> float | None:
    """Return the samples a second at a size, each counted with its worth."""
    found = observed_speed(job.observed, size, batch)
    if not found:
        return found
    return found * job.worth(batch)


def observed_speed(observed: Sequence[Observed], size: Size, batch: int) -> float | None:
    """Return the samples a second at a size: observed, or scaled from the nearest observed size."""
    if not observed:
        return None

    def distance(point: Observed) -> tuple[int, int, int]:
        workers = abs(point.workers - size.workers)
        return workers, abs(point.ps - size.ps), abs(point.batch - batch)

    near = min(observed, key=distance)
    return near.samples_per_second * size.workers / near.workers
