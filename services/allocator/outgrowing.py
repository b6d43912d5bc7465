"""A task that will soon need more memory than it has gets it before it is killed for it.

    need   = largest use so far + growth x examples of the next `AHEAD_S`      [GiB]   (`models/foresight.py`)
    raised <=>  need comes within a twentieth of the limit; then to a tenth above the need

In place, where the task's node has the room: no pause, no new generation. Where it has not, the task moves to a node
that has, by a hand-over. It is DLRover-RM's prediction (embedding tables grow while they train) for every job and every
policy. What has run out of memory all the same never gets so little again (`seen.task_sizes`).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from services.allocator.job import Job, Reading
from services.allocator.models.foresight import foreseen, limit_due
from services.allocator.placing.placement import Room, place
from services.allocator.placing.resizing import alike, in_place, wanted_sizes
from services.allocator.rules import Rules
from services.allocator.seen import size_of
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict, decision
from shared.messages import AllocationDecided, Resources, Role, RoleResources, TaskPlan

AHEAD_S = 240.0
FORESEEN: tuple[Role, ...] = ("ps", "worker")


def enlarged(job: Job, room: Room, now: float, rules: Rules) -> Verdict | None:
    """None where memory suffices, or where there is none to be had."""
    runs = job.runs
    if runs is None or not job.crowded or job.coming is not None or now < retry_s(job, rules):
        return None
    asked = wanted_sizes(job, None, rules)
    sizes = RoleResources(chief=asked.chief, **{role: _due(job, role, getattr(asked, role)) for role in FORESEEN})
    if sizes == asked:
        return None
    tasks = _with_room(job, runs, room, sizes)
    if tasks is None:
        return None
    reason = ", ".join(_told(job, role, asked, sizes) for role in FORESEEN if _grew(role, asked, sizes))
    reason += "; raised in place" if _stay(tasks, runs) else "; moved to where there is room for it"
    return Verdict(why=reason, action=decision(job, tasks, runs.batch, now, reason=reason, cause="memory"))


def _due(job: Job, role: Role, size: Resources) -> Resources:
    need = foreseen([point for reading in job.recent if (point := _point(reading, role))], _ahead(job))
    return replace(size, memory_gib=max(size.memory_gib, limit_due(size.memory_gib, need, may_shrink=False)))


def _point(reading: Reading, role: Role) -> tuple[float, float] | None:
    gib = reading.ps_gib if role == "ps" else reading.worker_gib
    return (float(reading.samples), gib) if gib else None


def _ahead(job: Job) -> float:
    """Examples of the next while, at most those that remain."""
    progress = job.progress
    if progress is None:
        return 0.0
    return min(progress.samples_per_second * AHEAD_S, progress.total_samples - progress.samples)


def _with_room(job: Job, runs: AllocationDecided, room: Room, sizes: RoleResources) -> tuple[TaskPlan, ...] | None:
    """All tasks of these sizes: where they stand, else those that cannot grow there elsewhere."""
    mark = room.mark()
    if job.generation == runs.generation and alike(tasks := in_place(room, job.key, runs.tasks, sizes), sizes):
        return tasks
    room.undo(mark)
    grown = in_place(room, job.key, runs.tasks, sizes)
    stay = [task for task in grown if alike([task], sizes)]
    placed = place(room, job.key, stay, size_of(runs), sizes, job.serials)
    if placed is None:
        room.undo(mark)
    return placed


def _stay(tasks: Sequence[TaskPlan], runs: AllocationDecided) -> bool:
    return {task.serial for task in tasks} == {task.serial for task in runs.tasks}


def _grew(role: Role, before: RoleResources, after: RoleResources) -> bool:
    return bool(getattr(after, role).memory_gib > getattr(before, role).memory_gib)


def _told(job: Job, role: Role, before: RoleResources, after: RoleResources) -> str:
    had, has = getattr(before, role).memory_gib, getattr(after, role).memory_gib
    return f"{job.request.job}'s {role} will soon need more than {had:g} GiB, and gets {has:g}"
