"""Jobs that wait for capacity, and the downtime of a job.

A job waits if it has no tasks, or if it stands still because it lost tasks that are not replaced
yet. It keeps its other tasks; their capacity does not become free before the job continues.

    downtime = the decision that gives it new tasks
               - the end of the last task that was shut down with the cluster   [s]

Downtime is time in which the whole cluster was off. It is no part of a hand-over's pause. A cluster
that keeps running decides at once, so a job that lost one node of many has nearly no downtime.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.allocator.policies.contract import Size
from services.allocator.state import exits
from services.allocator.state.exits import SHUT_DOWN
from services.allocator.state.job import Job
from services.allocator.state.policy_view import shrink_floor, size_of
from shared.messages import TaskPlan


def is_waiting(job: Job) -> bool:
    """Return whether a job waits for capacity."""
    if job.cancelled or job.suspended_by_user:
        return False
    if job.running is None and job.pending_generation is None:
        return True
    return has_lost_tasks(job)


def has_lost_tasks(job: Job) -> bool:
    """Return whether a job stands still because it lost tasks, and no decision replaces them
    yet.
    """
    if (
        not job.exits
        or job.active_decision is None
        or job.pending_generation is not None
        or not job.stands_still
    ):
        return False
    chiefs = [task for task in job.active_decision.tasks if task.role == "chief"]
    return not any(exits.is_completed(job.exit_of(chief)) for chief in chiefs)


def waits_since_s(job: Job) -> float:
    """Return when (s) a job began to wait: at its submission or suspension, or when its last lost
    task ended.
    """
    if not job.exits or job.newest_decision is None:
        return job.waiting_since_s
    ends_s = []
    for task in job.newest_decision.tasks:
        ended = job.exit_of(task)
        if ended:
            ends_s.append(ended.at_s)
    return max(ends_s, default=job.waiting_since_s)


def remaining_tasks(job: Job) -> tuple[TaskPlan, ...]:
    """Return the tasks of a job that have not ended."""
    wanted = job.newest_decision
    if wanted is None:
        return ()
    if not job.exits:
        return wanted.tasks
    return tuple([task for task in wanted.tasks if job.exit_of(task) is None])


def smallest_size(job: Job) -> Size:
    """Return the smallest size of a job: its gang floor, or less if it runs with less."""
    if job.newest_decision is None:
        return Size(job.request.ps.min, job.request.workers.min)
    return shrink_floor(job, size_of(job.newest_decision))


def downtime_s(job: Job, now: float) -> float:
    """Return the time (s) that a decision of now names. A decision that overtakes one in flight
    names the same time.
    """
    if job.pending_decision is not None and job.pending_decision.off_s:
        return job.pending_decision.off_s
    if job.suspended_s:
        return max(now - job.suspended_s, 0.0)
    if job.active_decision is None or not job.stands_still:
        return 0.0
    shut_down_s = _last_shut_down_s(job, job.active_decision.tasks)
    if shut_down_s is None:
        return 0.0
    return max(now - shut_down_s, 0.0)


def _last_shut_down_s(job: Job, tasks: Iterable[TaskPlan]) -> float | None:
    """Return when (s) the last of the tasks was shut down with the cluster; None: none was."""
    last_s = None
    for task in tasks:
        end = job.exit_of(task)
        if end is not None and end.reason in SHUT_DOWN:
            last_s = end.at_s if last_s is None else max(last_s, end.at_s)
    return last_s
