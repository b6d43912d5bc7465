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
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout

from shared.client import SturdyClient

ASKED_FOR = 256
EXPIRES_S, HEARTBEAT_S = 30.0, 2.0
HEARTBEAT, OVER = "100", ("404", "408")
BROKEN = "the connection broke, and with it our request"
ACK = "$JS.ACK."  # a message of the stream wants an answer; only without that is a status the server's own word
NANO = 1_000_000_000


class Gone(NatsError):
    """The server has not our request any more, or not our consumer, or what it sent was lost: make
    another.
    """


class Puller:
    """One consumer, read from its beginning by one reader."""

    def __init__(
        self,
        client: SturdyClient,
        stream: str,
        consumer: str,
        may_ask: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._may_ask = client, may_ask
        self._subject = f"{client.api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox: Subscription | None = None
        self._due, self._count = 0, 0
        self.hears = False
        """Has the server our request? It says so at each heartbeat: a connection alone delivers
        nothing.
        """

    async def next(self) -> Msg:
        """Wait for the next message, however long. Raises `Gone`."""
        try:
            while True:
                raw = await self._hear()
                if raw.reply.startswith(ACK):
                    return self._counted(raw)
                status = (raw.headers or {}).get("Status")
                if status is None:
                    raise Gone("an answer that is neither a message nor a status")
                if status not in (HEARTBEAT, *OVER):
                    raise Gone(f"{status} {(raw.headers or {}).get('Description', '')}")
                self.hears = True
                if status in OVER:
                    self._due = 0
        except Gone:
            self.hears = False
            await self.close()
            raise

    def _counted(self, raw: Msg) -> Msg:
        self._due -= 1
        self._count += 1
        if (number := raw.metadata.sequence.consumer) != self._count:
            raise Gone(f"delivery {number} came where {self._count} was due")
        self.hears = True
        return raw

    @property
    def at_hand(self) -> int:
        """How many need not be waited for."""
        return self._inbox.pending_msgs if self._inbox else 0

    async def _hear(self) -> Msg:
        inbox = self._inbox or await self._open()
        if self._due == 0:
            await self._ask(inbox)
        if inbox.pending_msgs:  # the library makes a task for each message that is waited for
            return inbox._pending_queue.get_nowait()
        try:
            return await inbox.next_msg(timeout=2.5 * HEARTBEAT_S)
        except NatsTimeout as error:
            raise Gone("no heartbeat") from error

    async def _open(self) -> Subscription:
        self._inbox = await self._client.subscribe(self._client.new_inbox(), pending_bytes_limit=0)
        self._client.on_break.add(self._broke)
        return self._inbox

    def _broke(self) -> None:
        """What came before it is read first."""
        if self._inbox:
            self._inbox._pending_queue.put_nowait(
                Msg(_client=self._client, headers={"Status": BROKEN})
            )

    async def _ask(self, inbox: Subscription) -> None:
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
        self._client.on_break.discard(self._broke)
        if inbox is not None and not self._client.is_closed:
            await inbox.unsubscribe()
