"""Tests of a service that gets SIGTERM during its imports, or that has no streams yet.

During its imports it is process 1 of a container, if the machine allows that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from services.__main__ import weir
from services.local.stack import MODULES
from shared.runtime.process import FREE, free_port

ROOT = Path(__file__).parents[3]
AS_FIRST = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
ENDS_WITHIN_S, STARTS_WITHIN_S = 2.0, 60.0
EARLY = b" msgspec"
"""The first library that every service imports; all others come after it."""
CODES = {"monitor": 0, "allocator": 0, "launcher": 0, "page": 0, "setup": 0, "trainer": 143}


@asynccontextmanager
async def started(service: str, url: str, *before: str, **environ: str) -> AsyncIterator[Process]:
    told = {"PYTHONPATH": str(ROOT), "WEIR_NATS_URL": url, "WEIR_LOG_JSON": "true", **environ}
    words = (*before, sys.executable, "-m", MODULES.get(service, f"services.{service}"))
    process = await asyncio.create_subprocess_exec(
        *words, env={**os.environ, **told}, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_with(process: Process, wanted: bytes) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(STARTS_WITHIN_S):
        while wanted not in (line := await process.stderr.readline()):
            assert line, f"it ended without {wanted!r}"


def may_unshare() -> bool:
    """Return whether we may start a process as number 1 of a namespace, as in a container."""
    try:
        return (
            subprocess.run(
                [*AS_FIRST, "true"], capture_output=True, timeout=STARTS_WITHIN_S
            ).returncode
            == 0
        )
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("service", CODES)
async def test_a_service_stops_at_once_during_its_imports(service: str) -> None:
    """The kernel delivers only those signals to process 1 for which it has a handler."""
    first = AS_FIRST if may_unshare() else ()
    async with started(
        service, "nats://127.0.0.1:1", *first, PYTHONPROFILEIMPORTTIME="1"
    ) as process:
        await line_with(process, EARLY)
        here = psutil.Process(process.pid)
        (here.children()[0] if first else here).send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), ENDS_WITHIN_S)

    assert process.returncode == CODES[service]


@pytest.mark.parametrize("service", ["allocator", "page"])
async def test_a_service_waits_for_its_streams_and_starts_when_they_exist(
    nats_url: str, service: str
) -> None:
    page = {"WEIR_PAGE_PORT": str(free_port())} if service == "page" else {}
    async with started(service, nats_url, **page) as process:
        await line_with(process, b"StreamsMissing")
        assert await asyncio.to_thread(weir, ["streams", "create", "--nats", nats_url]) == 0
        await line_with(process, {"allocator": b'"Leads"', "page": b"PageServed"}[service])
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), STARTS_WITHIN_S)

    assert process.returncode == 0


def test_free_ports_are_distinct_and_outside_the_ephemeral_range() -> None:
    found = [free_port() for _ in range(200)]

    assert len(set(found)) == 200 and set(found) <= set(FREE)
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert not given.exists() or max(found) < int(given.read_text().split()[0])


def test_a_free_port_is_reserved_from_other_processes_but_not_from_a_server() -> None:
    number = free_port()
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("", number))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", number))
        server.listen()


def test_processes_that_ask_at_the_same_time_get_different_ports() -> None:
    """They begin at the same port, as may happen by chance."""
    script = "import random; random.randrange = lambda size: 0\n"
    script += "from shared.runtime.process import free_port\n"
    script += "print(*[free_port() for _ in range(50)])"
    asking = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    found = [number for each in asking for number in each.communicate(timeout=60)[0].split()]
    assert len(found) == 200 and len(set(found)) == 200
