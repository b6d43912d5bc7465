"""How much more room the job would need: on a node that is there, or as further nodes.

Cores, GiB and devices are made as small as they can be, one after the other, while the decision still gives the job
more; so less of one of them, with the others as they are told, does not help.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from services.allocator.bisection import least
from services.allocator.capacity import free_nodes
from services.allocator.explaining.aftermath import DIGITS, all_have
from services.allocator.explaining.change import Adds, AnyChange, Frees
from services.allocator.job import Job
from services.allocator.placing.amounts import less, times, together
from services.allocator.state import State
from shared.bounds import clamped
from shared.messages import CapacityChanged, Resources, RoleResources

STEP = 0.01
"""Cores and GiB are told to so much."""
NODES_LOOKED_AT, SHAPES_LOOKED_AT = 4, 4
NODES_MOST = 64
"""At most so many further nodes."""
Room = Callable[[Resources], AnyChange]


class Asked(Protocol):
    """One job in one state; whether a change helps it."""

    state: State

    @property
    def job(self) -> Job: ...
    def helps(self, change: AnyChange) -> bool: ...


def freed(bench: Asked) -> Frees | None:
    """Least room on one node, that pods which are not ours have there now; None where not even all of it is enough."""
    found: list[Frees] = []
    for node in _candidates(bench):
        all_ = Frees(node=node.node, more=strangers(node))
        if bench.helps(all_):
            found.append(Frees(node=node.node, more=_tight(bench, all_.more, _on(node.node))))
    return min(found, key=lambda change: _size(change.more), default=None)


def added(bench: Asked) -> Adds | None:
    """Fewest further nodes of one of the shapes there are; where none of them is enough, one of a shape that is."""
    found = [change for like in _shapes(bench.state) if (change := _count(bench, like)) is not None]
    if found:
        return min(found, key=lambda change: (change.nodes * change.shape.cpu, change.nodes, change.like))
    large = largest(bench.job)
    if not bench.helps(Adds(nodes=1, shape=large)):
        return None
    return Adds(nodes=1, shape=_tight(bench, large, lambda shape: Adds(nodes=1, shape=shape)))


def open_nodes(state: State) -> set[str]:
    """Those that take tasks."""
    return {node.name for node in free_nodes(state) if node.open}


def strangers(node: CapacityChanged) -> Resources:
    """What pods that are not ours have on a node."""
    return less(less(node.allocatable, node.free), all_have(node.own))


def _on(node: str) -> Room:
    return lambda more: Frees(node=node, more=more)


def _candidates(bench: Asked) -> list[CapacityChanged]:
    """Nodes on which strangers have something; of such as are alike one, and those first that have most free."""
    alike: dict[tuple[Resources, Resources, bool], CapacityChanged] = {}
    takes = open_nodes(bench.state)
    for node in sorted(bench.state.nodes.values(), key=lambda n: (-n.free.cpu, -n.free.memory_gib, n.node)):
        beside = any(f"{own.namespace}.{own.job}" == bench.job.key for own in node.own)
        if node.node in takes and strangers(node) != Resources():
            alike.setdefault((node.free, strangers(node), beside), node)
    return list(alike.values())[:NODES_LOOKED_AT]


def _shapes(state: State) -> list[CapacityChanged]:
    """A node of each, the first by name; of very many shapes the largest."""
    alike: dict[Resources, CapacityChanged] = {}
    for node in sorted(state.nodes.values(), key=lambda n: n.node):
        alike.setdefault(node.allocatable, node)
    return sorted(alike.values(), key=lambda n: _size(n.allocatable))[-SHAPES_LOOKED_AT:]


def _count(bench: Asked, like: CapacityChanged) -> Adds | None:
    def more(nodes: int) -> Adds:
        return Adds(nodes=nodes, shape=like.allocatable, like=like.node)

    nodes = least(NODES_MOST, lambda nodes: nodes > 0 and bench.helps(more(nodes)))
    return more(nodes) if nodes else None


def largest(job: Job) -> Resources:
    """Return what all of the job takes at its largest, on one node, which is no larger than a node may be."""
    sizes, request = job.request.resources or RoleResources(), job.request
    every = together([sizes.chief, times(sizes.ps, request.ps.max), times(sizes.worker, request.workers.max)])
    return clamped(every)


def _tight(bench: Asked, enough: Resources, change: Room) -> Resources:
    """The least that is still enough: of cores, then of GiB, then of devices."""
    for name, step in (("cpu", STEP), ("memory_gib", STEP), ("gpu", 1)):
        enough = _least_of(bench, enough, name, step, change)
    return enough


def _least_of(bench: Asked, enough: Resources, name: str, step: float, change: Room) -> Resources:
    has = getattr(enough, name)
    steps = math.ceil(round(has / step, DIGITS))

    def at(n: int) -> Resources:
        return replace(enough, **{name: min(has, round(n * step, DIGITS))})

    fewest = least(steps, lambda n: bench.helps(change(at(n))))
    return enough if fewest is None else at(fewest)


def _size(room: Resources) -> tuple[int, float, float]:
    return room.gpu, room.cpu, room.memory_gib
