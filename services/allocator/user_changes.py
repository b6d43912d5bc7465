"""What a user changed of a running job: it is suspended until he resumes it, or its size is taken into its new bounds.

A suspended job drains, saves and gives all that it has back, as one that gives way does (`preemption.py`). It waits for
nothing, so no capacity is reserved for it, until its user resumes it; then it waits as of that moment. A job larger
than its new bounds shrinks at once; one that is smaller grows as soon as there is room for it. Neither has to pay: it
was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.allocator.job import Job
from services.allocator.kept import Kept
from services.allocator.placing.placement import Room, place
from services.allocator.placing.resizing import wanted_sizes
from services.allocator.policies.contract import Size
from services.allocator.preemption import decide_tasks
from services.allocator.rules import Rules
from services.allocator.seen import size_of
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict
from shared.messages import Span

SUSPENDED = "suspended by its user; `weir resume` lets it go on"
SUSPENDS = "suspended by its user: saves, and goes on after `weir resume`"

Jobs = Mapping[str, Job]


def _without_suspended(jobs: Jobs) -> Jobs:
    if not any(job.suspended_by_user for job in jobs.values()):
        return jobs
    return {key: job for key, job in jobs.items() if not job.suspended_by_user}


not_suspended: Kept[Jobs, Jobs] = Kept(_without_suspended, 8)
"""The jobs that their users have not suspended: only they are given a size."""


def suspend(job: Job, now: float, rules: Rules, cause: str) -> Verdict | None:
    """Take the tasks of a job that its user suspended; None: there is nothing to take now, or it was not suspended."""
    if not job.suspended_by_user:
        return None
    if job.wanted is None:
        return Verdict(why=SUSPENDED)
    if job.coming is not None or job.is_trained:
        return None
    return decide_tasks(job, (), SUSPENDS, now, rules, cause)


def fit_into_bounds(job: Job, room: Room, now: float, rules: Rules, cause: str) -> Verdict | None:
    """Take the size of a job into the bounds that its user changed; None: it is within them, or has to wait."""
    runs = job.runs
    if not job.changed or runs is None or job.coming is not None or job.is_trained or now < retry_s(job, rules):
        return None
    size = size_of(runs)
    wanted = Size(_inside(size.ps, job.request.ps), _inside(size.workers, job.request.workers))
    if size == wanted:
        return None
    tasks = place(room, job.key, runs.tasks, wanted, wanted_sizes(job, None, rules), job.serials)
    if tasks is None:
        return None
    return decide_tasks(job, tasks, f"its bounds were changed: {wanted.told()}", now, rules, cause)


def _inside(number: int, span: Span) -> int:
    return max(span.min, min(number, span.max))
