"""The time for which a job could not have trained because its whole cluster was off: that is no
pause of a hand-over. Pure.

    off = the decision that gives it new tasks
          - the end of the last task that was shut down with the cluster   [s]

A cluster that goes on decides at once, so of a job that lost one node of many nearly nothing of its
pause is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.allocator.exits import SHUT_DOWN
from services.allocator.job import Job
from shared.messages import TaskPlan


def off_s(job: Job, now: float) -> float:
    """Return the time (s) that a decision of now names. A decision that overtakes one in flight
    names the same time.
    """
    if job.flies is not None and job.flies.off_s:
        return job.flies.off_s
    if job.suspended_s:
        return max(now - job.suspended_s, 0.0)
    if job.runs is None or not job.stands_still:
        return 0.0
    shut_down_s = _last_shut_down_s(job, job.runs.tasks)
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
