"""Tests of the client: it skips undecodable messages and waits for a leader election of the bus."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeout

from services.allocator import service as allocator
from services.allocator import snapshot as allocator_memory
from services.launcher import service as launcher_memory
from services.monitor.service import read_last_facts
from shared.auth.permissions import API, MONITOR, stream_of
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.client import ConnectionLost, Refused, connect_client
from shared.bus.subjects import FACTS, LEDGER
from tests.conftest import WITHIN_S, NatsServer, connected
from tests.shared import secured_server
from tests.shared.secured_server import credentials


async def spoken(url: str, *lines: bytes) -> None:
    """Send raw lines, as a program does that does not send valid text."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(
        b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
        + b"".join(lines)
        + b"PING\r\n"
    )
    while b"PONG" not in await asyncio.wait_for(reader.readline(), 60):
        pass
    writer.close()
    await writer.wait_closed()


def put(subject: bytes, body: bytes, headers: bytes = b"") -> bytes:
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (
        subject,
        len(headers),
        len(headers) + len(body),
        headers,
        body,
    )


ODD = [
    (put(b"news.\xff\xfe", b"one"), "news.\\xff\\xfe"),
    (put(b"news.today", b"one", b"NATS/1.0 \xff\xff\xff\r\n\r\n"), "news.today"),
    (put(b"news.today", b"one", b"NATS/1.0 503 \xff\r\n\r\n"), "news.today"),
]


@pytest.mark.parametrize(("odd", "subject"), ODD)
async def test_a_message_with_a_non_text_subject_or_status_is_delivered(
    nats_url: str, odd: bytes, subject: str
) -> None:
    client = await connect_client(nats_url)
    heard = await client.subscribe("news.>")
    await client.flush()

    await spoken(nats_url, odd, put(b"news.today", b"two"))

    first, second = await heard.next_msg(60), await heard.next_msg(60)
    assert (first.subject, first.data, second.data) == (subject, b"one", b"two")
    await client.close()


# ------------------------------------------------------------ names that cannot be resolved


async def test_a_client_reconnects_after_names_could_not_be_resolved(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, resolve, away = "bus.weir.test", socket.getaddrinfo, asyncio.Event()

    def look_up(host: str | bytes | None, *more: Any, **options: Any) -> Any:
        if host == name and away.is_set():
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1" if host == name else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    returned = asyncio.Event()

    async def on_return() -> None:
        returned.set()

    client = await connect_client(
        nats_server.url.replace("127.0.0.1", name),
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.05,
        reconnected_cb=on_return,
    )
    away.set()

    await nats_server.kill()
    await nats_server.start()

    async with asyncio.timeout(WITHIN_S):
        await returned.wait()
    await client.flush()
    await client.close()


# ------------------------------------------------------------ requests without an answer

FOR_EVER_S = 3600.0


async def test_a_pending_request_fails_when_the_connection_breaks(
    nats_server: NatsServer,
) -> None:
    client, other = (
        await connect_client(nats_server.url, max_reconnect_attempts=-1),
        await connect_client(nats_server.url),
    )
    await other.subscribe("questions")  # and never answers
    await other.flush()
    asking = asyncio.ensure_future(client.request("questions", b"?", timeout=FOR_EVER_S))
    await client.flush()

    await nats_server.kill()

    with pytest.raises(ConnectionLost):
        async with asyncio.timeout(WITHIN_S):
            await asking
    await client.close()
    await other.close()


async def test_a_request_without_permission_fails_and_a_permitted_one_is_answered(
    tmp_path: Path,
) -> None:
    async with (
        secured_server.guarded(tmp_path) as server,
        secured_server.visitor(server.url, credentials(MONITOR)) as guest,
    ):
        allowed, refused = await asyncio.gather(
            guest.client.request(f"{API}.STREAM.INFO.{FACTS}", timeout=WITHIN_S),
            guest.client.request(f"{API}.STREAM.INFO.{stream_of(LEDGER)}", timeout=FOR_EVER_S),
            return_exceptions=True,
        )

    assert isinstance(allowed, Msg) and isinstance(refused, Refused)
    assert (
        str(refused)
        == f"these credentials may not publish to {API}.STREAM.INFO.{stream_of(LEDGER)}"
    )


async def test_a_request_times_out(nats_url: str) -> None:
    client = await connect_client(nats_url)
    await client.subscribe("questions")

    with pytest.raises(NatsTimeout):
        await client.request("questions", b"?", timeout=0.1)

    assert client._open_requests == {} and client._resp_map == {}
    await client.close()


async def test_a_retry_loop_ends_when_cancelled_during_a_refusal(
    nats_server: NatsServer,
) -> None:
    client = await connect_client(nats_server.url, reconnect_time_wait=60.0)
    await nats_server.kill()
    server, turns = client._server_pool[0], 0
    while True:
        trying = asyncio.ensure_future(client._connect_to_server(server))
        for _ in range(turns):
            await asyncio.sleep(0)
        if trying.done():
            break
        trying.cancel()
        await asyncio.wait({trying})
        assert trying.cancelled()
        turns += 1
    assert turns > 1 and isinstance(trying.exception(), ConnectionRefusedError)
    await client.close()


SILENT_TRIES = 3
"""Number of requests that time out before the bus answers."""
ANSWER_S = 0.3


async def decide(bus: Bus) -> None:
    await allocator.start(bus, allocator.Settings(nats_url=""))


STARTS: dict[str, Callable[[Bus], Awaitable[Any]]] = {
    "streams": Bus.verify,
    "allocator": decide,
    "allocator's snapshot": allocator_memory.load_snapshot,
    "launcher's snapshot": launcher_memory.load_snapshot,
    "monitor's facts": lambda bus: read_last_facts(bus, 10),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
async def test_a_service_waits_for_the_bus_during_a_leader_election(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, start: Callable[[Bus], Awaitable[Any]]
) -> None:
    await (await connected(nats_server.url, "setup")).close()
    monkeypatch.setattr(wire, "ANSWER_S", ANSWER_S)
    bus = await wire.connect(nats_server.url, "allocator")

    with nats_server.hung():
        starting = asyncio.ensure_future(start(bus))
        done, _ = await asyncio.wait({starting}, timeout=SILENT_TRIES * ANSWER_S)
        assert not done, f"it ended while the bus elected: {starting.exception()!r}"

    async with asyncio.timeout(WITHIN_S):
        await starting
    await bus.close()
