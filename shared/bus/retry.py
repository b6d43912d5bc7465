"""Patience with a bus that is away: what it did not answer is asked again, and whoever runs us is
told. Edge.

Only for what may be asked twice: reading. What is said has an id of its own, by which the server
takes it once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from nats.errors import BadSubjectError, ConnectionClosedError, MaxPayloadError
from nats.errors import Error as NatsError
from nats.js.errors import APIError, ServiceUnavailableError

from shared.bus.client import Final, SturdyClient

log = structlog.get_logger()
T = TypeVar("T")

RETRY_S = 0.2
"""From one try to the next: of all that is tried again, the connection too."""
TOLD_S = 30.0
"""Between two words about one thing that waits: a bus that is away for long fills no log."""
NEVER = (APIError, BadSubjectError, MaxPayloadError, ConnectionClosedError, Final)


SERVER_ERROR = 500


def passes(error: NatsError) -> bool:
    """Whether a later try may end otherwise. A server without a leader, say, answers that it is not
    available yet.
    """
    return isinstance(error, ServiceUnavailableError) or not isinstance(error, NEVER)


def is_outage(error: BaseException) -> bool:
    """Return whether an error says no more than that the bus cannot do it now: nothing is wrong
    with the request.

    With its errors of 500 and above a server says that it has no leader, or no room.
    """
    if isinstance(error, APIError) and (error.code or 0) >= SERVER_ERROR:
        return True
    return isinstance(error, NatsError) and passes(error)


class Plaint:
    """Says why we wait; at once, and then once in `every_s`."""

    def __init__(self, every_s: float = TOLD_S) -> None:
        self._every_s, self._told_s = every_s, -every_s

    def tell(self, event: str, error: Exception, **more: object) -> None:
        self.say(event, error=str(error) if isinstance(error, APIError) else repr(error), **more)

    def say(self, event: str, **fields: object) -> None:
        if time.monotonic() >= self._told_s + self._every_s:
            self._told_s = time.monotonic()
            log.warning(event, **fields)


async def asked(client: SturdyClient, question: Callable[[], Awaitable[T]], plaint: Plaint) -> T:
    """The answer, however long the server is away meanwhile; raises what no later try can heal."""
    while True:
        if not client.is_reconnecting:
            try:
                return await question()
            except NatsError as error:
                if not passes(error):
                    raise
                plaint.tell("AnswerWaits", error)
        await asyncio.sleep(RETRY_S)
