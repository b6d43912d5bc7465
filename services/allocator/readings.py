"""What a running job's reports say: how fast it is at each size, what its tasks use, how its loss falls. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from services.allocator.kept import Kept
from services.allocator.policies.contract import Learned, Observed, Reading
from shared.messages import AllocationDecided, ProgressReported, TaskUsage

RECENT_KEPT = 64
CURVE_KEPT = 64
TRIED_KEPT = 32
USAGES_KEPT = 1024
MOST_USED = 1e6
"""Cores or GiB of one task; more was not measured rightly."""
CROWDED = 0.7
"""Of its memory; who uses more may need more soon."""
SLOWEST = 1e-6
"""Examples a second; less, an example in eleven days, is as good as nothing."""
LEAST_USED = 1e-6
"""Cores or GiB; less is as good as nothing."""
NEWEST_WEIGHT = 0.5  # of the newest speed in the running mean of a size


def measurable(message: ProgressReported) -> ProgressReported:
    """The report without figures so small that nothing can be divided by them."""
    usage = message.usage
    if any(0 < amount < LEAST_USED for use in usage for amount in (use.cpu, use.memory_gib)):
        usage = tuple(
            replace(use, cpu=_at_least(use.cpu, LEAST_USED), memory_gib=_at_least(use.memory_gib, LEAST_USED))
            for use in usage
        )
    speed = _at_least(message.samples_per_second, SLOWEST)
    if usage is message.usage and speed == message.samples_per_second:
        return message
    return replace(message, samples_per_second=speed, usage=usage)


def _at_least(amount: float, least: float) -> float:
    """The amount, or 0."""
    return amount if amount >= least else 0.0


def reading(runs: AllocationDecided, message: ProgressReported, stored_s: float) -> Reading:
    stood, (on_ps, on_workers) = _stood(runs), _used(message.usage)
    return Reading(
        at_s=stored_s,
        samples=message.samples,
        loss=message.loss,
        samples_per_second=message.samples_per_second,
        ps=stood.ps,
        workers=stood.workers,
        batch=runs.batch,
        ps_cpu=on_ps.cpu,
        worker_cpu=on_workers.cpu,
        ps_gib=on_ps.gib,
        worker_gib=on_workers.gib,
        ps_had=stood.ps_had,
        worker_had=stood.worker_had,
        nodes=stood.nodes,
    )


class Stood(msgspec.Struct, frozen=True, gc=False):
    """Of a decision, what readings tell."""

    ps: int
    workers: int
    ps_had: float | None
    worker_had: float | None
    nodes: int | None
    ps_gib: float
    worker_gib: float


def _stands(runs: AllocationDecided) -> Stood:
    return Stood(
        ps=counted(runs, "ps"),
        workers=counted(runs, "worker"),
        ps_had=_had(runs, "ps"),
        worker_had=_had(runs, "worker"),
        nodes=_apart(runs),
        ps_gib=_gib(runs, "ps"),
        worker_gib=_gib(runs, "worker"),
    )


_stood: Kept[AllocationDecided, Stood] = Kept(_stands)


def is_crowded(runs: AllocationDecided, told: Reading) -> bool:
    stood = _stood(runs)
    return (told.ps_gib or 0.0) > CROWDED * stood.ps_gib or (told.worker_gib or 0.0) > CROWDED * stood.worker_gib


def _apart(runs: AllocationDecided) -> int | None:
    """On how many nodes it stands, devices side by side."""
    return len({task.node for task in runs.tasks if task.role == "worker"}) if not counted(runs, "ps") else None


class Used(msgspec.Struct, frozen=True):
    """Cores of all tasks of a role together, GiB of the one that used most; None: not measured."""

    cpu: float | None
    gib: float | None


def _used_by(uses: Sequence[TaskUsage]) -> Used:
    return Used(sum(use.cpu for use in uses) if uses else None, max((use.memory_gib for use in uses), default=None))


_used: Kept[Sequence[TaskUsage], tuple[Used, Used]] = Kept(
    lambda usage: (_used_by(_measured(usage, "ps")), _used_by(_measured(usage, "worker"))), USAGES_KEPT
)
"""By ps and by workers. A simulated job says the same again and again."""


def measured(message: ProgressReported, role: str) -> list[TaskUsage]:
    """What each task of a role used, if all of it can be; a task is called `<role>-<serial>`."""
    return _measured(message.usage, role)


def _measured(usage: Sequence[TaskUsage], role: str) -> list[TaskUsage]:
    used = [one for one in usage if one.task.partition("-")[0] == role]
    return used if all(0 <= amount <= MOST_USED for use in used for amount in (use.cpu, use.memory_gib)) else []


def _gib(runs: AllocationDecided, role: str) -> float:
    """Memory of the task of a role that has least; without any, or without a limit, no end of it."""
    return min((t.resources.memory_gib for t in runs.tasks if t.role == role), default=0.0) or math.inf


def _had(runs: AllocationDecided, role: str) -> float | None:
    return max((task.resources.cpu for task in runs.tasks if task.role == role), default=None)


def speeds(
    known: tuple[Observed, ...], told: Reading, *, by_cores: bool = False, disturbed: bool = False
) -> tuple[Observed, ...]:
    """A running mean of each size's speed; `by_cores`: of each size with each number of cores a task. The newest is
    the last, and mostly the one that is told of again.

    `disturbed`: the next generation is prepared beside it, which makes it slower than its size is; only where nothing
    else is known of the size that is better than nothing.
    """
    size, speed = (told.ps, told.workers, told.batch, told.nodes), told.samples_per_second
    had = (told.ps_had, told.worker_had)
    alike = (o for o in reversed(known) if (o.ps, o.workers, o.batch, o.nodes) == size)
    before = next((o for o in alike if not by_cores or (o.ps_cpu, o.worker_cpu) == had), None)
    if speed <= 0 or (disturbed and before):
        return known
    mean = before.samples_per_second * (1 - NEWEST_WEIGHT) + speed * NEWEST_WEIGHT if before else speed
    others = known[:-1] if before and before is known[-1] else [o for o in known if o is not before]
    return (*others, Observed(*size[:3], mean, *had, told.nodes))


def curve_of(known: tuple[Learned, ...], message: ProgressReported) -> tuple[Learned, ...]:
    if message.loss is None or not math.isfinite(message.loss):
        return known
    curve = (*known, Learned(message.samples, message.loss))
    return curve if len(curve) <= CURVE_KEPT else (*curve[:-1:2], curve[-1])


def counted(decision: AllocationDecided, role: str) -> int:
    roles: list[str] = [task.role for task in decision.tasks]
    return roles.count(role)
