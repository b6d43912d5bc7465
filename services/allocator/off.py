"""For how long a job could not have trained because its whole cluster was off: that is no pause of a hand-over. Pure.

    off = the decision that gives it new tasks - the end of the last task that was shut down with the cluster   [s]

A cluster that goes on decides at once, so of a job that lost one node of many nearly nothing of its pause is left out.
"""

from __future__ import annotations

from services.allocator.exits import SHUT_DOWN
from services.allocator.job import Job


def off_s(job: Job, now: float) -> float:
    """To be told with a decision of now; what was told already goes on with whatever overtakes it."""
    if job.flies is not None and job.flies.off_s:
        return job.flies.off_s
    if job.suspended_s:
        return max(now - job.suspended_s, 0.0)
    ends = [job.exit_of(task) for task in job.runs.tasks] if job.runs and job.stands_still else []
    shut = [end.at_s for end in ends if end and end.reason in SHUT_DOWN]
    return max(now - max(shut), 0.0) if shut else 0.0
