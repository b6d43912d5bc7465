"""A task that will soon need more memory than it has gets it before it is killed for it.

    need    = largest use since it settled + growth x examples of the next `AHEAD_S`   [GiB]   (`models/foresight.py`)
    growth  = the lesser of that over all readings since then and over the newer half of them
    raised  <=>  need comes within a twentieth of the limit; then to a tenth above the need, at most to `AT_ONCE` times

In place, where the task's node has the room: no pause, no new generation. Where it has not, the task moves to a node
that has, by a hand-over. It is DLRover-RM's prediction (embedding tables grow while they train) for every job and every
policy. What a program takes in its first `SETTLE_S` is no growth. What has run out of memory all the same never gets so
little again (`seen.task_sizes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.models.foresight import AHEAD_S, foreseen, limit_due
from services.allocator.placing.amounts import less
from services.allocator.placing.placement import Room, place
from services.allocator.placing.resizing import wanted_sizes
from services.allocator.policies.contract import Reading
from services.allocator.rules import Rules
from services.allocator.seen import size_of
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict, decision
from shared.messages import AllocationDecided, Role, RoleResources, TaskPlan

SETTLE_S = 30.0
AT_ONCE = 2.0
FEWEST = 6
"""Readings; of fewer no growth is told."""
FORESEEN: tuple[Role, ...] = ("ps", "worker")
Limits = dict[Role, float]
"""GiB of a task, of the roles that need more."""


def enlarged(job: Job, room: Room, now: float, rules: Rules) -> Verdict | None:
    """None where memory suffices, or where there is none to be had."""
    runs = job.runs
    if runs is None or not job.crowded or job.generation != runs.generation or now < retry_s(job, rules):
        return None
    sizes = wanted_sizes(job, None, rules)
    limits = {role: gib for role in FORESEEN if (gib := _due(job, role, sizes)) > getattr(sizes, role).memory_gib}
    tasks = _with_room(job, runs, room, sizes, limits) if limits else None
    if tasks is None:
        return None
    told = (_told(job, role, getattr(sizes, role).memory_gib, gib) for role, gib in limits.items())
    reason = ", ".join(told) + ("; raised in place" if _stay(tasks, runs) else "; moved to where there is room for it")
    return Verdict(why=reason, action=decision(job, tasks, runs.batch, now, reason=reason, cause="memory"))


def _due(job: Job, role: Role, sizes: RoleResources) -> float:
    """The limit that a task of the role should have."""
    limit: float = getattr(sizes, role).memory_gib
    return min(limit_due(limit, _need(job, role), may_shrink=False), AT_ONCE * limit)


def _need(job: Job, role: Role) -> float | None:
    points = [point for reading in job.recent if _settled(job, reading) and (point := _point(reading, role))]
    ahead = _ahead(job) if len(points) >= FEWEST else 0.0
    needs = [foreseen(some, ahead) for some in (points, points[len(points) // 2 :])]
    return min((need for need in needs if need is not None), default=None)


def _settled(job: Job, reading: Reading) -> bool:
    """Of the generation that runs, and not of its beginning."""
    return reading.at_s >= job.resumed_s + SETTLE_S


def _point(reading: Reading, role: Role) -> tuple[float, float] | None:
    gib = reading.ps_gib if role == "ps" else reading.worker_gib
    return (float(reading.samples), gib) if gib else None


def _ahead(job: Job) -> float:
    """Examples of the next while, at most those that remain."""
    progress = job.progress
    if progress is None:
        return 0.0
    return min(progress.samples_per_second * AHEAD_S, progress.total_samples - progress.samples)


def _with_room(
    job: Job, runs: AllocationDecided, room: Room, sizes: RoleResources, limits: Limits
) -> tuple[TaskPlan, ...] | None:
    """Tasks of so much memory: where they stand, else those that cannot grow there elsewhere; what else they have
    stays as it is.
    """
    mark = room.mark()
    grown = [(task, _grown(room, job.key, task, limits)) for task in runs.tasks]
    if all(new for _, new in grown):
        return tuple(new for _, new in grown if new)
    wide = replace(sizes, **{r: replace(getattr(sizes, r), memory_gib=gib) for r, gib in limits.items()})
    placed = place(room, job.key, [new for _, new in grown if new], size_of(runs), wide, job.serials)
    if placed is None:
        room.undo(mark)
    return placed


def _grown(room: Room, job: str, task: TaskPlan, limits: Limits) -> TaskPlan | None:
    """None where its node has no room for that."""
    gib = max(task.resources.memory_gib, limits.get(task.role, -math.inf))
    new = replace(task, resources=replace(task.resources, memory_gib=gib))
    return new if room.extend(job, task.node, less(new.resources, task.resources)) else None


def _stay(tasks: Sequence[TaskPlan], runs: AllocationDecided) -> bool:
    return {task.serial for task in tasks} == {task.serial for task in runs.tasks}


def _told(job: Job, role: Role, had: float, has: float) -> str:
    return f"{job.request.job}'s {role} will soon need more than {had:g} GiB, and gets {has:g}"
