"""The bus: JetStream, as far as Weir needs it.

Promises. `publish` returns once the server has the message, and saying the same thing twice is
harmless (the id is the message's own): `outbox.py`. `follow` gives a handler every message of some
kinds, in stream order, from where the service left off (`hearing.py`); what cannot be read goes to
the dead letters with its error (`burying.py`), and the next one is read. `tail` is for those who
only watch (`watching.py`). Nothing here knows a service.
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
from shared.bus.publisher import Publisher, is_no_room
from shared.bus.subjects import DEFAULT_NAMESPACE, STATE, is_from_newer_service, program_bucket
from shared.messages import Message
from shared.runtime import process
from shared.runtime.health import Health
from shared.runtime.log import RateLimitedWarning
from shared.runtime.metrics import BusTraffic, Measure

log = structlog.get_logger()
T = TypeVar("T")
TRIES, TRY_AGAIN_S = 60, 1.0
"""Of what is said beside the services' own work."""

NOT_KNOWN: Mapping[str, float] = MappingProxyType({})
ANSWER_S = 5.0
"""So long one try waits for the server's answer."""

PING_S, PINGS = 10.0, 2
"""A server that leaves so many pings in a row unanswered, one sent every `PING_S`, is left for
another one.
"""


async def connect(
    url: str, name: str, credentials: str = "", ca: str = "", vitals: Health | None = None
) -> Bus:
    """Connect, and reconnect; both are tried for ever, so that a service may start before its
    server.

    `credentials`, `ca`: as `dial` takes them. `vitals`: who is to be told how the bus is.
    """
    made: list[Bus] = []

    async def on_error(error: Exception) -> None:
        log.warning("BusError", error=repr(error))
        for each in made if isinstance(error, SlowConsumerError) else ():
            each.incidents.record(
                "bus slow", f"the bus drops what this service is too slow to read: {error}"
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
    made.append(Bus(client, name, vitals))
    return made[0]


class Bus:
    """One connection, with what Weir says and hears over it. Who is not `patient` asks once, and
    learns of an error.
    """

    def __init__(
        self, client: ResilientClient, name: str, vitals: Health | None = None, patient: bool = True
    ) -> None:
        self.client = client
        self.name = name
        self.health = vitals or Health()
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
        )  # to be called when a connection that broke is there again
        client.on_break.add(
            lambda: self.incidents.begin("bus away", "the connection to the bus broke")
        )
        self.dead_letters = DeadLetters(self.publisher, self.traffic)
        self.health.require("being heard", lambda: not self.publisher.waiting)
        self.health.add_source("the bus", self._measures)
        self._newer: set[str] = set()  # tags of a newer version that were heard
        self._tasks: set[asyncio.Future[None]] = set()
        self._farewells: list[Callable[[], Awaitable[None]]] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._last_words: list[Callable[[], Awaitable[None]]] = []
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
        """Create or update streams and buckets; the one command that does (`weir up`, `weir
        streams`).

        `replicas`: how many servers of a cluster keep each; 1, 3 or 5; 0: as many as keep
        `weir-orders` now, else 1. `orders_max_bytes`: see `streams.create`. `namespaces`: those to
        provision besides `default`. `programs_max_bytes`, `rates`: see `streams.create_namespace`.
        """
        replicas = replicas or await streams.current_replicas(self.js)
        await streams.create_streams(self.js, replicas, orders_max_bytes)
        for namespace in streams.with_default(namespaces):
            await streams.create_namespace(self.js, namespace, replicas, programs_max_bytes, rates)

    async def verify(self) -> None:
        """Raise `NotFoundError` unless the streams are there; a service never makes them itself.

        Who is outside may not ask; he will find out.
        """
        if self.client.api != API:
            return
        for config in streams.stream_configs():
            await self.last_stored(str(config.name))

    async def last_stored(self, stream: str) -> int:
        """Return the sequence of the last message in a stream. Waits while the bus elects; raises
        `NotFoundError`.
        """
        info = await self.retry_until_answered(lambda: self.js.stream_info(stream))
        return int(info.state.last_seq)

    # ------------------------------------------------------------ saying

    async def publish(
        self, message: Message, *, expect_last: int | None = None, over: str = ""
    ) -> int:
        """Say something; returns its stream sequence once the server has it. What a fact says is
        kept in bounds.

        Keeps trying while the bus is away, or has no room. `expect_last` is the sequence of the
        last message on the same subject that the sender has seen (0: none), or on those that `over`
        (of the same stream) lets through; raises `Stale` when another is there, `Refused` where our
        credentials do not let us say it, and what `must_lead` does, where we lead no longer.
        """
        is_fact = subjects.stream_holding(subjects.subject_of(message)) == subjects.FACTS
        return await self.publisher.publish(
            within_bounds(message) if is_fact else message, expect_last, over
        )

    async def request(self, message: Message) -> int:
        """What a person sends: as `publish`, but tried once."""
        subject = subjects.subject_of(message)
        return await self.submit(
            subject, subjects.encode_message(message), self.publisher.headers(message)
        )

    async def request_unread(self, message: Message) -> None:
        """As `request`, but return when the bus has it: for a message that may be removed as soon
        as it is read.
        """
        subject = subjects.subject_of(message)
        await self._publish_once(
            subject, subjects.encode_message(message), self.publisher.headers(message)
        )

    async def submit(self, subject: str, body: bytes, headers: dict[str, str]) -> int:
        """Publish once, as a person; return the sequence in the subject's stream, also if an intake
        took it first.
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
        """For ever: what keeps us from saying and hearing, as messages. For services; others may
        not say it.
        """
        await self.incidents.publish_all(self._publish_incident)

    async def _publish_incident(self, message: Message) -> None:
        """As `publish`, but nothing waits for it: what an older stream, say, does not take is
        dropped in the end.
        """
        for _ in range(TRIES):
            try:
                await self.publisher.publish_once(message)
                return
            except NatsError as error:
                why = repr(error)
                await asyncio.sleep(TRY_AGAIN_S)
        log.warning("NotSaid", message=message.id(), error=why)

    # ------------------------------------------------------------ hearing

    async def follow(
        self,
        kinds: Iterable[type[Message]],
        handler: Handler,
        after: dict[str, int],
        unusable: OnUnreadable | None = None,
        strays: bool = False,
        stored_s: Mapping[str, float] = NOT_KNOWN,
    ) -> None:
        """Give `handler` every message of these kinds, in stream order, beginning behind
        `after[stream]`.

        What is stored already comes in the order in which it was stored, whichever stream holds it.

        `stored_s[stream]`: when the message at `after[stream]` was stored. Raises `SetBack`, before
        anything is handed on, where a stream holds another message there; later the background task
        does, and the service ends.

        `unusable` may answer for what cannot be read, before it is buried. With `strays` what lies
        on a subject that is no kind's is buried too, unless a newer version's service says it
        (`newer.py`): one service must ask for it, for nobody else would ever look there.

        Returns when all that was stored at the call has been handled, and goes on in the
        background. An exception of the handler stops the service: it is a bug, not bad input.
        """
        followers = []
        for stream, here in _by_stream(kinds).items():
            filters = () if strays else tuple(sorted(map(subjects.pattern, here)))
            ear = StreamSubscription(stream, frozenset(here), handler, unusable, filters)
            place = Position(after.get(stream, 0), stored_s.get(stream, 0.0))
            followers.append(
                DurableConsumer(
                    self.client, self.js, self.name, ear, place, lambda: self.must_lead()
                )
            )
        await self._create_consumers(followers)
        for follower in followers:
            self.health.require(
                f"hearing {follower.subscription.stream}", partial(_is_receiving, follower)
            )
        async for follower, raw in merge_stored(followers):
            await self._handle_and_acknowledge(follower, raw)
        for follower in followers:
            self.spawn(self._follow_forever(follower))

    async def _create_consumers(self, followers: list[DurableConsumer]) -> None:
        """Make every consumer; where a stream was set back, leave no subscription behind."""
        try:
            for follower in followers:
                await self.retry_until_answered(
                    follower.create
                )  # a new leader may be earlier than the bus's own
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

    async def _handle(self, raw: Msg, ear: StreamSubscription) -> None:
        try:
            heard = stored_message(raw) if subjects.kind_of(raw.subject) in ear.kinds else None
        except subjects.UnreadableMessage as error:
            if isinstance(error, subjects.UnknownMessage) and is_from_newer_service(
                raw.subject, raw.headers
            ):
                return self._count_newer(subjects.tag_in(raw.subject))
            if ear.on_unreadable and await ear.on_unreadable(
                raw.subject, raw.data, raw.metadata.sequence.stream, str(error)
            ):
                log.info("AnsweredUnusable", subject=raw.subject)
            return await self.add_dead_letter(raw, ear.stream, str(error))
        if heard:
            self.traffic.heard.count(subjects.tag_of(type(heard.message)))
            await ear.handler(heard)

    def _count_newer(self, tag: str) -> None:
        """Count a message of a newer version; each kind is logged once."""
        self.traffic.newer.count(tag)
        if tag not in self._newer:
            self._newer.add(tag)
            log.warning("NewerMessages", fact=tag, remedy="upgrade this service, too")

    async def read_stored(
        self, kinds: Iterable[type[Message]], through: Mapping[str, int]
    ) -> AsyncIterator[StoredMessage]:
        """Yield the messages of these kinds up to a sequence of each stream; what cannot be read is
        left out.

        For a service that does not `follow` yet.
        """
        for stream, here in _by_stream(kinds).items():
            if stream not in through:
                continue
            ear = StreamSubscription(
                stream,
                frozenset(here),
                _ignore_message,
                None,
                tuple(sorted(map(subjects.pattern, here))),
            )
            follower = DurableConsumer(
                self.client, self.js, self.name, ear, Position(), lambda: self.must_lead()
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
        """Watch one stream's subjects without leaving a trace. Unreadable messages are left out,
        nothing else is.

        All `filters` must live in one stream. `since_s` (a point in time) overrides `deliver`.
        `on_set_back`: to be called when the stream has lost what we saw last; what was stored since
        is read on.
        """
        return tail_module.tail_messages(
            self.client, self.js, filters, deliver, since_s, self.retry_until_answered, on_set_back
        )

    async def last_message(self, kind: type[Message], key: str) -> StoredMessage | None:
        """The newest message on one subject; None where there is none that can be read."""
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
        ):  # the last: its headers are no text
            return None
        return StoredMessage(message, subject, stream, int(raw.seq or 0), 0.0)

    async def retry_until_answered(self, question: Callable[[], Awaitable[T]]) -> T:
        """The server's answer to what only reads, however long it is away meanwhile; raises what
        never passes.
        """
        return (
            await retry_until_answered(self.client, question, self._warning)
            if self._patient
            else await question()
        )

    async def last_sequence(self, kind: type[Message], key: str) -> int:
        """Where the newest message on one subject lies, whether it can be read or not; 0: there is
        none.
        """
        return await self.last_sequence_matching(subjects.pattern(kind, key))

    async def last_sequence_matching(self, filtered: str) -> int:
        """The same of all subjects that a filter lets through. On a bus of several servers it may
        be out of date.
        """
        try:
            return int((await self.publisher.last_message_on(filtered)).seq or 0)
        except NotFoundError:
            return 0

    async def add_dead_letter(self, raw: Msg, stream: str, error: str) -> None:
        """Copy a message to the dead letters, with its error; once, however often it is tried."""
        await self.dead_letters.add_message(raw, stream, error)

    async def add_dead_entry(
        self, bucket: str, key: str, revision: int, body: bytes, error: str
    ) -> None:
        """The same for an entry of a bucket."""
        await self.dead_letters.add_entry(bucket, key, revision, body, error)

    # ------------------------------------------------------------ keeping

    async def replace_entry(
        self, subject: str, body: bytes, on_top_of: int, timeout_s: float | None = None
    ) -> int:
        """Write an entry of a bucket whose revision is still this one (0: there is none); returns
        the new revision.

        Raises `Stale` where it is another. Tried once: after any other error it may have been
        written.
        """
        return await self.publisher.replace_entry(subject, body, on_top_of, timeout_s)

    async def write_state(self, key: str, body: bytes) -> None:
        """A service's entry in `weir-state`. Raises `Stale` where another has written it since we
        looked.

        We look, then make sure that we still lead, then write on top of what we saw: so no later
        leader's is lost.
        """
        subject = bucket_subject(STATE, key)
        try:
            seen = int(
                (await self.js.get_msg(stream_of(STATE), subject=subject, direct=True)).seq or 0
            )
        except NotFoundError:
            seen = 0
        self.must_lead()
        await self.replace_entry(subject, body, seen)

    async def bucket(self, name: str) -> KeyValue:
        return await self.retry_until_answered(lambda: self.js.key_value(name))

    def entry_store(self, name: str) -> KeyValue:
        """As `bucket`, for who may read and write entries only, and not ask the server for more."""
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

    # ------------------------------------------------------------ living

    def spawn(self, work: Awaitable[None]) -> None:
        """Run in the background; a failure is kept for `app` to see."""
        self._tasks.add(asyncio.ensure_future(work))
        self._new.cancel()
        self._new = asyncio.get_running_loop().create_future()

    async def raise_failure(self) -> None:
        """Return never, but raise what a background task raised."""
        while True:
            await asyncio.wait(self._tasks | {self._new}, return_when=asyncio.FIRST_COMPLETED)
            for task in [t for t in self._tasks if t.done()]:
                self._tasks.discard(task)
                task.result()

    def on_stop(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Somebody asks us to stop: wait for this, while everything goes on, before anything is
        closed.
        """
        self._farewells.append(farewell)

    async def prepare_stop(self) -> None:
        for farewell in self._farewells:
            await farewell()

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Call this before the connection closes."""
        self._closers.append(closer)

    def on_closed(self, last_word: Callable[[], Awaitable[None]]) -> None:
        """Call this when nothing runs any more, while there is a connection still."""
        self._last_words.append(last_word)

    async def close(self) -> None:
        for closer in self._closers:
            await closer()
        await process.cancel_tasks(*self._tasks)
        for last_word in self._last_words:
            await last_word()
        with contextlib.suppress(OSError, NatsError):
            await self.client.close()


def _by_stream(kinds: Iterable[type[Message]]) -> dict[str, set[type[Message]]]:
    found: dict[str, set[type[Message]]] = {}
    for kind in kinds:
        found.setdefault(subjects.stream_holding(subjects.pattern(kind)), set()).add(kind)
    return found


async def _ignore_message(heard: StoredMessage) -> None:
    """For who reads without a handler."""


def _is_receiving(follower: DurableConsumer) -> bool:
    return follower.puller.receiving


def _always_allowed() -> None:
    """Where there is one replica, or none acts for all."""
