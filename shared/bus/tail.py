"""Ephemeral consumers, and `Bus.tail`: live messages of one stream, for clients that only watch.

`log_reader.py` reads several streams as one log, in the order of storing, and creates its consumers
with this module. `Bus.tail` adds two things that a log has no use for: it can begin with the last
message on each subject, and it reports that a stream was set back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import APIError

from shared.auth.permissions import API, SLOTS, SUBMITTER
from shared.bus import subjects
from shared.bus.client import RETRY_S, PermanentError, ResilientClient, create_named_consumer
from shared.bus.consumer import Position, PullConsumer, StoredMessage, stored_message, stored_time
from shared.runtime.log import RateLimitedWarning

log = structlog.get_logger()

Begun = tuple[PullConsumer, int]
IDLE_S = 60.0
"""The server removes a consumer that nobody has read for this time."""
NAME_BYTES = 16
"""Random bytes in the name of a consumer that only its creator reads."""


def consumer_filter(client: ResilientClient, filters: list[str]) -> dict[str, Any]:
    """Return the filter options of a consumer. Outside, one filter covers all, because the server
    checks a single filter against the permissions. The caller compares each message with `filters`
    again.
    """
    if client.api == API:
        return {"filter_subjects": filters}
    # A filter with fewer parts does not contain the namespace.
    most_parts = max(each.count(".") for each in filters)
    longest = [each for each in filters if each.count(".") == most_parts]
    return {"filter_subject": subjects.covering_filter(longest)}


def ephemeral_config(
    filter_options: dict[str, Any],
    deliver: DeliverPolicy,
    *,
    start_sequence: int | None = None,
    since_s: float | None = None,
) -> ConsumerConfig:
    """Return the configuration of a consumer without acknowledgements, which the server removes
    after `IDLE_S` without a reader. `since_s` (seconds since 1970) overrides `deliver`.
    """
    start_time = None
    if since_s is not None:
        deliver = DeliverPolicy.BY_START_TIME
        start_time = datetime.fromtimestamp(since_s, UTC)
    return ConsumerConfig(
        deliver_policy=deliver,
        opt_start_seq=start_sequence,
        opt_start_time=start_time,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=IDLE_S,
        mem_storage=True,
        **filter_options,
    )


async def tail_messages(
    client: ResilientClient,
    js: JetStreamContext,
    filters: list[str],
    deliver: DeliverPolicy,
    since_s: float | None,
    create_first: Callable[[Callable[[], Awaitable[Begun]]], Awaitable[Begun]],
    on_set_back: Callable[[], None] = lambda: None,
) -> AsyncIterator[StoredMessage]:
    """See `Bus.tail`. `create_first` creates the first consumer, with or without retries
    (`Bus.retry_until_answered`).
    """
    config = ephemeral_config(consumer_filter(client, filters), deliver, since_s=since_s)
    consumers = EphemeralConsumers(client, js, subjects.stream_holding(filters[0]), config)
    consumers.on_set_back = on_set_back
    puller, begins = await create_first(lambda: consumers.create(config))
    seen = Position(begins)
    while True:
        try:
            raw = await puller.next()
        except NatsError as error:
            if client.is_closed:
                return
            log.warning("TailWaits", stream=consumers.stream, error=repr(error))
            puller = await consumers.recreate(seen)
            continue
        seen = Position(raw.metadata.sequence.stream, stored_time(raw))
        if any(subjects.matches_filter(each, raw.subject) for each in filters):
            with contextlib.suppress(subjects.UnreadableMessage):
                yield stored_message(raw)


ADMITTED_S = 30.0
"""The longest wait in s until an intake has passed a message on to its stream."""


class NotAdmitted(NatsError):
    """An intake is full, or has not passed a message on in time: its rate is limited."""


def intake_full_error(subject: str, why: str) -> NotAdmitted:
    return NotAdmitted(
        f"the intake of namespace {subject.split('.')[3]} is full ({why}): too much was published"
        " in this namespace; nothing was stored, try again in a minute"
    )


async def admitted_sequence(
    client: ResilientClient, js: JetStreamContext, subject: str, message_id: str
) -> int:
    """Return the sequence, in its stream, of a message that was published from outside to an
    intake. Raises `NotAdmitted` after `ADMITTED_S`.
    """
    stream = subjects.stream_holding(subject)
    config = ephemeral_config({"filter_subject": subject}, DeliverPolicy.ALL)
    puller, _ = await EphemeralConsumers(client, js, stream, config).create(config)
    try:
        async with asyncio.timeout(ADMITTED_S):
            while True:
                raw = await puller.next()
                if raw.headers and raw.headers.get(subjects.MESSAGE_ID) == message_id:
                    return int(raw.metadata.sequence.stream)
    except TimeoutError as error:
        why = (
            f"the intake of namespace {subject.split('.')[3]} has not forwarded the request within"
            f" {ADMITTED_S:g} s"
        )
        raise NotAdmitted(
            f"{why}: too much was published there; it is stored and will be answered"
        ) from error
    finally:
        await puller.close()


SLOT_IDLE_S = 5.0
"""A submitter's consumer is removed after this time without a reader, because its names are few."""
READER_IDLE_S = 15.0
"""The same for a trainer's consumer."""
READER_TRIES, READER_PAUSE_S = 8, (0.5, 1.5)
"""The number of names that a trainer tries, and the pause after them."""
NAME_TAKEN = (10148, 10105, 10013)
"""The error codes if a consumer of this name exists with another configuration."""


