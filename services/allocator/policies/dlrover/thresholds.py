"""The rules by which the open-source DLRover sizes a job in its single-job mode: thresholds on the use of cores.

Each rule of the tool is a function here; use is the mean of the last reports, `limit` what the job may have in all:

    create     one ps and one worker of min(ceil(limit / 5), 16) cores and min(ceil(limit / 5), 8) GiB    `created`
    history    as many ps, as large, as similar jobs that ended had; workers as large as theirs           `inherited`
    ps, once   limit / (ps need + worker need) processes could train; their ps need so many ps            `initial_ps`
    hot ps     at 0.9 of its cores: scaled by the workers that could still come, up to 32 cores           `relieved`
    workers    until the busiest ps is at 0.9; none above 0.95, nor where the last ones brought less
               than 0.2 of what those before them did                                                     `more_workers`
    worker     the mean cores that are used, and 1.5 times the most memory                                `worker_size`
    pending    after 900 s without room: half as large, not below 4 cores and 6 GiB                       `halved`

and at most 15 ps and 60 workers. Our reconstruction: fractions of a core or GiB where the limit is below five; in
`inherited`, plans stand in for the use of cores, which is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from services.allocator.policies.contract import Past
from shared.messages import Resources, RoleResources

SHARE, CREATE_CPU, CREATE_GIB = 5, 16.0, 8.0
HOT, OVERLOAD, EXHAUSTED = 0.9, 0.9, 0.95  # of a ps' cores
LEAST_SPEED_RATIO = 0.2  # of a new worker's speed to that of those before it
PS_MARGIN, WORKER_MARGIN = 1.2, 1.5  # memory, times the most used
LEAST_WORKER = Resources(cpu=1.0, memory_gib=1.0)
NODE_CPU = 32.0
MOST_PS, MOST_WORKERS = 15, 60
PENDING_CPU, PENDING_GIB = 4.0, 6.0


class Use(msgspec.Struct, frozen=True):
    """What a job uses at its size: cores of all ps, of the busiest one, of a worker; GiB of the worker with most."""

    ps_cpu: float
    hottest: float
    worker_cpu: float
    worker_gib: float


def created(limit: Resources) -> Resources:
    """A first task, of ps and workers alike."""
    cpu, gib = min(_share(limit.cpu), CREATE_CPU), min(_share(limit.memory_gib), CREATE_GIB)
    return Resources(cpu=cpu, memory_gib=gib)


def _share(limit: float) -> float:
    """A fifth, in whole cores or GiB where it is at least one."""
    return float(math.ceil(limit / SHARE)) if limit >= SHARE else limit / SHARE


def inherited(past: Sequence[Past]) -> tuple[int, RoleResources]:
    """How many ps, and what tasks have: the largest cores of any, the mean total of ps, the most memory."""
    ps_cpu = max(p.plan.ps_cpu for p in past)
    count = max(1, min(MOST_PS, math.ceil(fmean(p.plan.ps * p.plan.ps_cpu for p in past) / ps_cpu)))
    ps = Resources(cpu=ps_cpu, memory_gib=PS_MARGIN * max(p.ps_gib for p in past) / count)
    gib = WORKER_MARGIN * max(p.worker_gib for p in past)
    return count, RoleResources(ps=ps, worker=Resources(cpu=max(p.plan.worker_cpu for p in past), memory_gib=gib))


def process_cpu(use: Use, workers: int) -> tuple[float, float]:
    """Cores that a training process needs: of the ps, and of its worker."""
    return use.ps_cpu / workers, use.worker_cpu


def initial_ps(use: Use, workers: int, limit_cpu: float, ps_cpu: float) -> int:
    """As many ps as all the processes that the limit could hold would keep busy."""
    on_ps, on_worker = process_cpu(use, workers)
    most_workers = limit_cpu / (on_ps + on_worker)
    return min(MOST_PS, math.ceil((limit_cpu - most_workers * on_worker) / ps_cpu - 1e-9))


def relieved(use: Use, workers: int, limit_cpu: float, ps_cpu: float) -> float:
    """Cores of a ps once the busiest is hot; what it has, where none is."""
    if use.hottest < HOT * ps_cpu:
        return ps_cpu
    most_workers = math.floor(limit_cpu / sum(process_cpu(use, workers)))
    factor = min(max(1.0, most_workers / workers), NODE_CPU / use.hottest)
    return max(ps_cpu, round(use.hottest * factor, 1))


def more_workers(workers: int, utilisation: float, speed_ratio: float) -> int:
    """How many workers bring the busiest ps to its threshold."""
    if utilisation <= 0 or utilisation > EXHAUSTED or speed_ratio < LEAST_SPEED_RATIO:
        return workers
    return max(workers, min(MOST_WORKERS, math.floor(workers * OVERLOAD / utilisation + 1e-9)))


def speed_ratio(speeds: Mapping[int, float], workers: int) -> float:
    """What each worker added last brought, by what each had brought before; 1 where none was added.

    `speeds`: examples/s by workers.
    """
    fewer = max((w for w in speeds if w < workers), default=0)
    if workers not in speeds or fewer < 1:
        return 1.0
    before, added = speeds[fewer] / fewer, (speeds[workers] - speeds[fewer]) / (workers - fewer)
    return added / before if before > 0 and math.isfinite(added / before) else 1.0


def worker_size(use: Use) -> Resources:
    """Of a worker, by what workers use."""
    cpu, gib = max(round(use.worker_cpu, 1), LEAST_WORKER.cpu), WORKER_MARGIN * use.worker_gib
    return Resources(cpu=cpu, memory_gib=max(gib, LEAST_WORKER.memory_gib))


def halved(size: Resources) -> Resources:
    """Of a task that has been pending for too long."""
    cpu, gib = max(size.cpu / 2, PENDING_CPU), max(size.memory_gib / 2, PENDING_GIB)
    return replace(size, cpu=min(size.cpu, cpu), memory_gib=min(size.memory_gib, gib))
