"""The machines as the monitor sees them: tenants, our pods, and what each node can still hold.

Law: no node ever holds more than it has; whoever looks while one does gets `Overcommitted`: a decision was wrong. A
tenant has the right of way: our newest pods on its node make room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from services.allocator.placing.amounts import ROUNDING
from shared.messages import CapacityChanged, OwnPod, Resources


class Overcommitted(AssertionError):
    """More was put on a node than it has."""


class Amount(msgspec.Struct, frozen=True):
    """Cores and devices of many nodes or pods together."""

    cpu: float = 0.0
    gpu: int = 0


class Machines:
    """`pods` of a node stand in the order in which they came; of nodes that are `touched` the monitor has to tell."""

    def __init__(self, nodes: Mapping[str, Resources]) -> None:
        self.nodes = dict(nodes)
        self.tenants = dict.fromkeys(nodes, 0.0)
        self.pods: dict[str, dict[tuple[str, str], OwnPod]] = {name: {} for name in nodes}
        self.touched = set(nodes)
        self.looks = 0
        self._held = dict.fromkeys(nodes, Resources())

    # ------------------------------------------------------------ what happens

    def put(self, node: str, pod: OwnPod) -> None:
        """A new pod, one that stands already, or one whose resources changed."""
        if self.pods[node].get((pod.namespace, pod.pod)) == pod:
            return
        self.pods[node][(pod.namespace, pod.pod)] = pod
        self._touch(node)

    def remove(self, node: str, namespace: str, pod: str) -> None:
        if self.pods[node].pop((namespace, pod), None) is not None:
            self._touch(node)

    def tenant(self, node: str, cpu: float) -> list[OwnPod]:
        """So much more cpu (less, if negative) is a tenant's; the pods that must go."""
        self.tenants[node] += cpu
        gone = []
        self._touch(node)
        while self.pods[node] and self.free(node).cpu < -ROUNDING:
            gone.append(self.pods[node].popitem()[1])
            self._touch(node)
        return gone

    def _touch(self, node: str) -> None:
        self.touched.add(node)
        self._held[node] = _sum(pod.resources for pod in self.pods[node].values())

    # ------------------------------------------------------------ what is seen

    def free(self, node: str) -> Resources:
        """May be below zero while pods move."""
        has, held = self.nodes[node], self._held[node]
        return Resources(
            cpu=has.cpu - self._taken(node) - held.cpu,
            memory_gib=has.memory_gib - held.memory_gib,
            gpu=has.gpu - held.gpu,
        )

    def _taken(self, node: str) -> float:
        """By tenants; where they want more than there is, they share it."""
        return min(self.nodes[node].cpu, max(0.0, self.tenants[node]))

    def facts(self, now: float) -> Iterator[CapacityChanged]:
        """Of each node that was touched since the last look; raises `Overcommitted`."""
        touched, self.touched = sorted(self.touched), set()
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
        """What our pods hold."""
        held = _sum(self._held.values())
        return Amount(held.cpu, held.gpu)

    def offered(self) -> Amount:
        """What tenants leave to us."""
        everything = _sum(self.nodes.values())
        return Amount(everything.cpu - sum(map(self._taken, self.nodes)), everything.gpu)


def _sum(resources: Iterable[Resources]) -> Resources:
    cpu, memory, gpu = 0.0, 0.0, 0
    for one in resources:
        cpu, memory, gpu = cpu + one.cpu, memory + one.memory_gib, gpu + one.gpu
    return Resources(cpu=cpu, memory_gib=memory, gpu=gpu)


def _not_negative(name: str, free: Resources) -> Resources:
    if min(free.cpu, free.memory_gib, free.gpu) < -SLACK:
        raise Overcommitted(f"{name} is given more than it has: {free} is left")
    return Resources(cpu=max(0.0, free.cpu), memory_gib=max(0.0, free.memory_gib), gpu=max(0, free.gpu))


SLACK = 1e-6  # of sums of many tasks that each fit
