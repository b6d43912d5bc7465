"""What was said before, by this monitor or another. Edge."""

from __future__ import annotations

import asyncio

from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import Heard
from shared.messages import CapacityChanged, Message


async def recall(bus: Bus, at_once: int, kind: type[Message] = CapacityChanged) -> list[Heard]:
    """The last fact of a kind said of each node or namespace, so that a restart tells only what
    changed meanwhile.

    What cannot be read is told anew.
    """
    info = await bus.asked(
        lambda: bus.js.stream_info(subjects.FACTS, subjects_filter=subjects.pattern(kind))
    )
    keys = [
        subject.removeprefix(subjects.pattern(kind, "")) for subject in info.state.subjects or {}
    ]
    told: list[Heard] = []
    for begin in range(0, len(keys), at_once):
        heard = await asyncio.gather(
            *(bus.last(kind, key) for key in keys[begin : begin + at_once])
        )
        told += [h for h in heard if h]
    return told
