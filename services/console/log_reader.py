"""Reading one stream as somebody who only watches. Edge.

Promise: every message that matches, in order, each once, without leaving a trace. Who reads on
after an error begins again with what is stored behind the last message that he took.

Reading several streams as one. Edge.

What is stored comes in the order in which the server stored it; what comes later, as it comes, put
in order as far as `SETTLE_S` goes. After the server was away, what was stored meanwhile comes as at
the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from services.console.log_entry import Entry
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import PullConsumer
from shared.bus.tail import add_consumer, consumer_filter
from shared.messages import DeadLetter, Message
from shared.runtime.process import cancel_tasks

WAIT_S = 10.0
"""Nothing more comes after so long: what was there may have been dropped just now."""
IDLE_S = 60.0
OUR_CLOCK_S = 60.0
"""By so much a server's clock may differ from that of the machine at which somebody reads."""
THEIR_CLOCKS_S = 5.0
"""By so much those in the cluster may differ: what led to a decision may seem to come after it."""


@dataclass(frozen=True)
class Wanted:
    """What to read of one stream: behind a sequence, or since a point in time (seconds since
    1970).
    """

    stream: str
    filters: list[str]
    after: int = 0
    since_s: float | None = None


class Reader:
    def __init__(self, bus: Bus, wanted: Wanted) -> None:
        self.bus, self.wanted = bus, wanted
        self._seen = wanted.after  # and taken by who reads, or passed over
        self._puller: PullConsumer | None = None
        self._left = 0

    async def stored(self) -> AsyncIterator[Entry]:
        """What is there at the call, behind what was read. Old facts may be dropped meanwhile: then
        there is less.
        """
        self._puller = puller = await self._open()
        with contextlib.suppress(TimeoutError):
            while self._left > 0:
                raw = await asyncio.wait_for(puller.next(), WAIT_S)
                self._left = min(self._left - 1, raw.metadata.num_pending)
                if entry := self._entry(raw):
                    yield entry
                self._seen = raw.metadata.sequence.stream

    async def live(self) -> AsyncIterator[Entry]:
        """What comes from then on. Ends where the connection broke, or the server has forgotten
        us.
        """
        assert self._puller, "what is stored comes first"
        with contextlib.suppress(NatsError):
            while True:
                raw = await self._puller.next()
                if entry := self._entry(raw):
                    yield entry
                self._seen = raw.metadata.sequence.stream

    async def _open(self) -> PullConsumer:
        if self._puller:
            await self._puller.close()
        since = self.wanted.since_s if self._seen == 0 else None
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE
            if since is None
            else DeliverPolicy.BY_START_TIME,
            opt_start_seq=self._seen + 1 if since is None else None,
            opt_start_time=None if since is None else datetime.fromtimestamp(since, UTC),
            ack_policy=AckPolicy.NONE,
            **consumer_filter(self.bus.client, self.wanted.filters),
            inactive_threshold=IDLE_S,
            mem_storage=True,
        )
        info = await add_consumer(self.bus.client, self.bus.js, self.wanted.stream, config)
        self._left = int(info.num_pending or 0)
        return PullConsumer(self.bus.client, self.wanted.stream, info.name)

    def _entry(self, raw: Msg) -> Entry | None:
        """None for what one filter that covers all of ours lets through besides."""
        return (
            entry_of(raw)
            if any(subjects.matches_filter(f, raw.subject) for f in self.wanted.filters)
            else None
        )


def entry_of(raw: Msg) -> Entry | None:
    """None for what cannot be read: the dead letters tell of it."""
    meta = raw.metadata
    if (said := _said(raw, meta.stream)) is None:
        return None
    return Entry(said, raw.subject, meta.stream, meta.sequence.stream, meta.timestamp.timestamp())


def _said(raw: Msg, stream: str) -> Message | DeadLetter | None:
    try:
        if stream == subjects.DEAD:
            return msgspec.json.decode(raw.data, type=DeadLetter)
        return subjects.decode_message(raw.subject, raw.data)
    except (subjects.UnreadableMessage, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


SETTLE_S, RETRY_S = 0.1, 0.5
A = TypeVar("A")
B = TypeVar("B")
Coming = asyncio.Queue[Entry | None]


async def read(bus: Bus, wanted: Sequence[Wanted], follow: bool) -> AsyncGenerator[Entry, None]:
    """What is stored; then, if we follow, what comes. To be closed by who leaves early
    (`aclosing`).
    """
    readers = [Reader(bus, each) for each in wanted]
    async for entry in _stored(readers):
        yield entry
    while follow:
        for coming in (_as_it_comes(readers), _missed(readers)):
            async with aclosing(coming):
                async for entry in coming:
                    yield entry


def _stored(readers: list[Reader]) -> AsyncGenerator[Entry, None]:
    return in_order([reader.stored() for reader in readers])


async def _missed(readers: list[Reader]) -> AsyncGenerator[Entry, None]:
    """What was stored while nothing came, as soon as it can be read: of all streams together, for
    the order's sake.
    """
    while True:
        await asyncio.sleep(RETRY_S)
        with suppress(NatsError):
            async for entry in _stored(readers):
                yield entry
            return


async def in_order(sources: list[AsyncIterator[Entry]]) -> AsyncGenerator[Entry, None]:
    """Merge by the time of storing, holding one message a source."""
    heads = [
        (entry.order, i, entry)
        for i, source in enumerate(sources)
        if (entry := await anext(source, None))
    ]
    heapq.heapify(heads)
    while heads:
        _, i, entry = heads[0]
        yield entry
        if following := await anext(sources[i], None):
            heapq.heapreplace(heads, (following.order, i, following))
        else:
            heapq.heappop(heads)


async def _as_it_comes(readers: list[Reader]) -> AsyncGenerator[Entry, None]:
    """Until nothing comes any more to one of them."""
    queue: Coming = asyncio.Queue()
    pouring = [asyncio.ensure_future(_pour(reader, queue)) for reader in readers]
    try:
        while not (over := [task for task in pouring if task.done()]):
            for entry in await _settled(queue):
                yield entry
        for task in over:
            task.result()
    finally:
        await cancel_tasks(*pouring)
    for entry in _at_hand(queue):
        yield entry


async def _settled(queue: Coming) -> list[Entry]:
    """What came together, in order."""
    first = await queue.get()
    await asyncio.sleep(SETTLE_S)
    return _at_hand(queue, first)


def _at_hand(queue: Coming, *before: Entry | None) -> list[Entry]:
    came = [*before, *(queue.get_nowait() for _ in range(queue.qsize()))]
    return sorted(filter(None, came), key=lambda entry: entry.order)


async def either(one: AsyncIterator[A], other: AsyncIterator[B]) -> AsyncGenerator[A | B, None]:
    """What comes of two that never end, as it comes; raises what one of them raises."""
    coming: dict[asyncio.Future[Any], AsyncIterator[Any]] = {
        _next(source): source for source in (one, other)
    }
    try:
        while True:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for came in done:
                source = coming.pop(came)
                coming[_next(source)] = source
                yield came.result()
    finally:
        await cancel_tasks(*coming)


def _next(source: AsyncIterator[Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(anext(source))


async def _pour(reader: Reader, queue: Coming) -> None:
    """At the end None."""
    try:
        async for entry in reader.live():
            queue.put_nowait(entry)
    finally:
        queue.put_nowait(None)
