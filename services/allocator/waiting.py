"""Jobs that wait for capacity: since when, and how much of it they need. Pure.

A job waits that has no tasks. So does one that stands still because it lost some, as long as they are not replaced: it
keeps the others, and what they hold does not come free before it has gone on.
"""

from __future__ import annotations

from services.allocator import exits
from services.allocator.job import Job
from services.allocator.policies.contract import Size
from services.allocator.seen import least_of, size_of
from shared.messages import TaskPlan


def waits(job: Job) -> bool:
    """Return whether a job waits for capacity."""
    if job.cancelled or job.suspended_by_user:
        return False
    return job.wanted is None or has_lost_tasks(job)


def has_lost_tasks(job: Job) -> bool:
    """Return whether a job stands still because it lost tasks, and no decision replaces them yet."""
    if not job.exits or job.runs is None or job.coming is not None or not job.stands_still:
        return False
    return not any(task.role == "chief" and exits.completed(job.exit_of(task)) for task in job.runs.tasks)


def since_s(job: Job) -> float:
    """Return when (s) a job began to wait: at its submission or suspension, or when its last lost task ended."""
    wanted = job.wanted
    if wanted is None or not job.exits:
        return job.waiting_since_s
    ends = [ended.at_s for task in wanted.tasks if (ended := job.exit_of(task))]
    return max(ends, default=job.waiting_since_s)


def staying(job: Job) -> tuple[TaskPlan, ...]:
    """Return the tasks of a job that have not ended."""
    return tuple(task for task in job.wanted.tasks if job.exit_of(task) is None) if job.wanted else ()


def smallest(job: Job) -> Size:
    """Return the smallest size of a job: its gang floor, or less if it runs with less."""
    floor = Size(job.request.ps.min, job.request.workers.min)
    return least_of(job, size_of(job.wanted)) if job.wanted else floor
