"""Tests of a pod's requests and limits, and of ResourceQuotas.

The usage of a quota is counted, a pod that would exceed it is refused, and the monitor reports it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubernetes.aio import client

from services.local.objects.resources import pod_limit, pod_requests, qos_class
from services.monitor.service import Settings, start
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.messages import QuotaChanged
from tests.local.builders import container, pod
from tests.local.conftest import Kube


def test_pod_requests_are_those_of_containers_or_the_largest_init_container_and_overhead():
    body = pod(
        "p",
        container(cpu="1", memory="1Gi"),
        {**container(cpu="500m"), "name": "b"},
        overhead={"cpu": "100m"},
        initContainers=[container(cpu="3")],
    )
    assert pod_requests(body) == {"cpu": 3100, "memory": 2**30, "pods": 1}


def test_a_sidecar_counts_beside_later_containers():
    sidecar = {**container(cpu="1"), "restartPolicy": "Always"}
    assert (
        pod_requests(pod("p", container(cpu="1"), initContainers=[sidecar, container(cpu="4")]))[
            "cpu"
        ]
        == 5000
    )
    assert (
        pod_requests(pod("p", container(cpu="6"), initContainers=[sidecar, container(cpu="4")]))[
            "cpu"
        ]
        == 7000
    )


def test_a_pod_has_a_limit_only_if_each_container_has_one():
    assert pod_limit(pod("p", container(limit="1"), container(limit="500m")), "cpu") == 1500
    assert pod_limit(pod("p", container(limit="1"), container()), "cpu") is None


def test_quality_of_service_follows_requests_and_limits():
    both = {"cpu": "1", "memory": "1Gi"}
    assert qos_class(pod("p")) == "BestEffort"
    assert qos_class(pod("p", container(cpu="1"))) == "Burstable"
    assert (
        qos_class(pod("p", {**container(), "resources": {"requests": both, "limits": both}}))
        == "Guaranteed"
    )


HARD = {"requests.cpu": "3", "limits.cpu": "8", "pods": "3", "services": "1"}


def quota(**hard: str) -> dict[str, Any]:
    return {"metadata": {"name": "compute"}, "spec": {"hard": hard or HARD}}


def sleeper(name: str, cpu: str = "1") -> dict[str, Any]:
    return pod(name, container(["sleep", "600"], cpu=cpu, limit=cpu))


async def until_used(kube: Kube, cpu: str, pods: str) -> dict[str, str]:
    async with asyncio.timeout(60):
        while True:
            found = kube.plain(await kube.v1.read_namespaced_resource_quota("compute", "default"))
            used: dict[str, str] = (found.get("status") or {}).get("used") or {}
            if (used.get("requests.cpu"), used.get("pods")) == (cpu, pods):
                return used
            await asyncio.sleep(0.02)


async def test_a_resource_quota_counts_pods_and_refuses_one_too_many(kube: Kube) -> None:
    await kube.v1.create_namespaced_resource_quota("default", quota())
    await kube.create(sleeper("one"))
    await kube.create(sleeper("two", "1500m"))
    assert await until_used(kube, "2500m", "2") == {
        "requests.cpu": "2500m",
        "limits.cpu": "2500m",
        "pods": "2",
        "services": "0",
    }
    with pytest.raises(client.ApiException) as refused:
        await kube.create(sleeper("three"))
    assert refused.value.status == 403
    because = (
        "exceeded quota: compute, requested: requests.cpu=1, used: requests.cpu=2500m, limited:"
        " requests.cpu=3"
    )
    assert because in refused.value.body
    await kube.v1.delete_namespaced_pod("two", "default", grace_period_seconds=0)
    await until_used(kube, "1", "1")
    await kube.create(sleeper("three"))


async def test_a_quota_with_a_scope_is_not_enforced(kube: Kube) -> None:
    scoped = quota(pods="0")
    scoped["spec"]["scopes"] = ["BestEffort"]
    await kube.v1.create_namespaced_resource_quota("default", scoped)
    await kube.create(sleeper("one"))


async def test_the_monitor_reports_the_usage_of_a_quota(
    nats_url: str, bus: Bus, kube: Kube
) -> None:
    own = await wire.connect(nats_url, "monitor")
    await start(own, Settings(kube_url=kube.cluster.url))
    await kube.v1.create_namespaced_resource_quota("default", quota())
    await kube.create(sleeper("one"))
    async with asyncio.timeout(60):
        while True:
            heard = await bus.last_message(QuotaChanged, "default")
            said = heard.message if heard else None
            if isinstance(said, QuotaChanged) and {b.resource: b.used for b in said.bounds} == {
                "requests.cpu": 1,
                "limits.cpu": 1,
                "pods": 1,
            }:
                break
    await own.close()
