"""The rules by which the open-source DLRover sizes a job in its single-job mode: thresholds on the
use of cores.

Each rule of the tool is a function here; use is the mean of the last reports, `limit` what the job
may have in all:

    create     one ps and one worker of min(ceil(limit / 5), 16) cores       `created`
               and min(ceil(limit / 5), 8) GiB
    history    as many ps, as large, as similar jobs that ended had;         `inherited`
               workers as large as theirs
    ps, once   limit / (ps need + worker need) processes could train;        `initial_ps`
               their ps need so many ps
    hot ps     at 0.9 of its cores: scaled by the workers that could         `relieved`
               still come, up to 32 cores
    workers    until the busiest ps is at 0.9; none above 0.95, nor where    `more_workers`
               the last ones brought less than 0.2 of what those before
               them did
    worker     the mean cores that are used, and 1.5 times the most memory   `worker_size`
    pending    after 900 s without room: half as large, not below 4 cores    `halved`
               and 6 GiB

and at most 15 ps and 60 workers. Our reconstruction: fractions of a core or GiB where the limit is
below five; in `inherited`, plans stand in for the use of cores, which is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from services.allocator.policies.contract import Past
from shared.messages import Resources, RoleResources

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


def created(limit: Resources) -> Resources:
    """Return a first task, of ps and workers alike."""
    cpu = min(_share(limit.cpu), CREATE_CPU)
    gib = min(_share(limit.memory_gib), CREATE_GIB)
    return Resources(cpu=cpu, memory_gib=gib)


def _share(limit: float) -> float:
    """Return a fifth, in whole cores or GiB where it is at least one."""
    if limit >= SHARE:
        return float(math.ceil(limit / SHARE))
    return limit / SHARE


def inherited(past: Sequence[Past]) -> tuple[int, RoleResources]:
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
    """Return as many ps as all the processes that the limit could hold would keep busy."""
    on_ps, on_worker = process_cpu(use, workers)
    most_workers = limit_cpu / (on_ps + on_worker)
    for_ps = limit_cpu - most_workers * on_worker
    return min(MOST_PS, math.ceil(for_ps / ps_cpu - 1e-9))


def relieved(use: Use, workers: int, limit_cpu: float, ps_cpu: float) -> float:
    """Return the cores of a ps once the busiest is hot; what it has, where none is."""
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
    """Return the speed of each worker added last, by that of each before it; 1 where none was
    added.

    `speeds`: examples/s by workers.
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


def halved(size: Resources) -> Resources:
    """Return the size of a task that has been pending for too long."""
    cpu = max(size.cpu / 2, PENDING_CPU)
    gib = max(size.memory_gib / 2, PENDING_GIB)
    return replace(size, cpu=min(size.cpu, cpu), memory_gib=min(size.memory_gib, gib))
