"""Weir on one machine: nats-server, the cluster stand-in and the services, each in its own process.

A service that ends is started again at once. All processes end with the stack, also after a crash.

    async with Stack(folder, cluster_file) as stack:
        stack.nats_url, stack.kube_url

The bus may be a cluster of several nats-servers. It then survives the loss of one.

Access to the API stand-in: the API runs commands as its owner for every client that may create
pods, and every local user can reach its port. So each request carries a bearer token. The token is
random for each folder, and only files of the owner contain it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec
import structlog
from msgspec.structs import replace
from nats.errors import Error as NatsError

from services.local.cluster_spec import DataSource
from shared.auth import keyring
from shared.auth.keyring import write_private
from shared.auth.permissions import MONITOR, OPERATOR, SETUP
from shared.bus import bus, subjects
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.bus.publisher import Stale
from shared.bus.subjects import FACTS
from shared.messages import CapacityChanged
from shared.runtime import process
from shared.runtime.process import free_port

log = structlog.get_logger()

SERVICES = ("monitor", "allocator", "launcher")
MODULES = {"page": "services.console.page"}
"""Modules of services that are not named `services.<name>`."""
EXTRA_SETTINGS = {"page": ("allocator",)}
"""Services whose settings a service also gets: the page simulates the allocator."""
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
POD_POLICY_FILE = "pod-policy.yaml"
ALLOW_ALL = """\
# The policy of this cluster for pods: everything is allowed, because its owner submits the jobs.
# deploy/README.md describes the fields. A change takes effect at the next start.
default:
  images: ["*"]
  claims: ["*"]
  secrets: ["*"]
  config_maps: ["*"]
  service_accounts: ["*"]
  image_pull_secrets: ["*"]
  priority_classes: ["*"]
  labels: ["*"]
  annotations: ["*"]
  node_pools: [{}]
  tolerations: [{operator: Exists}]
