"""Three nats-servers that store every stream three times, so that one of them may fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nats.errors import Error as NatsError

from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.runtime.process import free_port
from tests.conftest import WITHIN_S, NatsServer

SERVERS = 3


class ThreeServers:
    """The servers by name, `n0` to `n2`."""

    def __init__(self, folder: Path) -> None:
        routes = [f"nats://127.0.0.1:{free_port()}" for _ in range(SERVERS)]
        self.servers = {
            f"n{n}": NatsServer(folder / f"n{n}", *_options(n, routes)) for n in range(SERVERS)
        }

    @property
    def url(self) -> str:
        """Return the address of `n0`, from which clients learn those of the others."""
        return self.servers["n0"].url

    async def leader(self, bus: Bus, stream: str) -> NatsServer:
        """Return the server that leads a stream."""
        info = await bus.js.stream_info(stream)
        assert info.cluster is not None and info.cluster.leader is not None
        return self.servers[info.cluster.leader]

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Bus]:
        """Yield a connection, once the servers have elected a leader and have all streams."""
        made = await wire.connect(self.url, "test")
        async with asyncio.timeout(WITHIN_S):
            while not await _create_streams(made):
                await asyncio.sleep(0.1)
        try:
            yield made
        finally:
            await made.client.close()


def _options(number: int, routes: list[str]) -> tuple[str, ...]:
    cluster = ("--cluster_name", "weir", "--cluster", routes[number], "--routes", ",".join(routes))
    return ("--server_name", f"n{number}", *cluster)


async def _create_streams(bus: Bus) -> bool:
    """Create the streams. Return False if the servers have not elected a leader yet."""
    try:
        await bus.create(replicas=SERVERS)
    except NatsError:
        return False
    return True


@asynccontextmanager
async def three_servers(folder: Path) -> AsyncIterator[ThreeServers]:
    """Run three servers until the block ends."""
    made = ThreeServers(folder)
    await asyncio.gather(*(server.start() for server in made.servers.values()))
    try:
        yield made
    finally:
        for server in made.servers.values():
            await server.kill()
