"""Tests of `weir page`: its address, Ctrl-C, and a port in use."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import aiohttp
import pytest

from services.console.trouble import INTERRUPTED
from shared.bus.bus import Bus
from tests.allocator.builders import accepted, request
from tests.cli.conftest import Prompt

WITHIN_S = 120


async def test_page_prints_its_address_answers_there_and_ends_on_ctrl_c(
    bus: Bus, nats_url: str
) -> None:
    await bus.publish(request())
    await bus.publish(accepted())
    words = ("-m", "services", "page", "--nats", nats_url, "--port", "0")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(WITHIN_S), aiohttp.ClientSession() as http:
        line = (await process.stdout.readline()).decode()
        url = line.removeprefix("the page is at ").partition(";")[0]
        async with http.get(url) as answer:
            assert answer.status == 200 and "<title>weir</title>" in await answer.text()
        async with http.get(f"{url}api/follow") as following:
            async for said in following.content:
                if b'"key":"default.mnist"' in said:
                    break
        process.send_signal(signal.SIGINT)
        assert await process.wait() == INTERRUPTED


@pytest.mark.usefixtures("bus")
async def test_a_taken_port_is_an_error_that_names_the_option(
    prompt: Prompt, nats_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = await prompt("page", "--nats", nats_url, "--port", taken.getsockname()[1])

    assert said.code == 1 and "choose another --port" in said.err
