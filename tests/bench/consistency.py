"""Measure what the number of workers costs in accuracy: `make bench-consistency`.

It takes at most an hour (PROGRAM=characters for one program). Three programs, each with 5,000 or
more examples to evaluate. For each seed of the initial weights a job trains

    static                 with 1 worker
    async-2, async-4       with 2 and 4 workers that make updates of their own
    async-resized          with 1, then 4, then 2 workers
    global-batch-...       the same, with workers that make each update together

`..._gap_points`: the mean of the differences to `static` with the same seed, in points (hundredths
of the metric), of the arm where it is largest. There are as many seeds as are needed to resolve 0.5
points with a probability of 80 % (a paired t-test at 5 %), by the standard deviation of the
differences, within BENCH_SEEDS seeds; `power`: the probability with the seeds that were run, for
the noisiest arm of `global-batch`.

`global_batch_throughput`: examples per second of `global-batch` divided by those of `async`, 4
workers and the same examples in an update, in alternation on enforced CPU limits, as in `data.py`.

Environment: PROGRAM (names with commas), BENCH_SEEDS (3), BENCH_ARMS, BENCH_ALTERNATIONS (4),
BENCH_STEADY_S (10).
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from scipy import stats

from services.cli.trial import Failed, trial
from services.local.stack import Stack
from shared.messages import ProgressReported, TrainingResumed
from tests.bench import data
from tests.bench.overhead import Side
from tests.bench.player import sizes
from tests.bench.report import NoLimits, finish, median, say
from tests.bench.zoo import CLUSTER, PATIENCE_S, SETTINGS, job_sizes, resize_or_end
from tests.zoo.catalogue import FOLDER

HERE = Path(__file__).parent / "programs"
SEEDS = int(os.environ.get("BENCH_SEEDS", "3"))
POINTS, RESOLVED, SURE, FOUND = 100.0, 0.5, 0.05, 0.8
RESIZED = (4, 2)
"""Workers after each change of a resized job; it starts with 1."""
MODES = ("async", "global-batch")
STATIC = "static"
ARMS = tuple(
    filter(
        None,
        os.environ.get(
            "BENCH_ARMS",
            "async-2,async-4,async-resized,global-batch-2,global-batch-4,global-batch-resized",
        ).split(","),
    )
)
CORES = 0.25


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A program, and how it is trained. `metric`: of its evaluation."""

    path: Path
    epochs: int
    batch: int
    metric: str


