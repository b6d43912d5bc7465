"""Compare every program of the zoo in a Weir job with one process.

`make zoo` (about an hour; PROGRAM=convnet,gan for some). For each program of `tests/zoo`:

1. the reference (`Model.fit` or a plain loop) trains in one process with five seeds, and once with
   the program's feature off;
2. a job trains on 1 ps and 1 worker;
3. a job grows and shrinks twice between 1 and 2 workers (ZOO_WORKERS) while it trains.

The band contains a further run of the reference with a probability of 99 % (Student's t, n runs):

    mean +- t(0.995, n - 1) s sqrt(1 + 1/n), at least 1 % of the distance from the untrained metric

Both jobs must end inside, and the program with its feature off outside. A band must be at most a
third of that distance, otherwise it shows nothing. For a program that the trainer refuses, the
table has the reason. The references are measured in each run.

Environment: PROGRAM (names with commas), ZOO_SEEDS (5), ZOO_CONSISTENCY (async), ZOO_WORKERS (2):
the larger size of the resized job.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from scipy import stats

from services.cli.trial import Failed, Trial
from shared.messages import (
    JobFinished,
    JobRequested,
    ProgressReported,
    TrainingResumed,
)
from tests.bench.report import finish, refuse_unknown_programs, say
from tests.bench.resized_job import (
    PATIENCE_S,
    job_sizes,
    own_stack,
    resize_or_end,
    training_request,
)
from tests.zoo.catalogue import FOLDER, ZOO

PROGRAMS = tuple(filter(None, os.environ.get("PROGRAM", "").split(","))) or tuple(ZOO)
SEEDS = int(os.environ.get("ZOO_SEEDS", "5"))
CONSISTENCY = os.environ.get("ZOO_CONSISTENCY", "async")
MOST_WORKERS = int(os.environ.get("ZOO_WORKERS", "2"))
SIZES = (MOST_WORKERS, 1, MOST_WORKERS, 1)
"""Workers after each change of the resized job; it starts with 1."""
KINDS = ("static", "resized")
REFERENCE_S = 600.0
SURE, LEAST, MOST = 0.995, 0.01, 1 / 3
"""Quantile of the upper end of a band; minimum of half a band and maximum of a whole one.

The last two are shares of the distance from the untrained to the trained metric.
"""


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A program in one process: its metric untrained, after each seed, and with its feature off."""

    untrained: float
    metrics: tuple[float, ...]
    spoilt: float
    seconds: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.metrics)

    @property
    def distance(self) -> float:
        return abs(self.mean - self.untrained)

    @property
    def half_band(self) -> float:
        least = LEAST * self.distance
        return max(half_band(self.metrics), least) if len(self.metrics) > 1 else least

    @property
    def narrow(self) -> bool:
        return 2 * self.half_band <= MOST * self.distance

    def contains(self, metric: float) -> bool:
        return abs(metric - self.mean) <= self.half_band


def half_band(values: Sequence[float], intervals: int = 1) -> float:
    """Return half the width of the interval around the mean that contains a further value with a
    probability of 99 % (Student's t). `intervals`: number of intervals that are to contain further
    values together with this probability (Bonferroni).
    """
    spread = statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
    quantile = 1 - (1 - SURE) / intervals
    return float(stats.t.ppf(quantile, len(values) - 1)) * spread


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job of Weir. `sizes` has the number of workers of each generation."""

    metric: float
    sizes: tuple[int, ...]
    exact: bool
    seconds: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one program. `refused`: why a job did not train to its end."""

    reference: Reference
    static: Run | None = None
    resized: Run | None = None
    refused: str = ""

    @property
    def equal(self) -> bool:
        """Return whether both jobs reached the result of one process, by a meaningful test."""
        return not self.refused and not _complaints(self)


# ---------------------------------------------------------------- one process


async def measure_reference(name: str, folder: Path) -> Reference:
    seeds = [str(seed + 1) for seed in range(SEEDS)]
    began = time.monotonic()
    trained = await _run_reference(name, folder, *seeds)
    spoilt = await _run_reference(name, folder, seeds[0], "--without-feature")
    return Reference(
        untrained=statistics.fmean(each["untrained"] for each in trained),
        metrics=tuple(each["metric"] for each in trained),
        spoilt=spoilt[0]["metric"],
        seconds=time.monotonic() - began,
    )


