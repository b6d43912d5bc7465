"""The machines of a recorded log, and the part of them that others took.

    others' cpu  =  allocatable - free - our own pods    [cores]

While nothing may be put on a node, others have all of it that we do not hold; before it is there,
and after, all of it. Of memory and devices a node has as much as it ever left to us: tenants are
counted in cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf

from services.whatif.simulator.machines import Amount, Held
from services.whatif.simulator.scenario import Cluster, Machine, Tenant
from shared.messages import CapacityChanged, Resources

LEAST = 1e-6  # cores; less is a rounding error
Level = tuple[float, float]
"""A time, and the cores that others have of a node from then on."""


class Grounds:
    """The nodes of a log, and the amounts over time."""

    def __init__(self) -> None:
        self.has: dict[str, Resources] = {}
        """All of each node."""
        self.best: dict[str, Resources] = {}
        """The most memory and devices of each node that were ever left to us."""
        self.levels: dict[str, list[Level]] = {}
        """The cores of others on each node, over time."""
        self.ours: dict[str, Resources] = {}
        """The amounts that our pods hold on each node now."""
        self.held: list[Held] = []
        """An entry for each change, as in a run."""

    def see(self, seen: CapacityChanged, now: float) -> None:
        """Take a node as the monitor saw it."""
        node = seen.node
        if node not in self.has and now > 0:
            # Before a node was there, others had all of it.
            self.levels[node] = [(0.0, seen.allocatable.cpu)]

        ours = _total(own.resources for own in seen.own)
        if seen.gone:
            self.has.setdefault(node, Resources())
            self.ours[node] = Resources()
        else:
            self.has[node] = seen.allocatable
            self.ours[node] = ours

        self._note_best(seen, ours)
        self._note_level(seen, now)
        self.held.append((now, self._used(), self._offered()))

    def _note_level(self, seen: CapacityChanged, now: float) -> None:
        """Note the cores of a node that others have from now on."""
        levels = self.levels.setdefault(seen.node, [])
        levels.append((now, self._others(seen)))

    def _note_best(self, seen: CapacityChanged, ours: Resources) -> None:
        """Keep the most memory and devices of a node that were ever left to us."""
        best = self.best.get(seen.node, Resources())
        memory_gib = seen.free.memory_gib + ours.memory_gib
        gpu = seen.free.gpu + ours.gpu
        self.best[seen.node] = Resources(
            memory_gib=max(best.memory_gib, memory_gib),
            gpu=max(best.gpu, gpu),
        )

    def _others(self, seen: CapacityChanged) -> float:
        """Return the cores of a node that others have."""
        if seen.gone:
            return self.has[seen.node].cpu
        left = 0.0
        if seen.ready and seen.schedulable:
            left = seen.free.cpu
        ours = self.ours[seen.node].cpu
        return max(0.0, seen.allocatable.cpu - left - ours)

    def _used(self) -> Amount:
        """Return what our pods hold."""
        held = _total(self.ours.values())
        return Amount(held.cpu, held.gpu)

    def _offered(self) -> Amount:
        """Return everything but the cores of others."""
        others = sum(levels[-1][1] for levels in self.levels.values())
        everything = _total(self.has.values())
        return Amount(everything.cpu - others, everything.gpu)

    def cluster(self) -> Cluster:
        """Return the machines and the tenants of the log."""
        nodes = []
        for name, has in self.has.items():
            best = self.best[name]
            machine = Machine(
                name=name,
                cpu=has.cpu,
                memory_gib=best.memory_gib,
                gpu=best.gpu,
            )
            nodes.append(machine)
        return Cluster(nodes=tuple(nodes), tenants=tuple(self._tenants()))

    def _tenants(self) -> Iterator[Tenant]:
        """Yield a tenant for each time in which others held the same."""
        for node, levels in self.levels.items():
            changes = [*_changes(levels), (inf, 0.0)]
            for (from_s, cpu), (until_s, _) in pairwise(changes):
                if cpu <= LEAST or from_s >= until_s:
                    continue
                to_s = None if until_s == inf else until_s
                yield Tenant(node=node, cpu=cpu, from_s=from_s, to_s=to_s)


def _total(parts: Iterable[Resources]) -> Resources:
    """Return the sum of resources."""
    listed = list(parts)
    return Resources(
        cpu=sum(one.cpu for one in listed),
        memory_gib=sum(one.memory_gib for one in listed),
        gpu=sum(one.gpu for one in listed),
    )


def _changes(levels: Iterable[Level]) -> Iterator[Level]:
    """Yield the levels that differ from the one before."""
    before = None
    for at_s, cpu in levels:
        if cpu != before:
            yield at_s, cpu
        before = cpu
