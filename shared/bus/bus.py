"""The bus: one connection to JetStream, with the operations that Weir needs.

Promises. `publish` returns once the server has the message, and publishing it twice is harmless
(`publisher.py`). `follow` gives a handler every message of some kinds, in stream order, from where
the service left off (`consumer.py`); a message that cannot be read becomes a dead letter with its
error (`dead_letters.py`), and the next one is read. `tail` is for clients that only watch
(`tail.py`). Nothing here knows a service.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import SlowConsumerError
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy, PubAck
from nats.js.errors import APIError, NotFoundError
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from shared.auth.permissions import API, bucket_subject, stream_of
from shared.bounds import within_bounds
from shared.bus import streams, subjects
from shared.bus import tail as tail_module
from shared.bus.client import RETRY_S, ResilientClient, connect_client, retry_until_answered
from shared.bus.consumer import (
    DurableConsumer,
    Handler,
    OnUnreadable,
    Position,
    StoredMessage,
    StreamSetBack,
    StreamSubscription,
    merge_stored,
    stored_message,
)
from shared.bus.dead_letters import DeadLetters
from shared.bus.intake import UNCHANGED_RATES, Rates
from shared.bus.publisher import Publisher, Stale, is_no_room
from shared.bus.subjects import DEFAULT_NAMESPACE, STATE, is_from_newer_service, program_bucket
from shared.messages import Message
from shared.runtime import process
from shared.runtime.log import RateLimitedWarning
from shared.runtime.metrics import BusTraffic, Health, Measure

log = structlog.get_logger()
T = TypeVar("T")
INCIDENT_TRIES, INCIDENT_RETRY_S = 60, 1.0
NOT_KNOWN: Mapping[str, float] = MappingProxyType({})
ANSWER_S = 5.0
"""Timeout of one request to the server."""
PING_S, PINGS = 10.0, 2
"""The number of unanswered pings (one every `PING_S`) before the client changes the server."""


async def connect(
    url: str, name: str, credentials: str = "", ca: str = "", health: Health | None = None
) -> Bus:
    """Connect, and reconnect after each loss. Retry without end, so that a service may start before
    its server.

    `credentials`, `ca`: see `connect_client`. `health`: gets the conditions of the bus.
    """
    made: list[Bus] = []

    async def on_error(error: Exception) -> None:
        log.warning("BusError", error=repr(error))
        for each in made if isinstance(error, SlowConsumerError) else ():
            each.incidents.record(
                "bus slow", f"this service reads too slowly, so the server drops messages: {error}"
            )

    async def on_return() -> None:
        for each in made:
            each.incidents.end("bus away")
            for callback in each.on_reconnect:
                callback()

    client = await connect_client(
        url,
        credentials,
        ca,
        name=name,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RETRY_S,
        connect_timeout=5,
        ping_interval=PING_S,
        max_outstanding_pings=PINGS,
        error_cb=on_error,
        reconnected_cb=on_return,
    )
    made.append(Bus(client, name, health))
    return made[0]


class Bus:
    """One connection to the bus. If it is not `patient`, failed requests are not repeated."""

    def __init__(
        self, client: ResilientClient, name: str, health: Health | None = None, patient: bool = True
    ) -> None:
        self.client = client
        self.name = name
        self.health = health or Health()
        self.traffic = BusTraffic()
        self._patient = patient
        self._warning = RateLimitedWarning()
        self.health.require("the bus", lambda: client.is_connected)
        self.js: JetStreamContext = client.jetstream(timeout=ANSWER_S, prefix=client.api)
        self.must_lead: Callable[[], None] = _always_allowed
        self.publisher = Publisher(client, self.js, name, self.traffic, lambda: self.must_lead())
        self.incidents = self.publisher.incidents
        self.on_reconnect: set[Callable[[], None]] = (
            set()
        )  # called after a broken connection was restored
        client.on_break.add(
            lambda: self.incidents.begin("bus away", "the connection to the bus broke")
        )
        self.dead_letters = DeadLetters(self.publisher, self.traffic)
        self.health.require("the bus to store its messages", lambda: not self.publisher.waiting)
        self.health.add_source("the bus", self._measures)
        self._written: dict[str, int] = {}  # the last revision of each entry of `weir-state`
        self._newer: set[str] = set()  # tags of a newer version that were received
        self._tasks: set[asyncio.Future[None]] = set()
        self._stop_callbacks: list[Callable[[], Awaitable[None]]] = []
        self._close_callbacks: list[Callable[[], Awaitable[None]]] = []
        self._closed_callbacks: list[Callable[[], Awaitable[None]]] = []
        self._new: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _measures(self) -> Iterable[Measure]:
        return self.traffic.measures(
            self.client.is_connected, self.client.stats["reconnects"], self.publisher.waiting
        )

    # ------------------------------------------------------------ set-up

    async def create(
        self,
        replicas: int = 0,
        orders_max_bytes: int = 0,
        namespaces: Iterable[str] = (),
        programs_max_bytes: int = 0,
        rates: Rates = UNCHANGED_RATES,
    ) -> None:
        """Create or update streams and buckets, for `weir up`, `weir streams` and the set-up.

        `replicas`: servers that store each stream: 1, 3 or 5; 0: as many as `weir-orders` has now,
        else 1. `orders_max_bytes`: see `streams.create_streams`. `namespaces`: provisioned besides
        `default`. `programs_max_bytes`, `rates`: see `streams.create_namespace`.
        """
        replicas = replicas or await streams.current_replicas(self.js)
        await streams.create_streams(self.js, replicas, orders_max_bytes)
        for namespace in streams.with_default(namespaces):
            await streams.create_namespace(self.js, namespace, replicas, programs_max_bytes, rates)

    async def verify(self) -> None:
        """Raise `NotFoundError` unless the streams exist. Users outside have no right to ask; their
        first request fails instead.
        """
        if self.client.api != API:
            return
        for config in streams.stream_configs():
            await self.last_stored(str(config.name))

    async def last_stored(self, stream: str) -> int:
        """Return the sequence of the last message in a stream. Wait while the bus elects a leader.
        Raises `NotFoundError`.
        """
        info = await self.retry_until_answered(lambda: self.js.stream_info(stream))
        return int(info.state.last_seq)

    # ------------------------------------------------------------ publishing

    async def publish(
        self, message: Message, *, expect_last: int | None = None, over: str = ""
    ) -> int:
        """Publish a message; return its stream sequence once the server has it. The values of a
        fact are cut to their bounds.

        Retry while the bus is away, or has no room. `expect_last`: the sequence of the last message
        that the sender has read on the same subject (0: none), or on the subjects of the pattern
        `over`, in the same stream. Raises `Stale` if there is a later message, `Refused` if the
        credentials do not allow it, and the error of `must_lead` if this replica leads no longer.
        """
        is_fact = subjects.stream_holding(subjects.subject_of(message)) == subjects.FACTS
        return await self.publisher.publish(
            within_bounds(message) if is_fact else message, expect_last, over
        )

    async def request(self, message: Message) -> int:
        """Publish a person's request, without a retry. Return its stream sequence."""
        subject = subjects.subject_of(message)
        return await self.submit(
            subject, subjects.encode_message(message), self.publisher.headers(message)
        )

    async def request_unread(self, message: Message) -> None:
        """Publish a request that may be removed as soon as it is read; do not wait for its
        sequence.
        """
        subject = subjects.subject_of(message)
        await self._publish_once(
            subject, subjects.encode_message(message), self.publisher.headers(message)
        )

    async def submit(self, subject: str, body: bytes, headers: dict[str, str]) -> int:
        """Publish a body, without a retry. Return the sequence in the subject's stream, also if an
        intake stores it first.
        """
        ack = await self._publish_once(subject, body, headers)
        if ack.stream == subjects.stream_holding(subject):
            return int(ack.seq)
        return await tail_module.admitted_sequence(
            self.client, self.js, subject, headers[subjects.MESSAGE_ID]
        )

    async def _publish_once(self, subject: str, body: bytes, headers: dict[str, str]) -> PubAck:
        try:
            return await self.js.publish(subject, body, headers=headers)
        except APIError as error:
            if self.client.api == API or not is_no_room(error):
                raise
            raise tail_module.intake_full_error(subject, str(error.description)) from error

    async def publish_incidents(self) -> None:
        """Publish incidents for ever. Only services have the right."""
        await self.incidents.publish_all(self._publish_incident)

    async def _publish_incident(self, message: Message) -> None:
        """Publish an incident, with a limited number of tries: an older stream may not take it."""
        for _ in range(INCIDENT_TRIES):
            try:
                await self.publisher.publish_once(message)
                return
            except NatsError as error:
                why = repr(error)
                await asyncio.sleep(INCIDENT_RETRY_S)
        log.warning("NotSaid", message=message.id(), error=why)

    # ------------------------------------------------------------ reading

    async def follow(
        self,
        kinds: Iterable[type[Message]],
        handler: Handler,
        after: dict[str, int],
        unusable: OnUnreadable | None = None,
        strays: bool = False,
        stored_s: Mapping[str, float] = NOT_KNOWN,
    ) -> None:
        """Give `handler` every message of these kinds, in stream order, after `after[stream]`.

        Return when all messages that were stored at the call are handled, in the order of storing
        over all streams; then go on in the background. An exception of the handler stops the
        service: it is a bug, not bad input.

        `stored_s[stream]`: the time when the message at `after[stream]` was stored. Raises
        `StreamSetBack` before the first message if another message is there; if that happens later,
        the background task raises it, and the service ends.

        `unusable` may answer a message that cannot be read, before it becomes a dead letter. With
        `strays`, messages on subjects of no kind become dead letters too, unless a service of a
        newer version published them. One service must do this, because no other one reads them.
        """
        followers = []
        for stream, here in _by_stream(kinds).items():
            filters = () if strays else tuple(sorted(map(subjects.pattern, here)))
            subscription = StreamSubscription(stream, frozenset(here), handler, unusable, filters)
            place = Position(after.get(stream, 0), stored_s.get(stream, 0.0))
            followers.append(
                DurableConsumer(
                    self.client, self.js, self.name, subscription, place, lambda: self.must_lead()
                )
            )
        await self._create_consumers(followers)
        for follower in followers:
            self.health.require(
                f"messages of {follower.subscription.stream}", partial(_is_receiving, follower)
            )
        async for follower, raw in merge_stored(followers):
            await self._handle_and_acknowledge(follower, raw)
        for follower in followers:
            self.spawn(self._follow_forever(follower))

    async def _create_consumers(self, followers: list[DurableConsumer]) -> None:
        """Create every consumer. If a stream was set back, close all subscriptions."""
        try:
            for follower in followers:
                await self.retry_until_answered(
                    follower.create
                )  # the bus may still be electing its leader
        except StreamSetBack:
            for follower in followers:
                await follower.puller.close()
            raise

    async def _follow_forever(self, follower: DurableConsumer) -> None:
        while True:
            await self._handle_and_acknowledge(follower, await follower.next())

    async def _handle_and_acknowledge(self, follower: DurableConsumer, raw: Msg) -> None:
        await self._handle(raw, follower.subscription)
        await follower.acknowledge(raw)

    async def _handle(self, raw: Msg, subscription: StreamSubscription) -> None:
        try:
            heard = (
                stored_message(raw) if subjects.kind_of(raw.subject) in subscription.kinds else None
            )
        except subjects.UnreadableMessage as error:
            if isinstance(error, subjects.UnknownMessage) and is_from_newer_service(
                raw.subject, raw.headers
            ):
                return self._count_newer(subjects.tag_in(raw.subject))
            if subscription.on_unreadable and await subscription.on_unreadable(
                raw.subject, raw.data, raw.metadata.sequence.stream, str(error)
            ):
                log.info("AnsweredUnusable", subject=raw.subject)
            return await self.add_dead_letter(raw, subscription.stream, str(error))
        if heard:
            self.traffic.heard.count(subjects.tag_of(type(heard.message)))
            await subscription.handler(heard)

    def _count_newer(self, tag: str) -> None:
        """Count a message of a newer version; log each kind once."""
        self.traffic.newer.count(tag)
        if tag not in self._newer:
            self._newer.add(tag)
            log.warning("NewerMessages", fact=tag, remedy="upgrade this service, too")

    async def read_stored(
        self, kinds: Iterable[type[Message]], through: Mapping[str, int]
    ) -> AsyncIterator[StoredMessage]:
        """Yield the readable messages of these kinds up to a sequence of each stream. Call it
        before `follow`.
        """
        for stream, here in _by_stream(kinds).items():
            if stream not in through:
                continue
            subscription = StreamSubscription(
                stream,
                frozenset(here),
                _ignore_message,
                None,
                tuple(sorted(map(subjects.pattern, here))),
            )
            follower = DurableConsumer(
                self.client, self.js, self.name, subscription, Position(), lambda: self.must_lead()
            )
            await self.retry_until_answered(follower.create)
            while follower.pending:
                raw = await follower.next()
                if raw.metadata.sequence.stream > through[stream]:
                    break
                with contextlib.suppress(subjects.UnreadableMessage):
                    yield stored_message(raw)
                await follower.acknowledge(raw)
            await follower.puller.close()

    def tail(
        self,
        filters: list[str],
        *,
        deliver: DeliverPolicy = DeliverPolicy.NEW,
        since_s: float | None = None,
        on_set_back: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[StoredMessage]:
        """Watch subjects of one stream without leaving a trace. Unreadable messages are left out.

        All `filters` must belong to one stream. `since_s` (a time) overrides `deliver`.
        `on_set_back`: called when the stream has lost the last message that was read; reading goes
        on with what was stored since.
        """
        return tail_module.tail_messages(
            self.client, self.js, filters, deliver, since_s, self.retry_until_answered, on_set_back
        )

    async def last_message(self, kind: type[Message], key: str) -> StoredMessage | None:
        """Return the newest message on one subject; None if there is none, or it is unreadable."""
        subject = subjects.pattern(kind, key)
        stream = subjects.stream_holding(subject)
        try:
            raw = await self.retry_until_answered(
                lambda: self.js.get_msg(stream, subject=subject, direct=True)
            )
            message = subjects.decode_message(subject, raw.data or b"")
        except (
            NotFoundError,
            subjects.UnreadableMessage,
            TypeError,
        ):  # TypeError: its headers are not text
            return None
        return StoredMessage(message, subject, stream, int(raw.seq or 0), 0.0)

    async def retry_until_answered(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a read-only request. Retry as long as the bus is away. Raises
        permanent errors.
        """
        return (
            await retry_until_answered(self.client, question, self._warning)
            if self._patient
            else await question()
        )

    async def last_sequence(self, kind: type[Message], key: str) -> int:
        """Return the sequence of the newest message on one subject; 0 if there is none."""
        return await self.last_sequence_matching(subjects.pattern(kind, key))

    async def last_sequence_matching(self, filtered: str) -> int:
        """Return the sequence of the newest message that a filter matches; 0 if there is none. A
        bus of several servers may answer with an older one.
        """
        try:
            return int((await self.publisher.last_message_on(filtered)).seq or 0)
        except NotFoundError:
            return 0

    async def add_dead_letter(self, raw: Msg, stream: str, error: str) -> None:
        """Copy a message to the dead letters, with its error; once, however often it is read."""
        await self.dead_letters.add_message(raw, stream, error)

    async def add_dead_entry(
        self, bucket: str, key: str, revision: int, body: bytes, error: str
    ) -> None:
        """Copy an entry of a bucket to the dead letters, with its error."""
        await self.dead_letters.add_entry(bucket, key, revision, body, error)

    # ------------------------------------------------------------ buckets

    async def replace_entry(
        self, subject: str, body: bytes, on_top_of: int, timeout_s: float | None = None
    ) -> int:
        """Write an entry of a bucket if its revision is `on_top_of` (0: there is none); return the
        new revision.

        Raises `Stale` if it is another. There is no retry: after any other error the entry may have
        been written.
        """
        return await self.publisher.replace_entry(subject, body, on_top_of, timeout_s)

    async def write_state(self, key: str, body: bytes) -> None:
        """Write a service's entry in `weir-state`. Raises `Stale` if another replica wrote it.

        Read the revision, check that this replica still leads, then write on top of that revision.
        So the entry of a later leader is never lost.

        Raises `StreamSetBack` if the entry is older than the one that this process wrote last: the
        bus was restored from a copy, and the copy's entry fits the copy's streams. An entry of this
        process would not, and the service would have to read the whole log, of which old facts may
        have been removed. A restored bus that has the last entry of this process is not noticed
        here, nor is one to which this process has not written yet.
        """
        subject = bucket_subject(STATE, key)
        try:
            seen = int(
                (await self.js.get_msg(stream_of(STATE), subject=subject, direct=True)).seq or 0
            )
        except NotFoundError:
            seen = 0
        written = self._written.get(key, 0)
        self.must_lead()
        try:
            # A replica of the bucket that is behind has an older entry for a moment.
            self._written[key] = await self.replace_entry(subject, body, max(seen, written))
        except Stale as error:
            if error.revision is not None and error.revision < written:
                raise StreamSetBack(
                    f"the entry {key} of {STATE} is older than the one written last"
                ) from error
            raise

    async def bucket(self, name: str) -> KeyValue:
        return await self.retry_until_answered(lambda: self.js.key_value(name))

    def entry_store(self, name: str) -> KeyValue:
        """Return a bucket for a user that may only read and write entries."""
        return KeyValue(
            name=name, stream=stream_of(name), pre=bucket_subject(name, ""), js=self.js, direct=True
        )

    async def program_store(self, namespace: str = DEFAULT_NAMESPACE) -> ObjectStore:
        """Return the program bucket of a namespace, for clients that may ask the server about
        it.
        """
        return await self.retry_until_answered(
            lambda: self.js.object_store(program_bucket(namespace))
        )

    # ------------------------------------------------------------ background tasks, closing

    def spawn(self, work: Awaitable[None]) -> None:
        """Run a coroutine in the background; `raise_failure` raises its error."""
        self._tasks.add(asyncio.ensure_future(work))
        self._new.cancel()
        self._new = asyncio.get_running_loop().create_future()

    async def raise_failure(self) -> None:
        """Wait for ever, and raise the error of a background task."""
        while True:
            await asyncio.wait(self._tasks | {self._new}, return_when=asyncio.FIRST_COMPLETED)
            for task in [t for t in self._tasks if t.done()]:
                self._tasks.discard(task)
                task.result()

    def on_stop(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Add a callback that a stop waits for, before anything is closed."""
        self._stop_callbacks.append(farewell)

    async def prepare_stop(self) -> None:
        for farewell in self._stop_callbacks:
            await farewell()

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Add a callback that runs before the background tasks end."""
        self._close_callbacks.append(closer)

    def on_closed(self, last_word: Callable[[], Awaitable[None]]) -> None:
        """Add a callback that runs after the background tasks have ended, while the connection is
        still open.
        """
        self._closed_callbacks.append(last_word)

    async def close(self) -> None:
        for closer in self._close_callbacks:
            await closer()
        await process.cancel_tasks(*self._tasks)
        for last_word in self._closed_callbacks:
            await last_word()
        with contextlib.suppress(OSError, NatsError):
            await self.client.close()


def _by_stream(kinds: Iterable[type[Message]]) -> dict[str, set[type[Message]]]:
    found: dict[str, set[type[Message]]] = {}
    for kind in kinds:
        found.setdefault(subjects.stream_holding(subjects.pattern(kind)), set()).add(kind)
    return found


async def _ignore_message(heard: StoredMessage) -> None:
    """Handle a message that is read without a handler."""


def _is_receiving(follower: DurableConsumer) -> bool:
    return follower.puller.receiving


def _always_allowed() -> None:
    """Permit everything: the default if the service has no leadership."""
