"""Fixtures: a local cluster, and the official client for it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import client

from services.local.cluster_spec import NodeSpec
from services.local.controllers import ControllerSettings
from services.local.kubelet import processes
from services.local.kubelet.container import KubeletSettings
from services.local.objects.kinds import POD
from services.local.service import Cluster, Settings, local_cluster

NODES = (
    NodeSpec(name="small", count=2, cpu=1, memory_gib=2),
    NodeSpec(name="big", cpu=4, memory_gib=8, gpu=1),
)
QUICK = Settings(
    bookmark_s=0.3,
    last_look_s=0.0,
    kubelet=KubeletSettings(measure_s=0.2, restart_first_s=0.1, retry_s=0.2, shutdown_s=0.5),
    controllers=ControllerSettings(orphan_delay_s=0.2, sweep_s=0.1),
)
PATIENCE_S = 60.0


class Kube:
    """The official asyncio client in a namespace; it takes and returns plain objects."""

    namespace = "default"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = client.ApiClient(client.Configuration(host=cluster.url))
        self.v1 = client.CoreV1Api(self.api)

    def plain(self, thing: Any) -> Any:
        return self.api.sanitize_for_serialization(thing)

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        return self.plain(await self.v1.create_namespaced_pod(self.namespace, body))

    async def pod(self, name: str) -> dict[str, Any]:
        return self.plain(await self.v1.read_namespaced_pod(name, self.namespace))

    async def until(self, name: str, wanted: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Wait until `wanted` is true for the pod; return the pod."""
        end = time.monotonic() + PATIENCE_S
        while not wanted(found := await self.pod(name)):
            assert time.monotonic() < end, f"not in time: {json.dumps(found['status'])}"
            await asyncio.sleep(0.02)
        return found

    async def until_phase(self, name: str, phase: str) -> dict[str, Any]:
        return await self.until(name, lambda body: body["status"]["phase"] == phase)

    async def until_gone(self, name: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while self.cluster.store.find(POD, self.namespace, name) is not None:
            assert time.monotonic() < end, f"{name} is still there"
            await asyncio.sleep(0.02)

    async def bind(self, name: str, node: str) -> int:
        """Return the status code of a binding.

        The client cannot read the body of the answer, nor that of a real server.
        """
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
        make = self.v1.create_namespaced_binding_without_preload_content
        async with await make(self.namespace, binding) as answer:
            return int(answer.status)

    async def logs(self, name: str, **more: Any) -> str:
        return str(await self.v1.read_namespaced_pod_log(name, self.namespace, **more))

    async def refusal(self, call: Any) -> tuple[int, str]:
        """Return the code and the reason of the Status with which a call is refused."""
        with pytest.raises(client.ApiException) as caught:
            await call
        status = json.loads(caught.value.body)
        assert status["kind"] == "Status" and status["code"] == caught.value.status
        return status["code"], status["reason"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield a cluster. After its end no process and no control group of it may be left."""
    async with local_cluster(NODES, tmp_path / "data", settings=QUICK) as running:
        yield running
    home = running.context.home
    async with asyncio.timeout(PATIENCE_S):  # killed processes may take a moment to exit
        while [pid for pid in processes.processes_of_cluster(home) if processes.is_running(pid)]:
            await asyncio.sleep(0.02)
    assert list(Path("/sys/fs/cgroup").glob(f"*/weir-local-{home}")) == []


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[Kube]:
    talker = Kube(cluster)
    yield talker
    await talker.api.close()
