"""The conditions for a change of size: it stays wanted for long enough (stabilisation), and it is
worth its pause (payback).

    due        = max(resumed + cooldown, min(since + window, first + max_delay))

`since`: start of this same change; `first`: start of any change. A change must stay the same for
the window. A change that keeps moving is due after the maximum delay. The cooldown keeps every job
undisturbed after a pause; it does not apply to changes without a pause. After an abandoned
generation: wait `backoff`, twice as long each time in a row, at most `backoff_max`.

    remaining  = total_samples - samples                       [examples]
    v          = samples/s at the present size, v' at the new one
    saved      = remaining / v - remaining / v'                [s]
    cost       = mean of this job's last hand-overs' pauses    [s]; a setting until one was measured
    it pays    <=>  saved > payback_factor * cost

An example counts with its worth at that size and batch (`contract.sample_worth`): less in a larger
batch, and less by a stale gradient. If the policy
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
from services.allocator.state.job import Job
from shared.messages import RoleResources
from shared.text import format_payback

# ---------------------------------------------------------------- stabilisation


class PendingChange(msgspec.Struct, frozen=True):
    """A change that is wanted, but not decided."""

    size: Size
    batch: int
    first_s: float
    since_s: float
    cause: str = "-"
    sizes: RoleResources | None = None
    """Of the tasks; None: as they are."""
    awaits_s: float | None = None
    """The time (s) since which it waits for capacity that is being released; None: it never did."""


def update_pending_change(
    before: PendingChange | None,
    size: Size,
    batch: int,
    now: float,
    cause: str,
    sizes: RoleResources | None = None,
) -> PendingChange:
    """Return the same pending change if it is unchanged, or a new one that begins now."""
    if before is None:
        return PendingChange(size, batch, now, now, cause, sizes)
    if (before.size, before.batch, before.sizes) == (size, batch, sizes):
        return before
    return PendingChange(size, batch, before.first_s, now, cause, sizes, before.awaits_s)


def change_due_s(change: PendingChange, resumed_s: float, rules: Rules) -> float:
    """Return the earliest time (s) for a pending change to become a decision."""
    return max(stabilised_s(change, rules), resumed_s + rules.cooldown_s)


def stabilised_s(change: PendingChange, rules: Rules) -> float:
    """Return the time (s) at which a pending change has been stable for long enough."""
    return min(change.since_s + rules.window_s, change.first_s + rules.max_delay_s)


def retry_s(job: Job, rules: Rules) -> float:
    """Return the time (s) until which nothing is tried again after an abandoned generation."""
    if not job.abandonments:
        return -math.inf
    wait = rules.backoff_s * 2.0 ** min(job.abandonments - 1, 30)
    return job.abandoned_s + min(wait, rules.backoff_max_s)


# ---------------------------------------------------------------- payback


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
    return found * job.worth(batch, size)


def observed_speed(observed: Sequence[Observed], size: Size, batch: int) -> float | None:
    """Return the samples a second at a size: observed, or scaled from the nearest observed size."""
    if not observed:
        return None

    def distance(point: Observed) -> tuple[int, int, int]:
        workers = abs(point.workers - size.workers)
        return workers, abs(point.ps - size.ps), abs(point.batch - batch)

    near = min(observed, key=distance)
    return near.samples_per_second * size.workers / near.workers
