"""Reading the streams as somebody who only watches. Edge.

Promise: every message that matches, each once, without leaving a trace. What is stored comes in the order in which the
server stored it, across the streams; what comes later, as it comes. A server that was away is read on from where we were.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from shared import subjects
from shared.bus import Bus
from shared.messages import DeadLetter, Message

BATCH, WAIT_S, RETRY_S, IDLE_S = 256, 5.0, 0.5, 60.0
SETTLE_S = 0.1  # what two streams say within this is put in order
Subscription = JetStreamContext.PullSubscription


@dataclass(frozen=True)
class Entry:
    """One stored message, and where and when the server stored it."""

    said: Message | DeadLetter
    subject: str
    stream: str
    sequence: int
    stored_s: float

    @property
    def order(self) -> tuple[float, str, int]:
        return self.stored_s, self.stream, self.sequence


@dataclass(frozen=True)
class Wanted:
    """What to read of one stream: behind a sequence, or since a point in time (seconds since 1970)."""

    stream: str
    filters: list[str]
    after: int = 0
    since_s: float | None = None


class Reader:
    """One stream, in order."""

    def __init__(self, bus: Bus, wanted: Wanted) -> None:
        self.bus, self.wanted, self.seen = bus, wanted, wanted.after
        self.subscription: Subscription | None = None
        self.left = 0

    async def stored(self) -> AsyncIterator[Entry]:
        """What is there at the call. Old facts may be dropped meanwhile: then there is less."""
        await self._open()
        while self.left > 0 and (batch := await self._fetch()):
            for entry in batch:
                yield entry

    async def live(self) -> AsyncIterator[Entry]:
        """What comes from then on; never ends."""
        while True:
            try:
                if self.subscription is None:
                    await self._open()
                for entry in await self._fetch():
                    yield entry
            except NatsError:
                self.subscription = None
                await asyncio.sleep(RETRY_S)

    async def _open(self) -> None:
        since = self.wanted.since_s if self.seen == 0 else None
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE if since is None else DeliverPolicy.BY_START_TIME,
            opt_start_seq=self.seen + 1 if since is None else None,
            opt_start_time=None if since is None else datetime.fromtimestamp(since, UTC),
            ack_policy=AckPolicy.NONE,
            filter_subjects=self.wanted.filters,
            inactive_threshold=IDLE_S,
            mem_storage=True,
        )
        info = await self.bus.js.add_consumer(self.wanted.stream, config)
        self.left = int(info.num_pending or 0)
        self.subscription = await self.bus.js.pull_subscribe_bind(consumer=info.name, stream=self.wanted.stream)

    async def _fetch(self) -> list[Entry]:
        assert self.subscription is not None
        with suppress(TimeoutError):
            batch = await self.subscription.fetch(BATCH, timeout=WAIT_S)
            self.left -= len(batch)
            self.seen = batch[-1].metadata.sequence.stream
            return [entry for entry in map(_entry, batch) if entry]
        return []


def _entry(raw: Msg) -> Entry | None:
    """None for what cannot be read: the dead letters tell of it."""
    meta = raw.metadata
    said = _said(raw, meta.stream)
    return said and Entry(said, raw.subject, meta.stream, meta.sequence.stream, meta.timestamp.timestamp())


def _said(raw: Msg, stream: str) -> Message | DeadLetter | None:
    try:
        if stream == subjects.DEAD:
            return msgspec.json.decode(raw.data, type=DeadLetter)
        return subjects.decode(raw.subject, raw.data)
    except (subjects.Unusable, msgspec.DecodeError):
        return None


# ---------------------------------------------------------------- several streams


async def read(bus: Bus, wanted: Sequence[Wanted], follow: bool) -> AsyncIterator[Entry]:
    """What is stored; then, if we follow, what comes."""
    readers = [Reader(bus, each) for each in wanted]
    async for entry in _in_order([reader.stored() for reader in readers]):
        yield entry
    if follow:
        async with aclosing(_as_it_comes(readers)) as coming:
            async for entry in coming:
                yield entry


async def _in_order(sources: list[AsyncIterator[Entry]]) -> AsyncIterator[Entry]:
    """Merge by the time of storing; holds one message a stream."""
    heads = [(entry.order, i, entry) for i, source in enumerate(sources) if (entry := await anext(source, None))]
    heapq.heapify(heads)
    while heads:
        _, i, entry = heads[0]
        yield entry
        if following := await anext(sources[i], None):
            heapq.heapreplace(heads, (following.order, i, following))
        else:
            heapq.heappop(heads)


async def _as_it_comes(readers: list[Reader]) -> AsyncIterator[Entry]:
    queue: asyncio.Queue[Entry] = asyncio.Queue()
    pouring = [asyncio.ensure_future(_pour(reader, queue)) for reader in readers]
    try:
        while True:
            entries = [await queue.get()]
            await asyncio.sleep(SETTLE_S)
            while not queue.empty():
                entries.append(queue.get_nowait())
            for entry in sorted(entries, key=lambda e: e.order):
                yield entry
    finally:
        for task in pouring:
            task.cancel()
        await asyncio.gather(*pouring, return_exceptions=True)


async def _pour(reader: Reader, queue: asyncio.Queue[Entry]) -> None:
    async for entry in reader.live():
        await queue.put(entry)
