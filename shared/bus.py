"""The bus: JetStream, as far as Weir needs it.

Promises. `publish` returns once the server has the message, and saying the same thing twice is harmless (the id is the
message's own). `follow` gives a handler every message of some kinds, in stream order, at least once, from where the
service left off; what cannot be read goes to the dead letters with its error (`dead.py`), and the next one is read.
`tail` is for those who only watch. Nothing here knows a service.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.errors import BadSubjectError, MaxPayloadError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    KeyValueConfig,
    ObjectStoreConfig,
    RawStreamMsg,
    StreamConfig,
)
from nats.js.errors import APIError, NotFoundError
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from shared import dead, subjects, tasks, traffic
from shared.client import SturdyClient, dial
from shared.messages import DeadLetter, Message
from shared.permissions import API
from shared.pull import Puller
from shared.subjects import JOBS as JOBS
from shared.subjects import LEDGER as LEDGER
from shared.subjects import PROGRAMS as PROGRAMS
from shared.subjects import STATE as STATE
from shared.vitals import Vitals

log = structlog.get_logger()

DAY_S = 86_400.0
GIB = 1 << 30
BUCKETS = (STATE, JOBS, LEDGER)
RETRY_S = 0.2
NAME_BYTES = 16  # of a consumer that nobody else is to find
OUTBOX_TRIES = 50
WRONG_LAST_SEQUENCE, NAME_IN_USE = 10071, 10058
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
DEAD_S = 30 * DAY_S
NEVER = (APIError, BadSubjectError, MaxPayloadError)  # no later try can end otherwise


class Stale(Exception):
    """Somebody has written since we looked: a compare-and-set was refused."""


@dataclass(frozen=True)
class Heard:
    """A message with where and when the server stored it."""

    message: Message
    subject: str
    stream: str
    sequence: int
    stored_s: float


Handler = Callable[[Heard], Awaitable[None]]
Unusable = Callable[[str, bytes, int, str], Awaitable[bool]]
"""Subject, body, stream sequence, error -> was it answered? The message goes to the dead letters all the same."""


@dataclass(frozen=True)
class Ear:
    """Who hears a stream, and which kinds of what it holds."""

    stream: str
    kinds: frozenset[type[Message]]
    handler: Handler
    unusable: Unusable | None = None


def streams(facts_max_bytes: int = GIB, orders_max_bytes: int = GIB) -> tuple[StreamConfig, ...]:
    """Disjoint subjects: orders are refused when full, old facts make room, dead letters stay for a month."""
    return (
        StreamConfig(
            name=subjects.ORDERS,
            subjects=["weir.job.>", "weir.allocation.>", "weir.cluster.>"],
            discard=DiscardPolicy.NEW,
            max_bytes=orders_max_bytes,
            allow_direct=True,
        ),
        StreamConfig(
            name=subjects.FACTS,
            subjects=["weir.task.>", "weir.training.>", "weir.capacity.>"],
            discard=DiscardPolicy.OLD,
            max_bytes=facts_max_bytes,
            allow_direct=True,
        ),
        StreamConfig(name=subjects.DEAD, subjects=[f"{DeadLetter.PREFIX}.>"], max_age=DEAD_S, duplicate_window=DEAD_S),
    )


def stream_of(subject: str) -> str:
    """Which stream holds a subject (or a pattern that begins with its area)."""
    return subjects.ORDERS if subject.split(".")[1] in ("job", "allocation", "cluster") else subjects.FACTS


async def connect(url: str, name: str, credentials: str = "", ca: str = "", vitals: Vitals | None = None) -> Bus:
    """Connect, and reconnect; both are tried for ever, so that a service may start before its server.

    `credentials`, `ca`: as `dial` takes them. `vitals`: who is to be told how the bus is.
    """
    client = await dial(
        url,
        credentials,
        ca,
        name=name,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RETRY_S,
        connect_timeout=5,
        error_cb=_log_error,
    )
    return Bus(client, name, vitals)


async def _log_error(error: Exception) -> None:
    log.warning("BusError", error=repr(error))


class Bus:
    """One connection, with what Weir says and hears over it."""

    def __init__(self, client: SturdyClient, name: str, vitals: Vitals | None = None) -> None:
        self.client, self.name, self.vitals = client, name, vitals or Vitals()
        self.traffic = traffic.Traffic()
        self.vitals.need("the bus", lambda: client.is_connected)
        self.vitals.need("being heard", lambda: not self.traffic.waiting)
        self.vitals.tell("the bus", lambda: self.traffic.measures(client.is_connected, client.stats["reconnects"]))
        self.js: JetStreamContext = client.jetstream(timeout=5, prefix=client.api)
        self._tasks: set[asyncio.Future[None]] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._last_words: list[Callable[[], Awaitable[None]]] = []
        self.must_lead: Callable[[], None] = _nobody_asks
        self._new: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------ set-up

    async def create(self, replicas: int = 1) -> None:
        """Create or update streams and buckets; the one command that does (`weir up`, `weir streams`).

        `replicas`: how many servers of a cluster keep each; 1, 3 or 5.
        """
        for config in (replace(config, num_replicas=replicas) for config in streams()):
            try:
                await self.js.add_stream(config)
            except APIError as error:
                if error.err_code != NAME_IN_USE:
                    raise
                await self.js.update_stream(config)
        for bucket in BUCKETS:
            await self._create_bucket(bucket, replicas)
        await self.js.create_object_store(PROGRAMS, config=ObjectStoreConfig(max_bytes=GIB, replicas=replicas))

    async def _create_bucket(self, bucket: str, replicas: int) -> None:
        """One that an earlier version made gives no entries by their keys yet."""
        try:
            await self.js.create_key_value(KeyValueConfig(bucket=bucket, direct=True, replicas=replicas))
        except APIError:
            there = (await self.js.stream_info(f"KV_{bucket}")).config
            await self.js.update_stream(replace(there, allow_direct=True, num_replicas=replicas))

    async def verify(self) -> None:
        """Raise `NotFoundError` unless the streams are there; a service never makes them itself.

        Who is outside may not ask; he will find out.
        """
        if self.client.api != API:
            return
        for config in streams():
            await self.js.stream_info(str(config.name))

    # ------------------------------------------------------------ saying

    async def publish(self, message: Message, *, expect_last: int | None = None, over: str = "") -> int:
        """Say something; returns its stream sequence once the server has it.

        Keeps trying while the bus is away. `expect_last` is the sequence of the last message on the same subject
        that the sender has seen (0: none), or on those that `over` (of the same stream) lets through; raises `Stale`
        when another is there. Raises what `must_lead` does, where we lead no longer.
        """
        subject, body = subjects.subject_of(message), subjects.encode(message)
        headers = _headers(message, subject, self.name)
        if expect_last is not None:
            headers |= {EXPECTED: str(expect_last)} | ({f"{EXPECTED}-Subject": over} if over else {})
        try:
            sequence = await self._store(subject, body, headers)
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            if mine := await self._said_already(subject, message):
                return mine
            raise Stale(subject) from error
        self.traffic.published.count(subjects.tag_of(type(message)))
        return sequence

    async def _store(self, subject: str, body: bytes, headers: dict[str, str]) -> int:
        """Try until the server has it; returns its stream sequence. What the server refuses is raised at once."""
        try:
            for attempt in range(OUTBOX_TRIES):
                self.must_lead()
                try:
                    return int((await self.js.publish(subject, body, headers=headers)).seq)
                except NEVER:
                    raise
                except NatsError as error:
                    self.traffic.waiting.add(subject)
                    log.warning("PublishWaits", subject=subject, attempt=attempt, error=repr(error))
                    await asyncio.sleep(RETRY_S)
            raise NatsTimeout
        finally:
            self.traffic.waiting.discard(subject)

    async def _said_already(self, subject: str, message: Message) -> int:
        """Where we ourselves said this last on its subject, before an acknowledgement got lost; 0: we did not."""
        try:
            last = await self._last_on(subject)
        except NotFoundError:
            return 0
        return int(last.seq or 0) if (last.headers or {}).get("Nats-Msg-Id") == message.id() else 0

    async def _last_on(self, subject: str) -> RawStreamMsg:
        """Of orders as their stream's leader has it; of facts as any server, for nobody may ask for all of those."""
        stream = stream_of(subject)
        return await self.js.get_msg(stream, subject=subject, direct=stream == subjects.FACTS)

    async def request(self, message: Message) -> int:
        """What a person sends: as `publish`, but tried once."""
        subject = subjects.subject_of(message)
        ack = await self.js.publish(subject, subjects.encode(message), headers=_headers(message, subject, self.name))
        return int(ack.seq)

    # ------------------------------------------------------------ hearing

    async def follow(
        self,
        kinds: Iterable[type[Message]],
        handler: Handler,
        after: dict[str, int],
        unusable: Unusable | None = None,
        strays: bool = False,
    ) -> None:
        """Give `handler` every message of these kinds, in stream order, beginning behind `after[stream]`.

        `unusable` may answer for what cannot be read, before it is buried. With `strays` what lies on a subject that
        is no kind's is buried too: one service must ask for it, for nobody else would ever look there.

        Returns when all that was stored at the call has been handled, and goes on in the background. An exception of
        the handler stops the service: it is a bug, not bad input.
        """
        by_stream: dict[str, set[type[Message]]] = {}
        for kind in kinds:
            by_stream.setdefault(stream_of(subjects.pattern(kind)), set()).add(kind)
        for stream, here in by_stream.items():
            filters = [] if strays else sorted(map(subjects.pattern, here))
            ear = Ear(stream, frozenset(here), handler, unusable)
            await self._follow_stream(ear, filters, after.get(stream, 0))

    async def _follow_stream(self, ear: Ear, filters: list[str], after: int) -> None:
        stream = ear.stream
        durable = f"{self.name}-{stream}"
        await self._forget(stream, durable)
        config = ConsumerConfig(
            durable_name=durable,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=AckPolicy.EXPLICIT,
            max_ack_pending=10_000,
            filter_subjects=filters or None,
        )
        info = await self.js.add_consumer(stream, config)
        puller = Puller(self.client, stream, durable, self.must_lead)
        self.vitals.need(f"hearing {stream}", lambda: puller.hears)
        for _ in range(int(info.num_pending or 0)):
            await self._take(puller, ear)
        self.spawn(self._go_on(puller, ear))

    async def _forget(self, stream: str, durable: str) -> None:
        with contextlib.suppress(NotFoundError):
            await self.js.delete_consumer(stream, durable)

    async def _go_on(self, puller: Puller, ear: Ear) -> None:
        while True:
            await self._take(puller, ear)

    async def _take(self, puller: Puller, ear: Ear) -> None:
        """The next message, however long the server is away meanwhile."""
        while True:
            try:
                raw = await puller.next()
            except NatsError as error:
                log.warning("FollowWaits", stream=ear.stream, error=repr(error))
                await asyncio.sleep(RETRY_S)
                continue
            return await self._hand_over(raw, ear)

    async def _hand_over(self, raw: Msg, ear: Ear) -> None:
        try:
            heard = _read(raw) if subjects.kind_of(raw.subject) in ear.kinds else None
        except subjects.Unusable as error:
            if ear.unusable and await ear.unusable(raw.subject, raw.data, raw.metadata.sequence.stream, str(error)):
                log.info("AnsweredUnusable", subject=raw.subject)
            await self.bury(raw, ear.stream, str(error))
            await raw.term()
            return
        if heard:
            self.traffic.heard.count(subjects.tag_of(type(heard.message)))
            await ear.handler(heard)
        await raw.ack()

    async def tail(
        self, filters: list[str], *, deliver: DeliverPolicy = DeliverPolicy.NEW, since_s: float | None = None
    ) -> AsyncIterator[Heard]:
        """Watch one stream's subjects without leaving a trace. Unreadable messages are left out, nothing else is.

        All `filters` must live in one stream. `since_s` (a point in time) overrides `deliver`.
        """
        stream = stream_of(filters[0])
        config = ConsumerConfig(
            deliver_policy=deliver if since_s is None else DeliverPolicy.BY_START_TIME,
            opt_start_time=None if since_s is None else datetime.fromtimestamp(since_s, UTC),
            ack_policy=AckPolicy.NONE,
            **filtered(self.client, filters),
            inactive_threshold=60.0,
            mem_storage=True,
        )
        puller, seen = await self._watch(stream, config)
        while True:
            try:
                raw = await puller.next()
            except NatsError as error:
                if self.client.is_closed:
                    return
                log.warning("TailWaits", stream=stream, error=repr(error))
                puller = await self._watch_again(stream, config, seen)
                continue
            seen = raw.metadata.sequence.stream
            if any(subjects.lets_through(each, raw.subject) for each in filters):
                with contextlib.suppress(subjects.Unusable):
                    yield _read(raw)

    async def _watch(self, stream: str, config: ConsumerConfig) -> tuple[Puller, int]:
        """A consumer with a name that nobody can guess, and the sequence behind which it begins."""
        info = await self.js.add_consumer(stream, replace(config, name=secrets.token_hex(NAME_BYTES)))
        return Puller(self.client, stream, info.name), int(info.delivered.stream_seq) if info.delivered else 0

    async def _watch_again(self, stream: str, config: ConsumerConfig, seen: int) -> Puller:
        """The server forgot our consumer (it restarted, or we were away for long): another, behind what was seen."""
        behind = config
        if seen:
            behind = replace(
                config, deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=seen + 1, opt_start_time=None
            )
        while True:
            try:
                return (await self._watch(stream, behind))[0]
            except NatsError:
                if self.client.is_closed:
                    raise
                await asyncio.sleep(RETRY_S)

    async def last(self, kind: type[Message], key: str) -> Heard | None:
        """The newest message on one subject; None where there is none that can be read."""
        subject = subjects.pattern(kind, key)
        try:
            raw = await self.js.get_msg(stream_of(subject), subject=subject, direct=True)
            message = subjects.decode(subject, raw.data or b"")
        except (NotFoundError, subjects.Unusable, TypeError):  # the last: its headers are no text
            return None
        return Heard(message, subject, stream_of(subject), int(raw.seq or 0), 0.0)

    async def last_sequence(self, kind: type[Message], key: str) -> int:
        """Where the newest message on one subject lies, whether it can be read or not; 0: there is none."""
        return await self.last_over(subjects.pattern(kind, key))

    async def last_over(self, filtered: str) -> int:
        """The same of all subjects that a filter lets through."""
        try:
            return int((await self._last_on(filtered)).seq or 0)
        except NotFoundError:
            return 0

    async def bury(self, raw: Msg, stream: str, error: str) -> None:
        """Copy a message to the dead letters, with its error; once, however often it is tried."""
        said_by = (raw.headers or {}).get("ce-source", "unknown")
        letter = dead.letter(stream, raw.metadata.sequence.stream, raw.subject, raw.data, said_by, error)
        await self._bury(letter, raw.subject, raw.metadata.timestamp.isoformat())

    async def bury_entry(self, bucket: str, key: str, revision: int, body: bytes, error: str) -> None:
        """The same for an entry of a bucket."""
        subject = f"$KV.{bucket}.{key}"
        letter = dead.letter(f"KV_{bucket}", revision, subject, body, "unknown", error)
        await self._bury(letter, subject, str(zlib.crc32(body)))

    async def _bury(self, letter: DeadLetter, subject: str, stored: str) -> None:
        """`stored` tells it from another of its number: a stream that was made anew counts from 1 again."""
        self.traffic.buried.count(letter.stream)
        log.warning("DeadLetter", subject=letter.subject, sequence=letter.sequence, error=letter.error)
        headers = {"Nats-Msg-Id": f"dead.{letter.stream}.{letter.sequence}.{stored}"}
        try:
            await self._store(dead.subject_of(subject), msgspec.json.encode(letter), headers)
        except APIError as refusal:  # no room for it, say: the message itself still lies where the log says
            log.error("DeadLetterLost", subject=letter.subject, sequence=letter.sequence, error=repr(refusal))

    # ------------------------------------------------------------ keeping

    async def replace(self, subject: str, body: bytes, on_top_of: int, timeout_s: float | None = None) -> int:
        """Write an entry of a bucket whose revision is still this one (0: there is none); returns the new revision.

        Raises `Stale` where it is another. Tried once: after any other error it may have been written.
        """
        headers = {EXPECTED: str(on_top_of)}
        try:
            return int((await self.js.publish(subject, body, timeout=timeout_s, headers=headers)).seq)
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            raise Stale(subject) from error

    async def keep(self, key: str, body: bytes) -> None:
        """A service's entry in `weir-state`. Raises `Stale` where another has written it since we looked.

        We look, then make sure that we still lead, then write on top of what we saw: so no later leader's is lost.
        """
        subject = f"$KV.{STATE}.{key}"
        try:
            seen = int((await self.js.get_msg(f"KV_{STATE}", subject=subject, direct=True)).seq or 0)
        except NotFoundError:
            seen = 0
        self.must_lead()
        await self.replace(subject, body, seen)

    async def bucket(self, name: str) -> KeyValue:
        return await self.js.key_value(name)

    def entries(self, name: str) -> KeyValue:
        """As `bucket`, for who may read and write entries only, and not ask the server for more."""
        return KeyValue(name=name, stream=f"KV_{name}", pre=f"$KV.{name}.", js=self.js, direct=True)

    async def programs(self) -> ObjectStore:
        return await self.js.object_store(PROGRAMS)

    # ------------------------------------------------------------ living

    def spawn(self, work: Awaitable[None]) -> None:
        """Run in the background; a failure is kept for `app` to see."""
        self._tasks.add(asyncio.ensure_future(work))
        self._new.cancel()
        self._new = asyncio.get_running_loop().create_future()

    async def failed(self) -> None:
        """Return never, but raise what a background task raised."""
        while True:
            await asyncio.wait(self._tasks | {self._new}, return_when=asyncio.FIRST_COMPLETED)
            for task in [t for t in self._tasks if t.done()]:
                self._tasks.discard(task)
                task.result()

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Call this before the connection closes."""
        self._closers.append(closer)

    def on_closed(self, last_word: Callable[[], Awaitable[None]]) -> None:
        """Call this when nothing runs any more, while there is a connection still."""
        self._last_words.append(last_word)

    async def close(self) -> None:
        for closer in self._closers:
            await closer()
        await tasks.end(*self._tasks)
        for last_word in self._last_words:
            await last_word()
        with contextlib.suppress(OSError, NatsError):
            await self.client.close()


def _nobody_asks() -> None:
    """Where there is one replica, or none acts for all."""


def filtered(client: SturdyClient, filters: list[str]) -> dict[str, Any]:
    """How a consumer is to be asked for these: outside by one filter that covers them, for that a server can hold
    against what we may hear. What has come must be held against `filters` again.
    """
    if client.api == API:
        return {"filter_subjects": filters}
    longest = max(each.count(".") for each in filters)  # one that is shorter leaves out the namespace
    return {"filter_subject": subjects.covering([each for each in filters if each.count(".") == longest])}


def _read(raw: Msg) -> Heard:
    meta = raw.metadata
    message = subjects.decode(raw.subject, raw.data)
    return Heard(message, raw.subject, meta.stream, meta.sequence.stream, meta.timestamp.timestamp())


def _headers(message: Message, subject: str, source: str) -> dict[str, str]:
    """CloudEvents 1.0 attributes, and the id by which the server ignores repetitions."""
    return {
        "Nats-Msg-Id": message.id(),
        "ce-specversion": "1.0",
        "ce-id": message.id(),
        "ce-type": f"dev.weir.{subjects.tag_of(type(message))}.v1",
        "ce-source": source,
        "ce-subject": message.key(),
        "ce-time": datetime.now(UTC).isoformat(),
        "content-type": "application/json",
    }
