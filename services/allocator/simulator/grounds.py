"""The machines of a recorded log, and what was taken of them by others.

    others' cpu  =  allocatable - free - our own pods    [cores]

While nothing may be put on a node, others have all of it that we do not hold; before it is there, and after, all of it.
Of memory and devices a node has as much as it ever left to us: tenants are counted in cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import inf

from services.allocator.simulator.machines import Amount
from services.allocator.simulator.scenario import Cluster, Machine, Tenant
from shared.messages import CapacityChanged, Resources

LEAST = 1e-6  # cores; less is a rounding error


class Grounds:
    """`levels` of each node: (time, others' cpu from then on). `held` as in a run."""

    def __init__(self) -> None:
        self.has: dict[str, Resources] = {}
        self.best: dict[str, Resources] = {}
        self.levels: dict[str, list[tuple[float, float]]] = {}
        self.ours: dict[str, Amount] = {}
        self.held: list[tuple[float, Amount, Amount]] = []

    def see(self, seen: CapacityChanged, now: float) -> None:
        if seen.node not in self.has and now > 0:
            self.levels[seen.node] = [(0.0, seen.allocatable.cpu)]
        before = self.has.get(seen.node, Resources())
        self.has[seen.node] = before if seen.gone else seen.allocatable
        ours = Amount(sum(own.resources.cpu for own in seen.own), sum(own.resources.gpu for own in seen.own))
        self.ours[seen.node] = Amount() if seen.gone else ours
        self._note_best(seen)
        self.levels.setdefault(seen.node, []).append((now, self._others(seen)))
        self.held.append((now, self._sum_ours(), self._offered()))

    def _note_best(self, seen: CapacityChanged) -> None:
        best = self.best.get(seen.node, Resources())
        memory_gib = seen.free.memory_gib + sum(own.resources.memory_gib for own in seen.own)
        gpu = seen.free.gpu + sum(own.resources.gpu for own in seen.own)
        self.best[seen.node] = Resources(memory_gib=max(best.memory_gib, memory_gib), gpu=max(best.gpu, gpu))

    def _others(self, seen: CapacityChanged) -> float:
        if seen.gone:
            return self.has[seen.node].cpu
        left = seen.free.cpu if seen.ready and seen.schedulable else 0.0
        return max(0.0, seen.allocatable.cpu - left - self.ours[seen.node].cpu)

    def _sum_ours(self) -> Amount:
        return Amount(sum(one.cpu for one in self.ours.values()), sum(one.gpu for one in self.ours.values()))

    def _offered(self) -> Amount:
        others = sum(levels[-1][1] for levels in self.levels.values())
        has = self.has.values()
        return Amount(sum(one.cpu for one in has) - others, sum(one.gpu for one in has))

    def cluster(self) -> Cluster:
        nodes = [
            Machine(name=name, cpu=has.cpu, memory_gib=self.best[name].memory_gib, gpu=self.best[name].gpu)
            for name, has in self.has.items()
        ]
        return Cluster(nodes=tuple(nodes), tenants=tuple(self._tenants()))

    def _tenants(self) -> Iterator[Tenant]:
        """One for each time in which others held the same."""
        for node, levels in self.levels.items():
            for (from_s, cpu), (to_s, _) in pairwise([*_changes(levels), (inf, 0.0)]):
                if cpu > LEAST and from_s < to_s:
                    yield Tenant(node=node, cpu=cpu, from_s=from_s, to_s=None if to_s == inf else to_s)


def _changes(levels: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    before = None
    for at_s, cpu in levels:
        if cpu != before:
            yield at_s, cpu
        before = cpu
