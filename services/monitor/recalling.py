"""What was said before, by this monitor or another. Edge."""

from __future__ import annotations

import asyncio

from shared import subjects
from shared.bus import Bus, Heard
from shared.messages import CapacityChanged


async def recall(bus: Bus, at_once: int) -> list[Heard]:
    """The last fact said of each node, so that a restart tells only what changed while nobody looked.

    A node whose last fact cannot be read is told anew.
    """
    capacity = subjects.pattern(CapacityChanged)
    info = await bus.asked(lambda: bus.js.stream_info(subjects.FACTS, subjects_filter=capacity))
    keys = [subject.removeprefix(subjects.pattern(CapacityChanged, "")) for subject in info.state.subjects or {}]
    told: list[Heard] = []
    for begin in range(0, len(keys), at_once):
        heard = await asyncio.gather(*(bus.last(CapacityChanged, key) for key in keys[begin : begin + at_once]))
        told += [h for h in heard if h]
    return told
