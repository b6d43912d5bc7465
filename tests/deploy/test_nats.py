"""Tests of nats-server as deploy/ configures it: it starts, and three survive the loss of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from nats.errors import Error as NatsError

from services.__main__ import weir
from shared.auth import keyring
from shared.bus import bus as wire
from shared.bus import subjects
from shared.bus.publisher import Stale
from shared.messages import JobFinished
from shared.runtime.leadership import Lease
from shared.runtime.process import cancel_tasks
from tests.deploy.rendered import RENDERINGS, environ, templates
from tests.deploy.servers import (
    OPENSSL,
    Secrets,
    certificate,
    free_ports,
    is_taken,
    running,
    version,
    written,
)

SERVERS, WITHIN_S, LEASE_S = 3, 120, 30.0


@pytest.mark.parametrize("name", RENDERINGS)
def test_nats_server_accepts_the_configuration(name: str, secrets: Secrets, tmp_path: Path) -> None:
    if "tls" in name:
        if OPENSSL is None:
            pytest.skip("no openssl here")
        certificate(tmp_path)

    assert is_taken(written(name, tmp_path, secrets), environ(name, "weir-nats")) == ""


@pytest.mark.parametrize("name", ["dev", "production"])
async def test_acknowledged_messages_are_synced_to_disk_within_a_second(
    name: str, secrets: Secrets, tmp_path: Path
) -> None:
    """The server reports the interval that it uses."""
    clients, routes, http = free_ports(3)
    own = {
        "port: 4222": f"listen: 127.0.0.1:{clients}",
        "port: 6222": f"listen: 127.0.0.1:{routes}",
        "http: 8222": f"http: 127.0.0.1:{http}",
    }
    config = written(name, tmp_path / name, secrets, **own)
    others = {f"ROUTE_{number}": f"nats://127.0.0.1:{routes}" for number in range(SERVERS)}
    async with running(config, "weir-nats-0", others), aiohttp.ClientSession() as asked:
        told = await jetstream_told(asked, http)

    assert told["config"]["sync_interval"] / 1e9 == 0.5


async def jetstream_told(asked: aiohttp.ClientSession, http: int) -> dict[str, Any]:
    """Return what a server reports about its JetStream, once it answers."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                async with asked.get(f"http://127.0.0.1:{http}/jsz") as answer:
                    return dict(await answer.json())
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


def test_the_operator_key_is_not_in_the_cluster(secrets: Secrets, tmp_path: Path) -> None:
    """Only the launcher has the key that signs for jobs."""
    root = (tmp_path / "credentials" / keyring.KEYS).read_text()

    assert {
        name for name, files in secrets.items() for text in files.values() if text == root
    } == set()
    assert {name for name, files in secrets.items() if keyring.JOBS in files} == {
        "weir-nats-launcher"
    }


def test_the_server_image_has_the_version_that_is_tested() -> None:
    """The image's version is that of the server in constraints.txt."""
    (container,) = templates("production")["weir-nats"]["spec"]["containers"]

    assert container["image"] == f"nats:{version()}"


# ---------------------------------------------------------------- three servers


@pytest.fixture
def asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeout of a request: servers without a leader do not answer."""
    monkeypatch.setattr(wire, "ANSWER_S", 2.0)


class Three:
    """The three servers of production, each on its own ports. `url` is that of the second."""

    def __init__(self, folder: Path, secrets: Secrets) -> None:
        self.folder, self.secrets = folder, secrets
        self.clients, self.routes = free_ports(SERVERS), free_ports(SERVERS)
        self.url = f"nats://127.0.0.1:{self.clients[1]}"

    def config(self, number: int) -> Path:
        own = {
            "port: 4222": f"listen: 127.0.0.1:{self.clients[number]}",
            "port: 6222": f"listen: 127.0.0.1:{self.routes[number]}",
            "http: 8222": "",
        }
        return written("production", self.folder / str(number), self.secrets, **own)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[asyncio.subprocess.Process]]:
        async with AsyncExitStack() as stack:
            routes = {
                f"ROUTE_{i}": f"nats://127.0.0.1:{port}" for i, port in enumerate(self.routes)
            }
            pods = [(self.config(i), f"weir-nats-{i}", routes) for i in range(SERVERS)]
            yield [await stack.enter_async_context(running(*pod)) for pod in pods]


async def made(url: str, *options: str) -> None:
    """Create the streams; repeat until it succeeds."""
    async with asyncio.timeout(WITHIN_S):
        while await asyncio.to_thread(weir, ["streams", "create", "--nats", url, *options]):
            await asyncio.sleep(0.2)


async def stored(bus: wire.Bus) -> int:
    try:
        info = await bus.js.stream_info(subjects.ORDERS)
    except NatsError:
        return 0
    assert info.config.num_replicas == SERVERS
    return info.state.messages


@pytest.mark.usefixtures("asks_again")
async def test_two_of_three_servers_serve_every_stream(
    secrets: Secrets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    three = Three(tmp_path, secrets)
    monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(tmp_path / "credentials/setup.creds"))
    async with three.running() as servers:
        await made(three.url, "--replicas", "3")
        await made(
            three.url, "--namespace", "team-a"
        )  # without --replicas their number stays as it is
        bus = await wire.connect(
            three.url, "allocator", secrets["weir-nats-allocator"]["nats.creds"]
        )
        await bus.publish(JobFinished(job="one", uid=1, outcome="cancelled"))
        servers[0].kill()
        async with asyncio.timeout(WITHIN_S):
            assert await bus.publish(JobFinished(job="two", uid=2, outcome="cancelled")) == 2
            while (await stored(bus)) != 2:
                await asyncio.sleep(0.05)
        await bus.close()


@pytest.mark.usefixtures("asks_again")
async def test_a_lease_and_its_fences_hold_on_three_servers_and_on_two(
    secrets: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three, credentials = Three(tmp_path, secrets), secrets["weir-nats-allocator"]["nats.creds"]
    monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(tmp_path / "credentials/setup.creds"))
    async with three.running() as servers:
        await made(three.url, "--replicas", "3")
        leader, other = [await wire.connect(three.url, "allocator", credentials) for _ in range(2)]
        held, wanted = (
            Lease(bus, "allocator", LEASE_S, name)
            for bus, name in ((leader, "first"), (other, "second"))
        )
        await asyncio.wait_for(held.acquire(), WITHIN_S)
        keeping, waiting = (
            asyncio.ensure_future(held.renew_forever()),
            asyncio.ensure_future(wanted.acquire()),
        )
        finished = JobFinished(job="one", uid=1, outcome="cancelled")
        over = subjects.area_pattern(finished.key(), "job")
        await leader.publish(
            finished, expect_last=await leader.last_sequence_matching(over), over=over
        )
        servers[0].kill()
        killed_s = held.clock()
        async with asyncio.timeout(WITHIN_S):
            while held.renewed_s < killed_s:
                await asyncio.sleep(0.05)
        with pytest.raises(Stale):
            await other.publish(
                JobFinished(job="one", uid=2, outcome="failed"), expect_last=0, over=over
            )
        held.must_lead()
        assert not waiting.done() and not keeping.done()
        await cancel_tasks(keeping)
        await held.release()
        await asyncio.wait_for(waiting, LEASE_S / 2)
        for bus in (leader, other):
            await bus.close()


async def test_a_single_server_refuses_a_stream_with_three_replicas(
    nats_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await asyncio.to_thread(
        weir, ["streams", "create", "--nats", nats_url, "--replicas", "3"]
    )

    assert code != 0 and "replicas" in capsys.readouterr().err
