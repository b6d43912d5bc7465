"""The amount that jobs share, and the price of a number of workers: whole units of one resource.

Jobs whose workers want devices share the devices; a unit is one. The others share cores, and a
job's price has its ps and its chief in it; a unit is the largest number of thousandths that divides
every task, coarser where there would be too many of them. How the tasks lie on the nodes, and
memory, are left to the placement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.allocator.placing.placement import ROLES
from services.allocator.policies.contract import JobSeen, Node

Ints = npt.NDArray[np.int64]

UNITS_MAX = 2048
"""Cores are counted in no more units than this."""


class Pool(NamedTuple):
    """`units` in all; one is `unit` devices, or thousandths of a core."""

    units: int
    unit: int
    devices: bool

    def cost(self, job: JobSeen, workers: int) -> int:
        """Return the units of the whole job, rounded up."""
        amount = workers * job.sizes.worker.gpu if self.devices else cores(job, workers)
        return -(-amount // self.unit)

    def costs(self, jobs: Sequence[JobSeen], most: int) -> Ints:
        """Return the units of each job with 1 to `most` workers [jobs, workers]."""
        workers = np.arange(1, most + 1)
        if self.devices:
            devices = np.array([job.sizes.worker.gpu for job in jobs])
            return np.asarray(-(-workers * devices[:, None] // self.unit))

        # The ps beside each number of workers [jobs, workers], as in `ps_beside`.
        bounds = []
        for job in jobs:
            ps = job.request.ps
            bounds.append((job.request.workers.start, ps.start, ps.min, ps.max))
        start_workers, start_ps, least_ps, most_ps = np.array(bounds).T[:, :, None]
        wanted_ps = -(-workers * start_ps // start_workers)
        ps_count = np.maximum(np.minimum(wanted_ps, most_ps), least_ps)

        # Thousandths of a core of all tasks [jobs, workers].
        tasks = []
        for job in jobs:
            sizes = job.sizes
            tasks.append((_milli(sizes.chief.cpu), _milli(sizes.ps.cpu), _milli(sizes.worker.cpu)))
        chief, ps_each, worker_each = np.array(tasks).T[:, :, None]
        amounts = chief + ps_count * ps_each + workers * worker_each
        return np.asarray(-(-amounts // self.unit))


def cores(job: JobSeen, workers: int) -> int:
    """Return thousandths of a core, of the whole job."""
    sizes = job.sizes
    with_ps = ps_beside(job, workers) * _milli(sizes.ps.cpu)
    return _milli(sizes.chief.cpu) + with_ps + workers * _milli(sizes.worker.cpu)


def ps_beside(job: JobSeen, workers: int) -> int:
    """Return as many ps for each worker as at the start, within the job's bounds."""
    ps = job.request.ps
    wanted = -(-workers * ps.start // job.request.workers.start)
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
    there = {}
    for node in cluster:
        there[node.name] = math.floor(node.free.cpu * 1000 + 1e-6) if node.open else 0
    for job in jobs:
        for task in job.tasks:
            if task.node in there:
                there[task.node] += math.floor(task.resources.cpu * 1000 + 1e-6)
    unit = _unit(jobs, sum(there.values()))
    units = 0
    for amount in there.values():
        units += amount // unit
    return without(Pool(units, unit, devices=False), taken)


def without(pool: Pool, taken: int) -> Pool:
    """Return the pool less so many thousandths of a core, rounded up to units."""
    return pool._replace(units=max(0, pool.units - -(-taken // pool.unit)))


def _unit(jobs: Sequence[JobSeen], there: int) -> int:
    """Return the largest number of thousandths that divides every task, or a coarser one."""
    tasks = set()
    for job in jobs:
        for role in ROLES:
            tasks.add(_milli(getattr(job.sizes, role).cpu))
    return max(1, math.gcd(*tasks), -(-there // UNITS_MAX))


def _milli(cpu: float) -> int:
    return math.ceil(cpu * 1000 - 1e-6)
