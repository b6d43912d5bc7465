"""The log reader: several streams as one log. It leaves nothing on the bus.

Promise: every message that matches a filter, in the order in which the server stored it, each once.
Stored messages come first. Then, if the reader follows, new messages come as they are published;
those that arrive within `SETTLE_S` are sorted too. After the bus was away, the messages that were
stored meanwhile come first, as at the beginning.

`decode` converts a raw message for the caller; messages for which it returns None are left out.
Close the generators (`contextlib.aclosing`) when leaving early.

`LastNodeFacts` has the last capacity facts of each node and namespace, which the server keeps
beside the history. The oldest facts are discarded. So the history may not have the last fact of a
node or a quota that has not changed for a long time. The stream `weir-nodes` has it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import DeliverPolicy
from nats.js.errors import NotFoundError

from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import PullConsumer, StoredMessage, stored_message, stored_time
from shared.bus.subjects import FACTS, NODES
from shared.bus.tail import add_consumer, consumer_filter, ephemeral_config
from shared.messages import CapacityFact, Message
from shared.runtime.process import cancel_tasks

T = TypeVar("T")
WAIT_S = 10.0
"""A stored message that does not arrive within this time was discarded meanwhile."""

SETTLE_S = 0.1
"""New messages that arrive within this time are sorted."""
RETRY_S = 0.5


@dataclass(frozen=True)
class StreamQuery:
    """The part of one stream to read: the messages that match a filter (of all if there is none),
    after a sequence, or since a time (seconds since 1970).

    `filter_in_subject`: the request names its one filter in its subject, for users whose permission
    is for this filter only.
    """

    stream: str
    filters: Sequence[str] = ()
    after: int = 0
    since_s: float | None = None
    filter_in_subject: bool = False

    def matches(self, subject: str) -> bool:
        if not self.filters:
            return True
        return any(subjects.matches_filter(each, subject) for each in self.filters)


class Record(NamedTuple, Generic[T]):
    """A decoded message with its place in the log."""

    stored_s: float
    stream: str
    sequence: int
    value: T

    @property
    def order(self) -> tuple[float, str, int]:
        return self.stored_s, self.stream, self.sequence


def readable_message(raw: Msg) -> StoredMessage | None:
    """Return a message, or None if it cannot be read: it is among the dead letters."""
    try:
        return stored_message(raw)
    except subjects.UnreadableMessage:
        return None


class LogReader(Generic[T]):
    """Reads several streams as one log."""

    def __init__(
        self, bus: Bus, queries: Sequence[StreamQuery], decode: Callable[[Msg], T | None]
    ) -> None:
        self._streams = [_StreamReader(bus, query, decode) for query in queries]

    @property
    def positions(self) -> Mapping[str, int]:
        """By stream, the sequence of the last message that was read or left out."""
        return {reader.query.stream: reader.position for reader in self._streams}

    async def read_stored(self, until_s: float | None = None) -> AsyncGenerator[T, None]:
        """Yield the messages that are stored at the call, up to a time if one is given."""
        async with aclosing(self._merge_stored()) as records:
            async for record in records:
                if until_s is not None and record.stored_s > until_s:
                    return
                yield record.value

    async def read_and_follow(self) -> AsyncGenerator[T, None]:
        """Yield the stored messages, then new ones without end, also after the bus was away."""
        async with aclosing(self._merge_stored()) as records:
            async for record in records:
                yield record.value
        while True:
            async with aclosing(self._follow_while_connected()) as records:
                async for record in records:
                    yield record.value
            async with aclosing(self._read_missed()) as records:
                async for record in records:
                    yield record.value

    async def close(self) -> None:
        for reader in self._streams:
            await reader.close()

    def _merge_stored(self) -> AsyncGenerator[Record[T], None]:
        return merge_records([reader.read_stored() for reader in self._streams])

    async def _read_missed(self) -> AsyncGenerator[Record[T], None]:
        """Yield the messages that were stored while the bus was away, once it answers."""
        while True:
            await asyncio.sleep(RETRY_S)
            with contextlib.suppress(NatsError):
                async for record in self._merge_stored():
                    yield record
                return

    async def _follow_while_connected(self) -> AsyncGenerator[Record[T], None]:
        """Yield new messages until one of the streams delivers no more."""
        queue: asyncio.Queue[Record[T] | None] = asyncio.Queue()
        tasks = [asyncio.ensure_future(_pour(reader, queue)) for reader in self._streams]
        try:
            while not (ended := [task for task in tasks if task.done()]):
                first = await queue.get()
                await asyncio.sleep(SETTLE_S)
                for record in _take_sorted(queue, first):
                    yield record
            for task in ended:
                task.result()
        finally:
            await cancel_tasks(*tasks)
        for record in _take_sorted(queue, None):
            yield record


async def merge_records(
    sources: Sequence[AsyncGenerator[Record[T], None]],
) -> AsyncGenerator[Record[T], None]:
    """Merge sources that are in order by the time of storing; one record of each is held."""
    heads: dict[int, Record[T]] = {}
    try:
        for number, source in enumerate(sources):
            record = await anext(source, None)
            if record is not None:
                heads[number] = record
        while heads:
            first = min(heads, key=lambda number: heads[number].order)
            yield heads.pop(first)
            record = await anext(sources[first], None)
            if record is not None:
                heads[first] = record
    finally:
        for source in sources:
            await source.aclose()


class _StreamReader(Generic[T]):
    """Reads one stream. After an error `read_stored` begins again after `position`."""

    def __init__(self, bus: Bus, query: StreamQuery, decode: Callable[[Msg], T | None]) -> None:
        self.bus = bus
        self.query = query
        self.decode = decode
        self.position = query.after
        self._consumer: PullConsumer | None = None

    async def read_stored(self) -> AsyncGenerator[Record[T], None]:
        """Yield the stored messages. Messages that the server discards meanwhile are missing."""
        pending = await self._open()
        assert self._consumer is not None
        with contextlib.suppress(TimeoutError):
            while pending > 0:
                raw = await asyncio.wait_for(self._consumer.next(), WAIT_S)
                pending = min(pending - 1, raw.metadata.num_pending)
                for record in self._records(raw):
                    yield record
                self.position = raw.metadata.sequence.stream

    async def read_new(self) -> AsyncIterator[Record[T]]:
        """Yield new messages until the connection breaks, or the server removes the consumer."""
        assert self._consumer is not None, "stored messages come first"
        with contextlib.suppress(NatsError):
            while True:
                raw = await self._consumer.next()
                for record in self._records(raw):
                    yield record
                self.position = raw.metadata.sequence.stream

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()
            self._consumer = None

    async def _open(self) -> int:
        """Create a consumer after the position. Return the number of messages that are stored after
        it.
        """
        await self.close()
        query = self.query
        since_s = query.since_s if self.position == 0 else None
        config = ephemeral_config(
            self._filter_options(),
            DeliverPolicy.BY_START_SEQUENCE,
            start_sequence=self.position + 1 if since_s is None else None,
            since_s=since_s,
        )
        info = await add_consumer(self.bus.client, self.bus.js, query.stream, config)
        self._consumer = PullConsumer(self.bus.client, query.stream, info.name)
        return int(info.num_pending or 0)

    def _filter_options(self) -> dict[str, Any]:
        filters = list(self.query.filters)
        if not filters:
            return {}
        if self.query.filter_in_subject:
            return {"filter_subject": filters[0]}
        return consumer_filter(self.bus.client, filters)

    def _records(self, raw: Msg) -> Iterator[Record[T]]:
        """Yield the message; nothing if it is left out. One filter that covers several also matches
        other messages.
        """
        if not self.query.matches(raw.subject):
            return
        value = self.decode(raw)
        if value is not None:
            sequence = raw.metadata.sequence.stream
            yield Record(stored_time(raw), self.query.stream, sequence, value)


async def _pour(reader: _StreamReader[T], queue: asyncio.Queue[Record[T] | None]) -> None:
    """Put new messages into the queue; None at the end."""
    try:
        async for record in reader.read_new():
            queue.put_nowait(record)
    finally:
        queue.put_nowait(None)


def _take_sorted(
    queue: asyncio.Queue[Record[T] | None], first: Record[T] | None
) -> list[Record[T]]:
    records = [first] if first is not None else []
    while not queue.empty():
        record = queue.get_nowait()
        if record is not None:
            records.append(record)
    return sorted(records, key=lambda record: record.order)


SOURCE = "Nats-Stream-Source"
"""The header in which the server writes the origin of a copied message."""


class LastNodeFacts:
    """The last facts after a position in the history, without those that the history has replaced
    since.
    """

    def __init__(self, facts: Iterable[StoredMessage] = (), after: int = 0) -> None:
        self._missing: dict[str, StoredMessage] = {}
        for fact in facts:
            if fact.sequence > after:
                self._missing[subjects.subject_of(fact.message)] = fact

    def note_fact(self, message: Message) -> None:
        """Note that the history has a fact about this node or namespace."""
        if isinstance(message, CapacityFact):
            self._missing.pop(subjects.subject_of(message), None)

    def take_missing(self) -> list[StoredMessage]:
        """Return the facts that the history did not have, the oldest first; each is returned
        once.
        """
        missing, self._missing = self._missing, {}
        return sorted(missing.values(), key=lambda fact: fact.sequence)


async def read_last_node_facts(bus: Bus) -> list[StoredMessage]:
    """Return the last facts, with their sequences in the history. Return none if an older version
    created the streams.
    """
    try:
        return await bus.retry_until_answered(lambda: _read_facts(bus))
    except NotFoundError:
        return []


async def _read_facts(bus: Bus) -> list[StoredMessage]:
    query = StreamQuery(NODES, (subjects.CAPACITY,), filter_in_subject=True)
    reader = LogReader(bus, [query], _fact_in_history)
    try:
        return [fact async for fact in reader.read_stored()]
    finally:
        await reader.close()


def _fact_in_history(raw: Msg) -> StoredMessage | None:
    """Return a fact with its sequence among all facts, which the server has noted beside it."""
    noted = (raw.headers or {}).get(SOURCE, "").split()
    sequence = int(noted[1]) if len(noted) > 1 and noted[1].isdecimal() else 0
    try:
        message = subjects.decode_message(raw.subject, raw.data)
    except subjects.UnreadableMessage:
        return None
    return StoredMessage(message, raw.subject, FACTS, sequence, stored_time(raw))
