"""Tests of `weir top` on a real bus: printed once without a terminal, live on a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from shared.bus.bus import Bus
from shared.messages import Message
from tests.cli.conftest import Prompt
from tests.conftest import NatsServer
from tests.console.top.scenery import Scenery, scenery

STARTS = "waits for 3 pods: 0 of 3 run, 0 ready"


async def told(bus: Bus) -> None:
    await say(bus, scenery())


async def say(bus: Bus, s: Scenery) -> None:
    for entry in s.told:
        assert isinstance(entry.message, Message)
        await bus.publish(entry.message)


async def test_top_without_a_terminal_prints_once_as_text(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await told(bus)

    said = await prompt("top", "--nats", nats_url)

    assert said.code == 0, said.err
    assert (
        "\x1b" not in said.out
        and "6 nodes, 46 % of the cores held by jobs" in said.out
        and " live " in said.out
    )
    assert "jobs 22, others 7.75, free 18.25 of 48 cores" in said.out
    assert all(f" {name} " in said.out for name in ("digits", "clicks", "team-a/sentiment"))


async def test_top_without_a_terminal_cuts_and_wraps_nothing(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    name, asked, place = "j" * 40, "it is new, and there is room; " * 20, "node-" + "n" * 60
    s = Scenery()
    s.decides(s.asks(name), 1, 1, [place], asked.strip())
    s.node(place)
    await say(bus, s)

    said = (await prompt("top", "--nats", nats_url)).out.splitlines()

    whole = [line for line in said if name in line]
    assert [
        line.endswith(words) for line, words in zip(whole, (STARTS, asked.strip()), strict=True)
    ] == [True, True]
    assert any(line.startswith(f"{place} ") for line in said) and "…" not in "".join(said)
    assert all(line == line.rstrip() for line in said)


@pytest.mark.usefixtures("bus")
async def test_top_of_an_empty_cluster_has_hints(nats_url: str, prompt: Prompt) -> None:
    said = await prompt("top", "--once", "--nats", nats_url)

    assert (
        said.code == 0
        and "is the monitor running?" in said.out
        and "`weir submit FILE`" in said.out
    )


async def test_top_without_streams_has_a_remedy(nats_url: str, prompt: Prompt) -> None:
    said = await prompt("top", "--nats", nats_url)

    assert said.code == 1 and "create them with `weir streams create`" in said.err


class Screen:
    """A terminal, and the text written to it since the last `until`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self.text = process, ""

    async def until(self, holds: Callable[[str], bool], within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds(self.text):
                await asyncio.sleep(0.05)
        self.text = ""


@asynccontextmanager
async def at_a_terminal(*words: str) -> AsyncIterator[Screen]:
    ours, theirs = pty.openpty()
    size = {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services",
        *words,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **size},
    )
    os.close(theirs)
    screen, loop = Screen(process), asyncio.get_running_loop()

    def read() -> None:
        try:
            screen.text += os.read(ours, 1 << 16).decode(errors="replace")
        except OSError:  # no process writes to the terminal any more
            loop.remove_reader(ours)

    loop.add_reader(ours, read)
    try:
        yield screen
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        loop.remove_reader(ours)
        os.close(ours)


async def test_top_on_a_terminal_shows_an_outage_and_recovers(
    bus: Bus, nats_server: NatsServer
) -> None:
    await told(bus)

    async with at_a_terminal("top", "--nats", nats_server.url, "--every", "0.2s") as screen:
        await screen.until(lambda text: "digits" in text and "live" in text)
        await nats_server.kill()
        await screen.until(lambda text: "NO CONNECTION" in text)
        await nats_server.start()
        await screen.until(lambda text: "live" in text)
        screen.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            assert await screen.process.wait() == 130
