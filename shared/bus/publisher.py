"""Saying: what is published stays here until the server has it. Edge.

Promises. `publish` returns once the server has stored the message, however long it is away
meanwhile. Saying the same thing twice is harmless: the id is the message's own, a server takes it
once within its stream's duplicate window, and behind that every fold ignores it. What the server
refuses is raised at once, with one exception: where it has no room, room may be made, so that is
waited for, and complained of.

Of one subject's messages the next is published when the last one is stored: so they keep their
order, whatever fails.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeGuard

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import APIError, NotFoundError

from shared.bus import subjects
from shared.bus.client import RETRY_S, ResilientClient, is_transient, retry_until_answered
from shared.bus.subjects import event_type
from shared.messages import Message
from shared.runtime.incidents import Incidents
from shared.runtime.log import RateLimitedWarning
from shared.runtime.metrics import BusTraffic

ROOM_S = 2.0
SECRET_BYTES = 8
WRONG_LAST_SEQUENCE = 10071
NO_ROOM = (10077, 10047, 10023)
"""A stream could not store it (`max_bytes`, say); the server's, or the account's, storage is used
up.
"""
REMEDY = "Nothing is lost: it is tried again. Make room: `weir streams create --orders-gib N`, or a larger disk."
EXPECTED = "Nats-Expected-Last-Subject-Sequence"


class Stale(Exception):
    """Somebody has written since we looked: a compare-and-set was refused."""


def is_no_room(error: Exception) -> TypeGuard[APIError]:
    return isinstance(error, APIError) and error.err_code in NO_ROOM


class SubjectQueue:
    """Those who wait to speak on one subject. `stuck`: the first of them has spoken in vain."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.length = 0
        self.stuck = False


