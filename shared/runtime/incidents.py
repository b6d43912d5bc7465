"""Incidents: a service cannot publish, receive or see what it must. They are published with cause
and remedy.

An incident is published at its beginning, if the bus can take it, and at its end with its duration.
It goes to the stream of facts, which drops its oldest messages and so has room while the stream of
orders is full. While the bus is away, it waits as all messages do. An incident of one kind is
published at most once in `TOLD_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from shared.messages import ServiceTroubled, Trouble

Say = Callable[[ServiceTroubled], Awaitable[object]]
TOLD_S = 30.0
WAITING_MOST = 64
REMEDIES: dict[Trouble, str] = {
    "no room": "nothing is lost, the message is published again; make room: "
    "`weir streams create --orders-gib N`, or a larger disk",
    "bus away": "nothing is lost, messages are published and read again; "
    "for the cause see nats.log of `weir up`, or the pods of weir-nats",
    "bus slow": "nothing is lost, dropped messages are read again; "
    "the machine or the network is overloaded",
    "kubernetes away": "running pods continue, none is created or deleted; "
    "look at the API server, `kubectl get --raw /readyz`",
    "began again": "nothing is lost, it has read the messages that it missed; "
    "its log may have the cause",
}
AT_ITS_END = ("bus away",)
"""Incidents that can only be published after their end."""


class Incidents:
    """The incidents of one service. `begin` and `end` may be repeated; `thing` distinguishes
    incidents of the same kind.
    """

    def __init__(self, service: str, clock: Callable[[], float] = time.time) -> None:
        self.service, self.clock = service, clock
        self._lasting: dict[tuple[Trouble, str], ServiceTroubled] = {}
        self._told_s: dict[tuple[Trouble, str], float] = {}
        self._due: asyncio.Queue[ServiceTroubled] = asyncio.Queue(WAITING_MOST)

    def begin(self, what: Trouble, cause: str, thing: str = "") -> None:
        now = self.clock()
        if (what, thing) in self._lasting or now < self._told_s.get((what, thing), 0.0) + TOLD_S:
            return
        self._told_s[what, thing] = now
        fact = ServiceTroubled(
            service=self.service, what=what, cause=cause, remedy=REMEDIES[what], begun_s=now
        )
        self._lasting[what, thing] = fact
        if what not in AT_ITS_END:
            self._enqueue(fact)

    def end(self, what: Trouble, thing: str = "") -> None:
        fact = self._lasting.pop((what, thing), None)
        if fact is not None:
            self._enqueue(replace(fact, seconds=max(self.clock() - fact.begun_s, 0.0)))

    def record(self, what: Trouble, cause: str) -> None:
        """Record an incident that is over already."""
        self.begin(what, cause)
        lasting = self._lasting.pop((what, ""), None)
        if lasting is not None and what in AT_ITS_END:
            self._enqueue(replace(lasting, seconds=0.0))

    def _enqueue(self, fact: ServiceTroubled) -> None:
        """Queue a message. If nobody publishes them, the first few wait, and the rest are
        dropped.
        """
        if not self._due.full():
            self._due.put_nowait(fact)

    async def publish_all(self, say: Say) -> None:
        """Publish incidents for ever."""
        while True:
            await say(await self._due.get())
