"""Simulated nodes without a kubelet, full of other users' pods, created through the cluster's API.

Also: the times at which the ends of these pods were reported.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import aiohttp

from services.cli.trial import Trial
from shared.messages import CapacityChanged
from tests.bench.report import median, percentile, say

CLUSTER = (  # the simulated nodes are created through the API
    "nodes:\n  - {name: master, cpu: 0.01, memory_gib: 0.01}\n"
)
PODS = "/api/v1/namespaces/default/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}
PODS_A_NODE = 10
AT_ONCE = 16
SEED = 1


def names(nodes: int) -> list[str]:
    return [f"sim-{number}" for number in range(nodes)]


async def fill(http: aiohttp.ClientSession, nodes: int, pods_a_node: int = PODS_A_NODE) -> None:
    """Create nodes, and on each as many pods of 1 core and 1 GiB as it has capacity for."""
    say(f"making {nodes} nodes and {nodes * pods_a_node} pods")
    await everyone(_node(http, name, pods_a_node) for name in names(nodes))
    for number in range(pods_a_node):
        await everyone(_pod(http, name, number) for name in names(nodes))
        say(f"{number + 1} of {pods_a_node} pods on each node")


async def everyone(works: Iterable[Awaitable[None]]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(work: Awaitable[None]) -> None:
        async with gate:
            await work

    await asyncio.gather(*(one(work) for work in works))


async def _node(http: aiohttp.ClientSession, name: str, pods: int) -> None:
    room = {"cpu": str(pods), "memory": f"{pods}Gi", "pods": "110"}
    status = {
        "allocatable": room,
        "capacity": room,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await said(http.post("/api/v1/nodes", json={"metadata": {"name": name}}))
    await said(http.patch(f"/api/v1/nodes/{name}/status", json={"status": status}, headers=MERGE))


async def _pod(http: aiohttp.ClientSession, node: str, number: int) -> None:
    container = {
        "name": "main",
        "image": "none",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    body = {
        "metadata": {"name": f"{node}-{number}"},
        "spec": {"nodeName": node, "containers": [container]},
    }
    await said(http.post(PODS, json=body))


async def said(request: Any) -> None:
    async with request as answer:
        if answer.status >= 400:
            raise RuntimeError(await answer.text())


def full(watched: Trial) -> set[str]:
    """Return the simulated nodes that have no free core according to the monitor."""
    last = {c.node: c for c in watched.of(CapacityChanged)}
    return {name for name, seen in last.items() if name.startswith("sim-") and seen.free.cpu == 0}


def freed(nodes: Sequence[str], count: int) -> list[str]:
    """Return the nodes on which `delete` deletes a pod."""
    return random.Random(SEED).sample(nodes, count)


async def delete(
    http: aiohttp.ClientSession, nodes: Sequence[str], count: int, a_second: float
) -> dict[str, float]:
    """Delete one pod on each of `count` nodes; return the time of each request by node."""
    deleted: dict[str, float] = {}
    began = time.monotonic()
    for number, node in enumerate(freed(nodes, count)):
        await asyncio.sleep(began + number / a_second - time.monotonic())
        deleted[node] = time.time()
        await said(http.delete(f"{PODS}/{node}-0?gracePeriodSeconds=0"))
        if (number + 1) % 50 == 0:
            say(f"{number + 1}/{count} deleted")
    return deleted


def first(
    watched: Trial, deleted: dict[str, float], kind: type[Any], nodes: Callable[[Any], list[str]]
) -> dict[str, float]:
    """Return when the first message of a kind about each node was stored after its deletion."""
    found: dict[str, float] = {}
    for heard in watched.heard:
        if isinstance(heard.message, kind):
            for node in nodes(heard.message):
                if heard.stored_s >= deleted.get(node, float("inf")):
                    found.setdefault(node, heard.stored_s)
    return found


def percentiles(name: str, deleted: dict[str, float], found: dict[str, float]) -> dict[str, float]:
    missing = deleted.keys() - found.keys()
    if missing:
        raise RuntimeError(f"no {name} was heard for {len(missing)} deletions")
    took_ms = [(found[node] - at) * 1000 for node, at in deleted.items()]
    return {f"{name}_p50_ms": median(took_ms), f"{name}_p99_ms": percentile(took_ms, 0.99)}
