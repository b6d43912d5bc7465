"""The cluster: `async with local_cluster(nodes, data) as cluster: cluster.url`."""

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
from services.local.cluster_spec import (
    ClusterSpec,
    DataSource,
    NodeSpec,
    Quotas,
    TenantSpec,
    data_fields,
    read_values,
)
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
from services.local.objects.kinds import BY_NAME, LEASE, NODE
from services.local.store import Store
from shared.runtime import process

log = structlog.get_logger()

LEASES = "kube-node-lease"
LEASE_DURATION_S = 40
REVISIONS_PER_S = 1000
"""Revisions per second since 1970 in the first revision. So it is above the revisions of an earlier
start, if that one wrote no faster.
"""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    port: int = 0  # 0: any free port
    token: str = ""  # every request must carry it; empty: no token
    bookmark_s: float = BOOKMARK_S
    last_look_s: float = 0.3  # between the end of nodes and pods and the end of the API
    kubelet: KubeletSettings = KubeletSettings()
    controllers: ControllerSettings = ControllerSettings()
    data_sources: tuple[DataSource, ...] = ()  # Secrets and ConfigMaps from files


class Cluster:
    """A running cluster."""

    def __init__(self, spec: ClusterSpec, data: Path, settings: Settings) -> None:
        self.spec, self.settings = spec, settings
        self.data = data.resolve()
        home = cluster_id(self.data)
        self.store = Store(int(time.time() * REVISIONS_PER_S))
        self.reaper = ProcessReaper(home)
        groups = cgroup_manager.find_cgroup_manager(
            f"weir-local-{home}", settings.kubelet.quota_period_us
        )
        self.context = KubeletContext(
            store=self.store,
            cgroups=groups,
            settings=settings.kubelet,
            data=self.data,
            home=home,
            base=bare_environment(os.environ),
        )
        self.kubelet = Kubelet(self.context, set(spec.nodes_by_name()))
        self.usage = Usage(self.context, self.kubelet)
        self.runner: web.AppRunner | None = None
        self.url = ""
        self.tasks: list[asyncio.Task[None]] = []
        self.is_closing = False

    # ---- start and stop

    async def start(self) -> None:
        """Clean up after an earlier start, create the nodes, start the control loops and the
        API.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        await self.reaper.start()
        self.context.cgroups.close()
        controllers = Controllers(self.store, self.settings.controllers)
        parts = [
            controllers.watch_changes,
            controllers.sweep_periodically,
            SchedulerLoop(self.store).run,
            self.kubelet.run,
            self.renew_leases_forever,
            self.measure,
            TenantController(self.store, self.spec.tenants).run,
        ]
        sources = self.settings.data_sources
        create_namespaces(self.store, (*self.spec.quotas, *(each.namespace for each in sources)))
        for source in sources:
            self.create_data_object(source)
        self.register_nodes()
        self.tasks = [asyncio.create_task(self.restart_on_error(part)) for part in parts]
        await self.start_api_server()
        nodes, enforced = len(self.kubelet.nodes), self.context.cgroups.enforced
        log.info("ClusterStarted", url=self.url, nodes=nodes, enforced=enforced)

    def create_data_object(self, source: DataSource) -> None:
        """Create a Secret or ConfigMap from its file."""
        kind = BY_NAME["v1", source.kind]
        fields = data_fields(source, read_values(source.path))
        self.store.create(
            kind, new_system_object(self.store, kind, source.name, source.namespace, **fields)
        )

    async def restart_on_error(self, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a part. Log its errors, and start it again; its position is kept."""
        while True:
            try:
                await part()
                return
            except Exception:
                log.exception("PartBroke", part=part.__qualname__)
                await asyncio.sleep(0.1)

    async def start_api_server(self) -> None:
        metrics = MetricsApi(self.context, self.usage)
        server = ApiServer(
            self.store, metrics, self.context.logs, self.settings.token, self.settings.bookmark_s
        )
        self.runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.2)
        await self.runner.setup()
        listening = socket.create_server(("127.0.0.1", self.settings.port), backlog=1024)
        await web.SockSite(self.runner, listening).start()
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    async def stop(self) -> None:
        """Stop the nodes and pods first, while clients can still watch their ends."""
        self.close_nodes()
        await self.kubelet.stop_all()
        await asyncio.sleep(self.settings.last_look_s)
        await process.cancel_tasks(*self.tasks)
        if self.runner is not None:
            await self.runner.cleanup()
        await self.reaper.stop()
        self.context.cgroups.close()

    # ---- the nodes

    def register_nodes(self) -> None:
        for name, spec in self.spec.nodes_by_name().items():
            self.context.cgroups.open_node(name, round(spec.cpu * 1000))
            status = kubelet_module.status_of(spec, name)
            node_spec = {"taints": msgspec.to_builtins([*spec.taints])} if spec.taints else {}
            body = new_system_object(self.store, NODE, name, status=status, spec=node_spec)
            body["metadata"]["labels"] = {**spec.labels, **kubelet_module.labels_for(name)}
            self.store.create(NODE, kubelet_module.ready_node(body, self.store.now()))
            lease = new_system_object(self.store, LEASE, name, LEASES)
            self.store.create(LEASE, with_spec(lease, **self.lease(name)))

    async def renew_leases_forever(self) -> None:
        settings = self.settings.kubelet
        heartbeat_at = self.store.clock() + settings.heartbeat_s
        while True:
            await asyncio.sleep(settings.lease_s)
            for name in self.kubelet.nodes:
                self.renew_lease(name)
            if self.store.clock() >= heartbeat_at:
                heartbeat_at = self.store.clock() + settings.heartbeat_s
                self.write_node_status()

    def lease(self, name: str) -> dict[str, Any]:
        return kubelet_module.lease_spec(
            name, format_micro_time(self.store.clock()), LEASE_DURATION_S
        )

    def write_node_status(self) -> None:
        """Write the Ready condition of each node."""
        modify = kubelet_module.closing_node if self.is_closing else kubelet_module.ready_node
        for name in self.kubelet.nodes:
            self.store.change(NODE, "", name, lambda body: modify(body, self.store.now()))

    def close_nodes(self) -> None:
        """Mark all nodes as not ready, so that no service makes decisions for them before the next
        start.
        """
        self.is_closing = True
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
    """Run a cluster for the time of the block. Afterwards none of its processes is left."""
    spec = ClusterSpec(nodes=tuple(nodes), tenants=tuple(tenants), quotas=quotas or {})
    cluster = Cluster(spec, data, settings or Settings())
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
