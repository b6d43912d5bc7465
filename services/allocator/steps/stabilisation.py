"""The earliest time for a pending change to become a decision.

    due = max(resumed + cooldown, min(since + window, first + max_delay))

`since`: start of this same change; `first`: start of any change. A change must stay the same for
the window. A change that keeps moving is due after the maximum delay. The cooldown keeps every job
undisturbed after a pause; it does not apply to changes without a pause. After an abandoned
generation: wait `backoff`, twice as long each time in a row, at most `backoff_max`.
"""

from __future__ import annotations

import math

import msgspec

from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from shared.messages import RoleResources


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
