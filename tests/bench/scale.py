"""Monitor and launcher on a large cluster: `make bench-scale` (about 15 minutes).

The stand-in with 5,000 simulated nodes, full of 150,000 pods of other users: the most that
Kubernetes supports (`BENCH_NODES=2000 BENCH_PODS_A_NODE=10`: a smaller one, in about 5 minutes).

1. The stand-in alone: the time to list all objects, page by page (a lower limit for every client).
2. The monitor starts: from the start of its process to the time at which the bus has stored the
   true `CapacityChanged` of the last node (the clock of its server, on the same machine).
3. 300 pods on as many nodes are deleted, five per second: from the request to the stored
   `CapacityChanged`; and to the time at which a bare watch shows it (the stand-in's part).
4. The launcher starts, behind a proxy that records the arrival of each request. A job of 200 tasks
   is decided; in place of the kubelets, the benchmark reports that each pod runs when it is bound;
   the job ends, and its objects are deleted.

`monitor_memory_mb` is its largest resident memory (VmHWM). `launcher_request_limit` is the largest
number of requests in a second that its settings allow.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from services.cli.trial import Trial, trial
from services.cli.up import cluster_file
from services.launcher.settings import Settings
from services.local.stack import Stack
from shared.kube.client import most_in_a_second
from shared.kube.objects import SELECTOR
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobFinished,
    JobRequested,
    Program,
    Resources,
    Role,
    Span,
    TaskPlan,
    TaskStarted,
)
from shared.runtime.process import cancel_tasks, free_port
from tests.bench import crowd
from tests.bench.player import as_allocator
from tests.bench.report import finish, percentile, say
from tests.bench.tollgate import Tollgate, peak, tollgate

NODES = int(os.environ.get("BENCH_NODES", "5000"))
PODS_A_NODE = int(os.environ.get("BENCH_PODS_A_NODE", "30"))
DELETIONS = int(os.environ.get("BENCH_DELETIONS", "300"))
TASKS = int(os.environ.get("BENCH_TASKS", "200"))
PS = TASKS // 10
A_SECOND = 5.0
PATIENCE_S = 180.0
PAGE = 500
JOB, UID = "large", 7
ROOM = Resources(cpu=0.5, memory_gib=0.5)
WHOLE = aiohttp.ClientTimeout(total=None)


async def main() -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, crowd.CLUSTER) as cluster,
    ):
        port = free_port()
        settings = {"WEIR_LAUNCHER_KUBE_URL": f"http://127.0.0.1:{port}"}
        async with (
            Stack(Path(folder), cluster, settings, services=()) as stack,
            trial(stack) as watched,
            aiohttp.ClientSession(
                stack.kube_url, headers=stack.kube_headers, timeout=WHOLE
            ) as http,
            tollgate(stack.kube_url, port) as gate,
        ):
            await crowd.fill(http, NODES, PODS_A_NODE)
            alone = {"stand_in_list_s": await listed_s(http)}
            seen = await monitored(stack, watched, http)
            made = await launched(stack, watched, http, gate)
            return {"nodes": NODES, "pods": NODES * PODS_A_NODE, **alone, **seen, **made}


async def listed_s(http: aiohttp.ClientSession) -> float:
    """Return the time in s to list all nodes and pods, page by page."""
    began = time.monotonic()
    for kind in ("nodes", "pods"):
        token = ""
        while True:
            query = {"limit": str(PAGE), **({"continue": token} if token else {})}
            async with http.get(f"/api/v1/{kind}", params=query) as answer:
                token = (await answer.json())["metadata"].get("continue", "")
            if not token:
                break
    return time.monotonic() - began


@asynccontextmanager
async def watching(
    http: aiohttp.ClientSession, query: dict[str, str], on_line: Any
) -> AsyncIterator[None]:
    """Pass each new event of pods to `on_line`."""

    async def follow() -> None:
        async with http.get(
            "/api/v1/pods", params={"watch": "true", **query}, timeout=WHOLE
        ) as answer:
            async for line in answer.content:
                await on_line(json.loads(line))

    async with http.get("/api/v1/pods", params={"limit": "1"}) as answer:
        query = {**query, "resourceVersion": (await answer.json())["metadata"]["resourceVersion"]}
    task = asyncio.ensure_future(follow())
    try:
        yield
    finally:
        await cancel_tasks(task)


# ---------------------------------------------------------------- the monitor


async def monitored(stack: Stack, watched: Trial, http: aiohttp.ClientSession) -> dict[str, float]:
    say("starting the monitor")
    began_s = time.time()
    await stack.start("monitor")
    told = watched.heard
    await watched.until(
        lambda: len(told) >= NODES and len(crowd.full(watched)) == NODES, PATIENCE_S, "all nodes"
    )
    full_s = max(heard.stored_s for heard in told) - began_s
    say(f"full picture after {full_s:.2f} s")
    shown: dict[str, float] = {}
    all_shown = asyncio.Event()

    async def on_line(event: dict[str, Any]) -> None:
        if event["type"] == "DELETED":
            shown[event["object"]["spec"]["nodeName"]] = time.time()
            if len(shown) == DELETIONS:
                all_shown.set()

    async with watching(http, {}, on_line):
        deleted = await crowd.delete(http, crowd.names(NODES), DELETIONS, A_SECOND)
        await watched.until(
            lambda: len(heard_of(watched, deleted)) == DELETIONS, PATIENCE_S, "every change"
        )
        # This watch may be slower than the monitor's.
        await asyncio.wait_for(all_shown.wait(), PATIENCE_S)
    return {
        "monitor_full_picture_s": full_s,
        "monitor_memory_mb": most_memory_mb(stack, "monitor"),
        **crowd.percentiles("change_published", deleted, heard_of(watched, deleted)),
        "stand_in_change_p99_ms": percentile(
            [(shown[n] - at) * 1000 for n, at in deleted.items()], 0.99
        ),
    }


def heard_of(watched: Trial, deleted: dict[str, float]) -> dict[str, float]:
    return crowd.first(watched, deleted, CapacityChanged, lambda said: [said.node])


def most_memory_mb(stack: Stack, part: str) -> float:
    process = stack.parts[part].process
    assert process
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


# ---------------------------------------------------------------- the launcher


async def launched(
    stack: Stack, watched: Trial, http: aiohttp.ClientSession, gate: Tollgate
) -> dict[str, float]:
    say("starting the launcher")
    await stack.start("launcher")

    async def on_line(event: dict[str, Any]) -> None:
        await run_pod(http, event["object"]) if event["type"] != "DELETED" else None

    async with watching(http, {"labelSelector": SELECTOR}, on_line):
        await until_asked(gate)
        began_s = time.time()
        async with as_allocator(stack) as voice:
            await voice.publish(decided(crowd.names(NODES)))
        await watched.until(
            lambda: len(watched.of(TaskStarted)) == TASKS, PATIENCE_S, "every task started"
        )
        up_s = time.time() - began_s
        say(f"{TASKS} tasks run after {up_s:.2f} s")
        async with as_allocator(stack) as voice:
            await voice.publish(JobFinished(job=JOB, uid=UID, outcome="succeeded"))
        await until_gone(http)
    settings = Settings()
    return {
        "launcher_job_up_s": up_s,
        "launcher_memory_mb": most_memory_mb(stack, "launcher"),
        "launcher_requests": len(gate.arrivals),
        "launcher_peak_requests_per_s": peak(gate.arrivals),
        "launcher_request_limit": most_in_a_second(settings.kube_rate, settings.kube_burst),
    }


def decided(nodes: list[str]) -> AllocationDecided:
    """Return a decision with one task on each node that has free capacity.

    The tasks are the chief, a tenth of them ps, and workers, with half a core each.
    """
    roles: list[Role] = ["chief", *["ps"] * PS, *["worker"] * (TASKS - PS - 1)]  # type: ignore[list-item]
    homes = crowd.freed(nodes, DELETIONS)[:TASKS]
    count = Span(start=1, min=1, max=TASKS)
    program = Program(name="none.py", digest="sha256-" + "0" * 64)
    request = JobRequested(job=JOB, program=program, epochs=1, batch=count, ps=count, workers=count)
    return AllocationDecided(
        job=JOB,
        uid=UID,
        generation=1,
        revision=1,
        request=request,
        tasks=tuple(
            TaskPlan(
                role=role,
                index=roles[:serial].count(role),
                serial=serial,
                node=node,
                resources=ROOM,
            )
            for serial, (role, node) in enumerate(zip(roles, homes, strict=True))
        ),
        batch=1,
        reason="the benchmark says so",
    )


async def run_pod(http: aiohttp.ClientSession, pod: dict[str, Any]) -> None:
    """Report that a pod runs, like its kubelet, if it is bound and pending."""
    meta = pod["metadata"]
    if (
        pod["spec"].get("nodeName")
        and pod["status"]["phase"] == "Pending"
        and "deletionTimestamp" not in meta
    ):
        path = f"{crowd.PODS}/{meta['name']}/status"
        await crowd.said(
            http.patch(path, json={"status": {"phase": "Running"}}, headers=crowd.MERGE)
        )


async def until_asked(gate: Tollgate) -> None:
    """Wait until the launcher has sent no request for 2 s: its start is complete."""
    async with asyncio.timeout(PATIENCE_S):
        while not gate.arrivals or time.monotonic() - gate.arrivals[-1] < 2.0:
            await asyncio.sleep(0.1)


async def until_gone(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with http.get("/api/v1/services", params={"labelSelector": SELECTOR}) as answer:
                if not (await answer.json())["items"]:
                    return
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    finish(asyncio.run(main()))
