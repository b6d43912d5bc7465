"""Measure how fast a job reads its data: `make bench-data` (about half an hour).

The same small net, the same data and the same CPU limits twice: a job of Weir, and a loop with
TensorFlow's own `ClusterCoordinator`, which reads with `tf.data` (`plain.py`). Both shuffle. Three
forms of data, each with 1, 2 and 4 workers:

    tfrecord   files() and read(file), from TFRecord files of different lengths
    range      dataset(start, stop), from a NumPy array
    array      dataset(numbers), from a NumPy array

Both sides exist all the time. One is frozen while the other is measured, in alternation (as in
`overhead.py`). Reported: the median over the alternations of Weir's examples per second divided by
those of the plain loop (`tfrecord`, `tfrecord_2`, `tfrecord_4`, ...); the examples per second of
each side; and the CPU time per batch of the chief and of a worker (all of it, with the training
step). `single_process`: Weir with one worker compared with a plain loop in one process with the
cores of that worker; `chief_ms_per_batch` and `worker_ms_per_batch` are from this case (that of a
worker includes the step). `chief_batches_per_s`: batches of one example with a step of one weight,
2 workers, nearly without a CPU limit.

Environment: BENCH_FORMS, BENCH_WORKERS (lists with commas), BENCH_ALTERNATIONS (4), BENCH_STEADY_S
(10).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from services.cli.trial import Trial, trial
from services.cli.up import cluster_file
from services.console.report import runs
from services.local.stack import Stack
from shared.messages import ProgressReported, Resources
from tests.bench import hand, handwritten, plain
from tests.bench.overhead import Side, await_progress, speed_between
from tests.bench.player import MEMORY_GIB, NODE, PATIENCE_S, Player, sizes
from tests.bench.report import NoLimits, finish_or_refuse, median, say

FORMS = tuple(os.environ.get("BENCH_FORMS", "tfrecord,range,array").split(","))
WORKERS = tuple(map(int, os.environ.get("BENCH_WORKERS", "1,2,4").split(",")))
ALTERNATIONS = int(os.environ.get("BENCH_ALTERNATIONS", "4"))
MEASURED_S, SETTLE_S = float(os.environ.get("BENCH_STEADY_S", "10")), 3.0
REPORT_S = 1.5  # in s: a report is published up to this long after the time that it is about
CLUSTER = f"nodes:\n  - {{name: {NODE}, cpu: 16, memory_gib: 80}}\n"
PROGRAMS = Path(__file__).parent / "programs"
CORES, MANY_CORES = 0.25, 2.0
"""Cores of each task. The chief, the ps and four workers together use 1.5 of the machine's two."""
OURS, THEIRS, ALONE = "services.trainer", "tests.bench.plain", "alone"


class RunningJob(NamedTuple):
    """A job of Weir that trains. `started_s`: seconds from its decision to its first update."""

    stack: Stack
    watched: Trial
    folder: Path
    player: Player
    started_s: float


class Speed(NamedTuple):
    """Speed of one side: examples per second, and CPU time in ms per batch by role."""

    examples_per_s: float
    chief_ms: float = 0.0
    worker_ms: float = 0.0


async def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        folder, figures = Path(name), dict[str, Any]()
        for form in FORMS:
            program = write_program(form, folder)
            for workers in WORKERS:
                case = form if workers == 1 else f"{form}_{workers}"
                figures |= named_figures(case, await compare(program, workers, THEIRS))
                say(f"{case}: ratio {figures[case]:.2f}")
        alone = await compare(write_program("array", folder), 1, ALONE)
        figures |= named_figures("single_process", alone)
        say(f"single_process: ratio {figures['single_process']:.2f}")
        for role in ("chief", "worker"):
            figures[f"{role}_ms_per_batch"] = figures[f"single_process_weir_{role}_ms"]
        figures["chief_batches_per_s"] = await empty_steps(PROGRAMS / "one_weight.py")
        return {**figures, "alternations": ALTERNATIONS, "measured_s": MEASURED_S}


def write_program(form: str, folder: Path) -> Path:
    """Write the program with this form of data, and its files; return its path."""
    data = folder / "data"
    text = (PROGRAMS / "reading.py").read_text()
    path = folder / f"reads_{form}.py"  # `array` would hide a module of the standard library
    filled = text.replace("FORM = None", f"FORM = {form!r}")
    path.write_text(filled.replace("DATA = None", f"DATA = {str(data)!r}"))
    if not data.exists():
        data.mkdir()
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, str(path), str(data)], check=True, env=environ)
    return path


def named_figures(case: str, found: list[dict[str, Speed]]) -> dict[str, float]:
    figures = {
        case: median(each["weir"].examples_per_s / each["plain"].examples_per_s for each in found)
    }
    for side in ("weir", "plain"):
        for field in Speed._fields:
            values = [getattr(each[side], field) for each in found]
            figures[f"{case}_{side}_{field}"] = median(values)
    return figures


# ---------------------------------------------------------------- both sides on one cluster


