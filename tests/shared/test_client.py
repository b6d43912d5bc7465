"""The client goes on reading behind what it cannot decode."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from shared.client import dial


async def spoken(url: str, *lines: bytes) -> None:
    """Say something as a program does that knows nothing of text."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n' + b"".join(lines) + b"PING\r\n")
    while b"PONG" not in await asyncio.wait_for(reader.readline(), 5):
        pass
    writer.close()
    await writer.wait_closed()


def put(subject: bytes, body: bytes, headers: bytes = b"") -> bytes:
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(headers), len(headers) + len(body), headers, body)


ODD = [
    (put(b"news.\xff\xfe", b"one"), "news.\\xff\\xfe"),
    (put(b"news.today", b"one", b"NATS/1.0 \xff\xff\xff\r\n\r\n"), "news.today"),
    (put(b"news.today", b"one", b"NATS/1.0 503 \xff\r\n\r\n"), "news.today"),
]


@pytest.mark.parametrize(("odd", "subject"), ODD)
async def test_a_message_whose_subject_or_status_is_no_text_is_handed_on(
    nats_url: str, odd: bytes, subject: str
) -> None:
    client = await dial(nats_url)
    heard = await client.subscribe("news.>")
    await client.flush()

    await spoken(nats_url, odd, put(b"news.today", b"two"))

    first, second = await heard.next_msg(30), await heard.next_msg(30)
    assert (first.subject, first.data, second.data) == (subject, b"one", b"two")
    await client.close()
