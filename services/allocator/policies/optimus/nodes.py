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
    granted = [job for job in jobs if job.key in sizes]
    granted.sort(key=lambda job: sizes[job.key].ps + sizes[job.key].workers)
    for job in granted:
        size = sizes[job.key]
        there = _evenly(job, size, free) or _by_turns(job, size, free)
        if there:
            stand[job.key] = there
    return stand


def _evenly(job: Candidate, size: Size, free: MutableMapping[str, Resources]) -> Standing | None:
    """Take the whole job from `free`, where it fits: task i is on node i modulo their number."""
    most = max(size.ps, size.workers)
    order = heapq.nlargest(most, free, key=lambda name: free[name].cpu)
    for count in range(1, len(order) + 1):
        ps = [order[i % count] for i in range(size.ps)]
        workers = [order[i % count] for i in range(size.workers)]
        left: dict[str, Resources] = {}
        if (
            _take(free, left, order[:1], job.chief)
            and _take(free, left, ps, job.ps)
            and _take(free, left, workers, job.worker)
        ):
            free.update(left)
            return ps, workers
    return None


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


def _by_turns(job: Candidate, size: Size, free: MutableMapping[str, Resources]) -> Standing | None:
    """Take as much of the job from `free` as fits, unless not even one of each does."""
    tried = dict(free)
    ps: list[str] = []
    workers: list[str] = []
    turn: Kind = "ps"
    if _put(tried, job.chief) is None:
        return None
    while len(ps) < size.ps or len(workers) < size.workers:
        # The turn is the other kind's where all of this one stand.
        if turn == "ps" and len(ps) == size.ps:
            turn = "worker"
        elif turn == "worker" and len(workers) == size.workers:
            turn = "ps"
        node = _put(tried, job.task(turn))
        if node is None:
            break
        if turn == "ps":
            ps.append(node)
            turn = "worker"
        else:
            workers.append(node)
            turn = "ps"
    if not workers or (size.ps and not ps):
        return None
    free.update(tried)
    return ps, workers


def _put(free: MutableMapping[str, Resources], wants: Resources) -> str | None:
    """Take a task from the first node with room for it; None if there is none."""
    for name, there in free.items():
        if fits(wants, there):
            free[name] = less(there, wants)
            return name
    return None
