"""The life of a service: read settings, connect, start, wait for a signal, drain.

if __name__ == "__main__":
    run_service("monitor", Settings, start)
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
from shared.bus.consumer import StreamSetBack
from shared.runtime import config, log
from shared.runtime.log import RateLimitedWarning
from shared.runtime.metrics import STARTED, Health
from shared.runtime.process import cancel_tasks

C = TypeVar("C", bound=config.Common)
Start = Callable[[Bus, C], Awaitable[None]]

BAD_SETTINGS, CANNOT_GO_ON = 2, 1
SET_BACK = 4
"""Exit code after a stream was set back: the restarted service reads the streams from the
beginning.
"""


class ServiceExit(Exception):
    """Raised by a service that is done: the service drains, then exits with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run_service(
    service: str,
    settings: type[C],
    start: Start[C],
    stopped: int = 0,
    credentials: str = "",
    cut_off: int = CANNOT_GO_ON,
) -> None:
    """Run until SIGTERM or SIGINT (exit code `stopped`), or until an error (logged, exit code not
    0).

    `credentials`: their text, if they are not in a file that the settings name. `cut_off`: the exit
    code if the bus is the cause of the error.
    """
    try:
        chosen = config.load_settings(settings, service, os.environ)
    except config.BadSettings as error:
        print(f"weir {service}: {error}", file=sys.stderr)
        sys.exit(BAD_SETTINGS)
    log.configure_logging(service, chosen.log_level, chosen.log_json)
    code = asyncio.run(_run_until_exit(service, chosen, start, credentials, cut_off))
    sys.exit(stopped if code is None else code)


async def _run_until_exit(
    service: str, chosen: C, start: Start[C], credentials: str, cut_off: int
) -> int | None:
    """Run the service; return its exit code, or None after a signal."""
    logger = structlog.get_logger()
    logger.info("Starting", settings=config.shown_settings(chosen))
    stop, vitals = _stop_signal(), Health()
    vitals.require(STARTED, lambda: False)
    try:
        async with _serve_health(vitals, chosen.metrics_port):
            connection = await _connect_or_stop(service, chosen, credentials, vitals, stop)
            return await _until_stopped(connection, chosen, start, stop) if connection else None
    except StreamSetBack as error:
        logger.warning(
            "StreamSetBack", why=str(error), remedy="starts again from the stored messages"
        )
        return SET_BACK
    except Exception as error:
        logger.exception("CannotGoOn")
        return cut_off if is_outage(error) else CANNOT_GO_ON


@asynccontextmanager
async def _serve_health(vitals: Health, port: int) -> AsyncIterator[None]:
    """Serve health and metrics, also while waiting for the bus. Port 0: do not."""
    if not port:
        yield
        return
    from shared.runtime.http_server import serve_health  # a trainer's image has no web server

    listener = await serve_health(vitals, port)
    try:
        yield
    finally:
        await listener.cleanup()


async def _connect_or_stop(
    service: str, chosen: config.Common, credentials: str, vitals: Health, stop: asyncio.Event
) -> Bus | None:
    """Return the bus once it has its streams; None if a signal comes first."""
    connecting = asyncio.ensure_future(_connect_to_streams(service, chosen, credentials, vitals))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not connecting.done():
        return None
    stopping.cancel()
    return connecting.result()


async def _connect_to_streams(
    service: str, chosen: config.Common, credentials: str, vitals: Health
) -> Bus:
    """Return a connection to a bus that has the streams."""
    made = await bus.connect(
        chosen.nats_url, service, credentials or chosen.nats_credentials, chosen.nats_ca, vitals
    )
    await _until_streams_exist(made)
    return made


async def _until_streams_exist(connection: Bus) -> None:
    """Wait for the streams, which the set-up creates: on a new cluster a service may start
    first.
    """
    if connection.name == SETUP:
        return
    exist, warning = asyncio.Event(), RateLimitedWarning()
    connection.health.require("the streams", exist.is_set)
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
    connection.spawn(_start_service(connection, start(connection, chosen)))
    if connection.name in SERVICES:
        connection.spawn(connection.publish_incidents())
    if chosen.begun_again:
        connection.incidents.record("began again", chosen.begun_again)
    stopping = asyncio.ensure_future(stop.wait())
    failing = asyncio.ensure_future(connection.raise_failure())
    await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
    leaving = asyncio.ensure_future(_prepare_stop(connection, stopping))
    await asyncio.wait((leaving, failing), return_when=asyncio.FIRST_COMPLETED)
    ended = failing if failing.done() else leaving
    await cancel_tasks(leaving, failing)
    await _close(connection, chosen.drain_s)
    return _exit_code(ended)


async def _close(connection: Bus, within_s: float) -> None:
    """Close within a time limit. A bus that does not answer does not change the exit code."""
    try:
        await asyncio.wait_for(connection.close(), within_s)
    except TimeoutError:
        structlog.get_logger().warning("CloseTimedOut", after_s=within_s)


async def _start_service(connection: Bus, start: Awaitable[None]) -> None:
    await start
    connection.health.require(STARTED, lambda: True)


async def _prepare_stop(connection: Bus, stopping: asyncio.Future[Literal[True]]) -> None:
    await stopping
    await connection.prepare_stop()


def _exit_code(ended: asyncio.Future[None]) -> int | None:
    """Return the exit code of the service, None after a signal. Raises its error."""
    try:
        ended.result()
    except ServiceExit as leave:
        return leave.code
    return None


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
