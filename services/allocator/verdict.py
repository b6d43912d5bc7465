"""The verdict of one pass about one job."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from services.allocator.job import Job
from services.allocator.off import off_s
from services.allocator.situation import Situation
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


class Rationale(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reason of a decision. `cause`: the fact that led to it, or the pod. `gain_s`, `cost_s`:
    the training time (s) that it saves and takes.
    """

    reason: str
    cause: str
    alternatives: Sequence[Alternative] = ()
    gain_s: float = 0.0
    cost_s: float = 0.0


def decision(
    job: Job, tasks: Sequence[TaskPlan], batch: int, now: float, rationale: Rationale
) -> AllocationDecided:
    """Return the next decision about a job. Its generation rises only where tasks, nodes or batch
    change.
    """
    generation = job.next_generation if changes(job, tasks, batch) else job.generation
    return AllocationDecided(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=generation,
        revision=job.revision + 1,
        request=job.request,
        tasks=tuple(tasks),
        batch=batch,
        reason=rationale.reason,
        alternatives=tuple(rationale.alternatives),
        gain_s=_bounded_s(rationale.gain_s),
        cost_s=_bounded_s(rationale.cost_s),
        cause=rationale.cause,
        off_s=min(off_s(job, now), LONGEST_S),
        checkpoint_folder=job.checkpoint_folder,
        decided_s=now,
    )


def grant_tasks(
    situation: Situation, tasks: Sequence[TaskPlan], batch: int, rationale: Rationale
) -> Verdict:
    """Return the verdict that gives a job these tasks."""
    action = decision(situation.job, tasks, batch, situation.now, rationale)
    return Verdict(why=rationale.reason, action=action)


def _bounded_s(seconds: float) -> float:
    """Return a time that a message can hold; 0 for NaN and infinity, which JSON does not know."""
    if not math.isfinite(seconds):
        return 0.0
    return max(-MOST_MEASURED, min(seconds, MOST_MEASURED))


def changes(job: Job, tasks: Sequence[TaskPlan], batch: int) -> bool:
    """Return whether these tasks differ from the newest decision's in more than their resources."""
    newest = job.decided.get(job.generation)
    if newest is None or newest.batch != batch:
        return True
    return _places(newest.tasks) != _places(tasks)


def _places(tasks: Sequence[TaskPlan]) -> set[tuple[str, int, int, str]]:
    """Return each task with its node, without its resources."""
    return {(task.role, task.index, task.serial, task.node) for task in tasks}
