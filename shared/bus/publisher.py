"""The publisher: it holds each message until the server has stored it.

Promises. `publish` returns once the server has stored the message, however long the server is away.
Publishing is idempotent (deduplication): a message has its own id, the server stores it once within
the stream's duplicate window, and every fold ignores later repetitions. An error of the server is
raised at once, with one exception: if a stream is full, the publisher waits for room and records an
incident.

Messages on one subject are published one after the other, so they keep their order after any
failure.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from typing import TypeGuard

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import APIError, NotFoundError

from shared.bus import subjects
from shared.bus.client import RETRY_S, ResilientClient, is_transient, retry_until_answered
from shared.bus.subjects import MESSAGE_ID, message_headers
from shared.messages import Message
from shared.runtime.log import Incidents, RateLimitedWarning
from shared.runtime.metrics import BusTraffic

ROOM_S = 2.0
SECRET_BYTES = 8
WRONG_LAST_SEQUENCE = 10071
NO_ROOM = (10077, 10047, 10023)
"""Error codes: the stream (its `max_bytes`, for example), the server or the account is full."""
REMEDY = (
    "Nothing is lost, the message is published again. "
    "Make room: `weir streams create --orders-gib N`, or a larger disk."
)
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
WRONG_REVISION = re.compile(r"wrong last sequence: (\d+)")


class Stale(Exception):
    """A compare-and-set was refused: another message was stored meanwhile. `revision`: that of the
    entry, if the refusal names it.
    """

    def __init__(self, subject: str, revision: int | None = None) -> None:
        super().__init__(subject)
        self.revision = revision


def leading_revision(error: APIError) -> int | None:
    """Return the revision that the leader's refusal names; None if it names none."""
    found = WRONG_REVISION.search(error.description or "")
    return int(found[1]) if found else None


def is_no_room(error: Exception) -> TypeGuard[APIError]:
    return isinstance(error, APIError) and error.err_code in NO_ROOM


class SubjectQueue:
    """Messages that wait to be published on one subject. `stuck`: the first one has failed."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.length = 0
        self.stuck = False


class Publisher:
    """Publishes messages and entries. `may_publish` raises an error once this process may no longer
    publish.
    """

    def __init__(
        self,
        client: ResilientClient,
        js: JetStreamContext,
        name: str,
        traffic: BusTraffic,
        may_publish: Callable[[], None],
    ) -> None:
        self._client = client
        self._js = js
        self._name = name
        self._traffic = traffic
        self._may_publish = may_publish
        self._warning = RateLimitedWarning()
        self.incidents = Incidents(name)
        self._queues: dict[str, SubjectQueue] = {}  # by subject
        self.secret = secrets.token_hex(SECRET_BYTES)

    def headers(self, message: Message) -> dict[str, str]:
        return message_headers(message, self._name, self.secret)

    async def publish(self, message: Message, expect_last: int | None, over: str) -> int:
        """See `Bus.publish`."""
        subject = subjects.subject_of(message)
        headers = self.headers(message)
        if expect_last is not None:
            headers[EXPECTED] = str(expect_last)
            if over:
                headers[f"{EXPECTED}-Subject"] = over
        try:
            sequence = await self.store_message(subject, subjects.encode_message(message), headers)
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            if sequence := await self._sequence_if_published(subject, message):
                return sequence
            raise Stale(subject) from error
        self._traffic.published.count(subjects.tag_of(type(message)))
        return sequence

    async def publish_once(self, message: Message) -> None:
        """Publish without a retry."""
        subject, body = subjects.subject_of(message), subjects.encode_message(message)
        await self._js.publish(subject, body, headers=self.headers(message))

    async def replace_entry(
        self, subject: str, body: bytes, on_top_of: int, timeout_s: float | None
    ) -> int:
        """See `Bus.replace_entry`."""
        headers = {EXPECTED: str(on_top_of)}
        try:
            ack = await self._js.publish(subject, body, timeout=timeout_s, headers=headers)
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            raise Stale(subject, leading_revision(error)) from error
        return int(ack.seq)

    async def store_message(
        self, subject: str, body: bytes, headers: dict[str, str], wait_for_room: bool = True
    ) -> int:
        """Retry until the server has stored the message, after all earlier ones on its subject.

        Return its stream sequence.
        """
        queue = self._queues.setdefault(subject, SubjectQueue())
        queue.length += 1
        try:
            async with queue.turn:
                return await self._store_in_turn(queue, subject, body, headers, wait_for_room)
        finally:
            queue.length -= 1
            if not queue.length:
                del self._queues[subject]

    async def _store_in_turn(
        self,
        queue: SubjectQueue,
        subject: str,
        body: bytes,
        headers: dict[str, str],
        wait_for_room: bool,
    ) -> int:
        try:
            while True:
                self._may_publish()
                pause_s = RETRY_S
                # While the client reconnects, the library would buffer the message a second time.
                if not self._client.is_reconnecting:
                    try:
                        ack = await self._js.publish(subject, body, headers=headers)
                    except NatsError as error:
                        queue.stuck = True
                        pause_s = self._pause_s(subject, error, wait_for_room)
                    else:
                        self.incidents.end("bus away")
                        self.incidents.end("no room", subjects.stream_holding(subject))
                        return int(ack.seq)
                queue.stuck = True
                await asyncio.sleep(pause_s)
        finally:
            queue.stuck = False

    def _pause_s(self, subject: str, error: NatsError, wait_for_room: bool) -> float:
        """Return the pause before the next try. Raise the error if a retry cannot succeed."""
        if is_no_room(error) and wait_for_room:
            stream = subjects.stream_holding(subject)
            self._warning.warn_error(
                "NoRoom", error, subject=subject, waiting=self.waiting, stream=stream, remedy=REMEDY
            )
            cause = f"{stream} cannot store {subject}: {error.description}"
            self.incidents.begin("no room", cause, stream)
            return ROOM_S
        if is_no_room(error) or not is_transient(error):
            raise error
        self._warning.warn_error("PublishWaits", error, subject=subject, waiting=self.waiting)
        cause = f"the bus did not store {subject}: {str(error) or type(error).__name__}"
        self.incidents.begin("bus away", cause)
        return RETRY_S

    @property
    def waiting(self) -> int:
        """The number of messages that failed at least once, or wait behind one that did."""
        return sum(queue.length for queue in self._queues.values() if queue.stuck)

    async def _sequence_if_published(self, subject: str, message: Message) -> int:
        """Return the sequence of the message if this process published it as the last one on its
        subject before an acknowledgement was lost; else 0.

        A replica that lags may not have it yet. Then the next call finds it.
        """
        try:
            last = await self.last_message_on(subject)
        except NotFoundError:
            return 0
        same = (last.headers or {}).get(MESSAGE_ID) == self.headers(message)[MESSAGE_ID]
        return int(last.seq or 0) if same else 0

    async def last_message_on(self, subject: str) -> RawStreamMsg:
        """Return the last message on the subjects of a pattern, by direct get.

        Any server of the stream answers, perhaps from a replica that lags. A direct get does not
        wait behind requests of other users to JetStream's API, which has one queue for all of them.
        """
        stream = subjects.stream_holding(subject)
        return await retry_until_answered(
            self._client,
            lambda: self._js.get_msg(stream, subject=subject, direct=True),
            self._warning,
        )
