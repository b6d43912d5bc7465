"""Hundreds of simulated nodes, a thousand pods."""

from __future__ import annotations

import asyncio
import time

from services.local.controllers import new_system_object
from services.local.objects.admission import new_pod
from services.local.objects.bodies import node_of
from services.local.objects.kinds import NODE, POD
from tests.local.builders import container, node, pinned_pod, pod

NODES, PODS = 200, 1000


async def test_a_thousand_pods_are_scheduled_on_simulated_nodes_and_not_run(cluster, kube):
    store = cluster.store
    for number in range(NODES):
        body = node(f"sim-{number}")
        store.create(
            NODE,
            {**body, **new_system_object(store, NODE, f"sim-{number}"), "status": body["status"]},
        )
    start = time.monotonic()
    for number in range(PODS):
        wish = pod("", container(cpu="100m"), affinity=pinned_pod(f"sim-{number % NODES}"))
        store.create(
            POD, new_pod(new_system_object(store, POD, f"p{number}", "default", spec=wish["spec"]))
        )
    while not all(node_of(body) for body in store.bodies(POD)):
        await asyncio.sleep(0.05)
        assert time.monotonic() - start < 120
    async with await kube.v1.list_namespaced_pod_without_preload_content("default") as listed:
        assert len((await listed.json())["items"]) == PODS
    assert not cluster.kubelet.workers and all(
        b["status"]["phase"] == "Pending" for b in store.bodies(POD)
    )