"""
START_S = 20.0
STOP_S = 12.0
AGAIN_S = 0.2


class CannotStart(Exception):
    """A part of the stack did not start. The text names the part and its log."""


class Part:
    """One process, which is restarted when it ends. Its output goes to `<folder>/<name>.log`."""

    def __init__(
        self, name: str, command: list[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.command = command
        self.environment = environment
        self.log_path = folder / f"{name}.log"
        self.process: asyncio.subprocess.Process | None = None
        self.restarts = 0
        self._restarter: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._spawn()
        self._restarter = asyncio.create_task(self._restart_forever())

    async def _spawn(self, ended: str = "") -> None:
        """Start the process. `ended`: how the last process ended, for a service that has a setting
        for it.
        """
        environment = {**os.environ, **self.environment}
        if BEGUN_AGAIN in self.environment:
            environment[BEGUN_AGAIN] = ended
        with self.log_path.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                env=environment,
                stdout=output,
                stderr=output,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=process.die_with_parent,
            )

    async def _restart_forever(self) -> None:
        """Start the process again whenever it ends."""
        while self.process is not None:
            began = time.monotonic()
            code = await self.process.wait()
            self.restarts += 1
            log.warning("PartEnded", part=self.name, code=code, log=str(self.log_path))
            if time.monotonic() - began < 1.0:
                await asyncio.sleep(AGAIN_S)
            await self._spawn(f"it ended with code {code}, and was restarted")

    async def stop(self) -> None:
        if self._restarter is not None:
            self._restarter.cancel()
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class Stack:
    """The parts, started in order and stopped in reverse order. A port of 0 means any free port."""

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
        data_sources: Sequence[DataSource] = (),
    ) -> None:
        """`nats_servers`: the number of servers of the bus, 1 or 3; each one has a replica of every
        stream. `data_sources`: the Secrets and ConfigMaps of the cluster.
        """
        self.folder = folder
        self.cluster_file = cluster_file
        self.settings = dict(settings or {})
        self.nats_port = nats_port or free_port()
        self.kube_port = kube_port or free_port()
        self.services = services
        self.nats_ports = (self.nats_port, *(free_port() for _ in range(nats_servers - 1)))
        self.data_sources = tuple(data_sources)
        self.credentials = folder.resolve() / "credentials"
        self.kubeconfig = ""
        self.parts: dict[str, Part] = {}

    @property
    def nats_url(self) -> str:
        """The address of the first server. Clients learn the addresses of the others from it."""
        return f"nats://127.0.0.1:{self.nats_port}"

    @property
    def nats_parts(self) -> tuple[str, ...]:
        """The names of the servers of the bus, as parts and in their cluster."""
        return tuple(server_name(number) for number in range(len(self.nats_ports)))

    @property
    def operator(self) -> str:
        """The file with the credentials of the operator, who may read all and submit jobs."""
        return self.credentials_of(OPERATOR)

    def credentials_of(self, user: str) -> str:
        return str(keyring.credentials_file(self.credentials, user))

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces of jobs to provision on the bus."""
        names = self.settings.get(JOB_NAMESPACES, "").split(",")
        return tuple(name.strip() for name in names if name.strip())

    @property
    def kube_url(self) -> str:
        return f"http://127.0.0.1:{self.kube_port}"

    @property
    def kube_headers(self) -> dict[str, str]:
        """The headers that the cluster's API requires of every request."""
        return {"Authorization": f"Bearer {token_file(self.credentials).read_text()}"}

    async def __aenter__(self) -> Stack:
        check_ports_free(self.nats_port, self.kube_port)
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
        """Stop all parts except the bus. The allocator ends before the pods, so that it decides
        nothing about their end; monitor and launcher end after them, and publish it.
        """
        for name in ("page", "allocator", "cluster", "monitor", "launcher"):
            await self._stop(name)

    async def _stop(self, name: str) -> None:
        if name in self.parts:
            await self.parts.pop(name).stop()

    async def start(self, name: str) -> None:
        """Start a service."""
        module = MODULES.get(name, f"services.{name}")
        await self._start(name, [sys.executable, "-m", module], self._environment(name))

    # ------------------------------------------------------------ parts

    async def _start_nats(self) -> None:
        server = Path(sys.executable).with_name("nats-server")
        keyring.write_credentials(self.credentials, time.time())
        config = self.folder / "nats.conf"
        config.write_text(server_config(f"{self.credentials.name}/{keyring.CONFIG}"))
        routes = route_options([free_port() for _ in self.nats_ports])
        for name, port, options in zip(self.nats_parts, self.nats_ports, routes, strict=True):
            command = [str(server), "-a", "127.0.0.1", "-p", str(port)]
            command += ["-js", "-sd", str(self.folder / name), *options, "-c", str(config)]
            await self._start(name, command, {})
        for name, port in zip(self.nats_parts, self.nats_ports, strict=True):
            await self._wait_for_port(name, port)
        connection = await bus.connect(self.nats_url, SETUP, self.credentials_of(SETUP))
        await create_streams(connection, len(self.nats_ports), self.namespaces, START_S)
        await connection.close()

    async def _close_nodes(self) -> None:
        """Close the nodes of an earlier cluster that was killed."""
        connection = await bus.connect(self.nats_url, MONITOR, self.credentials_of(MONITOR))
        await close_nodes(connection, time.time())
        await connection.close()

    async def _start_cluster(self) -> None:
        command = [sys.executable, "-m", "services.local", "--cluster", str(self.cluster_file)]
        command += ["--data", str(self.folder / "cluster"), "--port", str(self.kube_port)]
        command += ["--token-file", str(token_file(self.credentials))]
        for source in self.data_sources:
            option = "--secret" if source.kind == "Secret" else "--config-map"
            command += [option, source.option]
        self.kubeconfig = str(write_kubeconfig(self.credentials, self.kube_url))
        await self._start("cluster", command, {})
        await self._wait_for_port("cluster", self.kube_port)

    async def _start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        self.parts[name] = Part(name, command, environment, self.folder)
        await self.parts[name].start()

    def _environment(self, name: str) -> dict[str, str]:
        """Return the settings of a service: those of this stack, then those of the caller."""
        token = str(token_file(self.credentials))
        pod_policy = self.folder.resolve() / POD_POLICY_FILE
        if not pod_policy.exists():
            pod_policy.write_text(ALLOW_ALL)
        checkpoints = self.folder / "checkpoints"
        settings = {
            "WEIR_NATS_URL": self.nats_url,
            "WEIR_NATS_CREDENTIALS": self.credentials_of(name),
            "WEIR_NATS_CA": "",
            # There is one replica of each service, so a restarted one need not wait for a lease.
            "WEIR_LEASE_S": "0",
            BEGUN_AGAIN: "",
            "WEIR_METRICS_PORT": "0",  # the services cannot share a port
            "WEIR_LAUNCHER_SIGNING_KEY": str(self.credentials / keyring.JOBS),
            "WEIR_MONITOR_KUBE_URL": self.kube_url,
            "WEIR_LAUNCHER_KUBE_URL": self.kube_url,
            "WEIR_MONITOR_KUBE_TOKEN_FILE": token,
            "WEIR_LAUNCHER_KUBE_TOKEN_FILE": token,
            "WEIR_ALLOCATOR_HOST_PATHS": "/",
            "WEIR_ALLOCATOR_IMAGES": "",  # images are not used here
            "WEIR_ALLOCATOR_POD_POLICY": str(pod_policy),
            "WEIR_LAUNCHER_TASK_PORTS": "0,0",
            "WEIR_LAUNCHER_HOME": "",
            "WEIR_LAUNCHER_CHECKPOINT_DIR": str(checkpoints.resolve()),
            **self.settings,
        }
        services = (name, *EXTRA_SETTINGS.get(name, ()))
        prefixes = tuple(f"WEIR_{each.upper()}_" for each in services)
        chosen = {}
        for setting, value in settings.items():
            if setting in COMMON or setting.startswith(prefixes):
                chosen[setting] = value
        return chosen

    async def _wait_for_port(self, name: str, port: int) -> None:
        """Wait until the part listens on the port. Raises `CannotStart` after `START_S`."""
        end = time.monotonic() + START_S
        while not is_listening(port):
            if time.monotonic() > end:
                raise CannotStart(
                    f"{name} does not answer on port {port}; its log:\n{self._last_lines(name)}"
                )
            await asyncio.sleep(0.05)

    def _last_lines(self, name: str) -> str:
        return "\n".join(self.parts[name].log_path.read_text(errors="replace").splitlines()[-10:])

    def write_connection(self, path: Path) -> None:
        """Write the file from which other commands learn the addresses of this stack."""
        connection = {
            "nats_url": self.nats_url,
            "kube_url": self.kube_url,
            "nats_credentials": self.operator,
            "kubeconfig": self.kubeconfig,
            "pod_logs": str(self.folder.resolve() / "cluster" / "logs"),
            "limits": self.settings,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(connection))


