"""Nodes in the order of what they have free, so that the best fit is found without looking at each.

Best fit: of the nodes on which a task fits the one that has fewest devices free, then least cpu, then least memory,
then the first by name. Nodes stand on shelves by their free devices, and on a shelf by cpu, memory and name: the first
that fits, from the wanted cpu on, is the best. What falls short of memory alone is walked past.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import itemgetter

from services.allocator.placing.amounts import ROUNDING
from shared.messages import Resources

Place = tuple[float, float, str]
"""Cores, GiB, name."""
_memory = itemgetter(1)


def rank(free: Resources, name: str) -> tuple[int, float, float, str]:
    """The smallest is the best fit of those on which a task fits."""
    return free.gpu, free.cpu, free.memory_gib, name


class Order:
    """Which node a task goes to, among all. `move` follows what is taken and given back."""

    def __init__(self, nodes: Iterable[tuple[str, Resources]]) -> None:
        self.shelves: dict[int, list[Place]] = {}
        for name, free in nodes:
            self.shelves.setdefault(free.gpu, []).append((free.cpu, free.memory_gib, name))
        for shelf in self.shelves.values():
            shelf.sort()

    def copy(self) -> Order:
        other = Order(())
        other.shelves = {gpu: shelf.copy() for gpu, shelf in self.shelves.items()}
        return other

    def move(self, name: str, before: Resources, after: Resources) -> None:
        self.leave(name, before)
        self.come(name, after)

    def leave(self, name: str, free: Resources) -> None:
        shelf = self.shelves[free.gpu]
        del shelf[bisect_left(shelf, (free.cpu, free.memory_gib, name))]

    def come(self, name: str, free: Resources) -> None:
        insort(self.shelves.setdefault(free.gpu, []), (free.cpu, free.memory_gib, name))

    def first(self, wants: Resources) -> str | None:
        """The best fit; None where it fits nowhere."""
        for gpu in sorted(self.shelves):
            found = self._on(self.shelves[gpu], wants) if gpu >= wants.gpu else None
            if found is not None:
                return found
        return None

    def most(self) -> tuple[float, float, int]:
        """Of cores, GiB and devices each: what the node has free that has most of it."""
        there = {gpu: shelf for gpu, shelf in self.shelves.items() if shelf}
        cpu = max((shelf[-1][0] for shelf in there.values()), default=0.0)
        memory = max((max(map(_memory, shelf)) for shelf in there.values()), default=0.0)
        return cpu, memory, max(there, default=0)

    def _on(self, shelf: list[Place], wants: Resources) -> str | None:
        for at in range(bisect_left(shelf, (wants.cpu - 2 * ROUNDING,)), len(shelf)):
            cpu, memory, name = shelf[at]
            if wants.memory_gib <= memory + ROUNDING and wants.cpu <= cpu + ROUNDING:
                return name
        return None
