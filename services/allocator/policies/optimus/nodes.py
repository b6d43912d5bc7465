"""Optimus' choice of nodes (EuroSys 2018, and its authors' code).

Smallest job first. Nodes by the cores left on them, most first; the fewest from the front that hold
the whole job, its ps and its workers each spread evenly over them. A job that no number of nodes
holds so gets as many tasks as fit, a ps and a worker by turns, each on the first node with room.
The chief, which Optimus does not know, goes first of all.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, MutableMapping, Sequence

from services.allocator.placing.amounts import fits, less
from services.allocator.policies.contract import Size
from services.allocator.policies.optimus.candidate import Candidate, Kind
from shared.messages import Resources

Standing = tuple[list[str], list[str]]
"""The node of each ps, and of each worker."""


def chosen(
    jobs: Sequence[Candidate], sizes: Mapping[str, Size], nodes: Mapping[str, Resources]
) -> dict[str, Standing]:
    """Return the nodes of the tasks of each job; absent: not a ps and a worker of it fit. `nodes`:
    what is free on each.
    """
    free = dict(nodes)
    stand = {}
    granted = []
    for job in jobs:
        if job.key in sizes:
            granted.append((job, sizes[job.key]))
    granted.sort(key=_number_of_tasks)
    for job, size in granted:
        there = _place_evenly(job, size, free) or _place_by_turns(job, size, free)
        if there:
            stand[job.key] = there
    return stand


def _number_of_tasks(granted: tuple[Candidate, Size]) -> int:
    """Return the number of ps and workers of a job and its size."""
    _, size = granted
    return size.ps + size.workers


def _place_evenly(
    job: Candidate, size: Size, free: MutableMapping[str, Resources]
) -> Standing | None:
    """Take the whole job from `free`, where it fits: task i is on node i modulo their number."""
    most = max(size.ps, size.workers)
    order = heapq.nlargest(most, free, key=lambda name: free[name].cpu)
    if not order or not fits(job.chief, free[order[0]]):
        return None

    beside_chief = less(free[order[0]], job.chief)
    for count in range(1, len(order) + 1):
        left = {order[0]: beside_chief}
        ps = _spread_evenly(order, count, size.ps)
        if not _take(free, left, ps, job.ps):
            continue
        workers = _spread_evenly(order, count, size.workers)
        if _take(free, left, workers, job.worker):
            free.update(left)
            return ps, workers
    return None


def _spread_evenly(order: Sequence[str], count: int, tasks: int) -> list[str]:
    """Return the node of each task: the first `count` nodes, again and again."""
    return [order[i % count] for i in range(tasks)]


def _take(
    free: Mapping[str, Resources],
    left: MutableMapping[str, Resources],
    names: Sequence[str],
    wants: Resources,
) -> bool:
    """Take a task from each of the nodes; return whether they fit. `left`: of the nodes that were
    touched.
    """
    for name in names:
        here = left.get(name, free[name])
        if not fits(wants, here):
            return False
        left[name] = less(here, wants)
    return True


def _place_by_turns(
    job: Candidate, size: Size, free: MutableMapping[str, Resources]
) -> Standing | None:
    """Take as much of the job from `free` as fits, unless not even one of each does."""
    tried = dict(free)
    if _put(tried, job.chief) is None:
        return None

    stand: dict[Kind, list[str]] = {"ps": [], "worker": []}
    for kind in _turns(size):
        node = _put(tried, job.task(kind))
        if node is None:
            break
        stand[kind].append(node)

    ps = stand["ps"]
    workers = stand["worker"]
    if not workers or (size.ps and not ps):
        return None
    free.update(tried)
    return ps, workers


def _turns(size: Size) -> list[Kind]:
    """Return the kinds of the tasks in turn, a ps first; then those that remain of one kind."""
    turns: list[Kind] = []
    for number in range(max(size.ps, size.workers)):
        if number < size.ps:
            turns.append("ps")
        if number < size.workers:
            turns.append("worker")
    return turns


def _put(free: MutableMapping[str, Resources], wants: Resources) -> str | None:
    """Take a task from the first node with room for it; None if there is none."""
    for name, there in free.items():
        if fits(wants, there):
            free[name] = less(there, wants)
            return name
    return None
