"""Two hundred hand-overs of one job of 1 ps and 1 worker, in which nothing may grow.

`make soak` (at most 90 minutes). Each time the worker's pod is evicted, so that a new generation
with another worker takes over; the pods of chief and ps stay from the first generation to the last.
After each hand-over, when the job is stable, these are measured: resident memory, threads and open
files of every part of the stack, and of the supervisor and the fork server ("nursery") of each pod;
the number of pods; the growth of each stream since the last hand-over. A series is flat as defined
in `tests/bench/slopes.py`: slope by Theil and Sen without the first quarter, over all hand-overs,
at most a tenth of the median or the allowance (`ALLOWED`). Streams keep their messages, so the
growth per hand-over has to be flat.

Environment: SOAK_HANDOVERS (200), CHAOS_KEEP=1 (keep the folder with all logs).
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from services.local.kubelet import processes
from shared.bus.subjects import FACTS, ORDERS
from tests.bench import slopes
from tests.bench.chaos import ending, standing
from tests.bench.chaos.play import LIMIT_S, Play
from tests.bench.chaos.put_up import world
from tests.bench.chaos.world import World
from tests.bench.report import finish_in_a_folder, percentile, say
from tests.flow.kills import family

HAND_OVERS = int(os.environ.get("SOAK_HANDOVERS", "200"))
LONGEST_S = 85 * 60.0
ONE = {"start": 1, "min": 1, "max": 1}
EPOCHS_EACH, QUICK_S = 400, 0.1
MIB = 1 << 20
ALLOWED = {"mib": 8.0, "threads": 2.0, "files": 4.0, "pods": 0.5, "messages": 5.0, "bytes": 4096.0}
"""Allowances by unit, if larger than a tenth of the median.

A supervisor and a service have 50 MiB and more.
"""
SERVER_MIB = 28.0
"""Allowance for nats-server in MiB.

It keeps the newest block of each stream in memory, 8 MiB, and collects garbage when its heap has
doubled. It grew by 27 MiB in the first 12,000 messages of 1 KB, and not at all in the next 13,000.
"""

Series = dict[tuple[str, str], list[float]]
"""One value for each hand-over, by process and unit."""


async def measured(here: World, series: Series, before: dict[str, tuple[int, int]]) -> None:
    pods = [p for p in await here.pods() if p["status"].get("phase") == "Running"]
    series["all", "pods"].append(len(pods))
    for name, part in here.stack.parts.items():
        if part.process is not None:
            _of_process(series, name, part.process.pid)
    for pod in pods:
        role, uid = (
            pod["metadata"]["labels"]["training.kubeflow.org/replica-type"],
            pod["metadata"]["uid"],
        )
        _of_pod(series, role, uid)
    for stream in (ORDERS, FACTS):
        state = (await here.watch.bus.js.stream_info(stream)).state
        old_messages, old_bytes = before.get(stream, (state.messages, state.bytes))
        series[stream, "messages"].append(state.messages - old_messages)
        series[stream, "bytes"].append(state.bytes - old_bytes)
        before[stream] = (state.messages, state.bytes)


def _of_pod(series: Series, role: str, uid: str) -> None:
    supervisor = family(uid).supervisor
    if supervisor is None:
        return
    _of_process(series, f"{role} supervisor", supervisor)
    for pid in processes.processes_by_pod().get(uid, []):
        command = _command(pid)
        if "services.trainer.worker.fork_server" in command and _parent(pid) == supervisor:
            _of_process(series, f"{role} nursery", pid)


def _command(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def _parent(pid: int) -> int:
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return 0


def _of_process(series: Series, who: str, pid: int) -> None:
    try:
        process = psutil.Process(pid)
        found = (process.memory_info().rss / MIB, process.num_threads(), process.num_fds())
    except psutil.Error:
        return
    for unit, value in zip(("mib", "threads", "files"), found, strict=True):
        series[who, unit].append(value)


async def one(play: Play, number: int) -> float:
    """Evict the worker; return the time in s until the job is stable."""
    here, began = play.world, time.monotonic()
    before = standing.running(here.heard) or 0
    (worker,) = standing.tasks(here.heard, "worker")
    await here.evict(worker.pod)
    await here.watch.until(
        lambda: (standing.running(here.heard) or 0) > before or play.over(),
        LIMIT_S,
        f"hand-over {number}",
    )
    await play.settled(LIMIT_S)
    return time.monotonic() - began


async def main(folder: Path) -> dict[str, Any]:
    until_s, took, before = time.time() + LONGEST_S, list[float](), dict[str, tuple[int, int]]()
    series: Series = defaultdict(list)
    async with world(folder) as here:
        play = Play(here, until_s)
        await play.begin("soak", EPOCHS_EACH * HAND_OVERS, ps=ONE, workers=ONE)
        await here.strangers_leave()
        here.pace(QUICK_S)
        await measured(here, series, before)
        for number in range(1, HAND_OVERS + 1):
            if time.time() > until_s or play.over():
                break
            took.append(await one(play, number))
            await measured(here, series, before)
            say(f"{number:4} of {HAND_OVERS}: {took[-1]:.1f} s; {_told(series)}")
        await play.cancelled()
        left = await ending.leaked(here)
    return result(series, took, left)


def allowed(who: str, unit: str) -> float:
    return SERVER_MIB if who.startswith("nats") and unit == "mib" else ALLOWED[unit]


def _told(series: Series) -> str:
    return ", ".join(
        f"{who} {values[-1]:.0f} MiB" for (who, unit), values in series.items() if unit == "mib"
    )


def result(series: Series, took: list[float], left: int) -> dict[str, Any]:
    flat = {
        f"{who} {unit}": slopes.is_flat(values[1:], allowed(who, unit))
        for (who, unit), values in series.items()
    }
    return {
        "hand_overs": len(took),
        "flat": all(flat.values()),
        "not_flat": sorted(name for name, so in flat.items() if not so),
        "pods_leaked": left,
        "median_s": statistics.median(took),
        "p95_s": percentile(took, 0.95),
        "growth": {
            f"{who} {unit}": [
                round(statistics.median(values[1:]), 1),
                round(slopes.growth(values[1:]), 2),
            ]
            for (who, unit), values in series.items()
        },
    }


if __name__ == "__main__":
    finish_in_a_folder("weir-soak-", main)
