"""Nodes in the order of what they have free, so that the best fit is found without looking at each.

Best fit: of the nodes on which a task fits the one that has fewest devices free, then least cpu, then least memory,
then the first by name. Nodes stand on shelves by their free devices, and on a shelf by cpu, memory and name: the first
that fits, from the wanted cpu on, is the best. What falls short of memory alone is walked past.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from shared.messages import Resources

ROUNDING = 1e-9
NO_MORE = Resources(cpu=0.0, memory_gib=0.0, gpu=0)
Place = tuple[float, float, str]
"""Cores, GiB, name."""


def fits(wants: Resources, free: Resources) -> bool:
    return wants.cpu <= free.cpu + ROUNDING and wants.memory_gib <= free.memory_gib + ROUNDING and wants.gpu <= free.gpu


def less(free: Resources, gone: Resources) -> Resources:
    return Resources(
        cpu=max(0.0, free.cpu - gone.cpu),
        memory_gib=max(0.0, free.memory_gib - gone.memory_gib),
        gpu=max(0, free.gpu - gone.gpu),
    )


def taken(free: Resources, wants: Resources, most: int) -> tuple[int, Resources]:
    """How many such tasks fit, up to `most`, and what they leave: `less`, one after the other."""
    times, cpu, memory, gpu = 0, free.cpu, free.memory_gib, free.gpu
    want_cpu, want_memory, want_gpu = wants.cpu, wants.memory_gib, wants.gpu
    while times < most and want_cpu <= cpu + ROUNDING and want_memory <= memory + ROUNDING and want_gpu <= gpu:
        cpu, memory, gpu = max(0.0, cpu - want_cpu), max(0.0, memory - want_memory), gpu - want_gpu
        times += 1
    return times, Resources(cpu=cpu, memory_gib=memory, gpu=gpu)


def times(wants: Resources, count: int) -> Resources:
    """What so many such tasks want."""
    return Resources(cpu=wants.cpu * count, memory_gib=wants.memory_gib * count, gpu=wants.gpu * count)


def together(parts: Sequence[Resources]) -> Resources:
    return Resources(
        cpu=sum(part.cpu for part in parts),
        memory_gib=sum(part.memory_gib for part in parts),
        gpu=sum(part.gpu for part in parts),
    )


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

    def move(self, name: str, before: Resources, after: Resources) -> None:
        shelf = self.shelves[before.gpu]
        del shelf[bisect_left(shelf, (before.cpu, before.memory_gib, name))]
        insort(self.shelves.setdefault(after.gpu, []), (after.cpu, after.memory_gib, name))

    def first(self, wants: Resources) -> str | None:
        """The best fit; None where it fits nowhere."""
        for gpu in sorted(self.shelves):
            found = self._on(self.shelves[gpu], wants) if gpu >= wants.gpu else None
            if found is not None:
                return found
        return None

    def _on(self, shelf: list[Place], wants: Resources) -> str | None:
        for at in range(bisect_left(shelf, (wants.cpu - 2 * ROUNDING,)), len(shelf)):
            cpu, memory, name = shelf[at]
            if wants.memory_gib <= memory + ROUNDING and wants.cpu <= cpu + ROUNDING:
                return name
        return None