async def _run_reference(name: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.zoo.reference", name, str(folder), *arguments]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    trainer = await asyncio.create_subprocess_exec(
        *command, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(REFERENCE_S):
            output, errors = await trainer.communicate()
    finally:
        if trainer.returncode is None:
            trainer.kill()
    if trainer.returncode:
        raise Failed(f"the reference of {name} failed: {errors.decode()[-2000:]}")
    return [json.loads(line) for line in output.decode().splitlines()]


# ---------------------------------------------------------------- a job of Weir


async def train(name: str, folder: Path, kind: str) -> Run:
    """Train a program in a job on its own stack; raise `Failed` if the job does not succeed."""
    async with own_stack() as watched:
        await watched.submit(job_request(name, folder), FOLDER / f"{name}.py")
        await watched.until(lambda: watched.of(TrainingResumed), PATIENCE_S, "the start")
        if kind == "resized":
            await resize_or_end(watched, job_name(name), SIZES)
        finished = await watched.await_finish(PATIENCE_S)
        return _run(name, watched, finished)


def job_name(name: str) -> str:
    return name.replace("_", "-")


def job_request(name: str, folder: Path) -> dict[str, Any]:
    entry = ZOO[name]
    request = training_request(
        job_name(name), entry.epochs, entry.batch, CONSISTENCY, chief_gib=3.0, worker_gib=2.5
    )
    if params := entry.params(folder):
        request["params"] = params
        if "params" not in JobRequested.__struct_fields__:
            raise Failed("a request has no params")
    return request


def _run(name: str, watched: Trial, finished: JobFinished) -> Run:
    metric = ZOO[name].metric
    if metric not in finished.metrics:
        raise Failed(f"the job reported {', '.join(finished.metrics) or 'no metric'}, not {metric}")
    return Run(
        metric=finished.metrics[metric],
        sizes=job_sizes(watched),
        exact=finished.counted == watched.of(ProgressReported)[-1].total_samples,
        seconds=finished.finished_s - watched.submitted_s,
    )


# ---------------------------------------------------------------- the table


async def examine(name: str) -> Row:
    """Measure one program: the reference, then both jobs."""
    with tempfile.TemporaryDirectory(prefix="weir-zoo-data-") as folder:
        reference = await measure_reference(name, Path(folder))
        say(f"{name}: {_describe_reference(reference)}")
        runs, refused = dict[str, Run](), ""
        for kind in KINDS:
            try:
                runs[kind] = await train(name, Path(folder), kind)
            except Failed as error:
                say(f"{name}, {kind}: {error}")
                refused = _last_line(error)
                break
            say(f"{name}, {kind}: {_describe_run(runs[kind], reference)}")
        static, resized = (runs.get(kind) for kind in KINDS)
        return Row(reference=reference, static=static, resized=resized, refused=refused)


def _last_line(error: Failed) -> str:
    """Return the error of a traceback, or the last reason of several."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason was given"


def _describe_reference(reference: Reference) -> str:
    return (
        f"untrained {reference.untrained:.4f}, one process {reference.mean:.4f}"
        f" +- {reference.half_band:.4f}, feature off {reference.spoilt:.4f},"
        f" {reference.seconds:.0f} s"
    )


def _describe_run(run: Run, reference: Reference) -> str:
    verdict = "inside" if reference.contains(run.metric) else "OUTSIDE"
    sizes = "-".join(map(str, run.sizes))
    exact = "" if run.exact else ", NOT EXACTLY ONCE"
    return f"{run.metric:.4f} {verdict}, workers {sizes}, {run.seconds:.0f} s{exact}"


HEADINGS = (
    "program",
    "metric",
    "untrained",
    "one process",
    "off",
    "static",
    "resized",
    "sizes",
    "",
)


def table(rows: Mapping[str, Row]) -> list[str]:
    """Return the lines of the table."""
    cells = [HEADINGS, *(_cells(name, row) for name, row in rows.items())]
    widths = [max(len(line[at]) for line in cells) for at in range(len(HEADINGS))]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def _cells(name: str, row: Row) -> tuple[str, ...]:
    reference = row.reference
    return (
        name,
        ZOO[name].metric,
        f"{reference.untrained:.3f}",
        f"{reference.mean:.3f} +- {reference.half_band:.3f}",
        f"{reference.spoilt:.3f}",
        _cell(row.static, reference),
        _cell(row.resized, reference),
        "-".join(map(str, row.resized.sizes)) if row.resized else "",
        f"refused: {row.refused}" if row.refused else "; ".join(_complaints(row)) or "equal",
    )


def _cell(run: Run | None, reference: Reference) -> str:
    return f"{run.metric:.3f} ({run.metric - reference.mean:+.3f})" if run else ""


def _complaints(row: Row) -> list[str]:
    """Return why a row does not show that the results are the same."""
    reference, found = row.reference, list[str]()
    if not reference.narrow:
        found.append("band too wide")
    if reference.contains(reference.spoilt):
        found.append("the feature makes no difference")
    for kind, run in (("static", row.static), ("resized", row.resized)):
        if run and not reference.contains(run.metric):
            found.append(f"{kind} outside")
        if run and not run.exact:
            found.append(f"{kind} not exactly once")
    if row.resized and row.resized.sizes != (1, *SIZES):
        found.append("not resized four times")
    return found


def result(rows: Mapping[str, Row], minutes: float) -> dict[str, Any]:
    return {
        "programs": len(rows),
        "equal": sorted(name for name, row in rows.items() if row.equal),
        "unequal": {
            name: _complaints(row)
            for name, row in rows.items()
            if not row.equal and not row.refused
        },
        "refused": {name: row.refused for name, row in rows.items() if row.refused},
        "figures": {name: _figures(row) for name, row in rows.items()},
        "minutes": minutes,
    }


def _figures(row: Row) -> dict[str, Any]:
    reference = row.reference
    figures: dict[str, Any] = {
        "untrained": reference.untrained,
        "one_process": reference.mean,
        "half_band": reference.half_band,
        "feature_off": reference.spoilt,
    }
    for kind, run in (("static", row.static), ("resized", row.resized)):
        if run:
            figures[kind] = run.metric
            figures[f"{kind}_gap"] = run.metric - reference.mean
    return {name: round(value, 5) for name, value in figures.items()}


async def main() -> dict[str, Any]:
    began, rows = time.monotonic(), dict[str, Row]()
    for number, name in enumerate(PROGRAMS, start=1):
        say(f"{number} of {len(PROGRAMS)}: {name}, after {(time.monotonic() - began) / 60:.0f} min")
        rows[name] = await examine(name)
    say("\n".join(["", *table(rows)]))
    return result(rows, (time.monotonic() - began) / 60)


if __name__ == "__main__":
    refuse_unknown_programs(PROGRAMS, ZOO)
    finish(asyncio.run(main()))