def check_ports_free(nats_port: int, kube_port: int) -> None:
    """Raise `CannotStart` if a process listens on one of the ports."""
    for port, option in ((nats_port, "--nats-port"), (kube_port, "--kube-port")):
        if is_listening(port):
            raise CannotStart(
                f"port {port} is in use: is `weir up` running already? If not, choose another one"
                f" with {option}"
            )


def is_listening(port: int) -> bool:
    """Return True if a process of this machine listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


CLUSTER = "weir"
SYNC_INTERVAL = "500ms"
"""Interval at which a server writes acknowledged messages to its disk; `deploy/base/nats.conf` has
the same one.

The server's timer starts again when a write has ended. So a power failure of the whole bus loses at
most this time and one write: within 1 s, for every stream. The server's default is two minutes. It
has one setting for all streams.
"""


def server_config(auth_file: str) -> str:
    """Return the configuration of a server. `auth_file`: the accounts and users, relative to the
    folder of this file.
    """
    return f'jetstream {{ sync_interval: {SYNC_INTERVAL} }}\ninclude "{auth_file}"\n'


def server_name(number: int) -> str:
    """Return the name of a server; the first one is `nats`."""
    return "nats" if number == 0 else f"nats-{number + 1}"


def route_options(ports: Sequence[int]) -> list[list[str]]:
    """Return the options of each server that make it part of a cluster; none for a single server.
    `ports`: the port of each server for the others.
    """
    if len(ports) == 1:
        return [[]]
    addresses = [f"nats://127.0.0.1:{port}" for port in ports]
    options = []
    for number, address in enumerate(addresses):
        name = server_name(number)
        routes = ",".join(addresses)
        cluster = ["--cluster_name", CLUSTER, "--cluster", address, "--routes", routes]
        options.append(["-n", name, *cluster])
    return options


async def create_streams(
    connection: Bus, servers: int, namespaces: Iterable[str], within_s: float
) -> None:
    """Create all streams with a replica on each server.

    Servers that have just started elect a leader first, and know of each other only a little later.
    Until then they do not answer, or have no place for a replica. So with several servers the
    request is repeated for up to `within_s`.
    """
    end_s = time.monotonic() + within_s
    namespaces = tuple(namespaces)
    while True:
        try:
            await connection.create(replicas=servers, namespaces=namespaces)
            return
        except NatsError:
            if servers == 1 or time.monotonic() > end_s:
                raise
        await asyncio.sleep(AGAIN_S)


TOKEN_FILE, KUBECONFIG = "cluster.token", "kubeconfig"
TOKEN_BYTES = 32
KUBE_USER = "weir-up"


def token_file(credentials: Path) -> Path:
    """Return the file with the token; write a random one if there is none."""
    path = credentials / TOKEN_FILE
    if not path.exists():
        write_private(path, secrets.token_urlsafe(TOKEN_BYTES))
    return path


def write_kubeconfig(credentials: Path, url: str) -> Path:
    """Write a kubeconfig for kubectl and for `weir logs`; return its path. JSON is valid YAML.

    The token is in the server's URL too, because kubectl sends no bearer token over http.
    """
    token = token_file(credentials).read_text()
    scheme, _, address = url.partition("://")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": KUBE_USER, "cluster": {"server": f"{scheme}://{KUBE_USER}:{token}@{address}"}}
        ],
        "users": [{"name": KUBE_USER, "user": {"token": token}}],
        "contexts": [{"name": KUBE_USER, "context": {"cluster": KUBE_USER, "user": KUBE_USER}}],
        "current-context": KUBE_USER,
    }
    path = credentials / KUBECONFIG
    write_private(path, json.dumps(config, indent=1))
    return path


PARALLEL_READS = 100


async def close_nodes(bus: Bus, now: float) -> None:
    """Publish that no node is ready, in the monitor's name, while no monitor runs.

    A cluster that was killed could not publish its end. The last fact of each node still shows
    free resources, and pods that no longer run. The monitor publishes the nodes of this cluster as
    soon as it has seen them. A fact that is newer than the one read here is not replaced.
    """
    for stored in await read_last_capacity(bus):
        fact = stored.message
        if isinstance(fact, CapacityChanged) and fact.ready:
            with contextlib.suppress(Stale):
                await bus.publish(unready_node(fact, now), expect_last=stored.sequence)


async def read_last_capacity(bus: Bus) -> list[StoredMessage]:
    """Return the last capacity fact of each node; a fact that cannot be read is left out."""
    pattern = subjects.pattern(CapacityChanged)
    info = await bus.retry_until_answered(
        lambda: bus.js.stream_info(FACTS, subjects_filter=pattern)
    )
    prefix = subjects.pattern(CapacityChanged, "")
    nodes = [subject.removeprefix(prefix) for subject in info.state.subjects or {}]
    facts: list[StoredMessage] = []
    for start in range(0, len(nodes), PARALLEL_READS):
        batch = nodes[start : start + PARALLEL_READS]
        reads = [bus.last_message(CapacityChanged, node) for node in batch]
        facts += filter(None, await asyncio.gather(*reads))
    return facts


def unready_node(fact: CapacityChanged, now: float) -> CapacityChanged:
    """Return the fact of a node that is not ready and has no pods."""
    closed = replace(fact, ready=False, free=fact.allocatable, own=(), observed_s=now)
    content = msgspec.json.encode(replace(closed, seen="", observed_s=0.0))
    digest = hashlib.sha256(fact.seen.encode() + content).hexdigest()[:16]
    return replace(closed, seen=digest)
