"""Tests of the setup service: it creates the streams on a new bus, and lost ones again."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process

import aiohttp
import nats

from shared.bus.streams import stream_names
from shared.runtime.process import free_port
from tests.shared.runtime.test_stopping import STARTS_WITHIN_S, line_with, started

TEAMS = ("team-a", "team-b")


async def ready(port: int) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/readyz") as answer,
    ):
        return answer.status


async def until_made(process: Process, nats_url: str, port: int) -> None:
    await line_with(process, b"StreamsMade")
    client = await nats.connect(nats_url)
    made = {str(info.config.name) for info in await client.jetstream().streams_info()}
    await client.close()
    assert made == set(stream_names(TEAMS)) and await ready(port) == 200


async def test_setup_creates_the_streams_and_recreates_lost_ones(nats_url: str) -> None:
    port = free_port()
    asked = {
        "WEIR_JOB_NAMESPACES": ",".join(TEAMS),
        "WEIR_METRICS_PORT": str(port),
        "WEIR_SETUP_LOOK_S": "0.1",
    }
    async with started("setup", nats_url, **asked) as process:
        await until_made(process, nats_url, port)
        client = await nats.connect(nats_url)
        await client.jetstream().delete_stream(stream_names(TEAMS)[-1])
        await client.close()
        await until_made(process, nats_url, port)
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), STARTS_WITHIN_S)

    assert process.returncode == 0


async def test_a_refused_stream_is_reported_and_retried(nats_url: str) -> None:
    """A single server cannot store three replicas."""
    port = free_port()
    async with started(
        "setup", nats_url, WEIR_SETUP_REPLICAS="3", WEIR_METRICS_PORT=str(port)
    ) as process:
        await line_with(process, b"StreamsNotMade")
        assert await ready(port) == 503
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), STARTS_WITHIN_S)

    assert process.returncode == 0
