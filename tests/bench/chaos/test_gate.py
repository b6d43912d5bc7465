"""Tests of the proxy in front of a server: open, closed, and open again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.runtime.process import free_port
from tests.bench.chaos.gate import Gate, gate

WITHIN_S = 60.0


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Gate, int]]:
    behind, port, quiet = free_port(), free_port(), asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while line := await reader.readline():
                writer.write(line)
        writer.close()
        quiet.set()

    server = await asyncio.start_server(echo, "127.0.0.1", behind)
    async with server, gate(port, behind) as door:
        yield door, port
        door.shut()
        await quiet.wait()


async def asked(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"hallo\n")
        async with asyncio.timeout(WITHIN_S):
            return await reader.readline()
    finally:
        writer.close()


async def test_the_proxy_forwards_in_both_directions() -> None:
    async with echoing() as (_, port):
        assert await asked(port) == b"hallo\n"


async def test_a_closed_proxy_refuses_connections_until_it_opens() -> None:
    async with echoing() as (door, port):
        door.shut()
        with pytest.raises(ConnectionResetError):
            assert await asked(port) == b"", "an end without an answer is as good as a reset"
            raise ConnectionResetError
        door.open()
        assert await asked(port) == b"hallo\n"


async def test_closing_the_proxy_drops_open_connections() -> None:
    async with echoing() as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"one\n")
        assert await reader.readline() == b"one\n"
        door.shut()
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(ConnectionResetError):
                assert await reader.read() == b""
                raise ConnectionResetError
        writer.close()
