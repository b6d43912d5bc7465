"""What a job could be, as a staircase of configurations in which each step gains less speed for its cost than the last.

Configurations below the upper concave hull of speed over cost are never the best use of what they cost: a mixture of
their neighbours would be faster. On a hull the greedy rule, always the step that gains most for its cost, is optimal
up to the last step that does not fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from services.allocator.placement import Size
from shared.messages import Resources


class Config(msgspec.Struct, frozen=True):
    """One size and batch: what it takes, what share of the scarcest resource that is, and its speed in examples/s."""

    size: Size
    batch: int
    takes: Resources
    cost: float
    speed: float


def hull(configs: Iterable[Config]) -> list[Config]:
    """Those on the upper concave hull through (0, 0), by rising cost; empty where none is faster than nothing."""
    kept: list[Config] = []
    for config in sorted(configs, key=lambda c: (c.cost, -c.speed)):
        if kept and config.speed <= kept[-1].speed:
            continue
        while kept and _slope(kept[-2] if len(kept) > 1 else None, kept[-1]) <= _slope(kept[-1], config):
            kept.pop()
        if config.speed > 0.0:
            kept.append(config)
    return kept


def _slope(one: Config | None, other: Config) -> float:
    """Speed gained for a unit of cost."""
    before = (one.cost, one.speed) if one else (0.0, 0.0)
    return (other.speed - before[1]) / max(other.cost - before[0], 1e-12)


def shared(hulls: Mapping[str, Sequence[Config]], worth: Mapping[str, float], room: Resources) -> dict[str, Config]:
    """Who gets what of `room`: step by step, where worth x speed gained for its cost is largest and it fits."""
    given: dict[str, Config] = {}
    waiting = [(-worth[job] * _slope(None, steps[0]), job, 0) for job, steps in hulls.items() if steps]
    heapq.heapify(waiting)
    while waiting:
        _, job, at = heapq.heappop(waiting)
        steps, before = hulls[job], given.get(job)
        left = _less(room, steps[at].takes, before.takes if before else Resources())
        if left is None:
            continue
        room, given[job] = left, steps[at]
        if at + 1 < len(steps):
            heapq.heappush(waiting, (-worth[job] * _slope(steps[at], steps[at + 1]), job, at + 1))
    return given


def _less(room: Resources, taken: Resources, returned: Resources) -> Resources | None:
    """What is left after an exchange; None where it does not fit."""
    cpu = room.cpu - taken.cpu + returned.cpu
    memory = room.memory_gib - taken.memory_gib + returned.memory_gib
    gpu = room.gpu - taken.gpu + returned.gpu
    if min(cpu, memory) < -1e-9 or gpu < 0:
        return None
    return Resources(cpu=max(cpu, 0.0), memory_gib=max(memory, 0.0), gpu=gpu)
