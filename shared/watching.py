"""Watching: one stream's subjects, for those who only look. Edge."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from shared import subjects
from shared.client import SturdyClient
from shared.hearing import Heard, read
from shared.patience import RETRY_S, Plaint
from shared.permissions import API
from shared.pull import Puller

log = structlog.get_logger()

Begun = tuple[Puller, int]
IDLE_S = 60.0
NAME_BYTES = 16  # of a consumer that nobody else is to find


def filtered(client: SturdyClient, filters: list[str]) -> dict[str, Any]:
    """How a consumer is to be asked for these: outside by one filter that covers them, for that a server can hold
    against what we may hear. What has come must be held against `filters` again.
    """
    if client.api == API:
        return {"filter_subjects": filters}
    longest = max(each.count(".") for each in filters)  # one that is shorter leaves out the namespace
    return {"filter_subject": subjects.covering([each for each in filters if each.count(".") == longest])}


async def tail(
    client: SturdyClient,
    js: JetStreamContext,
    filters: list[str],
    deliver: DeliverPolicy,
    since_s: float | None,
    asked: Callable[[Callable[[], Awaitable[Begun]]], Awaitable[Begun]],
) -> AsyncIterator[Heard]:
    """See `Bus.tail`. `asked` asks for the first consumer until there is an answer, or once (`Bus.asked`)."""
    config = ConsumerConfig(
        deliver_policy=deliver if since_s is None else DeliverPolicy.BY_START_TIME,
        opt_start_time=None if since_s is None else datetime.fromtimestamp(since_s, UTC),
        ack_policy=AckPolicy.NONE,
        **filtered(client, filters),
        inactive_threshold=IDLE_S,
        mem_storage=True,
    )
    watcher = Watcher(client, js, subjects.stream_holding(filters[0]), config)
    puller, seen = await asked(lambda: watcher.begin(config))
    while True:
        try:
            raw = await puller.next()
        except NatsError as error:
            if client.is_closed:
                return
            log.warning("TailWaits", stream=watcher.stream, error=repr(error))
            puller = await watcher.begin_again(seen)
            continue
        seen = raw.metadata.sequence.stream
        if any(subjects.lets_through(each, raw.subject) for each in filters):
            with contextlib.suppress(subjects.Unusable):
                yield read(raw)


class Watcher:
    """Makes consumers that nobody else can find."""

    def __init__(self, client: SturdyClient, js: JetStreamContext, stream: str, config: ConsumerConfig) -> None:
        self.client, self.js, self.stream, self.config = client, js, stream, config
        self._plaint = Plaint()

    async def begin(self, config: ConsumerConfig) -> tuple[Puller, int]:
        """A consumer, and the sequence behind which it begins."""
        info = await self.js.add_consumer(self.stream, replace(config, name=secrets.token_hex(NAME_BYTES)))
        begins = int(info.delivered.stream_seq) if info.delivered else 0
        return Puller(self.client, self.stream, info.name), begins

    async def begin_again(self, seen: int) -> Puller:
        """Ours is gone, or has lost something: another, behind what was seen, or where the first began."""
        at: dict[str, Any] = {
            "deliver_policy": DeliverPolicy.BY_START_SEQUENCE,
            "opt_start_seq": seen + 1,
            "opt_start_time": None,
        }
        behind = replace(self.config, **at)
        while True:
            try:
                return (await self.begin(behind))[0]
            except NatsError as again:
                if self.client.is_closed:
                    raise
                self._plaint.tell("WatchWaits", again, stream=self.stream, seen=seen)
                await asyncio.sleep(RETRY_S)