async def compare(program: Path, workers: int, theirs: str) -> list[dict[str, Speed]]:
    """Measure both sides in alternation. `theirs`: a loop on a cluster, or in a single process."""
    limits = sizes(chief=CORES, ps=CORES, worker=CORES)
    async with weir_job(program, workers, limits) as job:
        progress = await start_plain(
            job.stack, job.folder / "plain", program, workers, CORES, theirs
        )
        other = Side(job.stack, THEIRS)
        ours = Side(job.stack, OURS)
        measures = {
            "weir": partial(measure, ours, partial(weir_speed, job.watched)),
            "plain": partial(measure, other, partial(speed_between, progress)),
        }
        for side in (ours, other):
            side.send(signal.SIGSTOP)
        found = []
        for number in range(ALTERNATIONS):
            order = list(measures) if number % 2 == 0 else list(measures)[::-1]
            speeds = {name: await measures[name]() for name in order}
            say(f"  {number + 1}/{ALTERNATIONS} {describe_speeds(speeds)}")
            found.append(speeds)
        return found


def describe_speeds(speeds: Mapping[str, Speed]) -> str:
    return ", ".join(f"{name} {each.examples_per_s:,.0f}/s" for name, each in speeds.items())


@asynccontextmanager
async def weir_job(
    program: Path,
    workers: int,
    limits: Mapping[str, Resources],
    batch: int = plain.BATCH,
    most_workers: int = 0,
    fields: Mapping[str, Any] = MappingProxyType({}),
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[RunningJob]:
    """Yield a job that trains on a stack of its own. `most_workers`: 0 for as many as `workers`;
    `fields`: more fields of its request; `settings`: of the stack's services.
    """
    request = {
        "job": "reading",
        "epochs": 100_000,
        "batch": {"start": batch, "min": batch, "max": batch},
        "ps": {"start": 1, "min": 1, "max": 1},
        "workers": {"start": workers, "min": 1, "max": most_workers or workers},
        "shuffle": {"on": True},
        **fields,
    }
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as name,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with (
            Stack(Path(name), cluster, settings, services=("launcher",)) as stack,
            trial(stack) as watched,
        ):
            uid, asked = await watched.submit(request, program)
            player = Player(watched, uid, asked, limits)
            decided_s = await player.decide(1, workers)
            started_s = time.time() - decided_s
            if not watched.enforced:
                raise NoLimits("CPU limits are not enforced on this machine")
            await watched.until(lambda: watched.of(ProgressReported), PATIENCE_S, "progress")
            yield RunningJob(stack, watched, Path(name), player, started_s)


async def start_plain(
    stack: Stack,
    folder: Path,
    program: Path,
    workers: int,
    cores: float,
    theirs: str = THEIRS,
    memory_gib: float = MEMORY_GIB,
) -> Path:
    """Start the plain loop, with so many cores and so much memory for each task, and wait until it
    trains. Return the file with its progress.
    """
    folder.mkdir()
    tasks = [("chief", 0), ("ps", 0), *[("worker", number) for number in range(workers)]]
    if theirs == ALONE:
        tasks = [(ALONE, 0)]
    counts = {"chief": 1, "ps": 1, "worker": workers}
    handwritten.write(folder / "cluster.json", hand.cluster(counts))
    limits = sizes(memory_gib, chief=cores, ps=cores, worker=cores, alone=cores)
    command = ["python", "-m", THEIRS, str(folder), str(program)]
    await hand.pods(stack, command, tasks, limits)
    await await_progress(folder / "progress")
    return folder / "progress"


async def measure(
    side: Side, speed: Callable[[float, float], float], batch: int = plain.BATCH
) -> Speed:
    """Continue one side, measure it, and freeze it again."""
    side.send(signal.SIGCONT)
    await asyncio.sleep(SETTLE_S)
    before, began_s = side.cpu_by_role(), time.time()
    await asyncio.sleep(MEASURED_S)
    after, ended_s = side.cpu_by_role(), time.time()
    await asyncio.sleep(REPORT_S)
    side.send(signal.SIGSTOP)
    examples_per_s = speed(began_s, ended_s)
    batches = max(examples_per_s * (ended_s - began_s) / batch, 1e-9)
    used_ms = {role: 1000.0 * (after[role] - before.get(role, 0.0)) / batches for role in after}
    return Speed(examples_per_s, used_ms.get("chief", 0.0), used_ms.get("worker", 0.0))


def weir_speed(watched: Trial, from_s: float, to_s: float) -> float:
    return runs.mean_speed(watched.of(ProgressReported), from_s, to_s)


async def empty_steps(program: Path) -> float:
    """Return the batches of one example that a chief completes per second."""
    limits = sizes(chief=MANY_CORES, ps=MANY_CORES, worker=MANY_CORES)
    async with weir_job(program, 2, limits, batch=1) as job:
        await asyncio.sleep(SETTLE_S)
        began_s = time.time()
        await asyncio.sleep(MEASURED_S)
        ended_s = time.time()
        await asyncio.sleep(REPORT_S)
        return weir_speed(job.watched, began_s, ended_s)


if __name__ == "__main__":
    finish_or_refuse(main())
