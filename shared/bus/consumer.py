"""Pull consumers: `PullConsumer` reads any consumer, `DurableConsumer` a service's own, in order.

Pulling. The client library's `fetch(n)` may return early and leave its request open on the server;
the next message then answers the old request, and the next `fetch` waits until that one expires:
messages were late by up to 5 s (nats-py 2.16 with nats-server 2.15, a test shows it; nats.py issue
933 is similar). So a `PullConsumer` has one open request at a time, and knows by the server's
heartbeats that the server still has it. Requested messages are never discarded, however large: the
server would deliver them later, out of order.

A consumer numbers its deliveries. A missing number means that a message was lost on the way, on a
broken connection for example. Then `ConsumerGone` is raised, and the reader creates another
consumer after its position.

Promise of `DurableConsumer`: every message once, in the order of the stream, after the last one
that was handled, despite failures of the server, the connection and the consumer. So the position
is stored here and not on the server. If a delivery is missing or repeated, the consumer is created
again. Acknowledgements are for people who look at the consumer, and let the server send more; one
acknowledgement covers all messages before it.

A bus that was restored, or lost the last writes of its disks, has streams that were set back: they
end before the position, or have another message there. So the last handled message is read again;
its time of storing must be the same. A message that was removed since cannot be compared.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from shared.auth.permissions import consumer_name
from shared.bus import subjects
from shared.bus.client import RETRY_S, Refused, ResilientClient, put_status, take_buffered
from shared.messages import Message
from shared.runtime.log import RateLimitedWarning

log = structlog.get_logger()

ASKED_FOR = 256
EXPIRES_S, HEARTBEAT_S = 30.0, 2.0
HEARTBEAT, OVER = "100", ("404", "408")
BROKEN = "the connection broke, and with it our request"
ACK = "$JS.ACK."
"""Prefix of the reply subject of a stream's message. Without it, a message is a status."""
NANO = 1_000_000_000


class ConsumerGone(NatsError):
    """The consumer or its request is gone, or a delivery was lost: create another consumer."""


