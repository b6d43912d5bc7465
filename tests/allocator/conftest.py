"""A real nats-server, on a free port, with a folder of its own."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.errors import Error as NatsError

from shared import bus
from shared.bus import Bus


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
async def nats_url(tmp_path: Path) -> AsyncIterator[str]:
    beside = Path(sys.executable).parent / "nats-server"
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if not program:
        pytest.skip("no nats-server here")
    port = free_port()
    options = ("-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(tmp_path / "nats"))
    server = await asyncio.create_subprocess_exec(
        program, *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    yield f"nats://127.0.0.1:{port}"
    server.terminate()
    await server.wait()


@pytest.fixture
async def person(nats_url: str) -> AsyncIterator[Bus]:
    """A connection that made the streams, and from which a test speaks."""
    for _ in range(100):
        try:
            connection = await bus.connect(nats_url, "person")
            break
        except (OSError, NatsError):
            await asyncio.sleep(0.05)
    await connection.create()
    yield connection
    await connection.close()
