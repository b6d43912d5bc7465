"""Jobs that wait for capacity: since when, and how much of it they need. Pure.

A job waits that has no tasks. So does one that stands still because it lost some, as long as they
are not replaced: it keeps the others, and what they hold does not come free before it has gone on.
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
    if job.running is None and job.coming is None:
        return True
    return has_lost_tasks(job)


def has_lost_tasks(job: Job) -> bool:
    """Return whether a job stands still because it lost tasks, and no decision replaces them
    yet.
    """
    if not job.exits or job.runs is None or job.coming is not None or not job.stands_still:
        return False
    chiefs = [task for task in job.runs.tasks if task.role == "chief"]
    return not any(exits.completed(job.exit_of(chief)) for chief in chiefs)


def since_s(job: Job) -> float:
    """Return when (s) a job began to wait: at its submission or suspension, or when its last lost
    task ended.
    """
    if not job.exits or job.wanted is None:
        return job.waiting_since_s
    ends_s = []
    for task in job.wanted.tasks:
        ended = job.exit_of(task)
        if ended:
            ends_s.append(ended.at_s)
    return max(ends_s, default=job.waiting_since_s)


def staying(job: Job) -> tuple[TaskPlan, ...]:
    """Return the tasks of a job that have not ended."""
    wanted = job.wanted
    if wanted is None:
        return ()
    if not job.exits:
        return wanted.tasks
    return tuple([task for task in wanted.tasks if job.exit_of(task) is None])


def smallest(job: Job) -> Size:
    """Return the smallest size of a job: its gang floor, or less if it runs with less."""
    if job.wanted is None:
        return Size(job.request.ps.min, job.request.workers.min)
    return least_of(job, size_of(job.wanted))
