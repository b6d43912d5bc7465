"""Measure the cost of a lost ps for a job with embedding tables: `make bench-lost-ps`.

First, examples/s without kills and with enforced CPU limits, in alternation: with periodic deltas
at the interval that Weir chooses, and without periodic saves. Then a job of two ps, of which one is
killed at random moments while it trains, with all processes of its pod (no limits).

    repeated_s_p50, _max  training that a loss repeats, in s: the examples between the last
                          checkpoint and the kill, by the examples/s before the kill
    back_s_p50            from a kill to the first update after it, in s
    throughput_lost       1 - examples/s with deltas by those without
    save_s_p50, between_s_p50
                          the duration of a periodic save, and the time from one to the next, in s
    counted, expected     examples that the ps have counted at the end, and those of the job
    kills                 how many there were before the job ended

BENCH_KILLS (50), BENCH_ALTERNATIONS (3), BENCH_STEADY_S (20), BENCH_TABLES_PARAMETERS (10m).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import psutil

from services.cli.trial import Trial
from services.console.report import runs
from services.local.kubelet import processes
from shared.messages import (
    CheckpointSaved,
    JobFinished,
    ProgressReported,
    TrainingResumed,
)
from tests.bench import tables
from tests.bench.programs.zipf_tables import EXAMPLES, TABLES, WIDTH
from tests.bench.report import finish_or_refuse, median, say
from tests.bench.resized_job import own_stack, training_request

KILLS = int(os.environ.get("BENCH_KILLS", "50"))
ALTERNATIONS = int(os.environ.get("BENCH_ALTERNATIONS", "3"))
STEADY_S = float(os.environ.get("BENCH_STEADY_S", "20"))
PARAMETERS = tables.SIZES[os.environ.get("BENCH_TABLES_PARAMETERS", "10m")]
ROWS = PARAMETERS // (TABLES * WIDTH)
TWO = {"start": 2, "min": 2, "max": 2}
MARGIN = 1.3
"""A job has so many times the examples that it is expected to train between all kills."""
NO_SAVES_S = 86_400.0
FIRST_S, LAST_S = 3.0, 20.0
"""A kill comes at a moment between these after training resumed, in s."""
START_S, PATIENCE_S = 180.0, 3600.0
WARM_S = 15.0
REPORTS = 5
"""The speed before a kill is the mean of so many reports."""
SEED = 1


class Loss(msgspec.Struct, frozen=True):
    """A kill, and what it cost: the examples/s before it, and seconds."""

    speed: float
    repeated_s: float
    back_s: float


async def main() -> dict[str, Any]:
    speeds: dict[str, list[float]] = {"deltas": [], "none": []}
    for _ in range(ALTERNATIONS):
        speeds["deltas"].append(await steady_speed(None))
        speeds["none"].append(await steady_speed(NO_SAVES_S))
        say(f"examples/s: {speeds}")
    lost = None
    if ALTERNATIONS:
        lost = 1.0 - median(speeds["deltas"]) / median(speeds["none"])
    return {"throughput_lost": lost, **await kill_often()}


async def steady_speed(every_s: float | None) -> float:
    """Return the examples/s of a job on CPU limits that saves so often; None: as Weir chooses."""
    parameters = {"rows": ROWS}
    gib = PARAMETERS * 4 / 2**30
    async with tables.running_job(tables.table_request(parameters, gib, every_s)) as player:
        watched = player.watched
        await asyncio.sleep(WARM_S)
        since_s = time.time()
        await asyncio.sleep(STEADY_S)
        reports = watched.of(ProgressReported)
        saves = [at_s for at_s, _ in heard_of(watched, CheckpointSaved) if at_s > since_s]
        say(f"{len(saves)} saves in {STEADY_S:.0f} s")
        return float(runs.mean_speed(reports, since_s, time.time()))


async def unlimited_speed() -> float:
    """Return the examples/s of the job that will be killed."""
    async with own_stack() as watched:
        await start_job(watched, EXAMPLES)
        await asyncio.sleep(WARM_S)
        reports = watched.of(ProgressReported)
        return float(runs.mean_speed(reports, time.time() - WARM_S / 2, time.time()))


async def start_job(watched: Trial, examples: int) -> None:
    """Submit a job with two ps, and wait until it trains."""
    request = training_request("zipf-tables", 1, tables.BATCH, "async", workers=2)
    parameters = {"rows": ROWS, "count": examples}
    await watched.submit({**request, "ps": TWO, "params": parameters}, tables.PROGRAM)
    await watched.until(lambda: watched.of(TrainingResumed), START_S, "the start")


async def kill_often() -> dict[str, Any]:
    """Train a job to its end, and kill a ps at random moments."""
    chance = random.Random(SEED)
    most_s = KILLS * (FIRST_S + LAST_S) / 2
    examples = round(await unlimited_speed() * MARGIN * most_s)
    losses: list[Loss] = []
    async with own_stack() as watched:
        await start_job(watched, examples)
        while len(losses) < KILLS and not watched.of(JobFinished):
            await asyncio.sleep(chance.uniform(FIRST_S, LAST_S))
            if watched.of(JobFinished):
                break
            losses.append(await kill_ps(watched, chance.randrange(2)))
            say(f"kill {len(losses)}/{KILLS}: {losses[-1]}")
        over = await watched.await_finish(PATIENCE_S)
        total = watched.of(ProgressReported)[-1].total_samples
        saves = [each for each in heard_of(watched, CheckpointSaved) if not each[1].final]
        between = [
            later_s - earlier_s
            for (earlier_s, earlier), (later_s, later) in pairwise(saves)
            if earlier.generation == later.generation
        ]
        repeated = [each.repeated_s for each in losses]
        return {
            "kills": len(losses),
            "repeated_s_p50": median(repeated),
            "repeated_s_max": max(repeated),
            "back_s_p50": median([each.back_s for each in losses]),
            "save_s_p50": median([saved.seconds for _, saved in saves]),
            "between_s_p50": median(between) if between else None,
            "counted": over.counted,
            "expected": total,
        }


def heard_of(watched: Trial, kind: type[Any]) -> list[tuple[float, Any]]:
    """Return all messages of a kind, each after the time when the bus stored it."""
    return [(h.stored_s, h.message) for h in watched.heard if isinstance(h.message, kind)]


async def kill_ps(watched: Trial, index: int) -> Loss:
    """Kill all processes of a ps. Return what that cost when training has resumed."""
    resumed = len(watched.of(TrainingResumed))
    kill_pod(tables.pod_uids(watched, "ps")[index])
    killed_s = time.time()
    await watched.until(lambda: len(watched.of(TrainingResumed)) > resumed, START_S, "a new ps")
    back_s, back = heard_of(watched, TrainingResumed)[-1]
    reports = [each for each in watched.of(ProgressReported) if each.reported_s <= killed_s]
    saved = [each for each in watched.of(CheckpointSaved) if each.step < back.step]
    restored = max(saved, key=lambda each: each.step)  # `back` has the first updates after it
    return loss_of(reports, killed_s, restored.samples, back_s)


def kill_pod(pod_uid: str) -> None:
    """Kill the processes of a pod, its supervisor first, so that nothing is reported."""
    for pid in sorted(processes.processes_by_pod().get(pod_uid, [])):
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def loss_of(
    reports: Sequence[ProgressReported], killed_s: float, restored: int, back_s: float
) -> Loss:
    """Return what a kill cost. `reports`: those before it; `restored`: the examples of the checkpoint
    from which training resumed, at `back_s`.
    """
    last = reports[-1]
    speed = statistics.fmean([each.samples_per_second for each in reports[-REPORTS:]])
    applied = last.samples + speed * (killed_s - last.reported_s)
    return Loss(speed, (applied - restored) / speed, back_s - killed_s)


if __name__ == "__main__":
    finish_or_refuse(main())
