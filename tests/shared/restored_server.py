"""A server that loses its last minutes: its store is replaced by a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

from services.local.stack import Stack
from tests.conftest import NatsServer


class StoreCopy:
    """The store of a server, copied while it was down."""

    def __init__(self, server: NatsServer, copy: Path) -> None:
        self.server, self.copy = server, copy

    async def put_back(self) -> None:
        """Kill the server, and start it again with the store of the copy."""
        await self.server.kill()
        shutil.rmtree(self.server.folder)
        shutil.copytree(self.copy, self.server.folder)
        await self.server.start()


async def copied_store(server: NatsServer, copy: Path) -> StoreCopy:
    """Kill the server, copy its store, and start it again."""
    await server.kill()
    shutil.copytree(server.folder, copy)
    await server.start()
    return StoreCopy(server, copy)


def copy_stores(stack: Stack, copies: Path) -> None:
    """Copy the store of each server of a stack's bus."""
    for name in stack.nats_parts:
        shutil.copytree(stack.folder / name, copies / name)


async def put_stores_back(stack: Stack, copies: Path) -> None:
    """Kill all servers of a stack's bus, and start them again with the copies of their stores."""
    servers = [stack.parts[name] for name in stack.nats_parts]
    for server in servers:
        assert server.process is not None and server._restarter is not None
        server._restarter.cancel()  # so that nothing else starts the server
        server.process.kill()
    for server in servers:
        assert server.process is not None
        await server.process.wait()
        shutil.rmtree(stack.folder / server.name)
        shutil.copytree(copies / server.name, stack.folder / server.name)
    for server in servers:
        await server.start()
