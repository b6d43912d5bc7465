"""What jobs share, and what a number of workers costs of it: one number, counted in whole units.

Jobs whose workers want devices share the devices; a unit is one. The others share cores, and a job's price has its ps
and its chief in it; a unit is the largest number of thousandths that divides every task, coarser where there would be
too many of them. How the tasks lie on the nodes, and memory, are left to the placement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from services.allocator.placing.placement import ROLES
from services.allocator.policies.contract import JobSeen, Node

UNITS_MAX = 2048
"""Cores are counted in no more units than this."""


class Pool(NamedTuple):
    """`units` in all; one is `unit` devices, or thousandths of a core."""

    units: int
    unit: int
    devices: bool

    def cost(self, job: JobSeen, workers: int) -> int:
        """Units of the whole job, rounded up."""
        amount = workers * job.sizes.worker.gpu if self.devices else cores(job, workers)
        return -(-amount // self.unit)


def cores(job: JobSeen, workers: int) -> int:
    """Thousandths, of the whole job."""
    sizes = job.sizes
    with_ps = ps_beside(job, workers) * _milli(sizes.ps.cpu)
    return _milli(sizes.chief.cpu) + with_ps + workers * _milli(sizes.worker.cpu)


def ps_beside(job: JobSeen, workers: int) -> int:
    """As many ps a worker as at the start, within the job's bounds."""
    ps = job.request.ps
    wanted = -(-workers * ps.start // job.request.workers.start)
    return max(ps.min, min(ps.max, wanted))


def device_pool(cluster: Iterable[Node], jobs: Sequence[JobSeen]) -> Pool:
    there = {node.name: node.free.gpu if node.open else 0 for node in cluster}
    for task in (task for job in jobs for task in job.tasks if task.node in there):
        there[task.node] += task.resources.gpu
    return Pool(sum(there.values()), 1, devices=True)


def core_pool(cluster: Iterable[Node], jobs: Sequence[JobSeen], taken: int) -> Pool:
    """`taken`: thousandths that others will need."""
    there = {node.name: math.floor(node.free.cpu * 1000 + 1e-6) if node.open else 0 for node in cluster}
    for task in (task for job in jobs for task in job.tasks if task.node in there):
        there[task.node] += math.floor(task.resources.cpu * 1000 + 1e-6)
    unit = _unit(jobs, sum(there.values()))
    return Pool(max(0, sum(amount // unit for amount in there.values()) - -(-taken // unit)), unit, devices=False)


def _unit(jobs: Sequence[JobSeen], there: int) -> int:
    tasks = {_milli(getattr(job.sizes, role).cpu) for job in jobs for role in ROLES}
    return max(1, math.gcd(*tasks), -(-there // UNITS_MAX))


def _milli(cpu: float) -> int:
    return math.ceil(cpu * 1000 - 1e-6)
