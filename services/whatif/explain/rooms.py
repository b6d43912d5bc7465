"""The room that the job would need: on a node that is there, or as further nodes.

Cores, GiB and devices are made as small as they can be, one after the other, while the decision
still gives the job more; so less of one of them, with the others as they are told, does not help.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from services.allocator.bisection import least
from services.allocator.capacity import free_nodes
from services.allocator.job import Job
from services.allocator.placing.amounts import less, times, together
from services.allocator.state import State
from services.whatif.explain.aftermath import DIGITS, all_have
from services.whatif.explain.change import Adds, AnyChange, Frees
from shared.bounds import clamped
from shared.messages import CapacityChanged, Resources, RoleResources

STEP = 0.01
"""The smallest difference of cores and of GiB."""
NODES_LOOKED_AT = 4
SHAPES_LOOKED_AT = 4
NODES_MOST = 64
"""The most further nodes that are tried."""
Room = Callable[[Resources], AnyChange]


class Asked(Protocol):
    """One job in one state, and a test if a change helps it."""

    state: State

    @property
    def job(self) -> Job: ...
    def helps(self, change: AnyChange) -> bool: ...


def freed(bench: Asked) -> Frees | None:
    """Return the least room on one node that helps, of that which pods of others have there now.

    Return None if not even all of it is enough.
    """
    found = []
    for node in _candidates(bench):
        free_on_node = partial(_free_on, node.node)
        everything = strangers(node)
        if bench.helps(free_on_node(everything)):
            least_room = _tight(bench, everything, free_on_node)
            found.append(free_on_node(least_room))
    return min(found, key=lambda change: _size(change.more), default=None)


def added(bench: Asked) -> Adds | None:
    """Return the fewest further nodes of a shape that exists; without any, one of a new shape."""
    found = []
    for like in _shapes(bench.state):
        change = _count(bench, like)
        if change is not None:
            found.append(change)
    if found:
        return min(found, key=_cores_in_all)
    large = largest(bench.job)
    if not bench.helps(_one_of(large)):
        return None
    least_shape = _tight(bench, large, _one_of)
    return _one_of(least_shape)


def open_nodes(state: State) -> set[str]:
    """Return the names of the nodes that take tasks."""
    return {node.name for node in free_nodes(state) if node.open}


def strangers(node: CapacityChanged) -> Resources:
    """Return the resources that pods of others have on a node."""
    taken = less(node.allocatable, node.free)
    return less(taken, all_have(node.own))


def _free_on(node: str, more: Resources) -> Frees:
    return Frees(node=node, more=more)


def _one_of(shape: Resources) -> Adds:
    return Adds(nodes=1, shape=shape)


def _cores_in_all(change: Adds) -> tuple[float, int, str]:
    """Return the sort key of added nodes: the cores of all of them, their number, then the name of
    the node that they are like.
    """
    return change.nodes * change.shape.cpu, change.nodes, change.like


def _candidates(bench: Asked) -> list[CapacityChanged]:
    """Return the nodes on which others have something, those with most free first.

    Of nodes that are alike there is one.
    """
    takes = open_nodes(bench.state)
    alike: dict[tuple[Resources, Resources, bool], CapacityChanged] = {}
    for node in sorted(bench.state.nodes.values(), key=_most_free_first):
        taken = strangers(node)
        if node.node not in takes or taken == Resources():
            continue
        beside = _has_pods_of(bench.job, node)
        alike.setdefault((node.free, taken, beside), node)
    return list(alike.values())[:NODES_LOOKED_AT]


def _has_pods_of(job: Job, node: CapacityChanged) -> bool:
    """Return True if the node lists a pod of the job. Placement prefers such a node to another one
    with the same free capacity.
    """
    return any(f"{own.namespace}.{own.job}" == job.key for own in node.own)


def _most_free_first(node: CapacityChanged) -> tuple[float, float, str]:
    """Return the sort key that puts the node with most free cores first, then the one with most
    free memory, then by name.
    """
    return -node.free.cpu, -node.free.memory_gib, node.node


def _shapes(state: State) -> list[CapacityChanged]:
    """Return a node of each shape, the first by name; of very many shapes the largest."""
    alike: dict[Resources, CapacityChanged] = {}
    for node in sorted(state.nodes.values(), key=lambda node: node.node):
        alike.setdefault(node.allocatable, node)
    by_size = sorted(alike.values(), key=lambda node: _size(node.allocatable))
    return by_size[-SHAPES_LOOKED_AT:]


def _count(bench: Asked, like: CapacityChanged) -> Adds | None:
    """Return the fewest further nodes of this shape that help."""

    def more(nodes: int) -> Adds:
        return Adds(nodes=nodes, shape=like.allocatable, like=like.node)

    nodes = least(NODES_MOST, lambda nodes: nodes > 0 and bench.helps(more(nodes)))
    return more(nodes) if nodes else None


def largest(job: Job) -> Resources:
    """Return the resources of the whole job at its largest, at most those that a node may have."""
    request = job.request
    sizes = request.resources or RoleResources()
    every_ps = times(sizes.ps, request.ps.max)
    every_worker = times(sizes.worker, request.workers.max)
    return clamped(together([sizes.chief, every_ps, every_worker]))


def _tight(bench: Asked, enough: Resources, change: Room) -> Resources:
    """Return the least room that is still enough: of cores, then of GiB, then of devices."""
    enough = _least_of(bench, enough, "cpu", STEP, change)
    enough = _least_of(bench, enough, "memory_gib", STEP, change)
    return _least_of(bench, enough, "gpu", 1, change)


def _least_of(bench: Asked, enough: Resources, name: str, step: float, change: Room) -> Resources:
    """Return the room with the least of one resource, to a step, that is still enough."""
    has = getattr(enough, name)
    steps = math.ceil(round(has / step, DIGITS))

    def at(n: int) -> Resources:
        amount = min(has, round(n * step, DIGITS))
        return replace(enough, **{name: amount})

    fewest = least(steps, lambda n: bench.helps(change(at(n))))
    return enough if fewest is None else at(fewest)


def _size(room: Resources) -> tuple[int, float, float]:
    return room.gpu, room.cpu, room.memory_gib
