"""Observations from a job's reports: speed at each size, use of CPU and memory, loss, CPU shares.

The CPU share of a task shows a hot ps or a slow worker:

    promised = min(limit * busy, used + waited)      [cores]  the CPU of its own that it could use
    share    = used / promised                                1: all of it
    starving <=>  share <= 1/2 of the median of the job's tasks on other nodes

`waited` are threads that were ready without a core. `busy` is the share of time that the busiest of
them ran or was ready (`services/trainer/pod/usage.py`). Three kinds of tasks do not starve: one
that has little to do; one that uses its quota in bursts, because it has its limit whenever it needs
it; one that requested too little, because its node keeps the promise. If all tasks starve equally,
the machines are full and a move does not help. This is our reconstruction: DLRover-RM compares the
use with the limit only, and so misses a node that gives less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from services.allocator.policies.contract import (
    LossPoint,
    Observed,
    Reading,
    generations_at_once,
    has_open_sizes,
)
from shared.messages import (
    AllocationDecided,
    JobRequested,
    ProgressReported,
    TaskPlan,
    TaskUsage,
)

RECENT_KEPT = 64
CURVE_KEPT = 64
TRIED_KEPT = 32
MOST_USED = 1e6
"""Cores or GiB of one task; a larger figure is an error of measurement."""
CROWDED = 0.7
"""Share of its memory; a task that uses more may need more soon."""
SLOWEST = 1e-6
"""Examples a second; less, an example in eleven days, is as good as nothing."""
LEAST_USED = 1e-6
"""Cores or GiB; less is as good as nothing."""
NEWEST_WEIGHT = 0.5  # of the newest speed in the running mean of a size


def measurable_report(message: ProgressReported) -> ProgressReported:
    """Return the report without figures so small that nothing can be divided by them."""
    usage = message.usage
    if any(_is_tiny(use.cpu) or _is_tiny(use.memory_gib) for use in usage):
        usage = tuple([_without_tiny(use) for use in usage])
    speed = _at_least(message.samples_per_second, SLOWEST)
    if usage is message.usage and speed == message.samples_per_second:
        return message
    return replace(message, samples_per_second=speed, usage=usage)


def _is_tiny(amount: float) -> bool:
    return 0 < amount < LEAST_USED


def _without_tiny(use: TaskUsage) -> TaskUsage:
    """Return the use of a task with cores and GiB below `LEAST_USED` as 0, because other code
    divides by them.
    """
    cpu = _at_least(use.cpu, LEAST_USED)
    memory_gib = _at_least(use.memory_gib, LEAST_USED)
    return replace(use, cpu=cpu, memory_gib=memory_gib)


def _at_least(amount: float, least: float) -> float:
    """Return the amount, or 0 if it is less."""
    return amount if amount >= least else 0.0


def reading_of(running: AllocationDecided, message: ProgressReported, stored_s: float) -> Reading:
    """Return a report together with the size that runs, and the cores that its tasks have."""
    ps_cores: list[float] = []
    worker_cores: list[float] = []
    worker_nodes: set[str] = set()
    for task in running.tasks:
        if task.role == "ps":
            ps_cores.append(task.resources.cpu)
        elif task.role == "worker":
            worker_cores.append(task.resources.cpu)
            worker_nodes.add(task.node)

    on_ps = usage_by_role(message, "ps")
    on_workers = usage_by_role(message, "worker")
    return Reading(
        at_s=stored_s,
        samples=message.samples,
        loss=message.loss,
        samples_per_second=message.samples_per_second,
        ps=len(ps_cores),
        workers=len(worker_cores),
        batch=running.batch,
        ps_cpu=_total_cpu(on_ps),
        worker_cpu=_total_cpu(on_workers),
        ps_gib=_largest_gib(on_ps),
        worker_gib=_largest_gib(on_workers),
        ps_had=max(ps_cores, default=None),
        worker_had=max(worker_cores, default=None),
        nodes=None if ps_cores else len(worker_nodes),
    )


def usage_by_role(message: ProgressReported, role: str) -> list[TaskUsage]:
    """Return the use of each task of a role; none if a figure among them cannot be right. A task is
    called `<role>-<serial>`.
    """
    uses = []
    for use in message.usage:
        if use.task.partition("-")[0] != role:
            continue
        if not (0 <= use.cpu <= MOST_USED and 0 <= use.memory_gib <= MOST_USED):
            return []
        uses.append(use)
    return uses


def _total_cpu(uses: Sequence[TaskUsage]) -> float | None:
    """Return the cores that tasks use together; None: not measured."""
    if not uses:
        return None
    return sum([use.cpu for use in uses])


def _largest_gib(uses: Sequence[TaskUsage]) -> float | None:
    """Return the memory (GiB) of the task that uses most; None: not measured."""
    if not uses:
        return None
    return max([use.memory_gib for use in uses])


def generations_on_ps(request: JobRequested, report: ProgressReported | None) -> int:
    """Return for how many generations a ps should have memory. Two, if Weir chooses its memory and
    the model has divided tables: without room for the next generation a hand-over would read all of
    them while training stands still.
    """
    if report is None or report.profile is None or not report.profile.table_bytes:
        return 1
    return generations_at_once(request) if has_open_sizes(request) else 1


def is_crowded(running: AllocationDecided, reading: Reading, generations: int = 1) -> bool:
    """Return True if a ps or worker comes near to its memory. `generations`: for which a ps should
    have memory.
    """
    ps_gib = None if reading.ps_gib is None else generations * reading.ps_gib
    if _is_near(ps_gib, _memory_limit_gib(running, "ps")):
        return True
    return _is_near(reading.worker_gib, _memory_limit_gib(running, "worker"))


def _is_near(used_gib: float | None, limit_gib: float) -> bool:
    return used_gib is not None and used_gib > CROWDED * limit_gib


def _memory_limit_gib(running: AllocationDecided, role: str) -> float:
    """Return the memory of the task of a role that has least; infinity without such a task, or if
    one has no limit.
    """
    least_gib = math.inf
    for task in running.tasks:
        if task.role == role:
            least_gib = min(least_gib, task.resources.memory_gib)
    return least_gib or math.inf


def update_speeds(
    known: tuple[Observed, ...],
    reading: Reading,
    *,
    by_cores: bool = False,
    disturbed: bool = False,
) -> tuple[Observed, ...]:
    """Return a running mean of the speed (samples/s) at each size; `by_cores`: at each size with
    each number of cores of a task. The newest is the last.

    A reading without speed or without workers is left out: speeds are scaled by the workers.

    `disturbed`: the next generation is prepared beside it, and slows it down. Such a speed counts
    only for a size without another one.
    """
    speed = reading.samples_per_second
    if speed <= 0 or not reading.workers:
        return known
    before = _earlier_speed(known, reading, by_cores)
    if before is not None and disturbed:
        return known

    newest = Observed(
        ps=reading.ps,
        workers=reading.workers,
        batch=reading.batch,
        samples_per_second=speed,
        ps_cpu=reading.ps_had,
        worker_cpu=reading.worker_had,
        nodes=reading.nodes,
    )
    if before is None:
        return (*known, newest)
    mean = before.samples_per_second * (1 - NEWEST_WEIGHT) + speed * NEWEST_WEIGHT
    others = [each for each in known if each is not before]
    return (*others, replace(newest, samples_per_second=mean))


def _earlier_speed(
    known: tuple[Observed, ...], reading: Reading, by_cores: bool
) -> Observed | None:
    """Return the last known speed of the size that a reading is of; None: there is none."""
    size = (reading.ps, reading.workers, reading.batch, reading.nodes)
    cores = (reading.ps_had, reading.worker_had)
    for each in reversed(known):
        if (each.ps, each.workers, each.batch, each.nodes) != size:
            continue
        if not by_cores or (each.ps_cpu, each.worker_cpu) == cores:
            return each
    return None


def curve_of(known: tuple[LossPoint, ...], message: ProgressReported) -> tuple[LossPoint, ...]:
    """Return the loss curve with one more report; every other point is left out once it is long."""
    if message.loss is None or not math.isfinite(message.loss):
        return known
    curve = (*known, LossPoint(message.samples, message.loss))
    if len(curve) <= CURVE_KEPT:
        return curve
    return (*curve[:-1:2], curve[-1])


def role_count(decision: AllocationDecided, role: str) -> int:
    """Return the number of tasks of a role."""
    count = 0
    for task in decision.tasks:
        if task.role == role:
            count += 1
    return count


STARVED = 0.5
LEAST_CPU = 0.02
"""Cores; a task that could not use as many has nothing to wait for."""


def cpu_share(use: TaskUsage, limit: float) -> float | None:
    """Return the share of the promised CPU that a task had; None: not measured. `limit`: its
    cores.
    """
    if use.waited is None or use.busy is None or not limit:
        return None
    promised = min(limit * use.busy, use.cpu + use.waited)
    if promised <= LEAST_CPU:
        return 1.0
    return min(use.cpu / promised, 1.0)


def starving_tasks(usage: Sequence[TaskUsage], tasks: Sequence[TaskPlan]) -> list[str]:
    """Return the names of the tasks that starve."""
    shares = _measured_shares(usage, tasks)
    names = []
    for task, share in shares.items():
        if share > STARVED:  # no median is above 1
            continue
        elsewhere = [other for one, other in shares.items() if one.node != task.node]
        if elsewhere and share <= STARVED * median(elsewhere):
            names.append(task.name())
    return names


def _measured_shares(
    usage: Sequence[TaskUsage], tasks: Sequence[TaskPlan]
) -> dict[TaskPlan, float]:
    """Return the share of its CPU that each task had, of those that were measured."""
    uses = {use.task: use for use in usage if use.waited is not None}
    shares: dict[TaskPlan, float] = {}
    for task in tasks:
        use = uses.get(task.name())
        if use is None:
            continue
        share = cpu_share(use, task.resources.cpu)
        if share is not None:
            shares[task] = share
    return shares


def starving_since(
    before: Mapping[str, float], usage: Sequence[TaskUsage], tasks: Sequence[TaskPlan], now: float
) -> dict[str, float]:
    """Return the beginning (s) of the present starvation of each starving task, by name."""
    return {name: before.get(name, now) for name in starving_tasks(usage, tasks)}
