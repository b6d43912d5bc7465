"""A stack of two versions of Weir: a service can be replaced by the other version during training.

A pod runs the version of the launcher that created it, as its image would. The older version also
creates the bus: its credentials, the configuration of its server and its streams.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from services.local import stack
from services.local.kubelet.container import ROOT
from services.local.stack import START_S, Stack
from shared.auth import keyring
from shared.auth.permissions import SETUP
from shared.bus import bus

OLD, NEW = "old", "new"
LEASE_S = 6.0
NEWER_SETTINGS = ("WEIR_ALLOCATOR_POD_POLICY",)
"""Settings that the older version does not know, so it would not start with them."""
ISSUE = (
    "import sys, time, pathlib; from shared import keyring;"
    " keyring.issue(pathlib.Path(sys.argv[1]), time.time())"
)
CREATE = """
import asyncio, sys
from shared import bus

async def create():
    connection = await bus.connect(sys.argv[1], "setup", sys.argv[2])
    await connection.create()
    await connection.close()

asyncio.run(create())
"""


class TwoVersions(Stack):
    """A stack with services of two versions. `packages`: the folder of each version's packages."""

    def __init__(
        self, folder: Path, cluster_file: Path, settings: Mapping[str, str], old: Path
    ) -> None:
        super().__init__(folder, cluster_file, {"WEIR_LEASE_S": str(LEASE_S), **settings})
        self.packages = {OLD: str(old), NEW: str(ROOT)}

    async def start(self, name: str) -> None:
        await self.start_version(name, OLD)

    async def start_version(self, name: str, version: str) -> None:
        environment = {**self._environment(name), "PYTHONPATH": self.packages[version]}
        if version == OLD:
            for setting in NEWER_SETTINGS:
                environment.pop(setting, None)
        if name == "launcher":
            environment["WEIR_LAUNCHER_IMAGE"] = version
        await self._start(name, [sys.executable, "-P", "-m", f"services.{name}"], environment)

    async def roll(self, name: str, version: str) -> None:
        """Replace a service as a Deployment does: start the new replica, then stop the old one."""
        before = self.parts[name]
        await self.start_version(name, version)
        await before.stop()

    async def upgrade_bus(self) -> None:
        """Upgrade the bus to this version.

        Issue credentials again, restart the server with them, and create the streams again.
        """
        keyring.write_credentials(self.credentials, time.time())
        await self._stop("nats")
        await self._start_server(stack.server_config(f"{self.credentials.name}/{keyring.CONFIG}"))
        connection = await bus.connect(self.nats_url, SETUP, self.credentials_of(SETUP))
        await stack.create_streams(connection, 1, self.namespaces, START_S)
        await connection.close()

    async def _start_nats(self) -> None:
        self.credentials.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._run_old(ISSUE, str(self.credentials))
        await self._start_server(f'include "{self.credentials.name}/{keyring.CONFIG}"\n')
        await self._run_old(CREATE, self.nats_url, self.credentials_of(SETUP))

    async def _start_server(self, configuration: str) -> None:
        server, file = Path(sys.executable).with_name("nats-server"), self.folder / "nats.conf"
        file.write_text(configuration)
        where = [
            "-a",
            "127.0.0.1",
            "-p",
            str(self.nats_port),
            "-js",
            "-sd",
            str(self.folder / "nats"),
        ]
        await self._start("nats", [str(server), *where, "-c", str(file)], {})
        await self._wait_for_port("nats", self.nats_port)

    async def _run_old(self, code: str, *words: str) -> None:
        environment = {"PYTHONPATH": self.packages[OLD]}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", code, *words, env=environment
        )
        assert await process.wait() == 0

    async def _start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        if name == "cluster":
            images = [f"--image={version}={folder}" for version, folder in self.packages.items()]
            command = [*command, *images]
        await super()._start(name, command, environment)
