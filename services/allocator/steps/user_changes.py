"""Apply the changes that a user makes to a running job: suspend it, or fit it into new bounds.

A suspended job drains, saves and gives back all its capacity, as a job that gives way
(`preemption.py`). It waits for nothing, so no capacity is reserved for it. After the user resumes
it, it waits as of that moment. A job above its new bounds shrinks at once; a job below them grows
as soon as there is room. Neither change has to pay, because the user asked for it.
"""

from __future__ import annotations

from services.allocator.placement.trial import Shortage
from services.allocator.policies.contract import Size
from services.allocator.state.policy_view import size_of
from services.allocator.steps.preemption import decide_tasks
from services.allocator.steps.resize_conditions import retry_s
from services.allocator.steps.verdict import Situation, Verdict
from shared.messages import JobRequested, Span

SUSPENDED = "suspended by its user; `weir resume` continues it"
SUSPENDS = "suspended by its user: saves, and continues after `weir resume`"


def suspend(situation: Situation) -> Verdict | None:
    """Take the tasks of a job that its user suspended; None: there is nothing to take now, or it
    was not suspended.
    """
    job = situation.job
    if not job.suspended_by_user:
        return None
    if situation.newest is None:
        return Verdict(why=SUSPENDED)
    if job.pending_generation is not None or job.is_trained:
        return None
    return decide_tasks(situation, (), SUSPENDS)


def fit_into_bounds(situation: Situation) -> Verdict | None:
    """Take the size of a job into the bounds that its user changed; None: it is within them, or has
    to wait.
    """
    job, current = situation.job, situation.current
    if not job.changed or current is None or job.pending_generation is not None or job.is_trained:
        return None
    if situation.now < retry_s(job, situation.settings):
        return None
    size = size_of(current)
    wanted = _inside_bounds(size, job.request)
    if size == wanted:
        return None
    trial = situation.trial(current.tasks, wanted)
    if isinstance(trial, Shortage):
        return None
    return decide_tasks(situation, trial.tasks, f"its bounds were changed: {wanted.describe()}")


def _inside_bounds(size: Size, request: JobRequested) -> Size:
    """Return the size within the bounds of the request that is nearest to this one."""
    ps = _inside(size.ps, request.ps)
    workers = _inside(size.workers, request.workers)
    return Size(ps, workers)


def _inside(number: int, span: Span) -> int:
    return max(span.min, min(number, span.max))
