"""The amount that jobs share, and the price of a number of workers: whole units of one resource.

Jobs whose workers want devices share the devices; a unit is one. The others share cores, and a
job's price has its ps and its chief in it; a unit is the largest number of thousandths that divides
every task, coarser where there would be too many of them. How the tasks lie on the nodes, and
memory, are left to the placement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from services.allocator.placing.placement import ROLES
from services.allocator.policies.contract import JobSeen, Node

Ints = npt.NDArray[np.int64]
Amount = TypeVar("Amount", int, Ints)

UNITS_MAX = 2048
"""Cores are counted in no more units than this."""


class Pool(NamedTuple):
    """`units` in all; one is `unit` devices, or thousandths of a core."""

    units: int
    unit: int
    devices: bool

    def cost(self, job: JobSeen, workers: int) -> int:
        """Return the units of the whole job, rounded up."""
        if self.devices:
            return ceil_division(workers * job.sizes.worker.gpu, self.unit)
        return ceil_division(cores(job, workers), self.unit)

    def costs(self, jobs: Sequence[JobSeen], most: int) -> Ints:
        """Return the units of each job with 1 to `most` workers [jobs, workers]."""
        workers = np.arange(1, most + 1)
        if self.devices:
            devices = np.array([job.sizes.worker.gpu for job in jobs])
            amounts = workers * devices[:, None]
        else:
            amounts = _cores_each(jobs, workers)
        return ceil_division(amounts, self.unit)


def _cores_each(jobs: Sequence[JobSeen], workers: Ints) -> Ints:
    """Return thousandths of a core of each job with each number of workers [jobs, workers]."""
    tasks = []
    for job in jobs:
        sizes = job.sizes
        chief_milli = _milli(sizes.chief.cpu)
        ps_milli = _milli(sizes.ps.cpu)
        worker_milli = _milli(sizes.worker.cpu)
        tasks.append((chief_milli, ps_milli, worker_milli))
    chief, ps, worker = np.array(tasks).T[:, :, None]
    of_ps = _ps_each(jobs, workers) * ps
    of_all: Ints = chief + of_ps + workers * worker
    return of_all


def _ps_each(jobs: Sequence[JobSeen], workers: Ints) -> Ints:
    """Return the ps beside each number of workers [jobs, workers], as in `ps_beside`."""
    bounds = []
    for job in jobs:
        request = job.request
        ps = request.ps
        bounds.append((request.workers.start, ps.start, ps.min, ps.max))
    start_workers, start_ps, least_ps, most_ps = np.array(bounds).T[:, :, None]
    wanted = ceil_division(workers * start_ps, start_workers)
    number: Ints = np.maximum(np.minimum(wanted, most_ps), least_ps)
    return number


def cores(job: JobSeen, workers: int) -> int:
    """Return thousandths of a core, of the whole job."""
    sizes = job.sizes
    of_ps = ps_beside(job, workers) * _milli(sizes.ps.cpu)
    of_workers = workers * _milli(sizes.worker.cpu)
    return _milli(sizes.chief.cpu) + of_ps + of_workers


def ps_beside(job: JobSeen, workers: int) -> int:
    """Return the number of ps for so many workers: in the ratio of the start, within the job's
    bounds.
    """
    ps = job.request.ps
    wanted = ceil_division(workers * ps.start, job.request.workers.start)
    return max(ps.min, min(ps.max, wanted))


def device_pool(cluster: Iterable[Node], jobs: Sequence[JobSeen]) -> Pool:
    """Return the devices that are free or that these jobs hold."""
    there = {}
    for node in cluster:
        there[node.name] = node.free.gpu if node.open else 0
    for job in jobs:
        for task in job.tasks:
            if task.node in there:
                there[task.node] += task.resources.gpu
    return Pool(sum(there.values()), 1, devices=True)


def core_pool(cluster: Iterable[Node], jobs: Sequence[JobSeen], taken: int) -> Pool:
    """Return the cores that are free or that these jobs hold, less those that others will need.

    `taken`: the others' thousandths. Of each node whole units count.
    """
    there = _node_cores(cluster, jobs)
    unit = _unit(jobs, sum(there))
    units = 0
    for amount in there:
        units += amount // unit
    return without(Pool(units, unit, devices=False), taken)


def _node_cores(cluster: Iterable[Node], jobs: Sequence[JobSeen]) -> list[int]:
    """Return the thousandths of a core on each node that are free or that these jobs hold."""
    there = {}
    for node in cluster:
        there[node.name] = math.floor(node.free.cpu * 1000 + 1e-6) if node.open else 0
    for job in jobs:
        for task in job.tasks:
            if task.node in there:
                there[task.node] += math.floor(task.resources.cpu * 1000 + 1e-6)
    return list(there.values())


def without(pool: Pool, taken: int) -> Pool:
    """Return the pool less so many thousandths of a core, rounded up to units."""
    left = pool.units - ceil_division(taken, pool.unit)
    return pool._replace(units=max(0, left))


def _unit(jobs: Sequence[JobSeen], there: int) -> int:
    """Return the largest number of thousandths that divides every task, or a coarser one."""
    tasks = set()
    for job in jobs:
        for role in ROLES:
            tasks.add(_milli(getattr(job.sizes, role).cpu))
    return max(1, math.gcd(*tasks), ceil_division(there, UNITS_MAX))


def ceil_division(amount: Amount, by: Amount | int) -> Amount:
    """Return the quotient, rounded up."""
    return -(-amount // by)


def _milli(cpu: float) -> int:
    """Return the cores of one task in thousandths, rounded up."""
    return math.ceil(cpu * 1000 - 1e-6)