async def add_consumer(
    client: ResilientClient, js: JetStreamContext, stream: str, config: ConsumerConfig
) -> ConsumerInfo:
    """Create a consumer that nobody else uses. Take a free name of this user, or a random one if
    any name is allowed.
    """
    if not client.consumer_names:
        return await js.add_consumer(stream, replace(config, name=secrets.token_hex(NAME_BYTES)))
    idle_s, tries = (SLOT_IDLE_S, SLOTS) if _is_submitter(client) else (READER_IDLE_S, READER_TRIES)
    ours = replace(
        config, metadata={"reader": secrets.token_hex(NAME_BYTES)}, inactive_threshold=idle_s
    )
    for name in random.sample(client.consumer_names, min(tries, len(client.consumer_names))):
        try:
            return await create_named_consumer(client, js, stream, name, ours)
        except APIError as error:
            if error.err_code not in NAME_TAKEN:
                raise
    if _is_submitter(client):
        raise TooManyReaders(
            f"namespace {client.user.partition('.')[2]} has {SLOTS} readers of {stream} already;"
            " end one of them"
        )
    await asyncio.sleep(
        random.uniform(*READER_PAUSE_S)
    )  # requests for consumers share one queue of the server
    raise NatsError(
        f"{tries} names of {client.user} for a consumer of {stream} are in use; other names are"
        " tried next"
    )


def _start_after(config: ConsumerConfig, seen: Position) -> ConsumerConfig:
    """Return the configuration of a consumer that begins after a position."""
    return replace(
        config,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=seen.sequence + 1,
        opt_start_time=None,
    )


def _start_since(config: ConsumerConfig, seen: Position) -> ConsumerConfig:
    """Return the configuration of a consumer of messages that were stored after a position's."""
    after = datetime.fromtimestamp(seen.stored_s, UTC) + MICROSECOND
    return replace(
        config, deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_seq=None, opt_start_time=after
    )


MICROSECOND = timedelta(microseconds=1)


def _is_submitter(client: ResilientClient) -> bool:
    return client.user.startswith(f"{SUBMITTER}.")


class TooManyReaders(PermanentError):
    """All names of consumers for the submitters of a namespace are in use."""


class EphemeralConsumers:
    """Creates the consumers of one watch, one after the other."""

    def __init__(
        self, client: ResilientClient, js: JetStreamContext, stream: str, config: ConsumerConfig
    ) -> None:
        self.client = client
        self.js = js
        self.stream = stream
        self.config = config
        self.on_set_back: Callable[[], None] = lambda: None
        self._warning = RateLimitedWarning()

    async def create(self, config: ConsumerConfig) -> tuple[PullConsumer, int]:
        """Create a consumer; return it, and the sequence after which it begins."""
        info = await add_consumer(self.client, self.js, self.stream, config)
        begins = int(info.delivered.stream_seq) if info.delivered else 0
        return PullConsumer(self.client, self.stream, info.name), begins

    async def recreate(self, seen: Position) -> PullConsumer:
        """Create another consumer after the last message that was read.

        A stream that was set back has fewer messages, or other ones. So the consumer begins with
        the messages that were stored later. If that is at or before the position, the stream was
        set back, and all of these messages are new.
        """
        if not seen.stored_s:
            config = self.config
            if config.deliver_policy == DeliverPolicy.NEW:
                config = _start_after(config, seen)
            return (await self._create_patiently(config, seen))[0]
        puller, begins = await self._create_patiently(_start_since(self.config, seen), seen)
        if begins < seen.sequence:
            log.warning("StreamSetBack", stream=self.stream, seen=seen.sequence, now=begins)
            self.on_set_back()
        if begins <= seen.sequence:
            return puller
        await puller.close()  # messages that were stored in the same microsecond are missing
        return (await self._create_patiently(_start_after(self.config, seen), seen))[0]

    async def _create_patiently(
        self, config: ConsumerConfig, seen: Position
    ) -> tuple[PullConsumer, int]:
        """Create a consumer. Retry as long as the server is away."""
        while True:
            try:
                return await self.create(config)
            except NatsError as again:
                if self.client.is_closed:
                    raise
                self._warning.warn_error(
                    "WatchWaits", again, stream=self.stream, seen=seen.sequence
                )
                await asyncio.sleep(RETRY_S)
