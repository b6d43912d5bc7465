"""The gate through which every request of one program goes. Edge.

Promise: no more requests than `pacing.py` says, in the order of asking; none while the server wants
silence, and afterwards each at a moment of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Gate:
    def __init__(self, rate: float, burst: int, chance: Callable[[], float]) -> None:
        self.slots = asyncio.Semaphore(burst)
        self.rest_s = burst / rate
        self.chance = chance
        self.open_s = 0.0  # by the loop's clock

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """From when a request may leave to when its answer begins."""
        await self.slots.acquire()
        try:
            await self._until_open()
            yield
        finally:
            asyncio.get_running_loop().call_later(self.rest_s, self.slots.release)

    def hold(self, seconds: float) -> None:
        self.open_s = max(self.open_s, asyncio.get_running_loop().time() + seconds)

    async def _until_open(self) -> None:
        while (wait_s := self.open_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(wait_s + self.chance() * self.rest_s)
