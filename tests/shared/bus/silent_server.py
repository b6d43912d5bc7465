"""A NATS server that accepts every message, answers no request, and counts the messages."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

INFO = {
    "server_id": "silent",
    "version": "2.10.0",
    "proto": 1,
    "headers": True,
    "max_payload": 1_048_576,
}


class SilentServer:
    """`published` has the number of messages on each subject."""

    def __init__(self) -> None:
        self.published = Counter[str]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"INFO {json.dumps(INFO)}\r\n".encode())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                await self._answer(line.split(), reader, writer)
        writer.close()

    async def _answer(
        self, words: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        match words:
            case [b"PING"]:
                writer.write(b"PONG\r\n")
            case [b"PUB" | b"HPUB", subject, *_, size]:
                await reader.readexactly(int(size) + len(b"\r\n"))
                self.published[subject.decode()] += 1


@asynccontextmanager
async def silent_server(url: str) -> AsyncIterator[SilentServer]:
    """Serve at this address until the block ends."""
    made, at = SilentServer(), urlsplit(url)
    listener = await asyncio.start_server(made.serve, at.hostname, at.port)
    try:
        yield made
    finally:
        listener.close()
