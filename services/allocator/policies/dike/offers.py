"""Which sizes of a job the nodes can hold: what Mesos calls an offer, and it may be less than was asked for.

For each number of ps, put one by one where the placement would put them (fewest devices wasted, then least cpu left),
the number of workers for which there is room beside them. What the job holds itself counts as free to it. It is a count
and no placement: a size offered here is tried for real where it is granted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.allocator.placing.amounts import ROUNDING, amounts
from services.allocator.policies.contract import JobSeen, Node, Size
from shared.messages import Resources

Array = NDArray[np.float64]

EVERY = 8
"""Numbers of tasks up to this are all offered; above it each is `RATIO` times the one before, and the largest."""
RATIO = 1.25
NOTHING = (0.0, 0.0, 0.0)


def offered(cluster: Sequence[Node], job: JobSeen) -> list[Size]:
    """Sizes within the job's bounds that fit, small ones first."""
    free = _free(cluster, job)
    if not job.tasks and not _put(free, job.sizes.chief):
        return []
    sizes: list[Size] = []
    ps_steps = steps(job.least.ps, job.most.ps)
    for ps in range(job.most.ps + 1):
        if ps in ps_steps:
            workers = min(job.most.workers, _room(free, job.sizes.worker))
            sizes += [Size(ps, w) for w in steps(job.least.workers, workers)]
        if ps < job.most.ps and not _put(free, job.sizes.ps):
            break
    return sizes


def steps(least: int, most: int) -> list[int]:
    """Numbers from `least` to `most`, both included, in growing steps; none where `most` is less."""
    numbers, number = [], least
    while number < most:
        numbers.append(number)
        number = number + 1 if number < EVERY else math.ceil(number * RATIO)
    return [*numbers, most] if most >= least else []


def _free(cluster: Sequence[Node], job: JobSeen) -> Array:
    """Cores, GiB and devices [nodes, 3]; on a node that is closed only what the job holds there."""
    free = {node.name: amounts(node.free) if node.open else NOTHING for node in cluster}
    for task in job.tasks:
        if task.role != "chief" and task.node in free:
            here, more = free[task.node], amounts(task.resources)
            free[task.node] = (here[0] + more[0], here[1] + more[1], here[2] + more[2])
    return np.array(list(free.values()), dtype=float).reshape(-1, 3)


def _row(resources: Resources) -> Array:
    return np.array(amounts(resources), dtype=float)


def _put(free: Array, wants: Resources) -> bool:
    """Take the room of one task, in place; false where no node has it."""
    row = _row(wants)
    fitting = np.flatnonzero((free + ROUNDING >= row).all(axis=1))
    if not len(fitting):
        return False
    best = fitting[np.lexsort((free[fitting, 1], free[fitting, 0], free[fitting, 2]))[0]]
    free[best] -= row
    return True


def _room(free: Array, wants: Resources) -> int:
    """How many such tasks fit."""
    row = _row(wants)
    asked = row > 0
    if not asked.any():
        return 10**9 if len(free) else 0
    return int(np.floor((free[:, asked] + ROUNDING) / row[asked]).min(axis=1).clip(0).sum())
