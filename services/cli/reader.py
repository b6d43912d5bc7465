"""Reading one stream as somebody who only watches. Edge.

Promise: every message that matches, in order, each once, without leaving a trace. After the server was away we read on
from where we were.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from services.cli.entry import Entry
from shared import subjects
from shared.bus import Bus
from shared.messages import DeadLetter, Message

BATCH, WAIT_S, RETRY_S, IDLE_S = 256, 2.0, 0.5, 60.0
Subscription = JetStreamContext.PullSubscription


@dataclass(frozen=True)
class Wanted:
    """What to read of one stream: behind a sequence, or since a point in time (seconds since 1970)."""

    stream: str
    filters: list[str]
    after: int = 0
    since_s: float | None = None


class Reader:
    def __init__(self, bus: Bus, wanted: Wanted) -> None:
        self.bus, self.wanted, self.seen = bus, wanted, wanted.after
        self.subscription: Subscription | None = None
        self.left = 0

    async def stored(self) -> AsyncIterator[Entry]:
        """What is there at the call. Old facts may be dropped meanwhile: then there is less."""
        self.subscription = await self._open()
        while self.left > 0 and (batch := await self._fetch(self.subscription)):
            for entry in filter(None, map(entry_of, batch)):
                yield entry

    async def live(self) -> AsyncIterator[Entry]:
        """What comes from then on; never ends."""
        while True:
            try:
                self.subscription = self.subscription or await self._open()
                for entry in filter(None, map(entry_of, await self._fetch(self.subscription))):
                    yield entry
            except NatsError:
                self.subscription = None
                await asyncio.sleep(RETRY_S)

    async def _open(self) -> Subscription:
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
        return await self.bus.js.pull_subscribe_bind(consumer=info.name, stream=self.wanted.stream)

    async def _fetch(self, subscription: Subscription) -> list[Msg]:
        """The next few; none where none came in time."""
        try:
            batch = await subscription.fetch(BATCH, timeout=WAIT_S)
        except TimeoutError:
            return []
        self.left -= len(batch)
        self.seen = batch[-1].metadata.sequence.stream
        return batch


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
        return subjects.decode(raw.subject, raw.data)
    except (subjects.Unusable, msgspec.DecodeError):
        return None