class PullConsumer:
    """One consumer with one reader; it reads from the beginning of the consumer."""

    def __init__(
        self,
        client: ResilientClient,
        stream: str,
        consumer: str,
        may_pull: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._may_pull = may_pull
        self._subject = f"{client.api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox: Subscription | None = None
        self._due, self._count = 0, 0
        self.receiving = False
        """True while the server has the request, as its heartbeats show."""

    async def next(self) -> Msg:
        """Wait for the next message, without a limit. Raises `ConsumerGone`."""
        try:
            while True:
                raw = await self._receive()
                if raw.reply.startswith(ACK):
                    return self._check_delivery(raw)
                status = (raw.headers or {}).get("Status")
                if status is None:
                    raise ConsumerGone("an answer that is neither a message nor a status")
                if status not in (HEARTBEAT, *OVER):
                    raise ConsumerGone(f"{status} {(raw.headers or {}).get('Description', '')}")
                self.receiving = True
                if status in OVER:
                    self._due = 0
        except ConsumerGone:
            self.receiving = False
            await self.close()
            raise

    def _check_delivery(self, raw: Msg) -> Msg:
        self._due -= 1
        self._count += 1
        if (number := raw.metadata.sequence.consumer) != self._count:
            raise ConsumerGone(f"delivery {number} arrived in place of {self._count}")
        self.receiving = True
        return raw

    @property
    def buffered(self) -> int:
        """The number of messages that have arrived already."""
        return self._inbox.pending_msgs if self._inbox else 0

    async def _receive(self) -> Msg:
        inbox = self._inbox or await self._open()
        if self._due == 0:
            await self._request_batch(inbox)
        if inbox.pending_msgs:  # the library makes a task for each message that is waited for
            return take_buffered(inbox)
        try:
            return await inbox.next_msg(timeout=2.5 * HEARTBEAT_S)
        except NatsTimeout as error:
            raise ConsumerGone("no heartbeat") from error

    async def _open(self) -> Subscription:
        self._inbox = await self._client.subscribe(self._client.new_inbox(), pending_bytes_limit=0)
        self._client.on_break.add(self._on_break)
        return self._inbox

    def _on_break(self) -> None:
        """Report the broken connection after the messages that arrived before it."""
        if self._inbox:
            put_status(self._client, self._inbox, BROKEN)

    async def _request_batch(self, inbox: Subscription) -> None:
        # If a replica without the lease pulls a message, the leader does not get it.
        self._may_pull()
        wanted = {
            "batch": ASKED_FOR,
            "expires": int(EXPIRES_S * NANO),
            "idle_heartbeat": int(HEARTBEAT_S * NANO),
        }
        await self._client.publish(self._subject, msgspec.json.encode(wanted), reply=inbox.subject)
        self._due = ASKED_FOR

    async def close(self) -> None:
        inbox = self._inbox
        self._inbox = None
        self._due = 0
        self._client.on_break.discard(self._on_break)
        if inbox is not None and not self._client.is_closed:
            await inbox.unsubscribe()


UNACKNOWLEDGED = 128
"""The most handled messages without an acknowledgement. While no message waits, there are none."""


@dataclass(frozen=True)
class StoredMessage:
    """A message, with its place and time of storing."""

    message: Message
    subject: str
    stream: str
    sequence: int
    stored_s: float


Handler = Callable[[StoredMessage], Awaitable[None]]
OnUnreadable = Callable[[str, bytes, int, str], Awaitable[bool]]
"""Subject, body, stream sequence, error -> True if the message was answered. It becomes a dead
letter in any case.
"""


@dataclass(frozen=True)
class StreamSubscription:
    """A handler of some kinds of messages of a stream. `filters`: requested from the server; empty:
    all messages.
    """

    stream: str
    kinds: frozenset[type[Message]]
    handler: Handler
    on_unreadable: OnUnreadable | None = None
    filters: tuple[str, ...] = ()


class StreamSetBack(Exception):
    """The stream was set back: it has lost messages that were handled."""


def stored_message(raw: Msg) -> StoredMessage:
    """Decode a message. Raises `subjects.UnreadableMessage`."""
    meta = raw.metadata
    message = subjects.decode_message(raw.subject, raw.data)
    return StoredMessage(message, raw.subject, meta.stream, meta.sequence.stream, stored_time(raw))


def stored_time(raw: Msg) -> float:
    """Return the time when the server stored a message; seconds since 1970, to the microsecond."""
    return float(raw.metadata.timestamp.timestamp())


class Position(NamedTuple):
    """The last handled message of a stream: its sequence (0: none) and its time of storing (0: not
    known).
    """

    sequence: int = 0
    stored_s: float = 0.0


class DurableConsumer:
    """The consumer of one service on one stream. `after`: the sequence of the last handled message;
    `pending`: the number of stored messages after it.
    """

    def __init__(
        self,
        client: ResilientClient,
        js: JetStreamContext,
        name: str,
        ear: StreamSubscription,
        after: Position,
        may_pull: Callable[[], None],
    ) -> None:
        self.client = client
        self.js = js
        self.subscription = ear
        self.may_pull = may_pull
        self.durable = consumer_name(name, ear.stream)
        self.after, self.stored_s = after
        self.pending, self.unacknowledged = 0, 0
        self._peeked: Msg | None = None  # read to compare it, and not handed on yet
        self.puller, self._warning = self._puller(), RateLimitedWarning()

    def _puller(self) -> PullConsumer:
        return PullConsumer(self.client, self.subscription.stream, self.durable, self.may_pull)

    async def create(self) -> None:
        """Create the consumer in place of an old one. Raises `StreamSetBack`."""
        with contextlib.suppress(NotFoundError):
            await self.js.delete_consumer(self.subscription.stream, self.durable)
        config = ConsumerConfig(
            durable_name=self.durable,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.after if self.stored_s else self.after + 1,
            ack_policy=AckPolicy.ALL,
            max_ack_pending=10_000,
            filter_subjects=list(self.subscription.filters) or None,
        )
        info = await self.js.add_consumer(self.subscription.stream, config)
        self.pending, self.unacknowledged, self.puller, self._peeked = (
            int(info.num_pending or 0),
            0,
            self._puller(),
            None,
        )
        if self.stored_s:
            await self._verify_position()

    async def _verify_position(self) -> None:
        """Read the last handled message again. Raise `StreamSetBack` unless it is the same."""
        last = int((await self.js.stream_info(self.subscription.stream)).state.last_seq)
        if last < self.after:
            raise StreamSetBack(
                f"{self.subscription.stream} ends at {last}, and this service has read up to"
                f" {self.after}"
            )
        if not self.pending:
            return  # the message was removed, and no message follows it
        raw = await self.puller.next()
        if raw.metadata.sequence.stream > self.after:
            self._peeked = raw
        elif stored_time(raw) != self.stored_s:
            raise StreamSetBack(
                f"{self.subscription.stream} has another message at {self.after} than this service"
                " has read"
            )
        else:
            self.pending = raw.metadata.num_pending

    async def next(self) -> Msg:
        """Return the next message. Wait as long as the server is away."""
        while True:
            try:
                raw, self._peeked = self._peeked or await self.puller.next(), None
            except NatsError as error:
                await self._recreate(error)
                continue
            self.pending = raw.metadata.num_pending
            if raw.metadata.sequence.stream > self.after:
                return raw
            await self.acknowledge(raw)  # the last acknowledgement was late, or was lost

    async def acknowledge(self, raw: Msg) -> None:
        """Note that this message and all before it are handled."""
        if raw.metadata.sequence.stream > self.after:
            self.after, self.stored_s = raw.metadata.sequence.stream, stored_time(raw)
        self.unacknowledged += 1
        if self.unacknowledged >= UNACKNOWLEDGED or not self.puller.buffered:
            self.unacknowledged = 0
            with contextlib.suppress(NatsError):  # the message is then delivered again and ignored
                await raw.ack()

    async def _recreate(self, error: NatsError) -> None:
        """Create the consumer again. Raises `StreamSetBack`, and permanent errors."""
        log.warning(
            "FollowsAgain", stream=self.subscription.stream, after=self.after, error=repr(error)
        )
        await self.puller.close()
        while True:
            if self.client.is_closed:
                raise error
            await asyncio.sleep(RETRY_S)
            self.may_pull()
            if self.client.is_reconnecting:
                continue
            try:
                return await self.create()
            except Refused:
                raise
            except NatsError as again:
                self._warning.warn_error(
                    "FollowWaits", again, stream=self.subscription.stream, after=self.after
                )


async def merge_stored(
    followers: Sequence[DurableConsumer],
) -> AsyncIterator[tuple[DurableConsumer, Msg]]:
    """Yield the pending messages of all consumers in the order in which the server stored them; one
    message of each consumer is held.
    """
    left = {follower: follower.pending for follower in followers}
    heads: dict[DurableConsumer, Msg] = {}
    while True:
        for follower in followers:
            if follower not in heads and left[follower] > 0:
                heads[follower] = await follower.next()
                left[follower] = min(left[follower] - 1, follower.pending)
        if not heads:
            return
        first = min(heads, key=lambda follower: heads[follower].metadata.timestamp)
        yield first, heads.pop(first)
