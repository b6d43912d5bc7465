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

from services.local.api.server import ApiServer, MetricsApi
from services.local.api.watch import BOOKMARK_S
from services.local.cluster_spec import ClusterSpec, NodeSpec, Quotas, TenantSpec
from services.local.controllers import (
    Controllers,
    ControllerSettings,
    SchedulerLoop,
    TenantController,
    create_namespaces,
    new_system_object,
)
from services.local.kubelet import cgroup_manager
from services.local.kubelet import kubelet as kubelet_module
from services.local.kubelet.container import KubeletContext, KubeletSettings, bare_environment
from services.local.kubelet.kubelet import Kubelet, Usage
from services.local.kubelet.processes import ProcessReaper, cluster_id
from services.local.objects.bodies import format_micro_time, with_spec
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
        home = cluster_id(self.data)
        self.store = Store(int(time.time() * REVISIONS_PER_S))
        self.keeper = ProcessReaper(home)
        groups = cgroup_manager.find_cgroup_manager(
            f"weir-local-{home}", settings.kubelet.quota_period_us
        )
        self.world = KubeletContext(
            store=self.store,
            cgroups=groups,
            settings=settings.kubelet,
            data=self.data,
            home=home,
            base=bare_environment(os.environ),
        )
        self.kubelet = Kubelet(self.world, set(spec.nodes_by_name()))
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
            controllers.watch_changes,
            controllers.sweep_periodically,
            SchedulerLoop(self.store).run,
            self.kubelet.run,
            self.keep_alive,
            self.measure,
            TenantController(self.store, self.spec.tenants).run,
        ]
        create_namespaces(self.store, self.spec.quotas)
        self.register_nodes()
        self.tasks = [asyncio.create_task(self.restart_on_error(part)) for part in parts]
        await self.start_api_server()
        log.info(
            "ClusterStarted",
            url=self.url,
            nodes=len(self.kubelet.nodes),
            enforced=self.world.cgroups.enforced,
        )

    async def restart_on_error(self, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A part that breaks is told at once, and started again where it stood."""
        while True:
            try:
                await part()
                return
            except Exception:
                log.exception("PartBroke", part=part.__qualname__)
                await asyncio.sleep(0.1)

    async def start_api_server(self) -> None:
        metrics = MetricsApi(self.world, self.usage)
        server = ApiServer(
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

    def register_nodes(self) -> None:
        for name, spec in self.spec.nodes_by_name().items():
            self.world.cgroups.open_node(name, round(spec.cpu * 1000))
            body = new_system_object(
                self.store, NODE, name, status=kubelet_module.status_of(spec, name), spec={}
            )
            body["metadata"]["labels"] = kubelet_module.labels_for(name)
            self.store.create(NODE, kubelet_module.ready_node(body, self.store.now()))
            lease = new_system_object(self.store, LEASE, name, LEASES)
            self.store.create(LEASE, with_spec(lease, **self.lease(name)))

    def lease(self, name: str) -> dict[str, Any]:
        return kubelet_module.lease_spec(
            name, format_micro_time(self.store.clock()), LEASE_DURATION_S
        )

    async def keep_alive(self) -> None:
        beat_at = self.store.clock() + self.settings.kubelet.heartbeat_s
        while True:
            await asyncio.sleep(self.settings.kubelet.lease_s)
            for name in self.kubelet.nodes:
                self.renew_lease(name)
            if self.store.clock() >= beat_at:
                beat_at = self.store.clock() + self.settings.kubelet.heartbeat_s
                self.write_node_status()

    def write_node_status(self) -> None:
        """How each node is."""
        condition = kubelet_module.closing_node if self.is_going else kubelet_module.ready_node
        for name in self.kubelet.nodes:
            self.store.change(NODE, "", name, lambda body: condition(body, self.store.now()))

    def close_nodes(self) -> None:
        """Whoever decides when the nodes are another day's waits until they are seen again, and as
        they are then.
        """
        self.is_going = True
        self.write_node_status()

    def renew_lease(self, name: str) -> None:
        self.store.change(LEASE, LEASES, name, lambda body: with_spec(body, **self.lease(name)))

    async def measure(self) -> None:
        while True:
            self.usage.measure_usage()
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
