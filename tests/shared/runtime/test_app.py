"""Tests of a service's life as its parent sees it: exit codes and their causes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import nats
import pytest

from shared.bus.bus import Bus
from tests.conftest import NatsServer

ROOT = Path(__file__).parents[3]
SERVICE = """
import asyncio
import os
import signal
from shared.bus import bus
from shared.runtime import app, config
from shared.runtime.app import ServiceExit

bus.ANSWER_S = float(os.environ.get("ANSWER_S", bus.ANSWER_S))

class Settings(config.Common, frozen=True, kw_only=True):
    mood: str = "patient"

leaving = asyncio.Event()

async def start(bus, settings):
    bus.on_close(say_goodbye)
    told = asyncio.Event()
    if settings.mood == "cut-off-later":
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, told.set)
    if settings.mood.startswith("polite"):
        bus.on_stop(farewell)
    if settings.mood == "hangs":
        bus.on_close(asyncio.Event().wait)
    print("started", flush=True)
    if settings.mood == "broken":
        raise ZeroDivisionError("the oven is cold")
    if settings.mood == "broken-behind":
        bus.spawn(fail())
    if settings.mood == "polite-but-broken":
        bus.spawn(fail_later())
    if settings.mood == "cut-off-later":
        await told.wait()
        await bus.js.stream_info("weir")
    if settings.mood == "done":
        raise ServiceExit(75)
    await asyncio.Event().wait()

async def farewell():
    print("a moment", flush=True)
    leaving.set()
    await asyncio.sleep(0.3)
    if os.environ["WEIR_BAKER_MOOD"] == "polite-and-done":
        raise ServiceExit(75)
    if os.environ["WEIR_BAKER_MOOD"] == "polite-but-broken":
        await asyncio.Event().wait()
    print("enough", flush=True)

async def fail_later():
    await leaving.wait()
    await asyncio.sleep(0.3)
    raise ZeroDivisionError("the oven is cold")

async def fail():
    raise ZeroDivisionError("the oven is cold")

async def say_goodbye():
    print("goodbye", flush=True)

app.run_service("baker", Settings, start, stopped=int(os.environ.get("STOPPED", 0)), cut_off=140)
"""


class Service:
    """A service in its own process."""

    def __init__(self, nats_url: str, **environ: str) -> None:
        named = {f"WEIR_BAKER_{k.upper()}": v for k, v in environ.items()}
        self._environ = {**os.environ, "PYTHONPATH": str(ROOT), "WEIR_NATS_URL": nats_url, **named}

    async def __aenter__(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SERVICE, env=self._environ, stdout=pipe, stderr=pipe
        )
        return self.process

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_failed_start_is_logged_and_exits_non_zero(bus: Bus, nats_url: str) -> None:
    async with Service(nats_url, mood="broken") as process:
        code, out, err = await ended(process)

    assert code == 1
    assert "the oven is cold" in err and "ZeroDivisionError" in err
    assert "goodbye" in out


async def test_a_failed_background_task_is_logged_and_exits_non_zero(
    bus: Bus, nats_url: str
) -> None:
    async with Service(nats_url, mood="broken-behind") as process:
        code, _, err = await ended(process)

    assert code == 1 and "the oven is cold" in err


async def test_a_bus_failure_has_its_own_exit_code(
    bus: Bus, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSWER_S", "2.0")
    async with Service(nats_server.url, mood="cut-off-later") as process:
        assert process.stdout and await process.stdout.readline() == b"started\n"
        with nats_server.hung():
            process.send_signal(signal.SIGUSR1)
            code, _, err = await ended(process)

    assert code == 140 and "CannotGoOn" in err and "TimeoutError" in err


async def test_a_close_timeout_keeps_the_exit_code(
    bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_DRAIN_S", "0.2")
    async with Service(nats_url, mood="hangs") as process:
        assert process.stdout and await process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGTERM)
        code, _, err = await ended(process)

    assert code == 0 and "CloseTimedOut" in err and "CannotGoOn" not in err


async def test_sigterm_drains_and_exits_zero(bus: Bus, nats_url: str) -> None:
    async with Service(nats_url) as process:
        assert process.stdout and await process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGTERM)
        code, out, _ = await ended(process)

    assert code == 0 and "goodbye" in out


async def test_sigterm_with_unfinished_work_has_its_own_exit_code(
    bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOPPED", "143")
    async with Service(nats_url) as process:
        assert process.stdout and await process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGTERM)
        code, out, _ = await ended(process)

    assert code == 143 and "goodbye" in out


@pytest.mark.parametrize(
    ("mood", "code", "words"),
    [
        ("polite", 143, "a moment\nenough\ngoodbye\n"),
        ("polite-and-done", 75, "a moment\ngoodbye\n"),
        ("polite-but-broken", 1, "a moment\ngoodbye\n"),
    ],
)
async def test_a_graceful_shutdown_is_awaited_while_the_service_runs(
    bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch, mood: str, code: int, words: str
) -> None:
    monkeypatch.setenv("STOPPED", "143")
    async with Service(nats_url, mood=mood) as process:
        assert process.stdout and await process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGTERM)
        assert (await ended(process))[:2] == (code, words)


async def test_a_finished_service_drains_and_exits_with_its_own_code(
    bus: Bus, nats_url: str
) -> None:
    async with Service(nats_url, mood="done") as process:
        code, out, err = await ended(process)

    assert code == 75 and "goodbye" in out
    assert "CannotGoOn" not in err


async def test_wrong_settings_are_named_before_anything_starts() -> None:
    async with Service("nats://127.0.0.1:1", moood="happy") as process:
        code, out, err = await ended(process)

    assert code == 2 and "WEIR_BAKER_MOOOD" in err and not out
    assert "Traceback" not in err


async def test_a_service_waits_for_its_server(nats_server: NatsServer, bus: Bus) -> None:
    await nats_server.kill()
    async with Service(nats_server.url) as process:
        assert process.stderr and b"Starting" in await process.stderr.readline()
        assert b"BusError" in await process.stderr.readline()
        await nats_server.start()
        assert (
            process.stdout and await asyncio.wait_for(process.stdout.readline(), 60) == b"started\n"
        )


async def test_a_service_that_waits_for_its_server_can_be_stopped() -> None:
    async with Service("nats://127.0.0.1:1") as process:
        assert process.stderr and b"Starting" in await process.stderr.readline()
        assert b"BusError" in await process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        code, out, _ = await ended(process)

    assert code == 0 and "started" not in out


async def test_a_service_waits_for_streams_and_creates_none(nats_url: str) -> None:
    async with Service(nats_url) as process:
        assert process.stderr
        while b"StreamsMissing" not in (
            line := await asyncio.wait_for(process.stderr.readline(), 60)
        ):
            assert line, "it ended"
        client = await nats.connect(nats_url)
        assert await client.jetstream().streams_info() == []
        await client.close()
        process.send_signal(signal.SIGTERM)
        code, out, _ = await ended(process)

    assert code == 0 and "started" not in out


async def test_every_setting_is_shown_at_start(bus: Bus, nats_url: str) -> None:
    async with Service(nats_url, mood="done") as process:
        _, _, err = await ended(process)

    assert "mood" in err and "drain_s" in err and "log_level" in err
