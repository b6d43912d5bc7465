"""A node as its last `CapacityChanged` describes it, the sum of all nodes, and time series.

The allocatable cores and memory of a node are `ours` (requests of our pods, by job), `others`, or
free: allocatable = ours + others + free, as the monitor counts. Free is never below zero, so an
overcommitted node has more held than allocatable.

A series that is full loses about half of its points: those that lie close to others, so that the
rest is spread evenly over time. No point is averaged or interpolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from services.allocator.placement.amounts import NO_MORE, add, subtract, total_of
from shared.kube import objects
from shared.messages import CapacityChanged, OwnPod, Resources

DIGITS = 6
"""Decimals. Without rounding, sums that are updated many times would drift."""


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`load`: requests of our pods by job (`<namespace>.<job>`), also of those that are ending;
    `closed`: the reason why it takes no new pods; empty if it takes them.
    """

    name: str
    at_s: float
    allocatable: Resources
    free: Resources
    others: Resources
    load: dict[str, Resources] = {}
    pods: tuple[OwnPod, ...] = ()
    closed: str = ""

    @property
    def ours(self) -> Resources:
        return round_resources(total_of(self.load.values()))


class Totals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The sums of all nodes at a time: cores, and `*_gib` of memory. `closed`: free cores of nodes
    that take no new pods; `used`: measured use of our tasks, from each job's last report.
    """

    at_s: float = 0.0
    nodes: int = 0
    allocatable: float = 0.0
    ours: float = 0.0
    others: float = 0.0
    free: float = 0.0
    closed: float = 0.0
    used: float = 0.0
    allocatable_gib: float = 0.0
    ours_gib: float = 0.0
    others_gib: float = 0.0
    free_gib: float = 0.0
    used_gib: float = 0.0


def node_of(fact: CapacityChanged, at_s: float) -> Node:
    load = _load_by_job(fact.own)
    held = subtract(fact.allocatable, fact.free)
    others = round_resources(subtract(held, total_of(load.values())))
    return Node(
        name=fact.node,
        at_s=at_s,
        allocatable=fact.allocatable,
        free=fact.free,
        others=others,
        load=load,
        pods=fact.own,
        closed=closed_reason(fact),
    )


def closed_reason(fact: CapacityChanged) -> str:
    if not fact.ready:
        return "not ready"
    if why := objects.leaving_reason(fact.schedulable, fact.taints):
        return "cordoned" if not fact.schedulable else f"leaving ({why})"
    return ""


def _load_by_job(pods: Iterable[OwnPod]) -> dict[str, Resources]:
    load: dict[str, Resources] = {}
    for pod in pods:
        key = f"{pod.namespace}.{pod.job}"
        load[key] = add(load.get(key, NO_MORE), pod.resources)
    return {key: round_resources(held) for key, held in load.items()}


def round_resources(of: Resources) -> Resources:
    return Resources(cpu=round(of.cpu, DIGITS), memory_gib=round(of.memory_gib, DIGITS), gpu=of.gpu)


def sum_nodes(totals: Totals, before: Node | None, after: Node | None, at_s: float) -> Totals:
    """Return the sum after one node has changed from `before` to `after`; None: no such node."""
    minus = _amounts(before) if before else {}
    plus = _amounts(after) if after else {}
    sums = {}
    for name in (*minus, *plus):
        amount = getattr(totals, name) - minus.get(name, 0) + plus.get(name, 0)
        sums[name] = round(amount, DIGITS)
    return msgspec.structs.replace(totals, at_s=at_s, **sums)


HELD = ("allocatable", "ours", "others", "free")
"""Resources of a node that are summed."""


def _amounts(node: Node) -> dict[str, float]:
    """Return the amounts of one node by the names of the sums."""
    amounts: dict[str, float] = {"nodes": 1, "closed": node.free.cpu if node.closed else 0.0}
    for name in HELD:
        held: Resources = getattr(node, name)
        amounts[name] = held.cpu
        amounts[f"{name}_gib"] = held.memory_gib
    return amounts


MAX_POINTS = 512
"""Points of a series."""


class Timed(Protocol):
    @property
    def at_s(self) -> float: ...


P = TypeVar("P", bound=Timed)
T = TypeVar("T")


def append_point(points: tuple[P, ...], point: P, most: int = MAX_POINTS) -> tuple[P, ...]:
    """Return the points with one more at the end; if there are too many, thinned to `most / 2 +
    2`.
    """
    longer = (*points, point)
    return longer if len(longer) <= most else thin_points(longer, most)


def thin_points(points: tuple[P, ...], most: int) -> tuple[P, ...]:
    """Return the first, the last, and those between that are more than 2 / `most` of the whole time
    apart.
    """
    gap = 2 * (points[-1].at_s - points[0].at_s) / most
    kept = [points[0]]
    for point in points[1:-1]:
        if point.at_s - kept[-1].at_s > gap:
            kept.append(point)
    return (*kept, points[-1])


def append_newest(things: tuple[T, ...], thing: T, most: int) -> tuple[T, ...]:
    """Return the newest items with one more at the end."""
    return (*things[-most + 1 :], thing) if len(things) >= most else (*things, thing)


def appended_points(before: Sequence[T], after: Sequence[T]) -> Sequence[T] | None:
    """Return the points that were appended since; None if the series was thinned, or is another
    one.
    """
    if not before:
        return after
    count = len(before)
    if len(after) < count or after[0] is not before[0] or after[count - 1] is not before[-1]:
        return None
    return after[count:]


def point_at(points: Sequence[P], at_s: float) -> P | None:
    """Return the last point up to a time: the value of a series of steps."""
    return next((point for point in reversed(points) if point.at_s <= at_s), None)
