"""Optimus' choice of nodes (EuroSys 2018, and its authors' code).

Smallest job first. Nodes by the cores left on them, most first; the fewest from the front that hold the whole job, its
ps and its workers each spread evenly over them. A job that no number of nodes holds so gets as many tasks as fit, a ps
and a worker by turns, each on the first node with room. The chief, which Optimus does not know, goes first of all.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

from services.allocator.placing.amounts import fits, less
from services.allocator.policies.contract import Size
from services.allocator.policies.optimus.candidate import Candidate, Kind
from shared.messages import Resources

Standing = tuple[list[str], list[str]]
"""The node of each ps, and of each worker."""


def chosen(jobs: Sequence[Candidate], sizes: Mapping[str, Size], nodes: Mapping[str, Resources]) -> dict[str, Standing]:
    """Where the tasks of each job go; absent: not a ps and a worker of it fit. `nodes`: what is free on each."""
    free, stand = dict(nodes), {}
    granted = [job for job in jobs if job.key in sizes]
    for job in sorted(granted, key=lambda j: sizes[j.key].ps + sizes[j.key].workers):
        size = sizes[job.key]
        there = _evenly(job, size, free) or _by_turns(job, size, free)
        if there:
            stand[job.key] = there
    return stand


def _evenly(job: Candidate, size: Size, free: MutableMapping[str, Resources]) -> Standing | None:
    """Taken from `free`, where it all fits: task i is on node i modulo their number."""
    order = sorted(free, key=lambda name: -free[name].cpu)
    for count in range(1, min(len(order), max(size.ps, size.workers)) + 1):
        ps = [order[i % count] for i in range(size.ps)]
        workers = [order[i % count] for i in range(size.workers)]
        left = _left(free, [(order[0], job.chief), *((n, job.ps) for n in ps), *((n, job.worker) for n in workers)])
        if left is not None:
            free.update(left)
            return ps, workers
    return None


def _left(free: Mapping[str, Resources], tasks: Sequence[tuple[str, Resources]]) -> dict[str, Resources] | None:
    """What would be left on the nodes touched."""
    left: dict[str, Resources] = {}
    for name, wants in tasks:
        here = left.get(name, free[name])
        if not fits(wants, here):
            return None
        left[name] = less(here, wants)
    return left


def _by_turns(job: Candidate, size: Size, free: MutableMapping[str, Resources]) -> Standing | None:
    """Taken from `free`, unless not even one of each fits."""
    tried, stand = dict(free), {"ps": [], "worker": []}  # type: tuple[dict[str, Resources], dict[Kind, list[str]]]
    fitting = _put(tried, job.chief) is not None
    kind: Kind | None = "ps"
    while fitting and (kind := _next(kind, size, stand)):
        node = _put(tried, job.task(kind))
        fitting = node is not None
        stand[kind] += [node] if node else []
        kind = "worker" if kind == "ps" else "ps"
    if not stand["worker"] or (size.ps and not stand["ps"]):
        return None
    free.update(tried)
    return stand["ps"], stand["worker"]


def _next(turn: Kind | None, size: Size, stand: Mapping[Kind, Sequence[str]]) -> Kind | None:
    """Whose turn it is, or the other's where all of these stand; None where all stand."""
    open_: list[Kind] = [kind for kind in ("ps", "worker") if len(stand[kind]) < size.of(kind)]
    return turn if turn in open_ else next(iter(open_), None)


def _put(free: MutableMapping[str, Resources], wants: Resources) -> str | None:
    node = next((name for name in free if fits(wants, free[name])), None)
    if node is not None:
        free[node] = less(free[node], wants)
    return node
