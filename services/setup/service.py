"""The set-up: create the streams and buckets, then check from time to time that they still exist.

At its start it creates or updates all of them, because a newer version may configure them
differently. Several may run at once: creating an existing stream changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import structlog
from msgspec import Meta
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from shared.bus.bus import Bus
from shared.bus.streams import stream_names
from shared.messages import GIB
from shared.runtime import config
from shared.runtime.log import RateLimitedWarning

log = structlog.get_logger()
RETRY_S = 1.0
"""Seconds between two attempts."""


class Settings(config.Common, frozen=True, kw_only=True):
    """`WEIR_SETUP_<FIELD>`."""

    replicas: Literal[1, 3, 5] = 1  # servers that keep each stream
    orders_gib: Annotated[int, Meta(ge=0)] = 0  # size of the orders' stream; 0: 1 GiB, or unchanged
    look_s: Annotated[float, Meta(gt=0)] = 60.0  # seconds between two checks


async def start(bus: Bus, settings: Settings) -> None:
    exist = asyncio.Event()
    bus.health.require("the streams", exist.is_set)
    bus.spawn(keep_streams(bus, settings, exist))


async def keep_streams(bus: Bus, settings: Settings, exist: asyncio.Event) -> None:
    """Create missing streams, for ever. `exist` is set while all exist."""
    warning = RateLimitedWarning()
    while True:
        try:
            await bus.create(settings.replicas, settings.orders_gib * GIB, settings.job_namespaces)
        except NatsError as error:
            warning.warn_error("StreamsNotMade", error)
            await asyncio.sleep(RETRY_S)
            continue
        log.info("StreamsMade", replicas=settings.replicas, namespaces=settings.job_namespaces)
        exist.set()
        lost = await lost_stream(bus, settings)
        exist.clear()
        log.warning("StreamLost", stream=lost)


async def lost_stream(bus: Bus, settings: Settings) -> str:
    """Wait until a stream is missing, and return its name."""
    while True:
        await asyncio.sleep(settings.look_s)
        for name in stream_names(settings.job_namespaces):
            try:
                await bus.last_stored(name)
            except NotFoundError:
                return name
