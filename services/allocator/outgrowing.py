"""A task that will soon need more memory than it has gets it before it is killed for it.

    need    = largest use since it settled + growth x examples of the next `AHEAD_S`   [GiB]   (`models/foresight.py`)
    growth  = the lesser of that over all readings since then and over the newer half of them
    raised  <=>  need comes within a twentieth of the limit; then to a tenth above the need, at most to `AT_ONCE` times

In place, where the task's node has the room: no pause, no new generation. Where it has not, the
task moves to a node that has, by a hand-over. It is DLRover-RM's prediction (embedding tables grow
while they train) for every job and every policy. What a program takes in its first `SETTLE_S` is no
growth. What has run out of memory all the same never gets so little again (`seen.task_sizes`).
"""

from __future__ import annotations

from services.allocator.job import Job
from services.allocator.models.foresight import AHEAD_S, foreseen, limit_due
from services.allocator.placing.resizing import with_memory
from services.allocator.placing.trial import Shortage
from services.allocator.policies.contract import Reading
from services.allocator.seen import size_of
from services.allocator.situation import Situation
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict, decision
from shared.messages import Role, RoleResources

SETTLE_S = 30.0
AT_ONCE = 2.0
FEWEST = 6
"""Readings; of fewer no growth is told."""
FORESEEN: tuple[Role, ...] = ("ps", "worker")


def enlarged(situation: Situation) -> Verdict | None:
    """Give a job's tasks more memory. None: they have enough, or there is no room for more."""
    job, current = situation.job, situation.current
    if current is None or not job.crowded or job.generation != current.generation:
        return None
    if situation.now < retry_s(job, situation.settings):
        return None
    sizes = situation.sizes()
    limits: dict[Role, float] = {}  # GiB of a task, of the roles that need more
    told = []
    for role in FORESEEN:
        had = getattr(sizes, role).memory_gib
        gib = _due(job, role, sizes)
        if gib > had:
            limits[role] = gib
            told.append(
                f"{job.request.job}'s {role} will soon need more than {had:g} GiB, and gets {gib:g}"
            )
    if not limits:
        return None
    how = with_memory(limits)
    trial = situation.trial(current.tasks, size_of(current), sizes=sizes, how=how)
    if isinstance(trial, Shortage):
        return None
    is_in_place = {task.serial for task in trial.tasks} == {task.serial for task in current.tasks}
    done = "raised in place" if is_in_place else "moved to where there is room for it"
    reason = f"{', '.join(told)}; {done}"
    action = decision(job, trial.tasks, current.batch, situation.now, reason=reason, cause="memory")
    return Verdict(why=reason, action=action)


def _due(job: Job, role: Role, sizes: RoleResources) -> float:
    """Return the memory limit (GiB) that a task of the role should have."""
    limit: float = getattr(sizes, role).memory_gib
    return min(limit_due(limit, _need(job, role), may_shrink=False), AT_ONCE * limit)


def _need(job: Job, role: Role) -> float | None:
    """Return the memory (GiB) that the role's tasks will use; None: nothing was measured."""
    points = []
    for reading in job.recent:
        point = _point(reading, role) if _settled(job, reading) else None
        if point:
            points.append(point)
    ahead = _ahead(job) if len(points) >= FEWEST else 0.0
    by_all = foreseen(points, ahead)
    by_newer = foreseen(points[len(points) // 2 :], ahead)
    if by_all is None or by_newer is None:
        return by_newer if by_all is None else by_all
    return min(by_all, by_newer)


def _settled(job: Job, reading: Reading) -> bool:
    """Return whether a reading is of the running generation, and not of its beginning."""
    return reading.at_s >= job.resumed_s + SETTLE_S


def _point(reading: Reading, role: Role) -> tuple[float, float] | None:
    gib = reading.ps_gib if role == "ps" else reading.worker_gib
    return (float(reading.samples), gib) if gib else None


def _ahead(job: Job) -> float:
    """Return the number of examples of the next `AHEAD_S`, at most those that remain."""
    progress = job.progress
    if progress is None:
        return 0.0
    return min(progress.samples_per_second * AHEAD_S, progress.total_samples - progress.samples)
