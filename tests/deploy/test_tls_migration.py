"""Tests of the migration of a running bus of three servers to TLS, as in deploy/README.md.

The servers are replaced as a StatefulSet does it: the last one first, each only after the startup
probe of the one before has succeeded. Meanwhile clients publish on each server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, pairwise
from pathlib import Path
from time import monotonic

import aiohttp
import pytest
from nats.errors import Error as NatsError

from shared.bus import bus as wire
from shared.bus import subjects
from shared.messages import JobFinished
from shared.runtime.process import cancel_tasks
from tests.deploy.rendered import templates
from tests.deploy.servers import OPENSSL, Secrets, certificate, free_ports, running, written
from tests.deploy.test_nats import SERVERS, WITHIN_S, made

STEPS = [f"production+tls+../tls-migration/step-{number}" for number in (1, 2)]
NO_QUORUM_S = 60

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="no openssl here")


class StatefulSet:
    """Three servers on local ports, in the state that the last applied overlay describes."""

    def __init__(self, folder: Path, secrets: Secrets) -> None:
        self.folder, self.secrets = folder, secrets
        self.clients, self.routes, self.http = (
            free_ports(SERVERS),
            free_ports(SERVERS),
            free_ports(SERVERS),
        )
        self.pods: dict[int, AsyncExitStack] = {}

    async def start(self, overlay: str, number: int) -> None:
        own = {
            "port: 4222": f"listen: 127.0.0.1:{self.clients[number]}",
            "port: 6222": f"listen: 127.0.0.1:{self.routes[number]}",
            "http: 8222": f"http: 127.0.0.1:{self.http[number]}",
        }
        config = written(overlay, self.folder / str(number), self.secrets, **own)
        routes = {f"ROUTE_{i}": f"nats://localhost:{port}" for i, port in enumerate(self.routes)}
        self.pods[number] = AsyncExitStack()
        process = await self.pods[number].enter_async_context(
            running(config, f"weir-nats-{number}", routes)
        )
        self.pods[number].push_async_callback(process.wait)
        self.pods[number].callback(process.terminate)

    async def stop(self, number: int) -> None:
        await self.pods.pop(number).aclose()

    async def roll_out(self, overlay: str) -> None:
        for number in reversed(range(SERVERS)):
            await self.stop(number)
            await self.start(overlay, number)
            await self.started(overlay, number)

    async def started(self, overlay: str, number: int) -> None:
        """Wait until the startup probe of a server succeeds."""
        (container,) = templates(overlay)["weir-nats"]["spec"]["containers"]
        url = f"http://127.0.0.1:{self.http[number]}{container['startupProbe']['httpGet']['path']}"
        async with asyncio.timeout(WITHIN_S), aiohttp.ClientSession() as session:
            while not await answers(session, url):
                await asyncio.sleep(0.1)


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


@asynccontextmanager
async def statefulset(folder: Path, secrets: Secrets) -> AsyncIterator[StatefulSet]:
    servers = StatefulSet(folder, secrets)
    try:
        for number in range(SERVERS):
            await servers.start("production", number)
        for number in range(SERVERS):
            await servers.started("production", number)
        yield servers
    finally:
        for number in list(servers.pods):
            await servers.stop(number)


class Clients:
    """One client for each server; each publishes one message after another.

    `acknowledged`: the time and the job of each acknowledged message.
    """

    def __init__(self, servers: StatefulSet, scheme: str, credentials: str, ca: str = "") -> None:
        self.acknowledged: list[tuple[float, str]] = []
        self._said = [asyncio.Event() for _ in servers.clients]
        self._speaking = [
            asyncio.ensure_future(
                self._speak(number, f"{scheme}://localhost:{port}", credentials, ca)
            )
            for number, port in enumerate(servers.clients)
        ]

    async def _speak(self, number: int, url: str, credentials: str, ca: str) -> None:
        bus = await wire.connect(url, "allocator", credentials, ca)
        try:
            for uid in count(1):
                job = f"{'tls' if ca else 'plain'}-{number}-{uid}"
                await bus.publish(JobFinished(job=job, uid=uid, outcome="cancelled"))
                self.acknowledged.append((monotonic(), job))
                self._said[number].set()
                await asyncio.sleep(0.05)
        finally:
            await bus.close()

    async def all_go_on(self) -> None:
        """Wait until one more message of each client is acknowledged."""
        for said in self._said:
            said.clear()
        waiting = [asyncio.ensure_future(said.wait()) for said in self._said]
        await asyncio.wait_for(asyncio.gather(*waiting), WITHIN_S)

    async def stop(self) -> None:
        await cancel_tasks(*self._speaking)


@pytest.fixture(autouse=True)
def asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeout of a request: a server without a quorum does not answer."""
    monkeypatch.setattr(wire, "ANSWER_S", 2.0)


async def test_a_running_bus_migrates_to_tls_in_two_steps(
    secrets: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(tmp_path / "credentials/setup.creds"))
    credentials = secrets["weir-nats-allocator"]["nats.creds"]
    authority = certificates(tmp_path)
    async with statefulset(tmp_path, secrets) as servers:
        await made(f"nats://localhost:{servers.clients[1]}", "--replicas", "3")
        plain = Clients(servers, "nats", credentials)
        await plain.all_go_on()
        knowing = Clients(servers, "tls", credentials, authority)
        await servers.roll_out(STEPS[0])
        await plain.all_go_on()
        await knowing.all_go_on()
        await plain.stop()
        await servers.roll_out(STEPS[1])
        await knowing.all_go_on()
        await knowing.stop()
        bus = await wire.connect(
            f"tls://localhost:{servers.clients[0]}", "allocator", credentials, authority
        )
        kept = await finished_jobs(bus)
        await bus.close()
    acknowledged = sorted([*plain.acknowledged, *knowing.acknowledged])
    assert {job for _, job in acknowledged} - kept == set()
    assert max(after - before for (before, _), (after, _) in pairwise(acknowledged)) <= NO_QUORUM_S


def certificates(folder: Path) -> str:
    """Write the same certificate for every server; return the text of its authority."""
    certificate(folder)
    for number in range(SERVERS):
        (folder / str(number)).mkdir()
        for file in ("tls.key", "tls.crt", "ca.crt"):
            (folder / str(number) / file).write_bytes((folder / file).read_bytes())
    return (folder / "ca.crt").read_text()


async def finished_jobs(bus: wire.Bus) -> set[str]:
    async with asyncio.timeout(WITHIN_S):
        while True:
            with contextlib.suppress(NatsError):
                info = await bus.js.stream_info(subjects.ORDERS, subjects_filter=">")
                return {subject.split(".")[-1] for subject in info.state.subjects or ()}
            await asyncio.sleep(0.1)
