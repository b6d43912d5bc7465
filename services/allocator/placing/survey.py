"""All nodes as a pass finds them: in the order of what they have free, and where each job stands.

From one pass to the next few nodes change, so the last survey is followed rather than made anew; both give the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from services.allocator.kept import KeptNear
from services.allocator.placing.order import Order
from services.allocator.policies.contract import Node


class Survey:
    """`order`: of the nodes that take tasks; `homes`: the names of those on which a job has any. Never changed."""

    def __init__(self, order: Order, homes: Mapping[str, Sequence[str]]) -> None:
        self.order, self.homes = order, homes


def anew(nodes: Collection[Node]) -> Survey:
    homes: dict[str, list[str]] = {}
    for node in nodes:
        for job in node.hosts:
            homes.setdefault(job, []).append(node.name)
    order = Order((node.name, node.free) for node in nodes if node.takes)
    return Survey(order, homes)


def followed(last: Survey, gone: Iterable[Node], come: Iterable[Node]) -> Survey:
    """Without the nodes that are gone, and with those that came; one that changed did both."""
    order, homes = last.order.copy(), dict(last.homes)
    for node in gone:
        if node.takes:
            order.leave(node.name, node.free)
        for job in node.hosts:
            homes[job] = [name for name in homes[job] if name != node.name]
    for node in come:
        if node.takes:
            order.come(node.name, node.free)
        for job in node.hosts:
            homes[job] = [*homes.get(job, ()), node.name]
    return Survey(order, {job: names for job, names in homes.items() if names})


surveyed: KeptNear[Node, Survey] = KeptNear(anew, followed)
