"""An index of nodes by free capacity. It finds the best fit without looking at each node.

Best fit: of the nodes that can hold a task, the one with the fewest free devices, then the least
cpu, then the least memory, then the first name. A shelf holds the nodes with the same number of
free devices, in the order of cpu, memory and name. The search begins at the wanted cpu; the first
node that fits is the best. It skips nodes that have only too little memory.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

from services.allocator.placement.amounts import ROUNDING
from services.allocator.policies.contract import Node
from shared.messages import Resources

Entry = tuple[float, float, str]
"""Cores, GiB, name."""
_memory = itemgetter(1)


def best_fit_key(free: Resources, name: str) -> tuple[int, float, float, str]:
    """Return the sort key of a node. Of the nodes with enough room for a task, the smallest key is
    the best fit.
    """
    return free.gpu, free.cpu, free.memory_gib, name


class BestFitIndex:
    """The nodes in the order of their free amounts. `move` follows each change."""

    def __init__(self, nodes: Iterable[tuple[str, Resources]]) -> None:
        self.shelves: dict[int, list[Entry]] = {}
        self.add(nodes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BestFitIndex):
            return NotImplemented
        return self._filled_shelves() == other._filled_shelves()

    def copy(self) -> BestFitIndex:
        """Return a copy of the index, with shelves of its own."""
        other = BestFitIndex(())
        for gpu, shelf in self.shelves.items():
            other.shelves[gpu] = shelf.copy()
        return other

    def move(self, name: str, before: Resources, after: Resources) -> None:
        """Put a node in its new place after its free amount has changed."""
        self.remove(name, before)
        self.insert(name, after)

    def remove(self, name: str, free: Resources) -> None:
        """Take a node with this free amount off its shelf."""
        shelf = self.shelves[free.gpu]
        del shelf[bisect_left(shelf, (free.cpu, free.memory_gib, name))]

    def add(self, nodes: Iterable[tuple[str, Resources]]) -> None:
        """Put many nodes in their places."""
        for name, free in nodes:
            shelf = self.shelves.setdefault(free.gpu, [])
            shelf.append((free.cpu, free.memory_gib, name))
        for shelf in self.shelves.values():
            shelf.sort()

    def insert(self, name: str, free: Resources) -> None:
        """Put a node with this free amount on its shelf."""
        shelf = self.shelves.setdefault(free.gpu, [])
        insort(shelf, (free.cpu, free.memory_gib, name))

    def best_fit(self, wants: Resources) -> str | None:
        """Return the best fit; None: it fits nowhere."""
        for gpu in sorted(self.shelves):
            if gpu < wants.gpu:
                continue
            found = _first_on_shelf(self.shelves[gpu], wants)
            if found is not None:
                return found
        return None

    def largest_free(self) -> tuple[float, float, int]:
        """Return the most cores, GiB and devices that are free on one node."""
        cpu = memory = 0.0
        devices = 0
        for gpu, shelf in self.shelves.items():
            if not shelf:
                continue
            most_cpu, _, _ = shelf[-1]
            cpu = max(cpu, most_cpu)
            memory = max(memory, max(map(_memory, shelf)))
            devices = max(devices, gpu)
        return cpu, memory, devices

    def _filled_shelves(self) -> dict[int, list[Entry]]:
        """Return the shelves that hold a node, by free devices. Two indexes with equal ones are
        equal, even if one of them has empty shelves.
        """
        return {gpu: shelf for gpu, shelf in self.shelves.items() if shelf}


def _first_on_shelf(shelf: list[Entry], wants: Resources) -> str | None:
    """Return the first node of a shelf with room for the task; None: there is none."""
    start = bisect_left(shelf, (wants.cpu - 2 * ROUNDING,))
    for at in range(start, len(shelf)):
        cpu, memory, name = shelf[at]
        if wants.memory_gib <= memory + ROUNDING and wants.cpu <= cpu + ROUNDING:
            return name
    return None


# ---------------------------------------------------------------- the index of all nodes


class NodeIndex(NamedTuple):
    """Nodes by name, those that take tasks in order, and the names of each job's nodes. It never
    changes: a room copies the order before it places something.
    """

    nodes: Mapping[str, Node]
    order: BestFitIndex
    homes: Mapping[str, frozenset[str]]


NO_NODES = NodeIndex({}, BestFitIndex(()), {})


def update_index(index: NodeIndex, nodes: Mapping[str, Node], names: Collection[str]) -> NodeIndex:
    """Return the index of these nodes. `names`: those that are not as they are in `index`."""
    order = index.order.copy()
    homes = dict(index.homes)
    for name in names:
        before = index.nodes.get(name)
        after = nodes.get(name)
        if before is not None and before.takes:
            order.remove(name, before.free)
        if after is not None and after.takes:
            order.insert(name, after.free)
        jobs_before = before.hosts if before else frozenset()
        jobs_after = after.hosts if after else frozenset()
        if jobs_before != jobs_after:
            _update_homes(homes, name, jobs_before, jobs_after)
    return NodeIndex(nodes, order, homes)


def _update_homes(
    homes: dict[str, frozenset[str]],
    name: str,
    jobs_before: frozenset[str],
    jobs_after: frozenset[str],
) -> None:
    """Note in `homes` the jobs that a node had, and those that it has."""
    for job in jobs_before - jobs_after:
        others = homes[job] - {name}
        if others:
            homes[job] = others
        else:
            del homes[job]
    for job in jobs_after - jobs_before:
        homes[job] = homes.get(job, frozenset()) | {name}
