"""When may a wish become a decision?

    due = max(resumed + cooldown, min(since + window, first + max_delay))

`since`: this very wish has been held since then; `first`: some wish for a change has. So a wish
must hold still for the window, a wish that keeps moving is granted after the maximum delay, and
nobody is disturbed within the cooldown (which counts only for what costs a pause). After an
abandoned generation: wait `backoff`, twice as long each time in a row, up to `backoff_max`.
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
    """Since when it waits for capacity that is being released; None: it never did."""


def update_pending_change(
    before: PendingChange | None,
    size: Size,
    batch: int,
    now: float,
    cause: str,
    sizes: RoleResources | None = None,
) -> PendingChange:
    """The wish as it stands: the same one held on, or a new one since now."""
    if before is None:
        return PendingChange(size, batch, now, now, cause, sizes)
    if (before.size, before.batch, before.sizes) == (size, batch, sizes):
        return before
    return PendingChange(size, batch, before.first_s, now, cause, sizes, before.awaits_s)


def change_due_s(wish: PendingChange, resumed_s: float, rules: Rules) -> float:
    """Return the time (s) at which a wish may become a decision."""
    return max(stabilised_s(wish, rules), resumed_s + rules.cooldown_s)


def stabilised_s(wish: PendingChange, rules: Rules) -> float:
    """Return the time (s) from which a wish has been held for long enough."""
    return min(wish.since_s + rules.window_s, wish.first_s + rules.max_delay_s)


def retry_s(job: Job, rules: Rules) -> float:
    """Return the time (s) before which nothing is tried again after what was abandoned."""
    if not job.abandonments:
        return -math.inf
    wait = rules.backoff_s * 2.0 ** min(job.abandonments - 1, 30)
    return job.abandoned_s + min(wait, rules.backoff_max_s)
