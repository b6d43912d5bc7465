"""The cluster, put together: `async with local_cluster(nodes, data) as cluster: cluster.url`."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog
from aiohttp import web

from services.local.api.server import Metrics, Server
from services.local.api.watch import BOOKMARK_S
from services.local.cluster_spec import ClusterSpec, NodeSpec, Quotas, TenantSpec
from services.local.controllers import (
    Controllers,
    ControllerSettings,
    Scheduling,
    Tenancy,
    create_namespaces,
    identified,
)
from services.local.kubelet import cgroup_manager
from services.local.kubelet import kubelet as kubelet_module
from services.local.kubelet.container import KubeletSettings, World, bare_environment
from services.local.kubelet.kubelet import Kubelet, Usage
from services.local.kubelet.processes import Keeper, home_of
from services.local.objects.bodies import micro_stamp, with_spec
from services.local.objects.kinds import LEASE, NODE
from services.local.store import Store

log = structlog.get_logger()

LEASES = "kube-node-lease"
LEASE_DURATION_S = 40
REVISIONS_PER_S = 1000  # a later start begins above every revision of an earlier one that wrote no faster than this


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    port: int = 0  # 0: any that is free
    token: str = ""  # if given, every request must carry it
    bookmark_s: float = BOOKMARK_S
    last_look_s: float = (
        0.3  # so long those who watch are still told, when nodes and pods have ended
    )
    kubelet: KubeletSettings = KubeletSettings()
    controllers: ControllerSettings = ControllerSettings()


class Cluster:
    """A running cluster."""

    def __init__(self, spec: ClusterSpec, data: Path, settings: Settings) -> None:
        self.spec, self.settings = spec, settings
        self.data = data.resolve()
        home = home_of(self.data)
        self.store = Store(int(time.time() * REVISIONS_PER_S))
        self.keeper = Keeper(home)
        groups = cgroup_manager.find(f"weir-local-{home}", settings.kubelet.quota_period_us)
        self.world = World(
            store=self.store,
            cgroups=groups,
            settings=settings.kubelet,
            data=self.data,
            home=home,
            base=bare_environment(os.environ),
        )
        self.kubelet = Kubelet(self.world, set(spec.named()))
        self.usage = Usage(self.world, self.kubelet)
        self.runner: web.AppRunner | None = None
        self.url = ""
        self.tasks: list[asyncio.Task[None]] = []
        self.is_going = False

    # ---- start and stop

    async def start(self) -> None:
        """1 what an earlier start left, 2 the nodes, 3 the parts that react, 4 the doors."""
        self.data.mkdir(parents=True, exist_ok=True)
        await self.keeper.start()
        self.world.cgroups.close()
        controllers = Controllers(self.store, self.settings.controllers)
        parts = [
            controllers.follow,
            controllers.look,
            Scheduling(self.store).run,
            self.kubelet.run,
            self.keep_alive,
            self.measure,
            Tenancy(self.store, self.spec.tenants).run,
        ]
        create_namespaces(self.store, self.spec.quotas)
        self.register()
        self.tasks = [asyncio.create_task(self.guard(part)) for part in parts]
        await self.open_doors()
        log.info(
            "ClusterStarted",
            url=self.url,
            nodes=len(self.kubelet.nodes),
            enforced=self.world.cgroups.enforced,
        )

    async def guard(self, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A part that breaks is told at once, and started again where it stood."""
        while True:
            try:
                await part()
                return
            except Exception:
                log.exception("PartBroke", part=part.__qualname__)
                await asyncio.sleep(0.1)

    async def open_doors(self) -> None:
        metrics = Metrics(self.world, self.usage)
        server = Server(
            self.store, metrics, self.world.logs, self.settings.token, self.settings.bookmark_s
        )
        self.runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.2)
        await self.runner.setup()
        listening = socket.create_server(("127.0.0.1", self.settings.port), backlog=1024)
        await web.SockSite(self.runner, listening).start()
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    async def stop(self) -> None:
        """Nodes and pods first, while their ends can still be watched."""
        self.close_nodes()
        await self.kubelet.stop_all()
        await asyncio.sleep(self.settings.last_look_s)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.runner is not None:
            await self.runner.cleanup()
        await self.keeper.stop()
        self.world.cgroups.close()

    # ---- the nodes

    def register(self) -> None:
        for name, spec in self.spec.named().items():
            self.world.cgroups.open_node(name, round(spec.cpu * 1000))
            body = identified(
                self.store, NODE, name, status=kubelet_module.status_of(spec, name), spec={}
            )
            body["metadata"]["labels"] = kubelet_module.labels_for(name)
            self.store.create(NODE, kubelet_module.ready(body, self.store.now()))
            lease = identified(self.store, LEASE, name, LEASES)
            self.store.create(LEASE, with_spec(lease, **self.lease(name)))

    def lease(self, name: str) -> dict[str, Any]:
        return kubelet_module.lease_spec(name, micro_stamp(self.store.clock()), LEASE_DURATION_S)

    async def keep_alive(self) -> None:
        beat_at = self.store.clock() + self.settings.kubelet.heartbeat_s
        while True:
            await asyncio.sleep(self.settings.kubelet.lease_s)
            for name in self.kubelet.nodes:
                self.renew(name)
            if self.store.clock() >= beat_at:
                beat_at = self.store.clock() + self.settings.kubelet.heartbeat_s
                self.report()

    def report(self) -> None:
        """How each node is."""
        condition = kubelet_module.shutting_down if self.is_going else kubelet_module.ready
        for name in self.kubelet.nodes:
            self.store.change(NODE, "", name, lambda body: condition(body, self.store.now()))

    def close_nodes(self) -> None:
        """Whoever decides when the nodes are another day's waits until they are seen again, and as
        they are then.
        """
        self.is_going = True
        self.report()

    def renew(self, name: str) -> None:
        self.store.change(LEASE, LEASES, name, lambda body: with_spec(body, **self.lease(name)))

    async def measure(self) -> None:
        while True:
            self.usage.look()
            self.kubelet.retry_deferred()
            await asyncio.sleep(self.settings.kubelet.measure_s)


@asynccontextmanager
async def local_cluster(
    nodes: Sequence[NodeSpec],
    data: Path,
    *,
    tenants: Sequence[TenantSpec] = (),
    quotas: Quotas | None = None,
    settings: Settings | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster for as long as the block lasts; afterwards no process of it is left."""
    spec = ClusterSpec(nodes=tuple(nodes), tenants=tuple(tenants), quotas=quotas or {})
    cluster = Cluster(spec, data, settings or Settings())
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
