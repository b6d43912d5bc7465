"""Thresholds on the use of cores, as in the open-source DLRover; its paper has another algorithm
(`policy.py`).

The tool's rules are functions below; `dlrover_heuristic` is its loop: a first plan about 180 s
after the start, then one every 300 s. The ps are changed at most once in 3600 s. A plan considers
the ps first: once their number, then hot ps; if neither changes, the workers. The tool sizes the
tasks only of jobs that left their resources open (`has_open_sizes`).

Our reconstruction: if a hot ps has resources given by the user, ps are added. The limit of a job is
its present amount plus the free capacity; jobs are served in turn, waiting ones first. Usage is the
mean of the last five reports with the present tasks; the last report gives the ratio of the busiest
ps to the mean. Numbers and memory never shrink. No task is larger than the largest node, and no
first task is below Weir's default. The time of the last ps change is known as far back as reports
are stored. The allocator raises memory after an out-of-memory exit; the trainer and the launcher
have shards and migration. A job without ps stays at its first size: the tool has no rule for it. In
`weir simulate` each task uses all its requested cores, so every ps is hot: thresholds on usage can
be tried on real training only.

Each rule of the tool's single-job mode is a function. Usage is the mean of the last reports;
`limit` is the total limit of the job:

    create     one ps and one worker of min(ceil(limit / 5), 16) cores       `created_plan`
               and min(ceil(limit / 5), 8) GiB
    history    as many ps, as large, as similar jobs that ended had;         `inherited_plan`
               workers as large as theirs
    ps, once   limit / (ps need + worker need) processes could train;        `initial_ps`
               their ps need so many ps
    hot ps     at 0.9 of its cores: scaled by the workers that could         `relieved_ps_size`
               still come, up to 32 cores
    workers    until the busiest ps is at 0.9; none above 0.95, nor where    `more_workers`
               the last ones brought less than 0.2 of the gain of those before
               them did
    worker     the mean cores that are used, and 1.5 times the most memory   `worker_size`
    pending    after 900 s without room: half as large, not below 4 cores    `halved_task`
               and 6 GiB

and at most 15 ps and 60 workers. Our reconstruction: fractions of a core or GiB where the limit is
below five; in `inherited_plan`, plans stand in for the use of cores, because that is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from services.allocator.placement.amounts import total_of
from services.allocator.placement.placers import place_most
from services.allocator.placement.room import Room
from services.allocator.policies.contract import (
    FinishedJob,
    JobSnapshot,
    Node,
    Reading,
    Size,
    Target,
    has_open_sizes,
    start_target,
)
from services.allocator.policies.dlrover.candidates import ps_unevenness, role_resources
from shared.messages import Resources, RoleResources
from shared.text import format_count

FIRST_S = 180.0
PLAN_S = 300.0
PS_S = 3600.0
PENDING_S = 900.0
WORTH = 0.1  # the least relative change of cores or memory
SAMPLES = 5


def dlrover_heuristic(
    cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float
) -> list[Target]:
    """Return the targets of the waiting jobs, then those of the running jobs."""
    nodes = FreeNodes(cluster)
    targets = []
    for job in jobs:
        if job.size is None:
            target = _first_target(job, nodes, now)
            nodes.take_first(job, target)
            targets.append(target)
    for job in jobs:
        if job.busy or not job.tasks:
            continue
        if job.size is not None and job.size.ps > 0:
            targets.append(_tuned_target(job, job.size, nodes, now))
    return targets


class FreeNodes:
    """The free capacity while jobs are served one after the other. `cpu`, `gib`: free on all open
    nodes; `largest`: the most cores and GiB of an empty node.
    """

    def __init__(self, cluster: Sequence[Node]) -> None:
        self.room = Room(cluster)
        free = []
        largest_cpu = 0.0
        largest_gib = 0.0
        for node in cluster:
            if node.open:
                free.append(node.free)
                largest_cpu = max(largest_cpu, node.allocatable.cpu)
                largest_gib = max(largest_gib, node.allocatable.memory_gib)
        all_free = total_of(free)
        self.cpu = all_free.cpu
        self.gib = all_free.memory_gib
        self.largest = Resources(cpu=largest_cpu, memory_gib=largest_gib)

    def take_first(self, job: JobSnapshot, target: Target) -> None:
        """Place a waiting job at its first size, or as much of it as fits."""
        sizes = target.sizes or job.sizes
        tasks = place_most(self.room, job.key, (), target.size, job.least, sizes, serial=0)
        if tasks:
            taken = total_of([task.resources for task in tasks])
            self.cpu -= taken.cpu
            self.gib -= taken.memory_gib

    def take_more(self, job: str, wants: Resources, count: int) -> int:
        """Take as many of these tasks as fit; return their number."""
        found = len(self.room.fill(job, wants, count))
        self.cpu -= found * wants.cpu
        self.gib -= found * wants.memory_gib
        return found

    def fitting(self, size: Resources, has: Resources) -> Resources:
        """Return the size, but no more than the largest node has, or than a task has now
        (`has`).
        """
        most = _larger_task(self.largest, has)
        cpu = min(size.cpu, most.cpu)
        gib = min(size.memory_gib, most.memory_gib)
        return replace(has, cpu=cpu, memory_gib=gib)


# ---------------------------------------------------------------- a job that waits


def _first_target(job: JobSnapshot, nodes: FreeNodes, now: float) -> Target:
    """Return the first size of a job."""
    if not has_open_sizes(job.request):
        return start_target(job, "the first size: its tasks as requested")
    past = job.history.past if job.history else ()
    if past:
        count, sizes = inherited_plan(past)
        reason = f"as {format_count(len(past), 'similar job')} ended"
    else:
        count = 1
        sizes = _sizes_to_learn_from(job, nodes)
        reason = "one ps and one worker, to measure their use"
    ps = sizes.ps
    worker = sizes.worker
    if now - job.submitted_s > PENDING_S:
        ps = halved_task(ps)
        worker = halved_task(worker)

    asked = job.sizes
    ps = nodes.fitting(ps, asked.ps)
    worker = nodes.fitting(worker, asked.worker)
    count = _within_bounds(count, job.least.ps, job.most.ps)
    workers = max(1, job.least.workers)
    sizes = RoleResources(chief=asked.chief, ps=ps, worker=worker)
    return replace(start_target(job, reason), ps=count, workers=workers, sizes=sizes)


def _sizes_to_learn_from(job: JobSnapshot, nodes: FreeNodes) -> RoleResources:
    """Return the sizes of the first tasks of a job without history."""
    cpu = max(0.0, nodes.cpu)
    gib = max(0.0, nodes.gib)
    first = created_plan(Resources(cpu=cpu, memory_gib=gib))
    ps = _larger_task(first, job.sizes.ps)
    worker = _larger_task(first, job.sizes.worker)
    return RoleResources(ps=ps, worker=worker)


# ---------------------------------------------------------------- a job that runs


class RunningJob(NamedTuple):
    """A running job, one of its ps and one of its workers, and their use. `limit_cpu`: cores
    that it may have in all.
    """

    job: JobSnapshot
    size: Size
    ps: Resources
    worker: Resources
    use: Use
    limit_cpu: float

    @property
    def utilisation(self) -> float:
        """Return the part of its cores that the busiest ps uses."""
        return self.use.hottest / self.ps.cpu

    @property
    def reason(self) -> str:
        return f"its busiest ps uses {self.utilisation:.0%} of its cores"

    @property
    def relieved_ps_cpu(self) -> float:
        """Return the cores of a ps that would not be hot."""
        return relieved_ps_size(self.use, self.size.workers, self.limit_cpu, self.ps.cpu)


def _tuned_target(job: JobSnapshot, size: Size, nodes: FreeNodes, now: float) -> Target:
    """Return the target of a running job: the ps first, then the workers."""
    use = used_cores(job, size)
    if use is None or not _is_due(job, now):
        return _heuristic_target(
            job, size, "keeps its size while the use of its ps and workers is measured"
        )

    ps = role_resources(job, "ps")
    worker = role_resources(job, "worker")
    free_cpu = max(0.0, nodes.cpu)
    limit_cpu = free_cpu + size.ps * ps.cpu + size.workers * worker.cpu
    running = RunningJob(job, size, ps, worker, use, limit_cpu)

    may_change_ps = _ps_changed_s(job, size) + PS_S <= now
    if may_change_ps:
        target = _target_with_other_ps(running, nodes)
        if target is not None:
            return target
    return _target_with_other_workers(running, nodes)


def _target_with_other_ps(running: RunningJob, nodes: FreeNodes) -> Target | None:
    """Return a size with more ps, or with more cores for each of them; None: the ps need no
    change.
    """
    job, size, ps, worker, _, _ = running
    count = _within_bounds(_ps_wanted(running), size.ps, job.most.ps)
    missing = max(0, count - size.ps)
    more = nodes.take_more(job.key, ps, missing)
    if more > 0:
        grown = Size(size.ps + more, size.workers)
        return _heuristic_target(job, grown, running.reason)
    if not has_open_sizes(job.request):
        return None

    relieved_ps = replace(ps, cpu=running.relieved_ps_cpu)
    cpu = nodes.fitting(relieved_ps, ps).cpu
    if cpu <= (1 + WORTH) * ps.cpu:
        return None
    sizes = _changed_sizes(running, replace(ps, cpu=cpu), worker)
    return _heuristic_target(job, size, running.reason, sizes)


def _target_with_other_workers(running: RunningJob, nodes: FreeNodes) -> Target:
    """Return a target with the number and the size of workers that the rules give."""
    job, size, ps, worker, use, _ = running
    gained = speed_ratio(_observed_speeds(job, size), size.workers)
    wanted = more_workers(size.workers, running.utilisation, gained)
    wanted = min(wanted, job.most.workers)
    missing = max(0, wanted - size.workers)
    more = nodes.take_more(job.key, worker, missing)
    grown = Size(size.ps, size.workers + more)

    sizes = None
    if has_open_sizes(job.request):
        fitting = nodes.fitting(worker_size(use), worker)
        sizes = _changed_sizes(running, ps, _if_worth_it(fitting, worker))
    return _heuristic_target(job, grown, running.reason, sizes)


def _ps_wanted(running: RunningJob) -> int:
    """Return the wanted number of ps. It changes once, after the workers have been tried, and if a
    ps of a given size is hot.
    """
    job, size, ps, _, use, limit_cpu = running
    count = size.ps
    if _has_tried_workers(job, size):
        count = initial_ps(use, size.workers, limit_cpu, ps.cpu)
    if not has_open_sizes(job.request):
        times = running.relieved_ps_cpu / ps.cpu
        count = max(count, math.ceil(size.ps * times - 1e-9))
    return min(count, MOST_PS)


def _has_tried_workers(job: JobSnapshot, size: Size) -> bool:
    """Return True if the job has had other numbers of workers, or has the most, and had no other
    number of ps yet.
    """
    for seen in job.observed:
        if seen.ps != size.ps:
            return False
    if size.workers == job.most.workers:
        return len(job.observed) > 0
    return len(job.observed) > 1


def _observed_speeds(job: JobSnapshot, size: Size) -> dict[int, float]:
    """Return the speed (examples/s) by number of workers, with the present number of ps."""
    speeds = {}
    for seen in job.observed:
        if (seen.ps, seen.batch) == (size.ps, job.batch):
            speeds[seen.workers] = seen.samples_per_second
    return speeds


def _ps_changed_s(job: JobSnapshot, size: Size) -> float:
    """Return the time (s) of the last report with another number of ps; -infinity: there is
    none.
    """
    changed_s = -math.inf
    for report in job.recent:
        if report.ps != size.ps:
            changed_s = max(changed_s, report.at_s)
    return changed_s


def _is_due(job: JobSnapshot, now: float) -> bool:
    """Return True if it is time for another plan: the first comes sooner than the others."""
    interval_s = FIRST_S
    if len(job.observed) > 1:
        interval_s = PLAN_S
    return now - job.since_s >= interval_s


# ---------------------------------------------------------------- the use of a job


def used_cores(job: JobSnapshot, size: Size) -> Use | None:
    """Return the mean use of the last reports with the present tasks; None if they do not show the
    use of its ps.
    """
    ps_has = role_resources(job, "ps").cpu
    worker_has = role_resources(job, "worker").cpu
    has = (size.ps, size.workers, ps_has, worker_has)
    alike = _last_reports(job, has)
    if not alike or min(has) <= 0:
        return None
    use = _mean_use(alike, size, ps_unevenness(job))
    if not math.isfinite(use.hottest) or use.hottest <= 0:
        return None
    return use


def _mean_use(reports: Sequence[Reading], size: Size, uneven: float) -> Use:
    """Return the mean use of the reports. `uneven`: the use of the busiest ps, as a multiple of the
    mean.
    """
    ps_cpu = []
    worker_cpu = []
    worker_gib = []
    for report in reports:
        ps_cpu.append(report.ps_cpu or 0.0)
        worker_cpu.append(report.worker_cpu or 0.0)
        worker_gib.append(report.worker_gib or 0.0)
    all_ps_cpu = fmean(ps_cpu)
    return Use(
        ps_cpu=all_ps_cpu,
        hottest=all_ps_cpu / size.ps * uneven,
        worker_cpu=fmean(worker_cpu) / size.workers,
        worker_gib=max(worker_gib),
    )


def _last_reports(job: JobSnapshot, has: tuple[int, int, float, float]) -> list[Reading]:
    """Return the last reports that show the use of such tasks, at most `SAMPLES`. `has`: numbers of
    ps and workers, cores of each ps and worker.
    """
    alike: list[Reading] = []
    for report in reversed(job.recent):
        had = (report.ps, report.workers, report.ps_had, report.worker_had)
        if had == has and _tells_use(report):
            alike.append(report)
        if len(alike) == SAMPLES:
            break
    return alike


def _tells_use(report: Reading) -> bool:
    """Return True if cores were measured, and no amount is infinite."""
    for amount in (report.ps_cpu, report.worker_cpu, report.worker_gib or 0.0):
        if amount is None or not math.isfinite(amount):
            return False
    return True


def _if_worth_it(wants: Resources, has: Resources) -> Resources:
    """Return the wanted size, as far as it differs enough to be worth a change. Memory is not
    reduced: a hand-over needs it twice.
    """
    cpu = has.cpu
    if abs(wants.cpu - has.cpu) > WORTH * has.cpu:
        cpu = wants.cpu
    gib = has.memory_gib
    if wants.memory_gib > (1 + WORTH) * has.memory_gib:
        gib = wants.memory_gib
    return replace(has, cpu=cpu, memory_gib=gib)


def _changed_sizes(running: RunningJob, ps: Resources, worker: Resources) -> RoleResources | None:
    """Return the sizes of tasks; None: they have these sizes already."""
    if ps == running.ps and worker == running.worker:
        return None
    chief = role_resources(running.job, "chief")
    return RoleResources(chief=chief, ps=ps, worker=worker)


def _larger_task(one: Resources, other: Resources) -> Resources:
    """Return the larger cores and the larger memory."""
    cpu = max(one.cpu, other.cpu)
    gib = max(one.memory_gib, other.memory_gib)
    return replace(other, cpu=cpu, memory_gib=gib)


def _within_bounds(count: int, least: int, most: int) -> int:
    return max(least, min(count, most))


def _heuristic_target(
    job: JobSnapshot, size: Size, reason: str, sizes: RoleResources | None = None
) -> Target:
    """Return a desired size with the job's present batch. `sizes`: of its tasks; None: they stay as
    they are.
    """
    return Target(
        job=job.key,
        ps=size.ps,
        workers=size.workers,
        batch=job.batch,
        reason=reason,
        sizes=sizes,
    )


SHARE = 5
CREATE_CPU = 16.0
CREATE_GIB = 8.0
HOT = 0.9  # of a ps' cores
OVERLOAD = 0.9
EXHAUSTED = 0.95
LEAST_SPEED_RATIO = 0.2  # of a new worker's speed to that of those before it
PS_MARGIN = 1.2  # memory, times the most used
WORKER_MARGIN = 1.5
LEAST_WORKER = Resources(cpu=1.0, memory_gib=1.0)
NODE_CPU = 32.0
MOST_PS = 15
MOST_WORKERS = 60
PENDING_CPU = 4.0
PENDING_GIB = 6.0


class Use(msgspec.Struct, frozen=True):
    """Cores and memory that a job uses at its size."""

    ps_cpu: float
    """Cores of all ps."""
    hottest: float
    """Cores of the busiest ps."""
    worker_cpu: float
    """Cores of each worker."""
    worker_gib: float
    """GiB of the worker with most."""


def created_plan(limit: Resources) -> Resources:
    """Return the resources of a first task, the same for ps and workers."""
    cpu = min(_fifth_of(limit.cpu), CREATE_CPU)
    gib = min(_fifth_of(limit.memory_gib), CREATE_GIB)
    return Resources(cpu=cpu, memory_gib=gib)


def _fifth_of(limit: float) -> float:
    """Return a fifth, rounded up to whole cores or GiB if it is at least one."""
    if limit >= SHARE:
        return float(math.ceil(limit / SHARE))
    return limit / SHARE


def inherited_plan(past: Sequence[FinishedJob]) -> tuple[int, RoleResources]:
    """Return the number of ps and the sizes of tasks: the largest cores of any, the mean total of
    ps, the most memory.
    """
    ps_cpu = worker_cpu = ps_gib = worker_gib = -math.inf
    all_ps_cpu = []
    for job in past:
        plan = job.plan
        ps_cpu = max(ps_cpu, plan.ps_cpu)
        worker_cpu = max(worker_cpu, plan.worker_cpu)
        ps_gib = max(ps_gib, job.ps_gib)
        worker_gib = max(worker_gib, job.worker_gib)
        all_ps_cpu.append(plan.ps * plan.ps_cpu)

    wanted = math.ceil(fmean(all_ps_cpu) / ps_cpu)
    count = max(1, min(MOST_PS, wanted))
    ps = Resources(cpu=ps_cpu, memory_gib=PS_MARGIN * ps_gib / count)
    worker = Resources(cpu=worker_cpu, memory_gib=WORKER_MARGIN * worker_gib)
    return count, RoleResources(ps=ps, worker=worker)


def process_cpu(use: Use, workers: int) -> tuple[float, float]:
    """Return the cores that a training process needs: of the ps, and of its worker."""
    return use.ps_cpu / workers, use.worker_cpu


def initial_ps(use: Use, workers: int, limit_cpu: float, ps_cpu: float) -> int:
    """Return the number of ps that all the processes within the limit would keep busy."""
    on_ps, on_worker = process_cpu(use, workers)
    most_workers = limit_cpu / (on_ps + on_worker)
    for_ps = limit_cpu - most_workers * on_worker
    return min(MOST_PS, math.ceil(for_ps / ps_cpu - 1e-9))


def relieved_ps_size(use: Use, workers: int, limit_cpu: float, ps_cpu: float) -> float:
    """Return the new cores of a ps if the busiest one is hot; else its present cores."""
    if use.hottest < HOT * ps_cpu:
        return ps_cpu
    on_ps, on_worker = process_cpu(use, workers)
    most_workers = math.floor(limit_cpu / (on_ps + on_worker))
    factor = max(1.0, most_workers / workers)
    factor = min(factor, NODE_CPU / use.hottest)
    return max(ps_cpu, round(use.hottest * factor, 1))


def more_workers(workers: int, utilisation: float, speed_ratio: float) -> int:
    """Return the number of workers that brings the busiest ps to its threshold."""
    if utilisation <= 0 or utilisation > EXHAUSTED or speed_ratio < LEAST_SPEED_RATIO:
        return workers
    wanted = math.floor(workers * OVERLOAD / utilisation + 1e-9)
    return max(workers, min(MOST_WORKERS, wanted))


def speed_ratio(speeds: Mapping[int, float], workers: int) -> float:
    """Return the speed of each worker that was added last, relative to that of each one before; 1:
    none was added.

    `speeds`: examples/s by number of workers.
    """
    fewer = max([count for count in speeds if count < workers], default=0)
    if workers not in speeds or fewer < 1:
        return 1.0
    before = speeds[fewer] / fewer
    added = (speeds[workers] - speeds[fewer]) / (workers - fewer)
    if before <= 0 or not math.isfinite(added / before):
        return 1.0
    return added / before


def worker_size(use: Use) -> Resources:
    """Return the size of a worker, by the use of all of them."""
    cpu = max(round(use.worker_cpu, 1), LEAST_WORKER.cpu)
    gib = max(WORKER_MARGIN * use.worker_gib, LEAST_WORKER.memory_gib)
    return Resources(cpu=cpu, memory_gib=gib)


def halved_task(size: Resources) -> Resources:
    """Return the size of a task that has been pending for too long."""
    cpu = max(size.cpu / 2, PENDING_CPU)
    gib = max(size.memory_gib / 2, PENDING_GIB)
    return replace(size, cpu=min(size.cpu, cpu), memory_gib=min(size.memory_gib, gib))
