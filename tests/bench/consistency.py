"""Measure what the number of workers costs in accuracy and speed: `make bench-consistency`.

It takes at most an hour (PROGRAM=characters for one program). Three programs, each with 5,000 or
more examples to evaluate. For each seed of the initial weights a job trains

    static                 with 1 worker
    async-2, async-4       with 2 and 4 workers that make updates of their own
    async-resized          with 1, then 4, then 2 workers
    global-batch-...       the same, with workers that make each update together
    exact-...              the same, with the same bits at every size

`..._gap_points`: the mean of the differences to `static` with the same seed, in points (hundredths
of the metric), of the arm where it is largest. Each arm of `async` has 1 seed, and each of
`global-batch` 4 if there is time. What is left of it goes, run by run, to the program and arm of
`global-batch` with the widest confidence interval of the difference (`paired.py`), until each
resolves 0.5 points with a probability of 80 %. `power`: the least of these probabilities; `seeds`:
the number of each arm.

`exact_bit_equal`: the last checkpoints of all `exact` arms, with seed 1 and few epochs, have the
same variables of model and optimizer as that of one worker, bit for bit; null if no program may be
exact. `exact_refused`: why a program may not.

`global_batch_throughput`, `exact_throughput`: examples per second divided by those of `async`, with
4 workers and as many examples in an update, on enforced CPU limits. One job runs at a time; the
modes take turns, each time with a new job.

Environment: PROGRAM (names with commas), BENCH_MINUTES (55: no run begins that would end later, but
for the first of each arm), BENCH_SEEDS (24: the most), BENCH_ARMS, BENCH_ALTERNATIONS (4; 0: none),
BENCH_STEADY_S (10), BENCH_WARM_S (10: training before a measurement, from the first report on),
BENCH_BATCH (256: examples of an update when speed is measured). BENCH_RUNS: a file to which the runs
are written and from which earlier ones are read, so that seeds of several hours count together (of
the same version of the programs).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from services.cli.trial import Failed, Trial
from shared.messages import CheckpointSaved, ProgressReported, TrainingResumed
from tests.bench import data, paired
from tests.bench.overhead import Side
from tests.bench.player import sizes
from tests.bench.report import finish_or_refuse, median, refuse_unknown_programs, say
from tests.bench.resized_job import (
    PATIENCE_S,
    job_sizes,
    own_stack,
    resize_or_end,
    training_request,
)
from tests.trainer import fleet
from tests.zoo.catalogue import FOLDER

HERE = Path(__file__).parent / "programs"
LONGEST_S = 60.0 * float(os.environ.get("BENCH_MINUTES", "55"))
LEAST_SEEDS = {"async": 1, "global-batch": 4}
"""The fewest seeds of an arm, by mode. The standard deviation of two differences says little."""
SEEDS = int(os.environ.get("BENCH_SEEDS", "24"))
RUNS = os.environ.get("BENCH_RUNS", "")
POINTS, RESOLVED, FOUND = 100.0, 0.5, 0.8
RESIZED = (4, 2)
"""Workers after each change of a resized job; it starts with 1."""
MODES = ("async", "global-batch", "exact")
STATIC, EXACT, ONE_WORKER = "static", "exact", "exact-1"
ARMS = tuple(
    filter(
        None,
        os.environ.get(
            "BENCH_ARMS",
            "async-4,async-resized,global-batch-4,global-batch-resized,exact-resized",
        ).split(","),
    )
)
GAP_ARMS = tuple([arm for arm in ARMS if not arm.startswith(EXACT)])
EXACT_ARMS = tuple([arm for arm in ARMS if arm.startswith(EXACT)])
CORES = 0.25
WARM_S = float(os.environ.get("BENCH_WARM_S", "10"))
"""Seconds of training before a measurement. A new job still traces the measurement of gradient
noise, and fills its queues.
"""
EXACT_PART = 4
"""Exact jobs train a quarter of the epochs: bits differ after one update, or not at all."""
READ_S = 120.0


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
Difference = tuple[str, str]
"""The names of a program and of an arm that is compared with `static`."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job. `points`: its metric in hundredths; `staleness`: the largest p99 of its reports;
    `digest`: of its last checkpoint, if it is exact.
    """

    points: float
    sizes: tuple[int, ...]
    staleness: int
    seconds: float
    digest: str = ""


async def main() -> dict[str, Any]:
    until_s = time.monotonic() + LONGEST_S
    began_s = time.monotonic()
    throughput = await compare_throughput() if data.ALTERNATIONS else {}
    say(f"throughput: {throughput}")
    bits = {name: await compare_bits(name) for name in PROGRAMS if EXACT_ARMS}
    runs = Runs(Path(RUNS) if RUNS else None)
    await runs.train_least(until_s)
    await runs.train_least_certain(until_s)
    return {
        **gap_figures(runs),
        **bit_figures(bits),
        **throughput,
        "minutes": (time.monotonic() - began_s) / 60,
    }


# ---------------------------------------------------------------- accuracy


class Runs:
    """The runs of each program and arm, by seed. `file`: of earlier ones; new ones are added."""

    def __init__(self, file: Path | None = None) -> None:
        self._runs: dict[Difference, dict[int, Run]] = {
            (name, arm): {} for name in PROGRAMS for arm in (STATIC, *GAP_ARMS)
        }
        self._longest_s = 0.0
        self._file = file
        if file is not None and file.exists():
            self._read_earlier(file)

    def _read_earlier(self, file: Path) -> None:
        for line in file.read_text().splitlines():
            name, arm, seed, run = msgspec.json.decode(line, type=tuple[str, str, int, Run])
            if (name, arm) in self._runs:
                self._runs[name, arm][seed] = run
                self._longest_s = max(self._longest_s, run.seconds)

    async def train_least(self, until_s: float) -> None:
        """Train the fewest seeds of each arm: the first one in any case, the others as far as the
        time permits.
        """
        seeds = range(1, min(max(LEAST_SEEDS.values()), SEEDS) + 1)
        for seed, name, arm in itertools.product(seeds, PROGRAMS, GAP_ARMS):
            if seed > 1 and not self._has_time(until_s):
                return
            if seed <= LEAST_SEEDS[arm.rsplit("-", 1)[0]]:
                await self._train_pair(name, arm, seed)

    async def train_least_certain(self, until_s: float) -> None:
        """Spend the time on the least certain difference."""
        while self._has_time(until_s):
            bounded = {
                key: each
                for key, each in self.differences().items()
                if key[1].startswith("global-batch")
            }
            chosen = paired.least_certain(bounded, RESOLVED, FOUND, SEEDS)
            if chosen is None:
                return
            name, arm = chosen
            missing = set(range(1, SEEDS + 1)) - set(self._runs[chosen])
            await self._train_pair(name, arm, min(missing))
            say(f"{name}, {arm}: {paired.describe(self.differences()[chosen])}")

    def _has_time(self, until_s: float) -> bool:
        """Return whether a run that takes as long as the longest one would end before `until_s`."""
        return time.monotonic() + self._longest_s < until_s

    async def _train_pair(self, name: str, arm: str, seed: int) -> None:
        """Train what is missing of an arm and of `static` with this seed: at the same time, unless
        the speed of the workers matters.
        """
        missing = [each for each in (STATIC, arm) if seed not in self._runs[name, each]]
        if arm.startswith("async"):
            for each in missing:
                await self._train(name, each, seed)
            return
        async with asyncio.TaskGroup() as group:
            for each in missing:
                group.create_task(self._train(name, each, seed))

    async def _train(self, name: str, arm: str, seed: int) -> None:
        began_s = time.monotonic()
        run = self._runs[name, arm][seed] = await train(CASES[name], seed, arm)
        self._longest_s = max(self._longest_s, time.monotonic() - began_s)
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode((name, arm, seed, run)) + b"\n")
        say(describe_run(name, seed, arm, run))

    def differences(self) -> dict[Difference, list[float]]:
        """Return the difference of each run to the static one with the same seed, in points."""
        return {
            (name, arm): [
                run.points - self._runs[name, STATIC][seed].points for seed, run in runs.items()
            ]
            for (name, arm), runs in self._runs.items()
            if arm != STATIC
        }

    def of_mode(self, mode: str) -> Iterable[Run]:
        return [
            run
            for (_, arm), runs in self._runs.items()
            for run in runs.values()
            if arm.startswith(mode)
        ]


def describe_run(name: str, seed: int, arm: str, run: Run) -> str:
    return (
        f"{name}, seed {seed}, {arm}: {run.points:.2f} points, workers"
        f" {'-'.join(map(str, run.sizes))}, staleness p99 {run.staleness}, {run.seconds:.0f} s"
    )


def gap_figures(runs: Runs) -> dict[str, Any]:
    found = runs.differences()
    for (name, arm), each in found.items():
        power = paired.power_of(each, RESOLVED)
        say(f"{name}, {arm}: {paired.describe(each)}, power {power:.2f}")
    figures: dict[str, Any] = {}
    for mode in ("async", "global-batch"):
        gaps = [
            abs(statistics.fmean(each)) for (_, arm), each in found.items() if arm.startswith(mode)
        ]
        figures[f"{mode.replace('-', '_')}_gap_points"] = max(gaps, default=None)
    powers = [
        paired.power_of(each, RESOLVED)
        for (_, arm), each in found.items()
        if arm.startswith("global-batch")
    ]
    return {
        **figures,
        "staleness_p99": max([run.staleness for run in runs.of_mode("async")], default=0),
        "power": min(powers, default=0.0),
        "seeds": {f"{name} {arm}": len(each) for (name, arm), each in found.items()},
        "gaps": {
            f"{name} {arm}": round(statistics.fmean(each), 3) for (name, arm), each in found.items()
        },
    }


async def train(case: Case, seed: int, arm: str) -> Run:
    """Train a job on its own stack. Raise `Failed` if it does not succeed."""
    mode, size = ("async", "1") if arm == STATIC else arm.rsplit("-", 1)
    async with own_stack() as watched:
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
            staleness=max([each.staleness.p99 for each in reports if each.staleness], default=0),
            seconds=finished.finished_s - watched.submitted_s,
            digest=await weights_digest(watched) if mode == EXACT else "",
        )


def job_request(case: Case, seed: int, consistency: str, workers: int) -> dict[str, Any]:
    job = case.path.stem.replace("_", "-")
    request = training_request(job, case.epochs, case.batch, consistency, workers)
    return {**request, "params": {"seed": seed}, "shuffle": {"seed": seed}}


# ---------------------------------------------------------------- the same bits


async def compare_bits(name: str) -> dict[str, Run] | str:
    """Return the runs of the exact arms; or why this program may not be exact."""
    runs: dict[str, Run] = {}
    case = msgspec.structs.replace(CASES[name], epochs=max(CASES[name].epochs // EXACT_PART, 1))
    for arm in (ONE_WORKER, *EXACT_ARMS):
        try:
            runs[arm] = await train(case, 1, arm)
        except Failed as error:
            if runs:
                raise
            reason = str(error).strip().splitlines()[-1]
            say(f"{name} may not be exact: {reason}")
            return reason
        say(f"{describe_run(name, 1, arm, runs[arm])}, {runs[arm].digest[:12]}")
    return runs


async def weights_digest(watched: Trial) -> str:
    """Return the digest of the last checkpoint, which another process reads."""
    path = watched.of(CheckpointSaved)[-1].path
    read = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(fleet.PROGRAMS / "read_weights.py"), path],
        capture_output=True,
        text=True,
        env=fleet.environ(),
        check=True,
        timeout=READ_S,
    )
    return str(json.loads(read.stdout)["digest"])


def bit_figures(bits: Mapping[str, dict[str, Run] | str]) -> dict[str, Any]:
    exact = {name: each for name, each in bits.items() if not isinstance(each, str)}
    equal = {name: len({run.digest for run in each.values()}) == 1 for name, each in exact.items()}
    return {
        "exact_bit_equal": all(equal.values()) if equal else None,
        "exact_programs": equal,
        "exact_refused": {name: each for name, each in bits.items() if isinstance(each, str)},
    }


# ---------------------------------------------------------------- throughput


async def compare_throughput() -> dict[str, float]:
    """Return the speeds of the modes with 4 workers, divided by that of `async`.

    One job runs at a time, and each measurement has a job of its own. A job that is frozen while
    others are measured can fail to continue.
    """
    found = []
    for number in range(data.ALTERNATIONS):
        order = MODES if number % 2 == 0 else MODES[::-1]
        speeds = {mode: await _measure_new_job(mode) for mode in order}
        say(f"  {number + 1}/{data.ALTERNATIONS} {data.describe_speeds(speeds)}")
        found.append(speeds)
    figures: dict[str, float] = {}
    for mode in MODES:
        name = mode.replace("-", "_")
        if mode != "async":
            ratios = [each[mode].examples_per_s / each["async"].examples_per_s for each in found]
            figures[f"{name}_throughput"] = median(ratios)
        figures[f"{name}_examples_per_s"] = median(each[mode].examples_per_s for each in found)
        figures[f"{name}_chief_ms"] = median(each[mode].chief_ms for each in found)
        figures[f"{name}_worker_ms"] = median(each[mode].worker_ms for each in found)
    return figures


async def _measure_new_job(mode: str) -> data.Speed:
    """Start a job, let it train for WARM_S, and measure it."""
    limits = sizes(chief=CORES, ps=CORES, worker=CORES)
    fields = {"consistency": mode}
    async with data.weir_job(CASES["shapes"].path, 4, limits, BATCH, fields=fields) as job:
        await asyncio.sleep(WARM_S)
        side = Side(job.stack, data.OURS)
        return await data.measure(side, partial(data.weir_speed, job.watched), BATCH)


BATCH = int(os.environ.get("BENCH_BATCH", "256"))
"""Examples of an update when the throughput is measured."""

if __name__ == "__main__":
    refuse_unknown_programs(PROGRAMS, CASES)
    finish_or_refuse(main())
