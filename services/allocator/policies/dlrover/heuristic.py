"""Thresholds on the use of cores, as in the open-source DLRover; its paper has another algorithm
(`policy.py`).

The tool's rules are in `thresholds.py`; its loop is here: a first plan some 180 s after the start,
then one each 300 s, and the ps changed each 3600 s at most. In a plan the ps come first, their
number once and then the hot ones; where they are well, the workers. The tool
sizes tasks of those jobs only that left their sizes open (`left_open`).

Our reconstruction: a hot ps of a given size is relieved by more of its kind; a job's limit is what
it holds and what is free, jobs served in turn, those that wait first; use is the mean of the last
five reports with the tasks that it has now, and how much busier the busiest ps is, the last one
tells; no number shrinks, nor memory; nobody gets a task larger than the largest node, nor a first
one below Weir's default; when the ps changed last is known as far back as reports are kept. More
memory after running out of it is the allocator's rule; shards and migration are the trainer's and
the launcher's. A job without ps stays at its first size: the tool has no rule for it. In `weir
simulate` each task uses all the cores that were asked for, so every ps is hot there: thresholds on
use can only be tried on real training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from msgspec.structs import replace

from services.allocator.placing.placement import Room, place_most
from services.allocator.policies.contract import (
    JobSeen,
    Node,
    Reading,
    Size,
    Want,
    at_start,
    left_open,
)
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

FIRST_S = 180.0
PLAN_S = 300.0
PS_S = 3600.0
PENDING_S = 900.0
WORTH = 0.1  # cores or memory change by at least so much
SAMPLES = 5


def dlrover_heuristic(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    nodes = FreeNodes(cluster)
    wants = []
    # Jobs that wait come before jobs that run.
    for job in jobs:
        if job.size is None:
            want = _first(job, nodes, now)
            sizes = want.sizes or job.sizes
            tasks = place_most(nodes.room, job.key, (), want.size, job.least, sizes, serial=0)
            nodes.take(tasks)
            wants.append(want)
    for job in jobs:
        if job.size is not None and job.size.ps > 0 and job.tasks and not job.busy:
            wants.append(_tuned(job, job.size, nodes, now))
    return wants


class FreeNodes:
    """The nodes while jobs are served in turn. `cpu`, `gib`: free on all that take tasks;
    `largest`: a task on an empty one.
    """

    def __init__(self, cluster: Sequence[Node]) -> None:
        self.room = Room(cluster)
        there = [node for node in cluster if node.open]
        self.cpu = math.fsum([node.free.cpu for node in there])
        self.gib = math.fsum([node.free.memory_gib for node in there])
        self.largest = Resources(
            cpu=max([node.allocatable.cpu for node in there], default=0.0),
            memory_gib=max([node.allocatable.memory_gib for node in there], default=0.0),
        )

    def take(self, tasks: Sequence[TaskPlan] | None) -> None:
        """Count tasks that were placed in the room as free no more."""
        if tasks:
            self.cpu -= math.fsum([task.resources.cpu for task in tasks])
            self.gib -= math.fsum([task.resources.memory_gib for task in tasks])

    def take_more(self, job: str, wants: Resources, count: int) -> int:
        """Take as many of these tasks as fit; return their number."""
        found = len(self.room.fill(job, wants, count))
        self.cpu -= found * wants.cpu
        self.gib -= found * wants.memory_gib
        return found

    def fitting(self, size: Resources, has: Resources) -> Resources:
        """Return a size that is not larger than the largest node."""
        most = _larger(self.largest, has)
        cpu = min(size.cpu, most.cpu)
        gib = min(size.memory_gib, most.memory_gib)
        return replace(has, cpu=cpu, memory_gib=gib)


def _first(job: JobSeen, nodes: FreeNodes, now: float) -> Want:
    """Return the first size of a job."""
    if not left_open(job.request):
        return at_start(job, "the first size: its tasks are as they were asked for")
    past = job.kin.past if job.kin else ()
    if past:
        count, sizes = inherited(past)
        reason = f"as {len(past)} like it ended"
    else:
        free = Resources(cpu=max(0.0, nodes.cpu), memory_gib=max(0.0, nodes.gib))
        first = created(free)
        count = 1
        sizes = RoleResources(
            ps=_larger(first, job.sizes.ps),
            worker=_larger(first, job.sizes.worker),
        )
        reason = "one ps and one worker to learn from"
    if now - job.submitted_s > PENDING_S:
        sizes = replace(sizes, ps=halved(sizes.ps), worker=halved(sizes.worker))
    sizes = RoleResources(
        chief=job.sizes.chief,
        ps=nodes.fitting(sizes.ps, job.sizes.ps),
        worker=nodes.fitting(sizes.worker, job.sizes.worker),
    )
    return replace(
        at_start(job, reason),
        ps=_within(count, job.least.ps, job.most.ps),
        workers=max(1, job.least.workers),
        sizes=sizes,
    )


def _tuned(job: JobSeen, size: Size, nodes: FreeNodes, now: float) -> Want:
    """Return the running stage's size: the ps first, then the workers."""
    use = used(job, size)
    if use is None or not _is_due(job, now):
        return _want(job, size, "watches what its ps and workers use")
    ps = held(job, "ps")
    worker = held(job, "worker")
    limit_cpu = max(0.0, nodes.cpu) + size.ps * ps.cpu + size.workers * worker.cpu
    utilisation = use.hottest / ps.cpu
    reason = f"the busiest of its ps uses {utilisation:.0%} of its cores"
    may_size = left_open(job.request)

    if _ps_changed_s(job, size) + PS_S <= now:
        # The number of ps, once; then the cores of a hot one.
        count = _within(_ps_wanted(job, size, use, limit_cpu), size.ps, job.most.ps)
        more = nodes.take_more(job.key, ps, max(0, count - size.ps))
        if more > 0:
            return _want(job, Size(size.ps + more, size.workers), reason)
        relieved_cpu = relieved(use, size.workers, limit_cpu, ps.cpu)
        cpu = nodes.fitting(replace(ps, cpu=relieved_cpu), ps).cpu
        if may_size and cpu > (1 + WORTH) * ps.cpu:
            return _want(job, size, reason, _sized(job, replace(ps, cpu=cpu), worker))

    gained = speed_ratio(_speeds(job, size), size.workers)
    wanted = min(more_workers(size.workers, utilisation, gained), job.most.workers)
    more = nodes.take_more(job.key, worker, max(0, wanted - size.workers))
    sizes = None
    if may_size:
        fitting = nodes.fitting(worker_size(use), worker)
        sizes = _sized(job, ps, _if_worth_it(fitting, worker))
    return _want(job, Size(size.ps, size.workers + more), reason, sizes)


