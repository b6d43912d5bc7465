"""Pulling a consumer's messages, each handed on the moment it comes.

The client library's own `fetch(n)` returns early with fewer than n messages but leaves its request open on the server.
What comes next is then answered on that old request, and the next `fetch` waits until the old one expires: messages lay
for up to 5 s after a quiet spell (nats-py 2.16 on nats-server 2.15; a test shows it). So we ask ourselves, with one
request open at a time, and know by its heartbeat that the server still has it. What was asked for is never dropped,
however large: it would come again late, behind what it came before.
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
ACK = "$JS.ACK."  # a message of the stream wants an answer; only without that is a status the server's own word
NANO = 1_000_000_000


class Gone(NatsError):
    """The server no longer has our request, or not our consumer: ask again, or make another."""


class Puller:
    """One consumer, read by one reader."""

    def __init__(
        self, client: SturdyClient, stream: str, consumer: str, may_ask: Callable[[], None] = lambda: None
    ) -> None:
        self._client, self._may_ask = client, may_ask
        self._subject = f"{client.api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox: Subscription | None = None
        self._due = 0
        self.hears = False
        """Has the server our request? It says so at each heartbeat: a connection alone delivers nothing."""

    async def next(self) -> Msg:
        """Wait for the next message, however long. Raises `Gone`, after which it may be called again."""
        try:
            while True:
                raw = await self._hear()
                status = None if raw.reply.startswith(ACK) else (raw.headers or {}).get("Status")
                if status is None:
                    self._due -= 1
                    self.hears = True
                    return raw
                if status not in (HEARTBEAT, *OVER):
                    raise Gone(f"{status} {(raw.headers or {}).get('Description', '')}")
                self.hears = True
                if status in OVER:
                    self._due = 0
        except Gone:
            self.hears = False
            await self.close()
            raise

    async def _hear(self) -> Msg:
        inbox = self._inbox or await self._client.subscribe(self._client.new_inbox(), pending_bytes_limit=0)
        self._inbox = inbox
        if self._due == 0:
            await self._ask(inbox)
        try:
            return await inbox.next_msg(timeout=2.5 * HEARTBEAT_S)
        except NatsTimeout as error:
            raise Gone("no heartbeat") from error

    async def _ask(self, inbox: Subscription) -> None:
        self._may_ask()  # what is given to one who no longer leads is missed by who does
        wanted = {"batch": ASKED_FOR, "expires": int(EXPIRES_S * NANO), "idle_heartbeat": int(HEARTBEAT_S * NANO)}
        await self._client.publish(self._subject, msgspec.json.encode(wanted), reply=inbox.subject)
        self._due = ASKED_FOR

    async def close(self) -> None:
        inbox, self._inbox, self._due = self._inbox, None, 0
        if inbox is not None and not self._client.is_closed:
            await inbox.unsubscribe()
