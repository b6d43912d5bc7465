"""Years of operation in minutes: `make bench-year` (at most 25 minutes on two cores).

Allocator, monitor, page and nats-server are real processes; launcher, trainers and the Kubernetes
API are simulated (`year_world.py`). `BENCH_JOBS` jobs run and end, `BENCH_CONCURRENT` at a time,
each with `BENCH_HANDOVERS` hand-overs after the eviction of a worker. The two streams are so small
that the messages fill each `BENCH_FILLED` times, and a finished job is kept for seconds. Some nodes
never change. Then

1. every process is killed and started: `restart_s` until the page is ready and the eviction of a
   job's worker is decided; every job must get another decision, and every node must
   be in the snapshot;
2. allocator and page are stopped, all facts and the allocator's snapshot are removed, and both are
   started: the same.

`progress_factor`: the time between two reports, divided by a trainer's default. `orders_growth`:
relative growth of `weir-orders` in the second half of the jobs.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import fields
from nats.errors import Error as NatsError

from services.allocator import snapshot
from services.allocator.state.state import State
from services.local.stack import MODULES, Part
from services.trainer.settings import Settings as TrainerSettings
from shared.auth.permissions import stream_of
from shared.bus import bus as wire
from shared.bus import snapshots
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S
from shared.bus.subjects import FACTS, ORDERS, STATE
from shared.runtime.process import cancel_tasks, free_port
from tests.bench.report import finish_in_a_folder, say
from tests.bench.year_world import Job, Lost, World, lanes
from tests.shared.kube.api_server import ApiServer, serving

JOBS = int(os.environ.get("BENCH_JOBS", "5000"))
CONCURRENT = int(os.environ.get("BENCH_CONCURRENT", "100"))
HAND_OVERS = int(os.environ.get("BENCH_HANDOVERS", "4"))
FILLED = int(os.environ.get("BENCH_FILLED", "20"))
REPORT_S = float(os.environ.get("BENCH_REPORT_S", "20"))
NODES_A_JOB, IDLE_NODES = 0.2, 20
ORDERS_A_JOB, FACTS_A_JOB = 12_000, 20_000
"""Bytes that a job writes with four hand-overs, approximately. The limits are computed from these.
"""
LIVE, LEAST_LIMIT = 2, 1 << 19
"""A limit has room for `LIVE` times what the concurrent jobs write, and for `LEAST_LIMIT` bytes."""
PATIENCE_S = 300.0
SETTINGS = {
    "WEIR_ALLOCATOR_POLICY": "static",
    "WEIR_ALLOCATOR_WINDOW_S": "0",
    "WEIR_ALLOCATOR_COOLDOWN_S": "0",
    "WEIR_ALLOCATOR_MAX_DELAY_S": "0",
    "WEIR_ALLOCATOR_OPEN_JOBS": "0",
    "WEIR_ALLOCATOR_SNAPSHOT_S": "2",
    "WEIR_ALLOCATOR_FINISHED_KEPT_S": "5",
    "WEIR_ALLOCATOR_REMOVAL_S": "2",
}


class Weir:
    """The real processes."""

    def __init__(self, folder: Path, kube_url: str) -> None:
        self.folder, self.nats_port, self.page_port = folder, free_port(), free_port()
        self.url = f"nats://127.0.0.1:{self.nats_port}"
        here = {"WEIR_NATS_URL": self.url, "WEIR_LEASE_S": "0"}
        own = {
            "monitor": {"WEIR_MONITOR_KUBE_URL": kube_url},
            "allocator": SETTINGS,
            "page": {"WEIR_PAGE_PORT": str(self.page_port)},
        }
        server = str(Path(sys.executable).with_name("nats-server"))
        command = [
            server,
            "-a",
            "127.0.0.1",
            "-p",
            str(self.nats_port),
            "-js",
            "-sd",
            str(folder / "nats"),
        ]
        self.parts = {"nats": Part("nats", command, {}, folder)}
        for name, settings in own.items():
            self.parts[name] = self._service(name, {**here, **settings})

    def _service(self, name: str, settings: Mapping[str, str]) -> Part:
        module = MODULES.get(name, f"services.{name}")
        return Part(name, [sys.executable, "-m", module], settings, self.folder)

    def kill(self) -> None:
        """Kill all processes at once; each is started again."""
        for part in self.parts.values():
            if part.process:
                part.process.kill()

    async def stop(self, *names: str) -> None:
        for name in names:
            await self.parts[name].stop()

    async def start(self, *names: str) -> None:
        for name in names:
            await self.parts[name].start()

    async def page_ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as http:
            while True:
                with suppress(aiohttp.ClientError):
                    async with http.get(f"http://127.0.0.1:{self.page_port}/readyz") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.05)

    def memory_mb(self) -> dict[str, float]:
        """Return the largest resident memory of each running process, in MB."""
        return {name: _peak_mb(part) for name, part in self.parts.items() if part.process}


def _peak_mb(part: Part) -> float:
    assert part.process
    lines = Path(f"/proc/{part.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


async def main(folder: Path) -> dict[str, Any]:
    async with serving(ApiServer()) as api:
        weir = Weir(folder, api.url)
        try:
            return await measured(weir, api)
        finally:
            await weir.stop(*reversed(weir.parts))


async def measured(weir: Weir, api: ApiServer) -> dict[str, Any]:
    await weir.start("nats")
    bus = await _provisioned(weir.url)
    world = World(bus, api)
    nodes = world.add_nodes(max(1, round(NODES_A_JOB * CONCURRENT)), IDLE_NODES)
    await weir.start("monitor", "allocator", "page")
    await world.begin()
    reporting = asyncio.ensure_future(world.report_for_ever(REPORT_S))
    lived = await all_jobs(world)
    memory_mb = weir.memory_mb()
    restarted = await killed(weir, world, nodes)
    purged = await without_facts(weir, world, nodes)
    await cancel_tasks(reporting)
    written = {f"filled_{name}": await _filled(bus, name) for name in (ORDERS, FACTS)}
    await bus.close()
    return {
        **lived,
        "restart_s": restarted["restart_s"],
        "memory_mb": max(memory_mb.values()),
        **{f"memory_mb_{name}": most for name, most in memory_mb.items()},
        "jobs_lost": restarted["jobs_lost"] + purged["jobs_lost"],
        "nodes_lost": restarted["nodes_lost"] + purged["nodes_lost"],
        "progress_factor": REPORT_S / usual_report_s(),
        **written,
    }


def usual_report_s() -> float:
    """Return the default time in s between two reports of a trainer."""
    return float(
        next(field.default for field in fields(TrainerSettings) if field.name == "progress_s")
    )


async def _provisioned(url: str) -> Bus:
    """Return a connection to a bus whose streams have reduced limits."""
    async with asyncio.timeout(PATIENCE_S):
        bus = await wire.connect(url, "launcher")
        while True:
            try:
                await bus.create()
                break
            except NatsError:
                await asyncio.sleep(RETRY_S)
    for stream, a_job in ((ORDERS, ORDERS_A_JOB), (FACTS, FACTS_A_JOB)):
        config = (await bus.js.stream_info(stream)).config
        limit = max(LEAST_LIMIT, a_job * max(LIVE * CONCURRENT, JOBS // FILLED))
        await bus.js.update_stream(replace(config, max_bytes=limit))
    return bus


# ---------------------------------------------------------------- jobs


async def all_jobs(world: World) -> dict[str, Any]:
    """Run all jobs to their end; then start those that stay."""
    began_s, middle = time.monotonic(), asyncio.ensure_future(_orders_at(world, JOBS // 2))
    await asyncio.gather(*(_lane(world, lane) for lane in lanes(JOBS, CONCURRENT)))
    orders, half = await _bytes(world.bus, ORDERS), await middle
    body = await snapshots.load_snapshot(world.bus, snapshot.KEY)
    return {
        "jobs_finished": world.finished,
        "hand_overs": world.hand_overs,
        "lived_s": time.monotonic() - began_s,
        "snapshot_mb": len(body) / 1e6,
        "orders_mb": orders / 1e6,
        "orders_growth": orders / half - 1,
    }


async def _lane(world: World, numbers: range) -> None:
    for number in numbers:
        await world.whole_life(f"j{number}", HAND_OVERS)
        if world.finished % max(1, JOBS // 20) == 0:
            say(f"{world.finished} jobs have ended, {world.hand_overs} hand-overs")
    await world.start(f"stays{numbers.start}")


async def _orders_at(world: World, finished: int) -> int:
    while world.finished < finished:
        await asyncio.sleep(0.05)
    return await _bytes(world.bus, ORDERS)


async def _bytes(bus: Bus, stream: str) -> int:
    return int((await bus.js.stream_info(stream)).state.bytes)


async def _filled(bus: Bus, stream: str) -> float:
    """Return how many times the limit of a stream was written, by the mean size of its messages."""
    info = await bus.js.stream_info(stream)
    mean = info.state.bytes / max(1, info.state.messages)
    return float(info.state.last_seq * mean / int(info.config.max_bytes or 1))


# ---------------------------------------------------------------- restarts


async def killed(weir: Weir, world: World, nodes: list[str]) -> dict[str, float]:
    say("killing everything")
    jobs = list(world.jobs.values())
    began_s = time.monotonic()
    weir.kill()
    await asyncio.gather(weir.page_ready(), world.hand_over(jobs[0]))
    restart_s = time.monotonic() - began_s
    return {"restart_s": restart_s, **await _lost(world, jobs, nodes)}


async def without_facts(weir: Weir, world: World, nodes: list[str]) -> dict[str, float]:
    say("removing all facts and the snapshot")
    jobs = list(world.jobs.values())
    await weir.stop("allocator", "page")
    await world.bus.js.purge_stream(FACTS)
    await world.bus.js.purge_stream(stream_of(STATE))
    await weir.start("allocator", "page")
    await weir.page_ready()
    for job in jobs:
        await world.report(job)
    return await _lost(world, jobs, nodes)


async def _lost(world: World, jobs: list[Job], nodes: list[str]) -> dict[str, float]:
    """Return how many jobs get no decision after an eviction, and how many nodes are lost.

    A node is lost if the snapshot does not have it.
    """
    found = await asyncio.gather(*(world.hand_over(job) for job in jobs), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, Lost):
            raise each
    state = await _stored_behind(world.bus, (await world.bus.js.stream_info(ORDERS)).state.last_seq)
    return {
        "jobs_lost": sum(isinstance(each, Lost) for each in found),
        "nodes_lost": len({*nodes} - {*state.nodes}),
    }


async def _stored_behind(bus: Bus, sequence: int) -> State:
    """Wait for a snapshot that includes this sequence of the orders stream."""
    async with asyncio.timeout(PATIENCE_S):
        while (state := await snapshot.load_snapshot(bus)).sequences.get(ORDERS, 0) < sequence:
            await asyncio.sleep(0.2)
        return state


if __name__ == "__main__":
    finish_in_a_folder("weir-bench-year-", main)