class Publisher:
    """`may_say` raises where we may not, any more."""

    def __init__(
        self,
        client: ResilientClient,
        js: JetStreamContext,
        name: str,
        traffic: BusTraffic,
        may_say: Callable[[], None],
    ) -> None:
        self._client = client
        self._js = js
        self._name = name
        self._traffic = traffic
        self._may_publish = may_say
        self._warning, self.incidents = RateLimitedWarning(), Incidents(name)
        self._lines: dict[str, SubjectQueue] = {}  # by subject
        self.secret = secrets.token_hex(SECRET_BYTES)

    async def publish(self, message: Message, expect_last: int | None, over: str) -> int:
        """See `Bus.publish`."""
        subject, body = subjects.subject_of(message), subjects.encode_message(message)
        headers = cloud_event_headers(message, subject, self._name, self.secret)
        if expect_last is not None:
            headers |= {EXPECTED: str(expect_last)} | (
                {f"{EXPECTED}-Subject": over} if over else {}
            )
        try:
            sequence = await self.store_message(subject, body, headers)
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            if mine := await self._sequence_if_published(subject, message):
                return mine
            raise Stale(subject) from error
        self._traffic.published.count(subjects.tag_of(type(message)))
        return sequence

    async def publish_once(self, message: Message) -> int:
        """See `Bus.request`."""
        subject = subjects.subject_of(message)
        headers = cloud_event_headers(message, subject, self._name, self.secret)
        return int(
            (await self._js.publish(subject, subjects.encode_message(message), headers=headers)).seq
        )

    async def replace_entry(
        self, subject: str, body: bytes, on_top_of: int, timeout_s: float | None
    ) -> int:
        """See `Bus.replace`."""
        headers = {EXPECTED: str(on_top_of)}
        try:
            return int(
                (await self._js.publish(subject, body, timeout=timeout_s, headers=headers)).seq
            )
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            raise Stale(subject) from error

    async def store_message(
        self, subject: str, body: bytes, headers: dict[str, str], wait_for_room: bool = True
    ) -> int:
        """Try until the server has it, behind what was said before on its subject; returns its
        stream sequence.
        """
        line = self._lines.setdefault(subject, SubjectQueue())
        line.length += 1
        try:
            async with line.turn:
                return await self._store_in_turn(line, subject, body, headers, wait_for_room)
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[subject]

    async def _store_in_turn(
        self,
        line: SubjectQueue,
        subject: str,
        body: bytes,
        headers: dict[str, str],
        wait_for_room: bool,
    ) -> int:
        try:
            while True:
                self._may_publish()
                pause_s = RETRY_S
                if (
                    not self._client.is_reconnecting
                ):  # else it stays with us, and not in the library's buffer as well
                    try:
                        sequence = int((await self._js.publish(subject, body, headers=headers)).seq)
                        self.incidents.end("bus away")
                        self.incidents.end("no room", subjects.stream_holding(subject))
                        return sequence
                    except NatsError as error:
                        line.stuck = True
                        pause_s = self._pause_s(subject, error, wait_for_room)
                line.stuck = True
                await asyncio.sleep(pause_s)
        finally:
            line.stuck = False

    def _pause_s(self, subject: str, error: NatsError, wait_for_room: bool) -> float:
        """Until the next try; raises what none can heal."""
        if is_no_room(error) and wait_for_room:
            stream = subjects.stream_holding(subject)
            self._warning.warn_error(
                "NoRoom", error, subject=subject, waiting=self.waiting, stream=stream, remedy=REMEDY
            )
            self.incidents.begin(
                "no room", f"{stream} cannot store {subject}: {error.description}", stream
            )
            return ROOM_S
        if is_no_room(error) or not is_transient(error):
            raise error
        self._warning.warn_error("PublishWaits", error, subject=subject, waiting=self.waiting)
        self.incidents.begin(
            "bus away", f"the bus did not take {subject}: {str(error) or type(error).__name__}"
        )
        return RETRY_S

    @property
    def waiting(self) -> int:
        """How many were said in vain at least once, or wait behind one that was, and are not stored
        yet.
        """
        return sum(line.length for line in self._lines.values() if line.stuck)

    async def _sequence_if_published(self, subject: str, message: Message) -> int:
        """Return where we ourselves said this last on its subject, before an acknowledgement got
        lost.

        0: we did not, or a copy that lags does not have it yet; then who asks again finds it.
        """
        try:
            last = await self.last_message_on(subject)
        except NotFoundError:
            return 0
        return (
            int(last.seq or 0)
            if (last.headers or {}).get("Nats-Msg-Id") == self._message_id(message)
            else 0
        )

    def _message_id(self, message: Message) -> str:
        return cloud_event_headers(message, "", "", self.secret)["Nats-Msg-Id"]

    async def last_message_on(self, subject: str) -> RawStreamMsg:
        """Return the last message on the subjects that a pattern covers, by direct get.

        Any server of the stream answers, perhaps from a copy that lags. A direct get does not wait
        behind requests of other users to JetStream's API, which has one queue for all of them.
        """
        stream = subjects.stream_holding(subject)
        return await retry_until_answered(
            self._client,
            lambda: self._js.get_msg(stream, subject=subject, direct=True),
            self._warning,
        )


def cloud_event_headers(
    message: Message, subject: str, source: str, secret: str = ""
) -> dict[str, str]:
    """Return CloudEvents 1.0 attributes, and the id by which the server ignores repetitions.

    The server drops a message whose id another one of its stream has had, whoever published that.
    Ids of messages can be foretold, so a tenant could have another one's messages dropped.
    `secret`: added to the id, so that nobody else can know it; the same for all tries of one
    process.
    """
    said = message.id()
    return {
        "Nats-Msg-Id": f"{said}.{secret}" if secret else said,
        "ce-specversion": "1.0",
        "ce-id": said,
        "ce-type": event_type(subjects.tag_of(type(message))),
        "ce-source": source,
        "ce-subject": message.key(),
        "ce-time": datetime.now(UTC).isoformat(),
        "content-type": "application/json",
    }