def _ps_wanted(job: JobSeen, size: Size, use: Use, limit_cpu: float) -> int:
    """Return the number of ps: changed once, when the workers have been tried; and where a ps of a
    given size is hot.
    """
    ps_cpu = held(job, "ps").cpu
    tried = {seen.ps for seen in job.observed}
    count = size.ps
    if tried == {size.ps} and (len(job.observed) > 1 or size.workers == job.most.workers):
        count = initial_ps(use, size.workers, limit_cpu, ps_cpu)
    if not left_open(job.request):
        times = relieved(use, size.workers, limit_cpu, ps_cpu) / ps_cpu
        count = max(count, math.ceil(size.ps * times - 1e-9))
    return min(count, MOST_PS)


def _speeds(job: JobSeen, size: Size) -> dict[int, float]:
    """Return examples/s by workers, with the ps that it has."""
    speeds = {}
    for seen in job.observed:
        if (seen.ps, seen.batch) == (size.ps, job.batch):
            speeds[seen.workers] = seen.samples_per_second
    return speeds


def _ps_changed_s(job: JobSeen, size: Size) -> float:
    """Return the time at which it was last seen with another number of ps."""
    return max([report.at_s for report in job.recent if report.ps != size.ps], default=-math.inf)


def _is_due(job: JobSeen, now: float) -> bool:
    interval_s = PLAN_S if len(job.observed) > 1 else FIRST_S
    return now - job.since_s >= interval_s


def used(job: JobSeen, size: Size) -> Use | None:
    """Return the mean of its last reports with the tasks that it has; None where they do not tell
    the use of its ps.
    """
    had = (size.ps, size.workers, held(job, "ps").cpu, held(job, "worker").cpu)
    alike: list[Reading] = []
    for report in reversed(job.recent):
        then = (report.ps, report.workers, report.ps_had, report.worker_had)
        if then == had and _tells_use(report):
            alike.append(report)
        if len(alike) == SAMPLES:
            break
    if not alike or min(had) <= 0:
        return None
    ps_cpu = fmean([report.ps_cpu or 0.0 for report in alike])
    worker_cpu = fmean([report.worker_cpu or 0.0 for report in alike])
    hottest = ps_cpu / size.ps * unevenness(job)
    if not math.isfinite(hottest) or hottest <= 0:
        return None
    return Use(
        ps_cpu=ps_cpu,
        hottest=hottest,
        worker_cpu=worker_cpu / size.workers,
        worker_gib=max([report.worker_gib or 0.0 for report in alike]),
    )


def _tells_use(report: Reading) -> bool:
    for amount in (report.ps_cpu, report.worker_cpu, report.worker_gib or 0.0):
        if amount is None or not math.isfinite(amount):
            return False
    return True


def _if_worth_it(wants: Resources, has: Resources) -> Resources:
    """Return the wanted size, where that is worth a change. Memory is not taken back: a hand-over
    needs it twice.
    """
    cpu = has.cpu
    if abs(wants.cpu - has.cpu) > WORTH * has.cpu:
        cpu = wants.cpu
    gib = has.memory_gib
    if wants.memory_gib > (1 + WORTH) * has.memory_gib:
        gib = wants.memory_gib
    return replace(has, cpu=cpu, memory_gib=gib)


def _sized(job: JobSeen, ps: Resources, worker: Resources) -> RoleResources | None:
    """Return the sizes of tasks; None where they have just that."""
    if (ps, worker) == (held(job, "ps"), held(job, "worker")):
        return None
    return RoleResources(chief=held(job, "chief"), ps=ps, worker=worker)


def _larger(one: Resources, other: Resources) -> Resources:
    """Return the larger cores and the larger memory."""
    cpu = max(one.cpu, other.cpu)
    gib = max(one.memory_gib, other.memory_gib)
    return replace(other, cpu=cpu, memory_gib=gib)


def _within(count: int, least: int, most: int) -> int:
    return max(least, min(count, most))


def _want(job: JobSeen, size: Size, reason: str, sizes: RoleResources | None = None) -> Want:
    return Want(
        job=job.key,
        ps=size.ps,
        workers=size.workers,
        batch=job.batch,
        reason=reason,
        sizes=sizes,
    )
