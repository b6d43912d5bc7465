"""A server that loses its last minutes: its store is put back as it was when it was copied."""

from __future__ import annotations

import shutil
from pathlib import Path

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
