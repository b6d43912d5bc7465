"""Pulling a consumer's messages, each handed on the moment it comes.

The client library's own `fetch(n)` returns early with fewer than n messages but leaves its request
open on the server. What comes next is then answered on that old request, and the next `fetch` waits
until the old one expires: messages lay for up to 5 s after a quiet spell (nats-py 2.16 on
nats-server 2.15; a test shows it). So we ask ourselves, with one request open at a time, and know
by its heartbeat that the server still has it. What was asked for is never dropped, however large:
it would come again late, behind what it came before.

A consumer counts what it delivers. A number left out was lost on the way: on a connection that
broke, say. It would come again late, or, where nothing is acknowledged, never; so who reads is
told, and makes another consumer behind what it has seen.

Hearing: a service's durable consumer on one stream, read in order. Edge.

Promise: every message once, in the stream's order, behind the last that was handed on, whatever
becomes of the server, of the connection, and of the consumer. For that the place is kept here, and
not with the server: where a delivery is missing, comes again, or is no longer to be had, the
consumer is made anew behind what was heard. An acknowledgement covers all that came before it; it
is for those who look at the consumer from outside, and lets the server send more.

A bus that lost its disks' last writes, or was restored, has streams that were set back: they end
before what was heard, or hold another message there. So the last message that was heard is read
again, and must have been stored at the same time. Only a message that was removed since cannot be
compared.
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

ASKED_FOR = 256
EXPIRES_S, HEARTBEAT_S = 30.0, 2.0
HEARTBEAT, OVER = "100", ("404", "408")
BROKEN = "the connection broke, and with it our request"
ACK = "$JS.ACK."  # a message of the stream wants an answer; only without that is a status the server's own word
NANO = 1_000_000_000


class ConsumerGone(NatsError):
    """The server has not our request any more, or not our consumer, or what it sent was lost: make
    another.
    """


class PullConsumer:
    """One consumer, read from its beginning by one reader."""

    def __init__(
        self,
        client: ResilientClient,
        stream: str,
        consumer: str,
        may_ask: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._may_ask = client, may_ask
        self._subject = f"{client.api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox: Subscription | None = None
        self._due, self._count = 0, 0
        self.receiving = False
        """Has the server our request? It says so at each heartbeat: a connection alone delivers
        nothing.
        """

    async def next(self) -> Msg:
        """Wait for the next message, however long. Raises `Gone`."""
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
            raise ConsumerGone(f"delivery {number} came where {self._count} was due")
        self.receiving = True
        return raw

    @property
    def buffered(self) -> int:
        """How many need not be waited for."""
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
        """What came before it is read first."""
        if self._inbox:
            put_status(self._client, self._inbox, BROKEN)

    async def _request_batch(self, inbox: Subscription) -> None:
        self._may_ask()  # what is given to one who no longer leads is missed by who does
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


log = structlog.get_logger()

UNACKNOWLEDGED = 128
"""Most messages that are dealt with and not yet acknowledged; when nothing waits to be read, there
are none.
"""


@dataclass(frozen=True)
class StoredMessage:
    """A message with where and when the server stored it."""

    message: Message
    subject: str
    stream: str
    sequence: int
    stored_s: float


Handler = Callable[[StoredMessage], Awaitable[None]]
OnUnreadable = Callable[[str, bytes, int, str], Awaitable[bool]]
"""Subject, body, stream sequence, error -> was it answered? The message goes to the dead letters
all the same.
"""


@dataclass(frozen=True)
class StreamSubscription:
    """Who hears a stream, and which kinds of what it holds. `filters`: what is asked for; empty:
    all of it.
    """

    stream: str
    kinds: frozenset[type[Message]]
    handler: Handler
    on_unreadable: OnUnreadable | None = None
    filters: tuple[str, ...] = ()


class StreamSetBack(Exception):
    """The stream does not hold what we have heard of it: what we know is partly of messages that
    are no more.
    """


def stored_message(raw: Msg) -> StoredMessage:
    """Raises `subjects.Unusable`."""
    meta = raw.metadata
    message = subjects.decode_message(raw.subject, raw.data)
    return StoredMessage(message, raw.subject, meta.stream, meta.sequence.stream, stored_time(raw))


def stored_time(raw: Msg) -> float:
    """Return when the server stored a message; seconds since 1970, to the microsecond."""
    return float(raw.metadata.timestamp.timestamp())


class Position(NamedTuple):
    """The sequence of the last message of a stream that was dealt with (0: none); when it was
    stored (0: not known).
    """

    sequence: int = 0
    stored_s: float = 0.0


class DurableConsumer:
    """`after`: where it begins. `pending`: how many are to come."""

    def __init__(
        self,
        client: ResilientClient,
        js: JetStreamContext,
        name: str,
        ear: StreamSubscription,
        after: Position,
        may_ask: Callable[[], None],
    ) -> None:
        self.client = client
        self.js = js
        self.subscription = ear
        self.may_ask = may_ask
        self.durable = consumer_name(name, ear.stream)
        self.after, self.stored_s = after
        self.pending, self.unacknowledged = 0, 0
        self._peeked: Msg | None = None  # read to compare it, and not handed on yet
        self.puller, self._warning = self._puller(), RateLimitedWarning()

    def _puller(self) -> PullConsumer:
        return PullConsumer(self.client, self.subscription.stream, self.durable, self.may_ask)

    async def create(self) -> None:
        """Make the consumer, in the place of one that may be there. Raises `SetBack`."""
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
        """Read the last message that was heard again; raise `SetBack` unless it is the same."""
        last = int((await self.js.stream_info(self.subscription.stream)).state.last_seq)
        if last < self.after:
            raise StreamSetBack(
                f"{self.subscription.stream} ends at {last}, and we have heard {self.after}"
            )
        if not self.pending:
            return  # it was removed since, and nothing came behind it
        raw = await self.puller.next()
        if raw.metadata.sequence.stream > self.after:
            self._peeked = raw
        elif stored_time(raw) != self.stored_s:
            raise StreamSetBack(
                f"{self.subscription.stream} holds another message at {self.after} than we have heard"
            )
        else:
            self.pending = raw.metadata.num_pending

    async def next(self) -> Msg:
        """The next message, however long the server is away meanwhile."""
        while True:
            try:
                raw, self._peeked = self._peeked or await self.puller.next(), None
            except NatsError as error:
                await self._recreate(error)
                continue
            self.pending = raw.metadata.num_pending
            if raw.metadata.sequence.stream > self.after:
                return raw
            await self.acknowledge(raw)  # the acknowledgement was too late, or got lost

    async def acknowledge(self, raw: Msg) -> None:
        """It is dealt with, and so is all that came before it."""
        if raw.metadata.sequence.stream > self.after:
            self.after, self.stored_s = raw.metadata.sequence.stream, stored_time(raw)
        self.unacknowledged += 1
        if self.unacknowledged >= UNACKNOWLEDGED or not self.puller.buffered:
            self.unacknowledged = 0
            with contextlib.suppress(NatsError):  # then it comes again, and is passed over
                await raw.ack()

    async def _recreate(self, error: NatsError) -> None:
        """Where we are in the stream we know; raises `SetBack`, and what no later try can heal."""
        log.warning(
            "FollowsAgain", stream=self.subscription.stream, after=self.after, error=repr(error)
        )
        await self.puller.close()
        while True:
            if self.client.is_closed:
                raise error
            await asyncio.sleep(RETRY_S)
            self.may_ask()
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
    """Yield what waits for each of them, in the order in which the server stored it; one message of
    each is held.
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
