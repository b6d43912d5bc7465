"""A TCP proxy in front of a server. When it is closed, it drops and refuses connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

PART_BYTES = 1 << 16


class Gate:
    """Forward connections to the port `behind`. `shut` aborts connections and refuses new ones.

    `mute_at`: when a client sends these bytes, all responses are dropped (`mute`) until `mute` is
    reset.
    """

    def __init__(self, behind: int) -> None:
        self._behind, self._open = behind, True
        self.mute, self.mute_at = False, b""
        self._inside: set[asyncio.StreamWriter] = set()
        self.guests: set[asyncio.Future[None]] = set()

    def shut(self) -> None:
        self._open = False
        for writer in self._inside:
            writer.transport.abort()

    def open(self) -> None:
        self._open = True

    def come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guest = asyncio.ensure_future(self._lead(reader, writer))
        self.guests.add(guest)
        guest.add_done_callback(self.guests.discard)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection in both directions until it ends."""
        if not self._open:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._behind)
            self._inside |= {writer, back}
            try:
                await asyncio.gather(
                    _carry(reader, back, self._asked), _carry(there, writer, self._answered)
                )
            finally:
                self._inside -= {writer, back}
                back.close()
        writer.close()

    def _asked(self, part: bytes) -> bytes:
        if self.mute_at and self.mute_at in part:
            self.mute, self.mute_at = True, b""
        return part

    def _answered(self, part: bytes) -> bytes:
        return b"" if self.mute else part


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: Callable[[bytes], bytes]
) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(PART_BYTES):
            writer.write(passed(part))
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


@asynccontextmanager
async def gate(port: int, behind: int) -> AsyncIterator[Gate]:
    """Run a proxy on a port of this machine, in front of another port."""
    door = Gate(behind)
    server = await asyncio.start_server(door.come, "127.0.0.1", port)
    try:
        yield door
    finally:
        door.shut()
        server.close()
        await asyncio.gather(*door.guests)
