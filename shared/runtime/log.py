"""Logs: colours at a terminal, JSON elsewhere. The job and the cause of a message are bound to the
lines that are logged while it is handled. This module also has the incidents of a service.

    log = structlog.get_logger()
    log.info("DecidedAllocation", ps=2, workers=3)

A service also publishes its incidents, with cause and remedy (`Incidents`): it cannot publish,
receive or read what it needs. An incident is published at its beginning, if the bus can take it,
and at its end with its duration. It goes to the stream of facts, which drops its oldest messages
and so has room while the stream of orders is full. While the bus is away, it waits as all messages
do. An incident of one kind is published at most once in `TOLD_S`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog
from msgspec.structs import replace
from nats.js.errors import APIError

from shared.messages import Message, ServiceTroubled, Trouble

TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)
)


def configure_logging(
    service: str,
    level: str = "info",
    as_json: bool | None = None,
    asyncio_level: int = logging.WARNING,
) -> None:
    """Set up logging for this process. `as_json` absent: JSON unless standard error is a terminal.

    asyncio's own messages become lines of the same log from `asyncio_level` on; it never writes to
    the terminal itself.
    """
    plain = sys.stderr.isatty() if as_json is None else not as_json
    renderer = structlog.dev.ConsoleRenderer() if plain else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if plain else [TRACEBACKS]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    asyncio_logger = logging.getLogger("asyncio")
    asyncio_logger.handlers, asyncio_logger.propagate = [AsyncioHandler(asyncio_level)], False


class AsyncioHandler(logging.Handler):
    """Write each message of asyncio (a failed TLS handshake, a task's exception that nobody read)
    to this log.
    """

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            "AsyncioMessage",
            said=record.getMessage(),
            exc_info=record.exc_info or None,
        )


@contextmanager
def bind_message(message: Message) -> Iterator[None]:
    """Bind the job that a message is about, and the message as the cause, to every line logged
    inside.
    """
    job, generation = getattr(message, "job", None), getattr(message, "generation", None)
    bound = {"job": job, "generation": generation, "cause": message.id()}
    with structlog.contextvars.bound_contextvars(
        **{k: v for k, v in bound.items() if v is not None}
    ):
        yield


WARNING_INTERVAL_S = 30.0
"""Time between two lines of the same warning, so that a long outage does not fill the log."""


class RateLimitedWarning:
    """Logs a warning at once, and repeats it at most every `every_s` seconds."""

    def __init__(
        self, every_s: float = WARNING_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self._logged_s = -every_s

    def warn_error(self, event: str, error: Exception, **fields: object) -> None:
        """Log the warning with the text of an error."""
        text = str(error) if isinstance(error, APIError) else repr(error)
        self.warn(event, error=text, **fields)

    def warn(self, event: str, **fields: object) -> None:
        """Log the warning, unless it was logged a short time ago."""
        now_s = self._clock()
        if now_s >= self._logged_s + self._every_s:
            self._logged_s = now_s
            structlog.get_logger().warning(event, **fields)


# ---------------------------------------------------------------- incidents


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
    "began again": "nothing is lost, the service has read the messages that it missed; "
    "the cause may be in its log",
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
        """Queue a message. If nothing publishes the queue, the first few wait, and the rest are
        dropped.
        """
        if not self._due.full():
            self._due.put_nowait(fact)

    async def publish_all(self, say: Say) -> None:
        """Publish incidents for ever."""
        while True:
            await say(await self._due.get())
