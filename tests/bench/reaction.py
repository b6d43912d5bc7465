"""Measure how soon freed capacity is reported and used: `make bench-reaction` (about 4 minutes).

A cluster of 500 simulated nodes, full of 5,000 pods of other users, and 500 waiting jobs, each of
the size of one pod. 500 pods on as many nodes are deleted, five per second. Measured from the
request of a deletion to the times at which the bus has stored the `CapacityChanged` of the node,
and the `AllocationDecided` that starts a job there (the clock of its server, on the same machine).
The allocator's window is 0.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from services.cli import demo, program_file
from services.cli.program_source import read_program
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
from tests.bench import crowd
from tests.bench.report import finish, say

NODES = int(os.environ.get("BENCH_NODES", "500"))
DELETIONS = int(os.environ.get("BENCH_DELETIONS", "500"))
A_SECOND = 5.0
PATIENCE_S = 180.0
TASK = {"chief": 0.2, "ps": 0.3, "worker": 0.5}  # in all the capacity of one pod: 1 core, 1 GiB
SETTINGS = {
    "WEIR_ALLOCATOR_WINDOW_S": "0",
    "WEIR_ALLOCATOR_POLICY": "static",
    "WEIR_ALLOCATOR_OPEN_JOBS": "0",
}


async def main() -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, crowd.CLUSTER) as cluster,
    ):
        services = ("monitor", "allocator")
        async with (
            Stack(Path(folder), cluster, SETTINGS, services=services) as stack,
            trial(stack) as watched,
        ):
            async with aiohttp.ClientSession(stack.kube_url, headers=stack.kube_headers) as http:
                await crowd.fill(http, NODES)
                await watched.until(
                    lambda: len(crowd.full(watched)) == NODES, PATIENCE_S, "a full picture"
                )
                await _ask(watched)
                deleted = await crowd.delete(http, crowd.names(NODES), DELETIONS, A_SECOND)
            await watched.until(
                lambda: len(_decided_jobs(watched)) == DELETIONS, PATIENCE_S, "every decision"
            )
            return result(watched, deleted, psutil.Process(stack.parts["monitor"].process.pid))  # type: ignore[union-attr]


async def _ask(watched: Trial) -> None:
    """Submit as many jobs as there will be deletions, each of the size of one pod."""
    say(f"asking for {DELETIONS} jobs")
    program = read_program(demo.JOBS / "digits.py")
    digest = await program_file.store_program(watched.bus, program.body)
    kept = Program(name=program.name, digest=digest)
    one, sizes = (
        Span(start=1, min=1, max=1),
        {r: Resources(cpu=c, memory_gib=c) for r, c in TASK.items()},
    )
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
    await watched.until(
        lambda: len(watched.of(JobAccepted)) == DELETIONS, PATIENCE_S, "every job accepted"
    )


def _decided_jobs(watched: Trial) -> set[str]:
    """Return the jobs that have a decision.

    Without a launcher, the allocator repeats a decision after 45 s, so jobs are counted.
    """
    return {decided.job for decided in watched.of(AllocationDecided)}


# ---------------------------------------------------------------- results


def result(watched: Trial, deleted: dict[str, float], monitor: psutil.Process) -> dict[str, Any]:
    known = crowd.first(watched, deleted, CapacityChanged, lambda said: [said.node])
    used = crowd.first(
        watched, deleted, AllocationDecided, lambda said: [task.node for task in said.tasks]
    )
    return {
        **crowd.percentiles("capacity", deleted, known),
        **crowd.percentiles("decision", deleted, used),
        "deletions": len(deleted),
        "nodes": NODES,
        "pods": NODES * crowd.PODS_A_NODE,
        "monitor_mb": monitor.memory_info().rss / 1e6,
    }


if __name__ == "__main__":
    finish(asyncio.run(main()))
