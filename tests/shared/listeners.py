"""Listeners that return to a test when they have received enough messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage


class Ears:
    """A handler that stores the messages in order. `until` counts a repeated message once."""

    def __init__(self) -> None:
        self.heard: list[StoredMessage] = []
        self._more = asyncio.Condition()

    async def __call__(self, heard: StoredMessage) -> None:
        async with self._more:
            self.heard.append(heard)
            self._more.notify_all()

    @property
    def ids(self) -> list[str]:
        return [h.message.id() for h in self.heard]

    async def until(self, count: int, within_s: float = 60.0) -> list[StoredMessage]:
        async with asyncio.timeout(within_s), self._more:
            await self._more.wait_for(lambda: len(set(self.ids)) >= count)
        return self.heard


async def first(
    count: int, watched: AsyncIterator[StoredMessage], within_s: float = 60.0
) -> list[StoredMessage]:
    """Return the first `count` messages of an iterator."""
    seen: list[StoredMessage] = []
    async with asyncio.timeout(within_s):
        async for heard in watched:
            seen.append(heard)
            if len(seen) == count:
                break
    return seen


async def consumers(bus: Bus, count: int, stream: str = subjects.ORDERS) -> None:
    """Wait until this many readers of a stream wait for messages.

    A consumer that was only created may not be known to its reader yet.
    """
    async with asyncio.timeout(60):
        while await _waiting_readers(bus, stream) < count:
            await asyncio.sleep(0.02)


async def _waiting_readers(bus: Bus, stream: str) -> int:
    return sum([bool(each.num_waiting) for each in await bus.js.consumers_info(stream)])
