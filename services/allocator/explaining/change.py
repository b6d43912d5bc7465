"""Facts that could be otherwise, and a state in which they are.

`Waits`, `Settles`, `Trains` and `Reports` come by themselves (`waiting.py` tries them); the others somebody has to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.placing.amounts import plus
from services.allocator.state import State
from shared.messages import CapacityChanged, JobRequested, Resources, Span


class Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="what"):
    """One fact that would be otherwise."""


class Waits(Change, frozen=True, kw_only=True, tag="waits"):
    """Nothing, but that it is a certain time (seconds since 1970).

    The allocator looks when its timers say so. A policy's own times have no timer: there somebody's report, or any
    other fact, has to make it look. Where one comes earlier, the policy may have changed its mind meanwhile.
    """

    until_s: float


class Settles(Change, frozen=True, kw_only=True, tag="settles"):
    """What is wanted of all jobs (as `group.name`) has been decided, and has come true."""

    jobs: tuple[str, ...]


class Trains(Change, frozen=True, kw_only=True, tag="trains"):
    """A generation in flight has taken over."""

    job: str
    generation: int


class Reports(Change, frozen=True, kw_only=True, tag="reports"):
    """The job has said how fast it is at the size that it has. `samples_per_second`: what was taken for it."""

    generation: int
    samples_per_second: float


class Frees(Change, frozen=True, kw_only=True, tag="frees"):
    """So much more is free on a node: pods that are not ours have left it."""

    node: str
    more: Resources


class Adds(Change, frozen=True, kw_only=True, tag="adds"):
    """There are more nodes, empty ones. `like`: the node whose shape they have; empty: no node has that shape."""

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
    """As they were asked for."""
    return Widens(ps=request.ps, workers=request.workers, batch=request.batch)


AnyChange = Waits | Settles | Trains | Reports | Frees | Adds | Opens | Raises | Widens


def changed(state: State, key: str, changes: Iterable[AnyChange]) -> State:
    """The state in which what somebody would have to do is done; what comes by itself changes nothing here."""
    return reduce(lambda before, change: DONE[type(change)](before, key, change), changes, state)


def asked_otherwise(state: State, key: str, **fields: Any) -> State:
    """With another request of a running or waiting job."""
    job = state.jobs[key]
    request: JobRequested = replace(job.request, **fields)
    return replace(state, jobs=state.jobs | {key: replace(job, request=request)})


def _nothing(state: State, key: str, change: Change) -> State:
    return state


def _freed(state: State, key: str, change: Frees) -> State:
    node = state.nodes[change.node]
    return _with_node(state, replace(node, free=plus(node.free, change.more)))


def _added(state: State, key: str, change: Adds) -> State:
    labels = state.nodes[change.like].labels if change.like else {}
    for number in range(change.nodes):
        name = f"another-{number + 1}"  # a node's name has no more than that to do with where tasks go
        node = CapacityChanged(
            node=name, node_uid=name, seen="-", allocatable=change.shape, free=change.shape, labels=labels
        )
        state = _with_node(state, node)
    return state


def _opened(state: State, key: str, change: Opens) -> State:
    return _with_node(state, replace(state.nodes[change.node], ready=True, schedulable=True, taints=()))


def _raised(state: State, key: str, change: Raises) -> State:
    return asked_otherwise(state, key, priority=change.priority)


def _widened(state: State, key: str, change: Widens) -> State:
    return asked_otherwise(state, key, ps=change.ps, workers=change.workers, batch=change.batch)


def _with_node(state: State, node: CapacityChanged) -> State:
    return replace(state, nodes=state.nodes | {node.node: node})


DONE: dict[type[Change], Callable[[State, str, Any], State]] = {
    Waits: _nothing,
    Settles: _nothing,
    Trains: _nothing,
    Reports: _nothing,
    Frees: _freed,
    Adds: _added,
    Opens: _opened,
    Raises: _raised,
    Widens: _widened,
}
