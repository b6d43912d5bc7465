"""Which jobs wait for capacity, since when, and how much of it they need. Pure.

A job waits that has no tasks. So does one that stands still because it lost some, as long as they are not replaced: it
keeps the others, and what they hold does not come free before it has gone on.
"""

from __future__ import annotations

from services.allocator import exits
from services.allocator.job import Job
from services.allocator.placing.placement import Size
from services.allocator.seen import least_of, size_of
from shared.messages import TaskPlan


def waits(job: Job) -> bool:
    if job.cancelled:
        return False
    return job.wanted is None or has_lost_tasks(job)


def has_lost_tasks(job: Job) -> bool:
    """Whether it stands still because of that, and nothing is done about it yet."""
    if not job.exits or job.runs is None or job.coming is not None or not job.stands_still:
        return False
    return not any(task.role == "chief" and exits.completed(job.exit_of(task)) for task in job.runs.tasks)


def since_s(job: Job) -> float:
    """When it began to wait: where it lost tasks, when the last one of them ended."""
    ends = [ended.at_s for task in (job.wanted.tasks if job.wanted else ()) if (ended := job.exit_of(task))]
    return max(ends, default=job.waiting_since_s)


def staying(job: Job) -> tuple[TaskPlan, ...]:
    """Those of its tasks that have not ended."""
    return tuple(task for task in job.wanted.tasks if job.exit_of(task) is None) if job.wanted else ()


def smallest(job: Job) -> Size:
    """The gang floor, or less where it runs with less."""
    floor = Size(job.request.ps.min, job.request.workers.min)
    return least_of(job, size_of(job.wanted)) if job.wanted else floor
