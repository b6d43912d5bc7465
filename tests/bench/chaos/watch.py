"""Collect all messages of the bus, and wait for conditions on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from nats.js.api import DeliverPolicy

from services.cli.trial import EVERYTHING
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import Message
from shared.runtime import process

M = TypeVar("M", bound=Message)
LOOK_S = 0.25


class Late(Exception):
    """A condition did not become true in time; the text has its name."""


class Watch:
    """`heard` has all messages so far, those of each stream in the order of the stream."""

    def __init__(self, bus: Bus) -> None:
        self.bus, self.heard = bus, list[StoredMessage]()
        self.undone: list[
            tuple[float, float]
        ] = []  # from, to: messages stored in between are lost from the streams
        self.changed = asyncio.Event()
        self.broken = asyncio.ensure_future(bus.raise_failure())
        for filters in EVERYTHING:
            bus.spawn(self._listen(filters))

    async def _listen(self, filters: list[str]) -> None:
        async for heard in self.bus.tail(filters, deliver=DeliverPolicy.ALL):
            self.heard.append(heard)
            self.changed.set()

    def stored(self) -> list[StoredMessage]:
        """Return all messages except those that the bus lost when it was set back."""
        return [
            h
            for h in self.heard
            if not any(from_s < h.stored_s < to_s for from_s, to_s in self.undone)
        ]

    def of(self, kind: type[M], since: int = 0) -> list[M]:
        return [h.message for h in self.heard[since:] if isinstance(h.message, kind)]

    async def until(self, holds: Callable[[], Any], within_s: float, what: str) -> Any:
        """Wait until `holds` returns a true value, and return it; raise `Late` after `within_s`.

        It is called after every message, and every `LOOK_S`.
        """
        try:
            async with asyncio.timeout(within_s):
                while not (found := holds()):
                    if self.broken.done():
                        self.broken.result()
                    self.changed.clear()
                    await asyncio.wait([asyncio.ensure_future(self.changed.wait())], timeout=LOOK_S)
                return found
        except TimeoutError as error:
            raise Late(f"{what} did not come within {within_s:g} s") from error

    async def close(self) -> None:
        await process.cancel_tasks(self.broken)
        await self.bus.close()
