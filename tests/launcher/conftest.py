"""Every story is told twice: to a launcher that lives on, and to one that is killed and rebuilt at every step."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared import bus
from shared.bus import Bus
from tests.launcher.world import World


@pytest.fixture(params=[False, True], ids=["lives-on", "killed-at-every-step"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    told = World(restarts=request.param)
    yield told
    told.settle()


@pytest.fixture
async def nats_url(tmp_path: Path) -> AsyncIterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ["-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(tmp_path)]
    quiet = asyncio.subprocess.DEVNULL
    program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "nats-server"
    server = await asyncio.create_subprocess_exec(program, *where, stdout=quiet, stderr=quiet)
    yield f"nats://127.0.0.1:{port}"
    server.terminate()
    await server.wait()


@pytest.fixture
async def connection(nats_url: str) -> AsyncIterator[Bus]:
    for _ in range(100):
        try:
            made = await bus.connect(nats_url, "test")
            break
        except OSError:
            await asyncio.sleep(0.02)
    await made.create()
    yield made
    await made.close()
