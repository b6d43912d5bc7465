"""Facts that could be different, and a state in which they are.

`Waits`, `Settles`, `Trains` and `Reports` come by themselves (`waiting.py` tries them); somebody
has to do the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.placing.amounts import plus
from services.allocator.state import State, without_tables
from shared.messages import CapacityChanged, JobRequested, Resources, Span


class Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="what"):
    """One fact that would be different."""


class Waits(Change, frozen=True, kw_only=True, tag="waits"):
    """Nothing but a certain time (seconds since 1970).

    The allocator looks when its timers say so. A policy's own times have no timer: there a report,
    or any other fact, has to make it look. If one comes earlier, the policy may have changed its
    mind meanwhile.
    """

    until_s: float


class Settles(Change, frozen=True, kw_only=True, tag="settles"):
    """The wishes for all these jobs (as `group.name`) have been decided, and have come true."""

    jobs: tuple[str, ...]


class Trains(Change, frozen=True, kw_only=True, tag="trains"):
    """A generation in flight has taken over."""

    job: str
    generation: int


class Reports(Change, frozen=True, kw_only=True, tag="reports"):
    """The job has reported its speed at its size. `samples_per_second` is the speed assumed."""

    generation: int
    samples_per_second: float


class Frees(Change, frozen=True, kw_only=True, tag="frees"):
    """So much more is free on a node: pods that are not ours have left it."""

    node: str
    more: Resources


class Adds(Change, frozen=True, kw_only=True, tag="adds"):
    """There are more nodes, empty ones.

    `like` is a node of the same shape; empty if no node has that shape.
    """

    nodes: int
    shape: Resources
    like: str = ""


class Opens(Change, frozen=True, kw_only=True, tag="opens"):
    """A node that takes no tasks (not ready, cordoned or tainted) takes them."""

    node: str


class Raises(Change, frozen=True, kw_only=True, tag="raises"):
    """The job was asked for with this priority."""

    priority: int


class Widens(Change, frozen=True, kw_only=True, tag="widens"):
    """The job was asked for with these bounds."""

    ps: Span
    workers: Span
    batch: Span


def bounds_of(request: JobRequested) -> Widens:
    """Return the bounds of a request."""
    return Widens(ps=request.ps, workers=request.workers, batch=request.batch)


AnyChange = Waits | Settles | Trains | Reports | Frees | Adds | Opens | Raises | Widens


def changed(state: State, key: str, changes: Iterable[AnyChange]) -> State:
    """Return the state after the changes that somebody has to make.

    A change that comes by itself does nothing here.
    """
    for change in changes:
        apply_change = DONE[type(change)]
        state = apply_change(state, key, change)
    return state


def asked_otherwise(state: State, key: str, **fields: Any) -> State:
    """Return the state in which these fields of a job's request are different."""
    job = state.jobs[key]
    request: JobRequested = replace(job.request, **fields)
    jobs = state.jobs | {key: replace(job, request=request)}
    return replace(without_tables(state), jobs=jobs)


def _change_nothing(state: State, key: str, change: Change) -> State:
    return state


def _free_room(state: State, key: str, change: Frees) -> State:
    """Return the state with more free capacity on one node, as if pods of others had left it."""
    node = state.nodes[change.node]
    free = plus(node.free, change.more)
    freer = replace(node, free=free)
    return _with_node(state, freer)


def _add_nodes(state: State, key: str, change: Adds) -> State:
    """Return the state with additional empty nodes of one shape. They have the labels of an
    existing node of that shape, if there is one.
    """
    labels = state.nodes[change.like].labels if change.like else {}
    for number in range(change.nodes):
        # Placement looks at a node's name only to break ties.
        name = f"another-{number + 1}"
        node = _empty_node(name, change.shape, labels)
        state = _with_node(state, node)
    return state


def _empty_node(name: str, shape: Resources, labels: dict[str, str]) -> CapacityChanged:
    """Return a node on which no pod runs: all that is allocatable is free."""
    return CapacityChanged(
        node=name,
        node_uid=name,
        seen="-",
        allocatable=shape,
        free=shape,
        labels=labels,
    )


def _open_node(state: State, key: str, change: Opens) -> State:
    """Return the state in which a node is ready, not cordoned and without taints."""
    node = state.nodes[change.node]
    usable = replace(node, ready=True, schedulable=True, taints=())
    return _with_node(state, usable)


def _raise_priority(state: State, key: str, change: Raises) -> State:
    return asked_otherwise(state, key, priority=change.priority)


def _widen_bounds(state: State, key: str, change: Widens) -> State:
    """Return the state in which the request has other bounds of ps, workers and batch."""
    return asked_otherwise(
        state,
        key,
        ps=change.ps,
        workers=change.workers,
        batch=change.batch,
    )


def _with_node(state: State, node: CapacityChanged) -> State:
    """Return the state with this node added or replaced. The tables are dropped, because they are
    derived from the nodes as they were.
    """
    nodes = state.nodes | {node.node: node}
    return replace(without_tables(state), nodes=nodes)


DONE: dict[type[Change], Callable[[State, str, Any], State]] = {
    Waits: _change_nothing,
    Settles: _change_nothing,
    Trains: _change_nothing,
    Reports: _change_nothing,
    Frees: _free_room,
    Adds: _add_nodes,
    Opens: _open_node,
    Raises: _raise_priority,
    Widens: _widen_bounds,
}
"""The function that makes each kind of change."""
