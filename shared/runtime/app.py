"""A service's life: configure, connect, start, wait for a signal, drain.

if __name__ == "__main__":
    app.run("monitor", Settings, start)
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

import structlog
from nats.js.errors import NotFoundError

from shared.auth.permissions import SERVICES, SETUP
from shared.bus import bus
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S, is_outage
from shared.bus.consumer import SetBack
from shared.runtime import config, log
from shared.runtime.health import BEGUN, Vitals
from shared.runtime.log import RateLimitedWarning
from shared.runtime.process import end

C = TypeVar("C", bound=config.Common)
Start = Callable[[Bus, C], Awaitable[None]]

BAD_SETTINGS, CANNOT_GO_ON = 2, 1
SET_BACK = 4
"""Exit code where a stream was set back: who starts again reads what is there now."""


class Leave(Exception):
    """Raised by a service that is done: drain, then end with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run(
    service: str,
    settings: type[C],
    start: Start[C],
    stopped: int = 0,
    credentials: str = "",
    cut_off: int = CANNOT_GO_ON,
) -> None:
    """Run until SIGTERM or SIGINT (exit `stopped`), or until something fails (says why, exits
    non-zero).

    `credentials`: their text, where they are in no file that the settings name. `cut_off`: the exit
    code where the bus is the cause, and not the service.
    """
    try:
        chosen = config.load(settings, service, os.environ)
    except config.BadSettings as error:
        print(f"weir {service}: {error}", file=sys.stderr)
        sys.exit(BAD_SETTINGS)
    log.configure(service, chosen.log_level, chosen.log_json)
    code = asyncio.run(_live(service, chosen, start, credentials, cut_off))
    sys.exit(stopped if code is None else code)


async def _live(
    service: str, chosen: C, start: Start[C], credentials: str, cut_off: int
) -> int | None:
    """The exit code; None where somebody stopped us."""
    logger = structlog.get_logger()
    logger.info("Starting", settings={f: getattr(chosen, f) for f in chosen.__struct_fields__})
    stop, vitals = _stop_signal(), Vitals()
    vitals.need(BEGUN, lambda: False)
    try:
        async with _asked(vitals, chosen.metrics_port):
            connection = await _connected(service, chosen, credentials, vitals, stop)
            return await _until_stopped(connection, chosen, start, stop) if connection else None
    except SetBack as error:
        logger.warning(
            "StreamSetBack", why=str(error), remedy="begins again with what is stored now"
        )
        return SET_BACK
    except Exception as error:
        logger.exception("CannotGoOn")
        return cut_off if is_outage(error) else CANNOT_GO_ON


@asynccontextmanager
async def _asked(vitals: Vitals, port: int) -> AsyncIterator[None]:
    """Answers how we are, also while we wait for the bus; by no port, nobody asks."""
    if not port:
        yield
        return
    from shared.runtime.http_server import listen  # a trainer's image has no web server

    listener = await listen(vitals, port)
    try:
        yield
    finally:
        await listener.cleanup()


async def _connected(
    service: str, chosen: config.Common, credentials: str, vitals: Vitals, stop: asyncio.Event
) -> Bus | None:
    """The bus, with its streams; None where somebody stops us while we wait for it."""
    connecting = asyncio.ensure_future(_on_streams(service, chosen, credentials, vitals))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not connecting.done():
        return None
    stopping.cancel()
    return connecting.result()


async def _on_streams(service: str, chosen: config.Common, credentials: str, vitals: Vitals) -> Bus:
    """Return a connection to a bus that has the streams."""
    made = await bus.connect(
        chosen.nats_url, service, credentials or chosen.nats_credentials, chosen.nats_ca, vitals
    )
    await _until_streams_exist(made)
    return made


async def _until_streams_exist(connection: Bus) -> None:
    """Wait for the streams: on a new cluster a service starts before they are made. One service
    makes them.
    """
    if connection.name == SETUP:
        return
    exist, warning = asyncio.Event(), RateLimitedWarning()
    connection.vitals.need("the streams", exist.is_set)
    while not exist.is_set():
        try:
            await connection.verify()
            exist.set()
        except NotFoundError as error:
            warning.warn_error("StreamsMissing", error, remedy="weir streams create")
            await asyncio.sleep(RETRY_S)


async def _until_stopped(
    connection: Bus, chosen: C, start: Start[C], stop: asyncio.Event
) -> int | None:
    connection.spawn(_begun(connection, start(connection, chosen)))
    if connection.name in SERVICES:
        connection.spawn(connection.tell_troubles())
    if chosen.begun_again:
        connection.troubles.passed("began again", chosen.begun_again)
    stopping = asyncio.ensure_future(stop.wait())
    failing = asyncio.ensure_future(connection.failed())
    await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
    leaving = asyncio.ensure_future(_farewell(connection, stopping))
    await asyncio.wait((leaving, failing), return_when=asyncio.FIRST_COMPLETED)
    ended = failing if failing.done() else leaving
    await end(leaving, failing)
    await _close(connection, chosen.drain_s)
    return _outcome(ended)


async def _close(connection: Bus, within_s: float) -> None:
    """Close in time; a bus that does not answer changes nothing about how the service ends."""
    try:
        await asyncio.wait_for(connection.close(), within_s)
    except TimeoutError:
        structlog.get_logger().warning("CloseTimedOut", after_s=within_s)


async def _begun(connection: Bus, start: Awaitable[None]) -> None:
    await start
    connection.vitals.need(BEGUN, lambda: True)


async def _farewell(connection: Bus, stopping: asyncio.Future[Literal[True]]) -> None:
    await stopping
    await connection.farewell()


def _outcome(ended: asyncio.Future[None]) -> int | None:
    """The exit code that a service asked for, None where it was stopped; raises what broke it."""
    try:
        ended.result()
    except Leave as leave:
        return leave.code
    return None


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
