"""The verdict of one pass about one job."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from services.allocator.job import Job
from services.allocator.off import off_s
from services.allocator.timing import Wish
from shared.messages import (
    LONGEST_S,
    MOST_MEASURED,
    AllocationDecided,
    Alternative,
    JobFinished,
    TaskPlan,
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something to say, or a reason to say nothing (and when to look again)."""

    why: str
    action: AllocationDecided | JobFinished | None = None
    wake_s: float | None = None
    wish: Wish | None = None


def decision(
    job: Job,
    tasks: Sequence[TaskPlan],
    batch: int,
    now: float,
    *,
    reason: str,
    cause: str,
    alternatives: Sequence[Alternative] = (),
    gain_s: float = 0.0,
    cost_s: float = 0.0,
) -> AllocationDecided:
    """The next decision about a job. Its generation rises only where tasks, nodes or batch
    change.
    """
    return AllocationDecided(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=job.next_generation if changes(job, tasks, batch) else job.generation,
        revision=job.revision + 1,
        request=job.request,
        tasks=tuple(tasks),
        batch=batch,
        reason=reason,
        alternatives=tuple(alternatives),
        gain_s=_told(gain_s),
        cost_s=_told(cost_s),
        cause=cause,
        off_s=min(off_s(job, now), LONGEST_S),
        checkpoint_folder=job.checkpoint_folder,
        decided_s=now,
    )


def _told(seconds: float) -> float:
    """JSON knows neither NaN nor infinity: of odd speeds nothing is said."""
    if not math.isfinite(seconds):
        return 0.0
    return max(-MOST_MEASURED, min(seconds, MOST_MEASURED))


def changes(job: Job, tasks: Sequence[TaskPlan], batch: int) -> bool:
    """Do these tasks differ from the newest decision's in more than their resources?"""
    newest = job.decided.get(job.generation)
    if newest is None or newest.batch != batch:
        return True
    return set(map(_who, newest.tasks)) != set(map(_who, tasks))


def _who(task: TaskPlan) -> tuple[str, int, int, str]:
    return (task.role, task.index, task.serial, task.node)
