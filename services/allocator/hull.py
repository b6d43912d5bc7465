"""What a job could be, as a staircase of configurations in which each step gains less speed for its cost than the last.

Configurations below the upper concave hull of speed over cost are never the best use of what they cost: a mixture of
their neighbours would be faster. On a hull the greedy rule, always the step that gains most for its cost, is optimal
up to the last step that does not fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

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


def hull(configs: Iterable[Config], base: Config | None = None) -> list[Config]:
    """Those on the upper concave hull from `base` (absent: nothing for no cost) on, by rising cost."""
    kept: list[Config] = []
    for config in sorted(configs, key=lambda c: (c.cost, -c.speed)):
        if config.speed <= (kept[-1] if kept else base or NOTHING).speed:
            continue
        while kept and _slope(kept[-2] if len(kept) > 1 else base, kept[-1]) * ALIKE < _slope(kept[-1], config):
            kept.pop()
        kept.append(config)
    return kept


ALIKE = 1.02
"""A step that gains so much more for its cost than the one before it still comes after it, so that straight lines keep
their points, and a model's rounding does not decide."""
NOTHING = Config(Size(0, 0), 0, Resources(), 0.0, 0.0)


def _slope(one: Config | None, other: Config) -> float:
    """Speed gained for a unit of cost."""
    before = (one.cost, one.speed) if one else (0.0, 0.0)
    return (other.speed - before[1]) / max(other.cost - before[0], 1e-12)


def shared(
    hulls: Mapping[str, Sequence[Config]], worth: Mapping[str, float], room: Resources, first: Collection[str] = ()
) -> dict[str, Config]:
    """Who gets what of `room`: step by step, where worth x speed gained for its cost is largest and it fits.

    Those in `first` take their first steps before anybody else does.
    """
    given: dict[str, Config] = {}
    waiting = [_bid(worth, job, steps, 0) for job, steps in hulls.items() if steps]
    waiting.sort(key=lambda bid: (bid[1] not in first, bid))
    count = sum(bid[1] in first for bid in waiting)
    early, waiting = waiting[:count], waiting[count:]
    while early or waiting:
        _, job, at = early.pop(0) if early else heapq.heappop(waiting)
        steps, before = hulls[job], given.get(job)
        left = _less(room, steps[at].takes, before.takes if before else Resources())
        if left is None:
            continue
        room, given[job] = left, steps[at]
        if at + 1 < len(steps):
            heapq.heappush(waiting, _bid(worth, job, steps, at + 1))
    return given


def _bid(worth: Mapping[str, float], job: str, steps: Sequence[Config], at: int) -> tuple[float, str, int]:
    """The smallest is served first."""
    return (-worth[job] * _slope(steps[at - 1] if at else None, steps[at]), job, at)


def _less(room: Resources, taken: Resources, returned: Resources) -> Resources | None:
    """What is left after an exchange; None where it does not fit."""
    cpu = room.cpu - taken.cpu + returned.cpu
    memory = room.memory_gib - taken.memory_gib + returned.memory_gib
    gpu = room.gpu - taken.gpu + returned.gpu
    if min(cpu, memory) < -1e-9 or gpu < 0:
        return None
    return Resources(cpu=max(cpu, 0.0), memory_gib=max(memory, 0.0), gpu=gpu)
