"""The NATS client, made to survive what it cannot decode.

The library's read loop ends at the first message whose subject or status line is no text, and the connection hangs
until its pings fail; the server then sends the same message again (nats-py 2.16; a test shows it). Here such a message
is handed on with its subject escaped and without its headers, for somebody to bury.
"""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client


class SturdyClient(Client):
    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except (UnicodeDecodeError, IndexError):
            plain = subject.decode("utf-8", "backslashreplace").encode()
            await super()._process_msg(sid, plain, reply, data, b"")


async def dial(url: str, **options: Any) -> Client:
    """As `nats.connect`."""
    client = SturdyClient()
    await client.connect(url, **options)
    return client
