"""Everything on one machine: nats-server, the cluster stand-in and the services, each a process of
its own.

A service that dies is started again at once; the stack itself dies as a whole, whatever ends it
(`lifeline`).

    async with Stack(folder, cluster_file) as stack:
        stack.nats_url, stack.kube_url
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import structlog

from services.local import kube_access, nats_clusters
from services.local.closing import close_nodes
from shared.auth import keyring
from shared.auth.permissions import MONITOR, OPERATOR, SETUP
from shared.bus import bus
from shared.runtime import process
from shared.runtime.process import free_port

log = structlog.get_logger()

SERVICES = ("monitor", "allocator", "launcher")
KNOWS = {"page": ("allocator",)}
"""Whose settings besides its own: the page tells what the allocator would do."""
COMMON = (
    "WEIR_NATS_URL",
    "WEIR_NATS_CREDENTIALS",
    "WEIR_NATS_CA",
    "WEIR_LOG_LEVEL",
    "WEIR_LEASE_S",
    "WEIR_METRICS_PORT",
    "WEIR_JOB_NAMESPACES",
    "WEIR_BEGUN_AGAIN",
)
BEGUN_AGAIN = "WEIR_BEGUN_AGAIN"
JOB_NAMESPACES = "WEIR_JOB_NAMESPACES"
START_S = 20.0
STOP_S = 12.0
AGAIN_S = 0.2


class CannotStart(Exception):
    """A part of the stack did not come up; the text says which, and where its log is."""


class Part:
    """One process that is kept alive. Its output goes to `<folder>/<name>.log`."""

    def __init__(
        self, name: str, command: list[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.command = command
        self.environment = environment
        self.log_path = folder / f"{name}.log"
        self.process: asyncio.subprocess.Process | None = None
        self.restarts = 0
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    async def _spawn(self, ended: str = "") -> None:
        """`ended`: how it did before, told to who asks for such a setting."""
        again = {BEGUN_AGAIN: ended} if BEGUN_AGAIN in self.environment else {}
        with self.log_path.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                env={**os.environ, **self.environment, **again},
                stdout=output,
                stderr=output,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=process.die_with_parent,
            )

    async def _keep(self) -> None:
        """Start it again whenever it ends."""
        while self.process is not None:
            began = time.monotonic()
            code = await self.process.wait()
            self.restarts += 1
            log.warning("PartEnded", part=self.name, code=code, log=str(self.log_path))
            if time.monotonic() - began < 1.0:
                await asyncio.sleep(AGAIN_S)
            await self._spawn(f"it ended with code {code}, and was begun again")

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class Stack:
    """The parts, started in order and stopped in reverse. Ports of 0 are chosen freely."""

    def __init__(
        self,
        folder: Path,
        cluster_file: Path,
        settings: Mapping[str, str] | None = None,
        *,
        nats_port: int = 0,
        kube_port: int = 0,
        services: tuple[str, ...] = SERVICES,
        nats_servers: int = 1,
    ) -> None:
        """`nats_servers`: how many servers the bus is a cluster of, 1 or 3; each stream has a
        replica on every one.
        """
        self.folder = folder
        self.cluster_file = cluster_file
        self.settings = dict(settings or {})
        self.nats_port, self.kube_port = nats_port or free_port(), kube_port or free_port()
        self.services = services
        self.nats_ports = (self.nats_port, *(free_port() for _ in range(nats_servers - 1)))
        self.credentials = folder.resolve() / "credentials"
        self.kubeconfig = ""
        self.parts: dict[str, Part] = {}

    @property
    def nats_url(self) -> str:
        """The address of the first server; from it clients learn those of the others."""
        return f"nats://127.0.0.1:{self.nats_port}"

    @property
    def nats_parts(self) -> tuple[str, ...]:
        """The names of the servers of the bus: of their parts, and in their cluster."""
        return tuple(nats_clusters.server_name(number) for number in range(len(self.nats_ports)))

    @property
    def operator(self) -> str:
        """The credentials of who sees all and asks for jobs; a file."""
        return self.credentials_of(OPERATOR)

    def credentials_of(self, user: str) -> str:
        return str(keyring.credentials_file(self.credentials, user))

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces of jobs to provision on the bus."""
        names = self.settings.get(JOB_NAMESPACES, "").split(",")
        return tuple(stripped for name in names if (stripped := name.strip()))

    @property
    def kube_url(self) -> str:
        return f"http://127.0.0.1:{self.kube_port}"

    @property
    def kube_headers(self) -> dict[str, str]:
        """Return the headers that the cluster's API asks of every request."""
        return {"Authorization": f"Bearer {kube_access.token_file(self.credentials).read_text()}"}

    async def __aenter__(self) -> Stack:
        vacant(self.nats_port, self.kube_port)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            await self._start_nats()
            await self._close_nodes()
            await self._start_cluster()
            for name in self.services:
                await self.start(name)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.wind_down()
        for name in self.nats_parts:
            await self._stop(name)

    async def wind_down(self) -> None:
        """All but the bus. Nobody decides any more when the pods end; monitor and launcher are
        there to tell of it.
        """
        for name in ("page", "allocator", "cluster", "monitor", "launcher"):
            await self._stop(name)

    async def _stop(self, name: str) -> None:
        if name in self.parts:
            await self.parts.pop(name).stop()

    async def start(self, name: str) -> None:
        """One of the services."""
        await self._start(name, [sys.executable, "-m", f"services.{name}"], self._environment(name))

    # ------------------------------------------------------------ parts

    async def _start_nats(self) -> None:
        server = Path(sys.executable).with_name("nats-server")
        keyring.write_credentials(self.credentials, time.time())
        config = self.folder / "nats.conf"
        config.write_text(nats_clusters.server_config(f"{self.credentials.name}/{keyring.CONFIG}"))
        cluster = nats_clusters.route_options([free_port() for _ in self.nats_ports])
        for name, port, options in zip(self.nats_parts, self.nats_ports, cluster, strict=True):
            where = [
                "-a",
                "127.0.0.1",
                "-p",
                str(port),
                "-js",
                "-sd",
                str(self.folder / name),
                *options,
            ]
            await self._start(name, [str(server), *where, "-c", str(config)], {})
        for name, port in zip(self.nats_parts, self.nats_ports, strict=True):
            await self._answers(name, port)
        connection = await bus.connect(self.nats_url, SETUP, self.credentials_of(SETUP))
        await nats_clusters.create_streams(
            connection, len(self.nats_ports), self.namespaces, START_S
        )
        await connection.close()

    async def _close_nodes(self) -> None:
        """Of a cluster that was killed before this one."""
        connection = await bus.connect(self.nats_url, MONITOR, self.credentials_of(MONITOR))
        await close_nodes(connection, time.time())
        await connection.close()

    async def _start_cluster(self) -> None:
        command = [sys.executable, "-m", "services.local", "--cluster", str(self.cluster_file)]
        command += ["--data", str(self.folder / "cluster"), "--port", str(self.kube_port)]
        command += ["--token-file", str(kube_access.token_file(self.credentials))]
        self.kubeconfig = str(kube_access.write_kubeconfig(self.credentials, self.kube_url))
        await self._start("cluster", command, {})
        await self._answers("cluster", self.kube_port)

    async def _start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        self.parts[name] = Part(name, command, environment, self.folder)
        await self.parts[name].start()

    def _environment(self, name: str) -> dict[str, str]:
        """A service's settings: where things are here, and what the caller wants otherwise."""
        checkpoints = self.folder / "checkpoints"
        here = {
            "WEIR_NATS_URL": self.nats_url,
            "WEIR_NATS_CREDENTIALS": self.credentials_of(name),
            "WEIR_NATS_CA": "",
            "WEIR_LEASE_S": "0",  # one of each, kept alive: one that is begun again need not wait for itself
            BEGUN_AGAIN: "",
            "WEIR_METRICS_PORT": "0",  # one port cannot be all of theirs
            "WEIR_LAUNCHER_SIGNING_KEY": str(self.credentials / keyring.JOBS),
            "WEIR_MONITOR_KUBE_URL": self.kube_url,
            "WEIR_LAUNCHER_KUBE_URL": self.kube_url,
            "WEIR_MONITOR_KUBE_TOKEN_FILE": str(kube_access.token_file(self.credentials)),
            "WEIR_LAUNCHER_KUBE_TOKEN_FILE": str(kube_access.token_file(self.credentials)),
            "WEIR_ALLOCATOR_HOST_PATHS": "/",
            "WEIR_ALLOCATOR_IMAGES": "",  # none is used here
            "WEIR_LAUNCHER_TASK_PORTS": "0,0",
            "WEIR_LAUNCHER_HOME": "",
            "WEIR_LAUNCHER_CHECKPOINT_DIR": str(checkpoints.resolve()),
            **self.settings,
        }
        own = tuple(f"WEIR_{known.upper()}_" for known in (name, *KNOWS.get(name, ())))
        return {k: v for k, v in here.items() if k.startswith(own) or k in COMMON}

    async def _answers(self, name: str, port: int) -> None:
        """Wait until something listens on the port."""
        end = time.monotonic() + START_S
        while not listens(port):
            if time.monotonic() > end:
                raise CannotStart(
                    f"{name} does not answer on port {port}; its log:\n{self._last_lines(name)}"
                )
            await asyncio.sleep(0.05)

    def _last_lines(self, name: str) -> str:
        return "\n".join(self.parts[name].log_path.read_text(errors="replace").splitlines()[-10:])

    def write_connection(self, path: Path) -> None:
        """Let other commands find this stack."""
        path.parent.mkdir(parents=True, exist_ok=True)
        here = {
            "nats_url": self.nats_url,
            "kube_url": self.kube_url,
            "nats_credentials": self.operator,
        }
        here["kubeconfig"] = self.kubeconfig
        logs = str(self.folder.resolve() / "cluster" / "logs")
        path.write_text(json.dumps(here | {"pod_logs": logs, "limits": self.settings}))


def vacant(nats_port: int, kube_port: int) -> None:
    """Raises `CannotStart` where somebody listens on one of them."""
    for port, option in ((nats_port, "--nats-port"), (kube_port, "--kube-port")):
        if listens(port):
            raise CannotStart(
                f"port {port} is taken; is `weir up` running already? Else choose {option}"
            )


def listens(port: int) -> bool:
    """Whether anybody does, on this machine."""
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0
