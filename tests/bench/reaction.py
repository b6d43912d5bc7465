"""How soon freed room is known, and used: `make bench-reaction` (about 4 minutes).

A cluster of 500 simulated nodes, full of 5,000 pods of somebody else's, and 500 jobs that wait, each for the room of
one pod. 500 pods on as many nodes are deleted, five a second. Measured from the moment at which a deletion is asked
for to the moments at which the bus has stored the node's `CapacityChanged`, and the `AllocationDecided` that starts a
job there (its server's clock, on the same machine). The allocator's window is 0.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from services.cli import demo, store
from services.cli.trial import Trial, trial
from services.cli.up import cluster_file
from services.local.stack import Stack
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobAccepted,
    JobRequested,
    Program,
    Resources,
    RoleResources,
    Span,
)
from tests.bench.report import finish, median, percentile, say

NODES = int(os.environ.get("BENCH_NODES", "500"))
PODS_A_NODE = 10
DELETIONS = int(os.environ.get("BENCH_DELETIONS", "500"))
A_SECOND = 5.0
AT_ONCE = 16
PATIENCE_S = 180.0
SEED = 1
CLUSTER = "nodes:\n  - {name: master, cpu: 0.01, memory_gib: 0.01}\n"  # the simulated ones are made over the API
TASK = {"chief": 0.2, "ps": 0.3, "worker": 0.5}  # one pod's room: 1 core, 1 GiB
SETTINGS = {"WEIR_ALLOCATOR_WINDOW_S": "0", "WEIR_ALLOCATOR_POLICY": "static"}


async def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder, cluster_file(None, CLUSTER) as cluster:
        services = ("monitor", "allocator")
        async with Stack(Path(folder), cluster, SETTINGS, services=services) as stack, trial(stack) as watched:
            async with aiohttp.ClientSession(stack.kube_url) as http:
                await _fill(http)
                await watched.until(lambda: len(_full(watched)) == NODES, PATIENCE_S, "the picture of a full cluster")
                await _ask(watched)
                deleted = await _delete(http)
            await watched.until(lambda: len(watched.of(AllocationDecided)) >= DELETIONS, PATIENCE_S, "every decision")
            return result(watched, deleted, psutil.Process(stack.parts["monitor"].process.pid))  # type: ignore[union-attr]


# ---------------------------------------------------------------- the world


async def _fill(http: aiohttp.ClientSession) -> None:
    say(f"making {NODES} nodes and {NODES * PODS_A_NODE} pods")
    await _all(_node(http, name) for name in _names())
    await _all(_pod(http, name, number) for name in _names() for number in range(PODS_A_NODE))


def _names() -> list[str]:
    return [f"sim-{number}" for number in range(NODES)]


async def _all(works: Iterable[Awaitable[None]]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(work: Awaitable[None]) -> None:
        async with gate:
            await work

    await asyncio.gather(*(one(work) for work in works))


async def _node(http: aiohttp.ClientSession, name: str) -> None:
    room = {"cpu": str(PODS_A_NODE), "memory": f"{PODS_A_NODE}Gi", "pods": "110"}
    status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
    await _said(http.post("/api/v1/nodes", json={"metadata": {"name": name}}))
    merge = {"Content-Type": "application/merge-patch+json"}
    await _said(http.patch(f"/api/v1/nodes/{name}/status", json={"status": status}, headers=merge))


async def _pod(http: aiohttp.ClientSession, node: str, number: int) -> None:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    body = {"metadata": {"name": f"{node}-{number}"}, "spec": {"nodeName": node, "containers": [container]}}
    await _said(http.post("/api/v1/namespaces/default/pods", json=body))


async def _said(request: Any) -> None:
    async with request as answer:
        if answer.status >= 400:
            raise RuntimeError(await answer.text())


def _full(watched: Trial) -> set[str]:
    """Nodes that are known to have no room left."""
    last = {c.node: c for c in watched.of(CapacityChanged)}
    return {name for name, seen in last.items() if name.startswith("sim-") and seen.free.cpu == 0}


async def _ask(watched: Trial) -> None:
    """As many jobs as there will be deletions, each of one pod's size."""
    say(f"asking for {DELETIONS} jobs")
    program = demo.JOBS / "digits.py"
    kept = Program(name=program.name, digest=await store.keep(watched.bus, store.read(program)))
    one, sizes = Span(start=1, min=1, max=1), {r: Resources(cpu=c, memory_gib=c) for r, c in TASK.items()}
    for number in range(DELETIONS):
        await watched.bus.request(
            JobRequested(
                job=f"job-{number}",
                program=kept,
                epochs=1,
                batch=Span(start=32, min=32, max=32),
                ps=one,
                workers=one,
                resources=RoleResources(**sizes),
            )
        )
    await watched.until(lambda: len(watched.of(JobAccepted)) == DELETIONS, PATIENCE_S, "every job accepted")


async def _delete(http: aiohttp.ClientSession) -> dict[str, float]:
    """Delete one pod on each of as many nodes, five a second; when each was asked for."""
    nodes = random.Random(SEED).sample(_names(), DELETIONS)
    deleted: dict[str, float] = {}
    began = time.monotonic()
    for number, node in enumerate(nodes):
        await asyncio.sleep(began + number / A_SECOND - time.monotonic())
        deleted[node] = time.time()
        await _said(http.delete(f"/api/v1/namespaces/default/pods/{node}-0?gracePeriodSeconds=0"))
        if (number + 1) % 50 == 0:
            say(f"{number + 1}/{DELETIONS} deleted")
    return deleted


# ---------------------------------------------------------------- what it came to


def result(watched: Trial, deleted: dict[str, float], monitor: psutil.Process) -> dict[str, Any]:
    known = _first(watched, deleted, CapacityChanged, lambda said: [said.node])
    used = _first(watched, deleted, AllocationDecided, lambda said: [task.node for task in said.tasks])
    return {
        **_percentiles("capacity", deleted, known),
        **_percentiles("decision", deleted, used),
        "deletions": len(deleted),
        "nodes": NODES,
        "pods": NODES * PODS_A_NODE,
        "monitor_mb": monitor.memory_info().rss / 1e6,
    }


def _first(
    watched: Trial, deleted: dict[str, float], kind: type[Any], nodes: Callable[[Any], list[str]]
) -> dict[str, float]:
    """When the first message of a kind about each node was stored after the deletion there."""
    found: dict[str, float] = {}
    for heard in watched.heard:
        if isinstance(heard.message, kind):
            for node in nodes(heard.message):
                if heard.stored_s >= deleted.get(node, float("inf")):
                    found.setdefault(node, heard.stored_s)
    return found


def _percentiles(name: str, deleted: dict[str, float], found: dict[str, float]) -> dict[str, float]:
    missing = deleted.keys() - found.keys()
    if missing:
        raise RuntimeError(f"no {name} was heard for {len(missing)} deletions")
    took_ms = [(found[node] - at) * 1000 for node, at in deleted.items()]
    return {f"{name}_p50_ms": median(took_ms), f"{name}_p99_ms": percentile(took_ms, 0.99)}


if __name__ == "__main__":
    finish(asyncio.run(main()))
