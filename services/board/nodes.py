"""One node as its last `CapacityChanged` has it, and the sum of all nodes: pure.

Of a node's allocatable cores, those that are held are `ours` (requests of our pods, by job) or `others`, and the rest
is free: allocatable = ours + others + free, as the monitor counts (free is never below zero, so that a node on which
more is requested than it has shows more held than allocatable).
"""

from __future__ import annotations

import msgspec

from shared import taints
from shared.messages import CapacityChanged, OwnPod, Resources

DIGITS = 6
"""Behind the point; sums that are told again and again would drift otherwise."""


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`load`: requests of our pods by job (`<namespace>.<job>`), also of those that are going; `closed`: why it takes
    no new pods, empty where it does."""

    name: str
    at_s: float
    allocatable: Resources
    free: Resources
    others: Resources
    load: dict[str, Resources] = {}
    pods: tuple[OwnPod, ...] = ()
    closed: str = ""

    @property
    def ours_cpu(self) -> float:
        """Cores."""
        return round(sum(held.cpu for held in self.load.values()), DIGITS)


class Totals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All nodes at a time; cores. `closed`: free ones, where nothing new may go; `used`: measured use of our tasks, as
    each job last reported it."""

    at_s: float = 0.0
    nodes: int = 0
    allocatable: float = 0.0
    ours: float = 0.0
    others: float = 0.0
    free: float = 0.0
    closed: float = 0.0
    used: float = 0.0


def node_of(fact: CapacityChanged, at_s: float) -> Node:
    load: dict[str, Resources] = {}
    for pod in fact.own:
        key = f"{pod.namespace}.{pod.job}"
        load[key] = plus(load.get(key, Resources()), pod.resources)
    ours = Resources()
    for held in load.values():
        ours = plus(ours, held)
    return Node(
        name=fact.node,
        at_s=at_s,
        allocatable=fact.allocatable,
        free=fact.free,
        others=minus(minus(fact.allocatable, fact.free), ours),
        load=load,
        pods=fact.own,
        closed=closed(fact),
    )


def closed(fact: CapacityChanged) -> str:
    if not fact.ready:
        return "not ready"
    if why := taints.closed(fact.schedulable, fact.taints):
        return "cordoned" if not fact.schedulable else f"leaving ({why})"
    return ""


def plus(one: Resources, other: Resources) -> Resources:
    return Resources(
        cpu=round(one.cpu + other.cpu, DIGITS),
        memory_gib=round(one.memory_gib + other.memory_gib, DIGITS),
        gpu=one.gpu + other.gpu,
    )


def minus(one: Resources, other: Resources) -> Resources:
    """Never below zero."""
    return Resources(
        cpu=max(round(one.cpu - other.cpu, DIGITS), 0.0),
        memory_gib=max(round(one.memory_gib - other.memory_gib, DIGITS), 0.0),
        gpu=max(one.gpu - other.gpu, 0),
    )


def summed(totals: Totals, gone: Node | None, come: Node | None, at_s: float) -> Totals:
    """The sum after one node has changed."""
    sums = {name: getattr(totals, name) for name in ("nodes", *SUMS)}
    for node, sign in ((gone, -1), (come, 1)):
        for name, amount in _parts(node).items() if node else ():
            sums[name] += sign * amount
    return msgspec.structs.replace(totals, at_s=at_s, **{name: round(value, DIGITS) for name, value in sums.items()})


SUMS = ("allocatable", "ours", "others", "free", "closed")


def _parts(node: Node) -> dict[str, float]:
    free = node.free.cpu
    return {
        "nodes": 1,
        "allocatable": node.allocatable.cpu,
        "ours": node.ours_cpu,
        "others": node.others.cpu,
        "free": free,
        "closed": free if node.closed else 0.0,
    }
