"""Logs: colours at a terminal, JSON elsewhere; the job and the cause are bound along the way.

log = structlog.get_logger()
log.info("DecidedAllocation", ps=2, workers=3)
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from nats.js.errors import APIError

from shared.messages import Message

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
