"""Sizes of a job that the nodes can hold: Mesos calls this an offer, and it may be less than was
asked for.

For each number of ps, put one by one where the placement would put them (fewest devices wasted,
then least cpu left), the number of workers that fit beside them. What the job holds
itself counts as free to it. It is a count and no placement: a size offered here is tried for real
where it is granted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from services.allocator.placement.amounts import ROUNDING, amounts
from services.allocator.policies.contract import JobSnapshot, Node, Size

Array = NDArray[np.float64]
Amounts = tuple[float, float, float]
"""Cores, GiB and devices."""

EVERY = 8
"""Numbers of tasks up to this are all offered; above it each is `RATIO` times the one before, and
the largest.
"""
RATIO = 1.25
NOTHING = (0.0, 0.0, 0.0)
ANY_NUMBER = 10**9
"""Tasks that want nothing, on one node."""
CPU, MEMORY, DEVICES = range(3)
"""Rows of the arrays."""


class FreeNodes:
    """Amounts that are free on each node, for the offers of one pass; nothing on a closed node."""

    def __init__(self, cluster: Iterable[Node]) -> None:
        columns: list[Amounts] = []
        self._column_of: dict[str, int] = {}
        for node in cluster:
            self._column_of[node.name] = len(columns)
            columns.append(_free_amounts(node))
        by_node = np.array(columns, dtype=float).reshape(-1, 3)
        self._free = by_node.T.copy()  # [3, nodes]

    def update(self, changed: Iterable[Node]) -> None:
        """Read some of these nodes again."""
        for node in changed:
            self._free[:, self._column_of[node.name]] = _free_amounts(node)

    def with_tasks_of(self, job: JobSnapshot) -> Array:
        """Return cores, GiB and devices [3, nodes], as if the job's ps and workers held nothing."""
        free = self._free.copy()
        columns = []
        held = []
        for task in job.tasks:
            if task.role != "chief" and task.node in self._column_of:
                columns.append(self._column_of[task.node])
                held.append(amounts(task.resources))
        if held:
            np.add.at(free.T, columns, np.array(held))
        return free


def offered_sizes(nodes: FreeNodes, job: JobSnapshot) -> list[Size]:
    """Return the sizes within the job's bounds that fit, small ones first."""
    free = nodes.with_tasks_of(job)
    if not job.tasks:
        chief = amounts(job.sizes.chief)
        best_first = _best_nodes(free, chief)
        if not best_first:
            return []
        free[:, best_first[0]] -= chief

    least = job.least
    most = job.most
    offered_ps = set(growing_steps(least.ps, most.ps))
    sizes: list[Size] = []
    for ps, room in enumerate(_worker_room(job, free)):
        if ps in offered_ps:
            for workers in growing_steps(least.workers, min(most.workers, room)):
                sizes.append(Size(ps, workers))
    return sizes


def _worker_room(job: JobSnapshot, free: Array) -> Iterator[int]:
    """Return how many workers there is room for beside no ps, one ps, and so on, up to the most
    that the job may have and that fit.
    """
    worker = amounts(job.sizes.worker)
    total = int(_room_on_each(free, worker).sum())
    yield total

    # One ps more each time, on the best node until it is full, then on the next one.
    ps_wants = amounts(job.sizes.ps)
    best_nodes = iter(_best_nodes(free, ps_wants))
    left = NOTHING
    has_room = False
    for _ in range(job.most.ps):
        if not has_room:
            node = next(best_nodes, None)
            if node is None:
                return
            cpu, memory, devices = free[:, node].tolist()
            left = (cpu, memory, devices)
        total -= _room_beside(left, worker)
        left = _less(left, ps_wants)
        total += _room_beside(left, worker)
        has_room = _has_room(left, ps_wants)
        yield total


def all_sizes(job: JobSnapshot) -> list[Size]:
    """Return the sizes within the job's bounds that are offered where there is room for all."""
    all_workers = growing_steps(job.least.workers, job.most.workers)
    sizes = []
    for ps in growing_steps(job.least.ps, job.most.ps):
        for workers in all_workers:
            sizes.append(Size(ps, workers))
    return sizes


def growing_steps(least: int, most: int) -> list[int]:
    """Return numbers from `least` to `most`, both included, in growing steps; none where `most` is
    less.
    """
    if most < least:
        return []
    numbers = []
    number = least
    while number < most:
        numbers.append(number)
        number = number + 1 if number < EVERY else math.ceil(number * RATIO)
    numbers.append(most)
    return numbers


def _free_amounts(node: Node) -> Amounts:
    return amounts(node.free) if node.open else NOTHING


def _best_nodes(free: Array, wants: Amounts) -> list[int]:
    """Return the nodes that have room for a task, those first that have least left: of devices,
    then of cores, then of GiB. A task on the first of them changes nothing in their order.
    """
    enough = free[CPU] + ROUNDING >= wants[CPU]
    enough &= free[MEMORY] + ROUNDING >= wants[MEMORY]
    enough &= free[DEVICES] + ROUNDING >= wants[DEVICES]
    nodes = np.flatnonzero(enough)
    cpu, memory, devices = free[:, nodes]
    order = np.lexsort((memory, cpu, devices))
    best_first: list[int] = nodes[order].tolist()
    return best_first


def _has_room(left: Amounts, wants: Amounts) -> bool:
    """Return True if a task fits in the free part of a node."""
    return (
        left[CPU] + ROUNDING >= wants[CPU]
        and left[MEMORY] + ROUNDING >= wants[MEMORY]
        and left[DEVICES] + ROUNDING >= wants[DEVICES]
    )


def _less(left: Amounts, wants: Amounts) -> Amounts:
    """Return the free part of a node beside one task more."""
    cpu = left[CPU] - wants[CPU]
    memory = left[MEMORY] - wants[MEMORY]
    devices = left[DEVICES] - wants[DEVICES]
    return cpu, memory, devices


def _room_on_each(free: Array, wants: Amounts) -> Array:
    """Return how many such tasks fit on each node [nodes]."""
    room = np.full(free.shape[1], float(ANY_NUMBER))
    for resource in (CPU, MEMORY, DEVICES):
        if wants[resource] > 0:
            fitting = np.floor((free[resource] + ROUNDING) / wants[resource])
            room = np.minimum(room, fitting)
    return np.asarray(np.maximum(room, 0.0))


def _room_beside(left: Amounts, wants: Amounts) -> int:
    """Return how many such tasks fit on a node that has so much left."""
    room = ANY_NUMBER
    for resource in (CPU, MEMORY, DEVICES):
        if wants[resource] > 0:
            fitting = math.floor((left[resource] + ROUNDING) / wants[resource])
            room = min(room, fitting)
    return max(room, 0)