CASES = {
    "shapes": Case(path=HERE / "shapes.py", epochs=8, batch=64, metric="accuracy"),
    "characters": Case(path=HERE / "characters.py", epochs=2, batch=32, metric="accuracy"),
    "wide-and-deep": Case(path=FOLDER / "wide_and_deep.py", epochs=8, batch=64, metric="auc"),
}
PROGRAMS = tuple(filter(None, os.environ.get("PROGRAM", "").split(","))) or tuple(CASES)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job. `points`: its metric in hundredths; `staleness`: the largest p99 of its reports."""

    points: float
    sizes: tuple[int, ...]
    staleness: int
    seconds: float


async def main() -> dict[str, Any]:
    began = time.monotonic()
    found = {name: await compare_arms(name) for name in PROGRAMS}
    figures: dict[str, Any] = {}
    for mode in MODES:
        gaps = [
            statistics.fmean(differences(runs, arm))
            for runs in found.values()
            for arm in ARMS
            if arm.startswith(mode)
        ]
        figures[f"{mode.replace('-', '_')}_gap_points"] = max(map(abs, gaps), default=None)
    figures["staleness_p99"] = max(
        [
            run.staleness
            for runs in found.values()
            for arm, each in runs.items()
            for run in each
            if arm.startswith("async")
        ],
        default=0,
    )
    spreads = [
        statistics.stdev(differences(runs, arm))
        for runs in found.values()
        for arm in ARMS
        if arm.startswith("global-batch") and len(runs[arm]) > 1
    ]
    count = min(len(runs[STATIC]) for runs in found.values())
    figures["power"] = power(max(spreads), count) if spreads else 0.0
    figures["seeds"] = count
    figures["gaps"] = {
        name: {arm: round(statistics.fmean(differences(runs, arm)), 3) for arm in ARMS}
        for name, runs in found.items()
    }
    figures |= await compare_throughput()
    return {**figures, "minutes": (time.monotonic() - began) / 60}


# ---------------------------------------------------------------- accuracy


async def compare_arms(name: str) -> dict[str, list[Run]]:
    """Return the runs of each arm, one for each seed."""
    runs: dict[str, list[Run]] = {arm: [] for arm in (STATIC, *ARMS)}
    for seed in range(1, SEEDS + 1):
        for arm in runs:
            run = await train(CASES[name], seed, arm)
            runs[arm].append(run)
            say(
                f"{name}, seed {seed}, {arm}: {run.points:.2f} points, workers"
                f" {'-'.join(map(str, run.sizes))}, staleness p99 {run.staleness},"
                f" {run.seconds:.0f} s"
            )
        if seed > 1 and seed >= needed_seeds(runs):
            break
    for arm in ARMS:
        gaps = differences(runs, arm)
        spread = statistics.stdev(gaps) if len(gaps) > 1 else math.nan
        say(f"{name}, {arm}: {statistics.fmean(gaps):+.2f} points, standard deviation {spread:.2f}")
    return runs


def differences(runs: Mapping[str, Sequence[Run]], arm: str) -> list[float]:
    """Return the difference of each run to the static one with the same seed, in points."""
    return [run.points - one.points for run, one in zip(runs[arm], runs[STATIC], strict=True)]


def needed_seeds(runs: Mapping[str, Sequence[Run]]) -> int:
    """Return the number of seeds that resolve the difference in every arm."""
    spread = max([statistics.stdev(differences(runs, arm)) for arm in ARMS], default=0.0)
    count = 2
    while count < 1_000 and power(spread, count) < FOUND:
        count += 1
    return count


def power(spread: float, count: int) -> float:
    """Return the probability that a paired t-test finds a difference of `RESOLVED` points.

    `spread`: standard deviation of the differences; `count`: number of pairs. By the noncentral t
    distribution (Cohen 1988).
    """
    if count < 2:
        return 0.0
    if spread <= 0:
        return 1.0
    free, shift = count - 1, RESOLVED / spread * math.sqrt(count)
    limit = stats.t.ppf(1 - SURE / 2, free)
    return float(stats.nct.sf(limit, free, shift) + stats.nct.cdf(-limit, free, shift))


async def train(case: Case, seed: int, arm: str) -> Run:
    """Train a job on its own stack."""
    mode, size = ("async", "1") if arm == STATIC else arm.rsplit("-", 1)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as place:
        cluster = Path(place) / "cluster.yaml"
        cluster.write_text(CLUSTER)
        async with Stack(Path(place) / "weir", cluster, SETTINGS) as stack, trial(stack) as watched:
            request = job_request(case, seed, mode, 1 if size == "resized" else int(size))
            await watched.submit(request, case.path)
            await watched.until(lambda: watched.of(TrainingResumed), PATIENCE_S, "the start")
            if size == "resized":
                await resize_or_end(watched, request["job"], RESIZED)
            finished = await watched.await_finish(PATIENCE_S)
            reports = watched.of(ProgressReported)
            if finished.counted != reports[-1].total_samples:
                raise Failed(f"{finished.counted} examples counted of {reports[-1].total_samples}")
            return Run(
                points=POINTS * finished.metrics[case.metric],
                sizes=job_sizes(watched),
                staleness=max(
                    [each.staleness.p99 for each in reports if each.staleness], default=0
                ),
                seconds=finished.finished_s - watched.submitted_s,
            )


def job_request(case: Case, seed: int, consistency: str, workers: int) -> dict[str, Any]:
    def fixed(count: int) -> dict[str, int]:
        return {"start": count, "min": count, "max": count}

    return {
        "job": case.path.stem.replace("_", "-"),
        "epochs": case.epochs,
        "batch": fixed(case.batch),
        "ps": fixed(1),
        "workers": fixed(workers),
        "resources": {
            "chief": {"cpu": 1.0, "memory_gib": 2.0},
            "ps": {"cpu": 0.5, "memory_gib": 2.0},
            "worker": {"cpu": 1.0, "memory_gib": 2.0},
        },
        "policy": "static",
        "consistency": consistency,
        "params": {"seed": seed},
        "shuffle": {"seed": seed},
    }


# ---------------------------------------------------------------- throughput


async def compare_throughput() -> dict[str, float]:
    """Return the ratio of the speeds of both modes with 4 workers."""
    found = []
    async with AsyncExitStack() as jobs:
        measures = {}
        for mode in MODES:
            job = await jobs.enter_async_context(
                data.weir_job(
                    CASES["shapes"].path,
                    4,
                    sizes(chief=CORES, ps=CORES, worker=CORES),
                    batch=BATCH,
                    fields={"consistency": mode},
                )
            )
            side = Side(job.stack, data.OURS)
            side.send(signal.SIGSTOP)
            measures[mode] = partial(
                data.measure, side, partial(data.weir_speed, job.watched), BATCH
            )
        for number in range(data.ALTERNATIONS):
            order = list(measures) if number % 2 == 0 else list(measures)[::-1]
            speeds = {mode: await measures[mode]() for mode in order}
            say(f"  {number + 1}/{data.ALTERNATIONS} {data.describe_speeds(speeds)}")
            found.append(speeds)
    ratios = [each["global-batch"].examples_per_s / each["async"].examples_per_s for each in found]
    figures = {"global_batch_throughput": median(ratios)}
    for mode in MODES:
        name = mode.replace("-", "_")
        figures[f"{name}_examples_per_s"] = median(each[mode].examples_per_s for each in found)
        figures[f"{name}_chief_ms"] = median(each[mode].chief_ms for each in found)
        figures[f"{name}_worker_ms"] = median(each[mode].worker_ms for each in found)
    return figures


BATCH = int(os.environ.get("BENCH_BATCH", "256"))
"""Examples of an update when the throughput is measured."""

if __name__ == "__main__":
    try:
        finish(asyncio.run(main()))
    except NoLimits as error:
        say(str(error))
        raise SystemExit(1) from error
