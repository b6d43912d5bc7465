"""Raise the memory of a task before it runs out of memory.

    need    = largest use since it settled + growth x examples of the next `AHEAD_S`   [GiB]
              (`models/memory_forecast.py`)
    growth  = the lesser of that over all readings since then and over the newer half of them
    raised  <=>  need comes within a twentieth of the limit
                 then to a tenth above the need, at most to `AT_ONCE` times the limit

The limit changes in place if the task's node has room: no pause, no new generation. Otherwise the
task moves to a node that has, by a hand-over. This is DLRover-RM's prediction (embedding tables
grow while they train) for every job and every policy. The use in the first `SETTLE_S` is not
growth. A role that ran out of memory never gets so little again (`policy_view.task_sizes`).

If a request names no `resources`, the need of a ps with divided tables counts twice: a change of
size is prepared beside the running generation, and needs as much. Without that memory each change
would restart the job, and read all tables while training stands still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.allocator.models.memory_forecast import AHEAD_S, forecast_use, limit_due
from services.allocator.placement.resizing import placer_with_memory
from services.allocator.placement.trial import Shortage
from services.allocator.policies.contract import Reading
from services.allocator.state.job import Job
from services.allocator.state.observations import generations_on_ps
from services.allocator.state.policy_view import size_of
from services.allocator.steps.resize_conditions import retry_s
from services.allocator.steps.verdict import Rationale, Situation, Verdict, grant_tasks
from shared.messages import Resources, Role, RoleResources, TaskPlan

SETTLE_S = 30.0
AT_ONCE = 2.0
FEWEST = 6
"""Readings; fewer show no growth."""
FORESEEN: tuple[Role, ...] = ("ps", "worker")


def raise_memory(situation: Situation) -> Verdict | None:
    """Give a job's tasks more memory. None: they have enough, or there is no room for more."""
    job, current = situation.job, situation.current
    if current is None or not job.crowded or job.generation != current.generation:
        return None
    if situation.now < retry_s(job, situation.settings):
        return None

    sizes = situation.sizes()
    limits = _raised_limits(job, sizes)
    if not limits:
        return None
    placer = placer_with_memory(limits)
    trial = situation.trial(current.tasks, size_of(current), sizes=sizes, placer=placer)
    if isinstance(trial, Shortage):
        return None

    done = "moved to where there is room for it"
    if _serials(trial.tasks) == _serials(current.tasks):
        done = "raised in place"
    needs = ", ".join(_describe_needs(job, sizes, limits))
    rationale = Rationale(reason=f"{needs}; {done}", cause="memory")
    return grant_tasks(situation, trial.tasks, current.batch, rationale)


def _raised_limits(job: Job, sizes: RoleResources) -> dict[Role, float]:
    """Return the memory (GiB) that a task should have, by role, of the roles that need more."""
    limits: dict[Role, float] = {}
    for role in FORESEEN:
        gib = _limit_due(job, role, sizes)
        if gib > _memory_gib(sizes, role):
            limits[role] = gib
    return limits


def _describe_needs(job: Job, sizes: RoleResources, limits: Mapping[Role, float]) -> list[str]:
    """Return a sentence for each role that gets more memory, with its limit (GiB) now and from now
    on.
    """
    needs = []
    for role, gib in limits.items():
        had = _memory_gib(sizes, role)
        needs.append(
            f"{job.request.job}'s {role} will soon need more than {had:g} GiB, and gets {gib:g}"
        )
    return needs


def _memory_gib(sizes: RoleResources, role: Role) -> float:
    resources: Resources = getattr(sizes, role)
    return resources.memory_gib


def _serials(tasks: Sequence[TaskPlan]) -> set[int]:
    return {task.serial for task in tasks}


def _limit_due(job: Job, role: Role, sizes: RoleResources) -> float:
    """Return the memory limit (GiB) that a task of the role should have."""
    limit, need = _memory_gib(sizes, role), _memory_need(job, role)
    if need is not None and role == "ps":
        need *= generations_on_ps(job.request, job.progress)
    due = limit_due(limit, need, may_shrink=False)
    return min(due, AT_ONCE * limit)


def _memory_need(job: Job, role: Role) -> float | None:
    """Return the memory (GiB) that the role's tasks will use; None: nothing was measured."""
    points = _memory_points(job, role)
    ahead = _ahead(job) if len(points) >= FEWEST else 0.0
    forecast = forecast_use(points, ahead)
    forecast_of_newer = forecast_use(points[len(points) // 2 :], ahead)
    if forecast is None:
        return forecast_of_newer
    if forecast_of_newer is None:
        return forecast
    return min(forecast, forecast_of_newer)


def _memory_points(job: Job, role: Role) -> list[tuple[float, float]]:
    """Return the examples and the memory (GiB) of the role's tasks in each reading that counts."""
    points = []
    for reading in job.recent:
        if not _is_settled(job, reading):
            continue
        gib = reading.ps_gib if role == "ps" else reading.worker_gib
        if gib:
            points.append((float(reading.samples), gib))
    return points


def _is_settled(job: Job, reading: Reading) -> bool:
    """Return True if a reading is of the running generation, and not of its beginning."""
    return reading.at_s >= job.resumed_s + SETTLE_S


def _ahead(job: Job) -> float:
    """Return the number of examples of the next `AHEAD_S`, at most those that remain."""
    progress = job.progress
    if progress is None:
        return 0.0
    remaining = progress.total_samples - progress.samples
    return min(progress.samples_per_second * AHEAD_S, remaining)
