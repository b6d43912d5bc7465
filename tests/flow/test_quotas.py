"""Tests of a ResourceQuota with monitor, allocator and launcher on a real bus and a cluster's API.

There are no trainers: the pods sleep, and the test publishes the trainers' messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.launcher import pods
from services.launcher import service as launcher
from services.launcher.settings import Settings as LauncherSettings
from services.local.cluster_spec import NodeSpec
from services.local.objects.bodies import status, with_spec
from services.local.objects.kinds import POD, QUOTA
from services.local.service import Cluster, local_cluster
from services.monitor import service as monitor
from services.monitor.service import Settings as MonitorSettings
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import AllocationDecided, GenerationAbandoned, Message, QuotaChanged
from tests.allocator.builders import accepted, request, resumed, size, span
from tests.allocator.test_service import allocator, view

SLEEPER = ["python", "-c", "import time; time.sleep(600)"]


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(pods, "COMMAND", SLEEPER)
    async with local_cluster(
        [NodeSpec(name="node", cpu=16, memory_gib=32)], tmp_path / "cluster"
    ) as made:
        yield made


class Told:
    """The messages about quotas and about the job, in order."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def on_message(self, heard: StoredMessage) -> None:
        self.messages.append(heard.message)

    def sizes(self) -> list[tuple[int, int]]:
        return [
            size(message) for message in self.messages if isinstance(message, AllocationDecided)
        ]

    def used(self) -> list[float]:
        quotas = [message for message in self.messages if isinstance(message, QuotaChanged)]
        return [bound.used for bound in quotas[-1].bounds] if quotas else []


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def allow(cluster: Cluster, cores: int) -> None:
    hard = {"requests.cpu": str(cores)}
    body = cluster.store.find(QUOTA, "default", "compute")
    if body is None:
        named = {
            "kind": "ResourceQuota",
            "apiVersion": "v1",
            "metadata": {"name": "compute", "namespace": "default"},
        }
        cluster.store.create(QUOTA, {**named, "spec": {"hard": hard}})
    else:
        cluster.store.update(QUOTA, with_spec(body, hard=hard))


def running(cluster: Cluster) -> int:
    return sum(status(pod).get("phase") == "Running" for pod in cluster.store.bodies(POD))


async def test_a_job_starts_and_grows_within_its_quota_without_refused_pods(
    nats_url: str, bus: Bus, cluster: Cluster
) -> None:
    told = Told()
    await bus.follow([QuotaChanged, AllocationDecided, GenerationAbandoned], told.on_message, {})
    sees, enacts = await wire.connect(nats_url, "monitor"), await wire.connect(nats_url, "launcher")
    allow(cluster, 4)
    await monitor.start(sees, MonitorSettings(kube_url=cluster.url))
    await until(lambda: told.used() == [0])
    await launcher.start(enacts, LauncherSettings(kube_url=cluster.url, task_ports="0,0"))
    async with allocator(nats_url):
        await bus.publish(accepted(request(ps=span(1), workers=span(4, most=6))))
        await until(lambda: running(cluster) == 4)
        assert told.sizes() == [(1, 2)]
        await until(lambda: told.used() == [4])
        await bus.publish(resumed(1))
        await view(
            bus,
            lambda seen: seen.phase == "Running" and "left (ResourceQuota compute)" in seen.why,
        )

        allow(cluster, 6)
        await until(lambda: running(cluster) == 6)
    assert told.sizes() == [(1, 2), (1, 4)]
    assert not [message for message in told.messages if isinstance(message, GenerationAbandoned)]
    await sees.close()
    await enacts.close()
