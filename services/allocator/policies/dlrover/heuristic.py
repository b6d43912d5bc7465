"""Thresholds on the use of cores: what the open-source DLRover does, which is not its paper's algorithm (`policy.py`).

The tool's rules are in `thresholds.py`; its loop is here: a first plan some 180 s after the start, then one each
300 s, and the ps changed each 3600 s at most. In a plan the ps come first, their number once and then the hot ones;
where they are well, the workers. What a person set, the tool leaves alone: it sizes tasks of those jobs only that left
their sizes open (`left_open`).

Our reconstruction: a hot ps of a given size is relieved by more of its kind; a job's limit is what it holds and what is
free, jobs served in turn, those that wait first; use is the mean of the last five reports with the tasks that it has
now, and how much busier the busiest ps is, the last one tells; no number shrinks, nor memory; nobody gets a task larger
than the largest node, nor a first one below Weir's default; when the ps changed last is known as far back as reports
are kept. More memory after running out of it is the allocator's rule; shards and migration are the trainer's and the
launcher's. A job without ps stays at its first size: the tool has no rule for it. In `weir simulate` each task uses all
the cores that were asked for, so every ps is hot there: thresholds on use can only be tried on real training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from statistics import fmean

from msgspec.structs import replace

from services.allocator.placing.placement import Room, place_most
from services.allocator.policies.contract import JobSeen, Node, Reading, Size, Want, at_start, left_open
from services.allocator.policies.dlrover.candidates import held, unevenness
from services.allocator.policies.dlrover.thresholds import (
    MOST_PS,
    Use,
    created,
    halved,
    inherited,
    initial_ps,
    more_workers,
    relieved,
    speed_ratio,
    worker_size,
)
from shared.messages import Resources, RoleResources, TaskPlan

FIRST_S, PLAN_S, PS_S, PENDING_S = 180.0, 300.0, 3600.0, 900.0
WORTH = 0.1  # cores or memory change by at least so much
SAMPLES = 5


def dlrover_heuristic(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    ground, wants = Ground(cluster), []
    for job in jobs:
        if job.size is None:
            want = _first(job, ground, now)
            ground.take(place_most(ground.room, job.key, (), want.size, job.least, want.sizes or job.sizes, serial=0))
            wants.append(want)
    for job in jobs:
        if job.size is not None and job.size.ps > 0 and job.tasks and not job.busy:
            wants.append(_tuned(job, job.size, ground, now))
    return wants


class Ground:
    """The nodes while jobs are served in turn. `free`: of all that take tasks; `largest`: a task on an empty one."""

    def __init__(self, cluster: Sequence[Node]) -> None:
        self.room = Room(cluster)
        there = [node for node in cluster if node.open]
        self.cpu = math.fsum(node.free.cpu for node in there)
        self.gib = math.fsum(node.free.memory_gib for node in there)
        cpu = max((node.allocatable.cpu for node in there), default=0.0)
        self.largest = Resources(cpu=cpu, memory_gib=max((node.allocatable.memory_gib for node in there), default=0.0))

    def take(self, tasks: Sequence[TaskPlan] | None) -> None:
        """What was taken of the room is free no more."""
        self.cpu -= math.fsum(task.resources.cpu for task in tasks or ())
        self.gib -= math.fsum(task.resources.memory_gib for task in tasks or ())

    def more(self, job: str, wants: Resources, count: int) -> int:
        """As many of these tasks as fit; they are taken."""
        found = len(self.room.fill(job, wants, count))
        self.cpu, self.gib = self.cpu - found * wants.cpu, self.gib - found * wants.memory_gib
        return found

    def fitting(self, size: Resources, has: Resources) -> Resources:
        """No task becomes larger than the largest node."""
        most = _larger(self.largest, has)
        return replace(has, cpu=min(size.cpu, most.cpu), memory_gib=min(size.memory_gib, most.memory_gib))


def _first(job: JobSeen, ground: Ground, now: float) -> Want:
    if not left_open(job.request):
        return at_start(job, "the first size: its tasks are as they were asked for")
    past = job.kin.past if job.kin else ()
    first = created(Resources(cpu=max(0.0, ground.cpu), memory_gib=max(0.0, ground.gib)))
    own = RoleResources(ps=_larger(first, job.sizes.ps), worker=_larger(first, job.sizes.worker))
    count, sizes = inherited(past) if past else (1, own)
    if now - job.submitted_s > PENDING_S:
        sizes = replace(sizes, ps=halved(sizes.ps), worker=halved(sizes.worker))
    reason = f"as {len(past)} like it ended" if past else "one ps and one worker to learn from"
    sizes = RoleResources(
        chief=job.sizes.chief,
        ps=ground.fitting(sizes.ps, job.sizes.ps),
        worker=ground.fitting(sizes.worker, job.sizes.worker),
    )
    size = Size(_within(count, job.least.ps, job.most.ps), max(1, job.least.workers))
    return replace(at_start(job, reason), ps=size.ps, workers=size.workers, sizes=sizes)


def _tuned(job: JobSeen, size: Size, ground: Ground, now: float) -> Want:
    """The running stage: the ps first, then the workers."""
    use, ps, worker = used(job, size), held(job, "ps"), held(job, "worker")
    if use is None or not _due(job, now):
        return _want(job, size, "watches what its ps and workers use")
    limit_cpu = max(0.0, ground.cpu) + size.ps * ps.cpu + size.workers * worker.cpu
    told = f"the busiest of its ps uses {use.hottest / ps.cpu:.0%} of its cores"
    if _ps_changed_s(job, size) + PS_S <= now:
        count = _ps_wanted(job, size, use, limit_cpu)
        if (more := ground.more(job.key, ps, max(0, _within(count, size.ps, job.most.ps) - size.ps))) > 0:
            return _want(job, Size(size.ps + more, size.workers), told)
        cores = ground.fitting(replace(ps, cpu=relieved(use, size.workers, limit_cpu, ps.cpu)), ps).cpu
        if left_open(job.request) and cores > (1 + WORTH) * ps.cpu:
            return _want(job, size, told, _sized(job, replace(ps, cpu=cores), worker))
    wanted = more_workers(size.workers, use.hottest / ps.cpu, speed_ratio(_speeds(job, size), size.workers))
    more = ground.more(job.key, worker, max(0, min(wanted, job.most.workers) - size.workers))
    sizes = (
        _sized(job, ps, _enough(ground.fitting(worker_size(use), worker), worker)) if left_open(job.request) else None
    )
    return _want(job, Size(size.ps, size.workers + more), told, sizes)


def _ps_wanted(job: JobSeen, size: Size, use: Use, limit_cpu: float) -> int:
    """Once, when the workers have been tried; and where a ps of a given size is hot."""
    ps_cpu, tried = held(job, "ps").cpu, {o.ps for o in job.observed}
    count = size.ps
    if tried == {size.ps} and (len(job.observed) > 1 or size.workers == job.most.workers):
        count = initial_ps(use, size.workers, limit_cpu, ps_cpu)
    if not left_open(job.request):
        count = max(count, math.ceil(size.ps * relieved(use, size.workers, limit_cpu, ps_cpu) / ps_cpu - 1e-9))
    return min(count, MOST_PS)


def _speeds(job: JobSeen, size: Size) -> dict[int, float]:
    """By workers, with the ps that it has."""
    return {o.workers: o.samples_per_second for o in job.observed if (o.ps, o.batch) == (size.ps, job.batch)}


def _ps_changed_s(job: JobSeen, size: Size) -> float:
    """When it was last seen with another number of ps."""
    return max((r.at_s for r in job.recent if r.ps != size.ps), default=-math.inf)


def _due(job: JobSeen, now: float) -> bool:
    return now - job.since_s >= (PLAN_S if len(job.observed) > 1 else FIRST_S)


def used(job: JobSeen, size: Size) -> Use | None:
    """The mean of its last reports with the tasks that it has; None where they tell of no use of its ps."""
    had = (size.ps, size.workers, held(job, "ps").cpu, held(job, "worker").cpu)
    newest = (r for r in reversed(job.recent) if (r.ps, r.workers, r.ps_had, r.worker_had) == had and _tells(r))
    alike = [*islice(newest, SAMPLES)][::-1]
    if not alike or min(had) <= 0:
        return None
    ps_cpu, worker_cpu = (fmean(getattr(r, f"{role}_cpu") for r in alike) for role in ("ps", "worker"))
    hottest = ps_cpu / size.ps * unevenness(job)
    if not math.isfinite(hottest) or hottest <= 0:
        return None
    return Use(ps_cpu, hottest, worker_cpu / size.workers, max(r.worker_gib or 0.0 for r in alike))


def _tells(reading: Reading) -> bool:
    told = (reading.ps_cpu, reading.worker_cpu, reading.worker_gib or 0.0)
    return all(amount is not None and math.isfinite(amount) for amount in told)


def _enough(wants: Resources, has: Resources) -> Resources:
    """What is wanted, where that is worth a change. Memory is not taken back: a hand-over needs it twice."""
    cpu = wants.cpu if abs(wants.cpu - has.cpu) > WORTH * has.cpu else has.cpu
    gib = wants.memory_gib if wants.memory_gib > (1 + WORTH) * has.memory_gib else has.memory_gib
    return replace(has, cpu=cpu, memory_gib=gib)


def _sized(job: JobSeen, ps: Resources, worker: Resources) -> RoleResources | None:
    """None where they are what the tasks have."""
    if (ps, worker) == (held(job, "ps"), held(job, "worker")):
        return None
    return RoleResources(chief=held(job, "chief"), ps=ps, worker=worker)


def _larger(one: Resources, other: Resources) -> Resources:
    cpu, gib = max(one.cpu, other.cpu), max(one.memory_gib, other.memory_gib)
    return replace(other, cpu=cpu, memory_gib=gib)


def _within(count: int, least: int, most: int) -> int:
    return max(least, min(count, most))


def _want(job: JobSeen, size: Size, reason: str, sizes: RoleResources | None = None) -> Want:
    return Want(job=job.key, ps=size.ps, workers=size.workers, batch=job.batch, reason=reason, sizes=sizes)
