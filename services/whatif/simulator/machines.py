"""The machines as the monitor sees them: tenants, our pods, and the room that is left on each node.

Law: no node ever holds more than it has; a look while one does raises `Overcommitted`: a decision
was wrong. A tenant has the right of way: our newest pods on its node make room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from services.allocator.placing.amounts import ROUNDING
from shared.messages import CapacityChanged, OwnPod, Resources

SLACK = 1e-6
"""The rounding error of sums of many tasks that each fit, in cores and GiB."""


class Overcommitted(AssertionError):
    """More was put on a node than it has."""


class Amount(msgspec.Struct, frozen=True):
    """Cores and devices of many nodes or pods together."""

    cpu: float = 0.0
    gpu: int = 0


Pods = dict[tuple[str, str], OwnPod]
"""By namespace and name."""
Held = tuple[float, Amount, Amount]
"""A time; from then on, the amount of our pods, and the amount that tenants leave to us."""


class Machines:
    """The nodes, and the pods and tenants on them."""

    def __init__(self, nodes: Mapping[str, Resources]) -> None:
        self.nodes = dict(nodes)
        self.tenants = dict.fromkeys(nodes, 0.0)
        """The cores of each node that tenants want."""
        self.pods: dict[str, Pods] = {name: {} for name in nodes}
        """The pods of each node, in the order in which they came."""
        self.touched = set(nodes)
        """The nodes that the monitor has to tell of."""
        self.looks = 0
        self._held = dict.fromkeys(nodes, Resources())
        """The sum of the pods of each node."""

    # ------------------------------------------------------------ events

    def put(self, node: str, pod: OwnPod) -> None:
        """Put a pod on a node; one that stands there may have other resources now."""
        pods = self.pods[node]
        name = (pod.namespace, pod.pod)
        if pods.get(name) != pod:
            pods[name] = pod
            self._touch(node)

    def remove(self, node: str, namespace: str, pod: str) -> None:
        """Take a pod off a node, if it is there."""
        if self.pods[node].pop((namespace, pod), None) is not None:
            self._touch(node)

    def tenant(self, node: str, cpu: float) -> list[OwnPod]:
        """Give so much more cpu (less, if negative) to tenants; return the pods that must go."""
        self.tenants[node] += cpu
        gone = []
        self._touch(node)
        pods = self.pods[node]
        while pods and self._is_overcommitted(node):
            _, newest = pods.popitem()
            gone.append(newest)
            self._touch(node)
        return gone

    def _is_overcommitted(self, node: str) -> bool:
        return self.free(node).cpu < -ROUNDING

    def _touch(self, node: str) -> None:
        """Note that a node changed."""
        self.touched.add(node)
        pods = self.pods[node].values()
        self._held[node] = _sum(pod.resources for pod in pods)

    # ------------------------------------------------------------ the monitor's view

    def free(self, node: str) -> Resources:
        """Return the free resources of a node. They may be below zero while pods move."""
        has = self.nodes[node]
        held = self._held[node]
        return Resources(
            cpu=has.cpu - self._taken(node) - held.cpu,
            memory_gib=has.memory_gib - held.memory_gib,
            gpu=has.gpu - held.gpu,
        )

    def _taken(self, node: str) -> float:
        """Return the cores of tenants. They share the node if they want more than there is."""
        wanted = max(0.0, self.tenants[node])
        return min(self.nodes[node].cpu, wanted)

    def facts(self, now: float) -> Iterator[CapacityChanged]:
        """Yield each node that was touched since the last look; raise `Overcommitted`."""
        touched = sorted(self.touched)
        self.touched = set()
        for name in touched:
            self.looks += 1
            yield CapacityChanged(
                node=name,
                node_uid=name,
                seen=str(self.looks),
                allocatable=self.nodes[name],
                free=_not_negative(name, self.free(name)),
                own=tuple(self.pods[name].values()),
                observed_s=now,
            )

    def used(self) -> Amount:
        """Return the cores and devices that our pods hold."""
        held = _sum(self._held.values())
        return Amount(held.cpu, held.gpu)

    def offered(self) -> Amount:
        """Return the cores and devices that tenants leave to us."""
        everything = _sum(self.nodes.values())
        taken = sum(map(self._taken, self.nodes))
        return Amount(everything.cpu - taken, everything.gpu)


def _sum(resources: Iterable[Resources]) -> Resources:
    """Return all of some resources together."""
    cpu = 0.0
    memory_gib = 0.0
    gpu = 0
    for one in resources:
        cpu += one.cpu
        memory_gib += one.memory_gib
        gpu += one.gpu
    return Resources(cpu=cpu, memory_gib=memory_gib, gpu=gpu)


def _not_negative(name: str, free: Resources) -> Resources:
    """Return the amount without rounding errors below 0."""
    if min(free.cpu, free.memory_gib, free.gpu) < -SLACK:
        raise Overcommitted(f"{name} is given more than it has: {free} is left")
    return Resources(
        cpu=max(0.0, free.cpu),
        memory_gib=max(0.0, free.memory_gib),
        gpu=max(0, free.gpu),
    )
