"""Measure large models: lookups in embedding tables, and hand-overs at several sizes.

`make bench-tables` (BENCH_TABLES_OPTIMIZER: sgd or adagrad; BENCH_TABLES_CONSISTENCY: async or
global-batch). A job with two tables, whose ids follow a Zipf law, changes between 2 and 3 ps with
enforced limits, at each size of BENCH_TABLES_PARAMETERS. The benchmark takes the place of the
allocator.

    pause_s_10m         the median pause of a hand-over with 10 million parameters, in s
    pause_growth        the largest of these medians by the smallest
    chief_memory_mb     the peak of the resident memory of the chief's processes, in MB, by size
    worker_memory_mb    that of the worker's
    standing_saves      saves for which training stood still, because a ps lacked memory, by size
    bytes_in_pause      the most bytes of tables that a hand-over reads in its pause, by size
    lookups_per_s       by size
    lookup_speedup      examples/s with a stock `Embedding(1_000_000, 64)`, two of them, by those
                        with whole tables, which is what Keras makes of them
    save_cost           seconds of training that a save of these two tables costs, by those with
                        whole tables (`save_bytes`: of both)
    dirty_cost          seconds of CPU that marking the changed rows of an update takes, by the
                        seconds of an update
    bytes_per_batch     bytes over the loopback interface for an update, by size, with everything
                        that the job and the bus send; `row_bytes_per_batch`: those of the different
                        rows of an update, once to the worker and once back as gradients
    dense_pause_s_100m  the median pause of a model without tables (BENCH_DENSE_PARAMETERS), with
                        the cores of the whole machine for each task
    dense_step_s        the time of an update of this model, in s: a pause ends with one
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from services.cli.trial import Failed, Trial, trial
from services.cli.up import cluster_file
from services.local.kubelet import processes
from services.local.stack import Stack
from services.trainer.worker.ps_memory import MARK_BYTES, NEXT_PS_GIB, PS_GIB
from services.trainer.worker.sharded_table import RowMarks
from shared.messages import (
    CheckpointSaved,
    ClusterSpecPublished,
    ProgressReported,
    Resources,
    Role,
    TableRound,
    TaskExited,
    TaskReady,
    TrainingResumed,
)
from tests.bench.player import NODE, Player
from tests.bench.programs import dense, zipf_tables
from tests.bench.programs.zipf_tables import FEATURES, TABLES, WIDTH
from tests.bench.report import NoLimits, finish_or_refuse, median, say

PROGRAM = Path(__file__).with_name("programs") / "zipf_tables.py"
CLUSTER = f"nodes:\n  - {{name: {NODE}, cpu: 16, memory_gib: 100}}\n"
SIZES = {"10m": 10_000_000, "100m": 100_000_000, "400m": 400_000_000, "1g": 1_000_000_000}
"""With Adagrad and a billion parameters, two generations side by side need more than 16 GiB."""
CHOSEN = tuple(os.environ.get("BENCH_TABLES_PARAMETERS", "10m,100m,1g").split(","))
DENSE = os.environ.get("BENCH_DENSE_PARAMETERS", "100m")
OPTIMIZER = os.environ.get("BENCH_TABLES_OPTIMIZER", "sgd")
CONSISTENCY = os.environ.get("BENCH_TABLES_CONSISTENCY", "async")
HAND_OVERS = int(os.environ.get("BENCH_HAND_OVERS", "4"))
STEADY_S = float(os.environ.get("BENCH_STEADY_S", "15"))
BATCH, DENSE_BATCH, ONE_TABLE_ROWS = 512, 16, 1_000_000
CORES = 2.0
CPU = {"chief": 0.2, "ps": 0.4, "worker": 0.5}
SAVE_EVERY_S, PATIENCE_S = 5.0, 300.0
"""The interval of saves, and the longest wait for two of them or for a report."""
MARKINGS = 300
BESIDE_GIB = 1.5
"""Memory of a task besides its tables or model."""
DELTA_GIB = 1.2
"""Memory of a ps for changed rows, besides that of two generations. With a billion parameters it is
four times the rows of the largest delta on a ps.
"""
WORKER_GIB = 2.0
COPIES = 6
"""Of whole tables, for which a worker has memory: it receives them for each batch."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """`rounds`: the reads of tables of each hand-over. `batch_bytes`: sent for an update.
    `row_bytes`: of the different rows of a batch, read and updated. `standing_saves`: periodic saves
    and those for a hand-over for which training stood still.
    """

    pauses_s: tuple[float, ...]
    rounds: tuple[tuple[TableRound, ...], ...]
    examples_per_s: float
    chief_mb: float
    worker_mb: float
    batch_bytes: float
    standing_saves: int
    row_bytes: int


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is not changed. `save_s`: training that a periodic save has cost, median;
    `save_bytes`: of its files.
    """

    examples_per_s: float
    save_s: float
    save_bytes: float


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A job of this benchmark. `every_s`: the interval of checkpoints; None: as Weir chooses."""

    program: Path
    parameters: dict[str, Any]
    limits: dict[str, Resources]
    batch: int = BATCH
    every_s: float | None = None


def table_request(
    parameters: dict[str, Any],
    table_gib: float,
    every_s: float | None = None,
    worker_gib: float = WORKER_GIB,
    ps_gib: float | None = None,
) -> Request:
    """Return a request with CPU limits of two cores together. `table_gib`: all tables and slots.
    `ps_gib`: memory of a ps; None: plenty.
    """
    if ps_gib is None:
        ps_gib = BESIDE_GIB + 2 * table_gib
    memory = {"chief": 2.0, "worker": worker_gib, "ps": ps_gib}
    limits = {role: Resources(cpu=cpu, memory_gib=memory[role]) for role, cpu in CPU.items()}
    return Request(program=PROGRAM, parameters=parameters, limits=limits, every_s=every_s)


@asynccontextmanager
async def running_job(wanted: Request) -> AsyncIterator[Player]:
    """Yield a player whose job trains with two ps."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with (
            Stack(Path(folder), cluster, services=("launcher",)) as stack,
            trial(stack) as watched,
        ):
            span = {"start": 2, "min": 2, "max": 3}
            one = {"start": 1, "min": 1, "max": 1}
            batch = wanted.batch
            asked = {
                "job": wanted.program.stem.replace("_", "-"),
                "epochs": 1,
                "batch": {"start": batch, "min": batch, "max": batch},
                "params": wanted.parameters,
                "consistency": CONSISTENCY,
                "checkpoint": {"every_s": wanted.every_s},
            }
            uid, request = await watched.submit(
                {**asked, "ps": span, "workers": one}, wanted.program
            )
            player = Player(watched, uid, request, wanted.limits)
            await player.decide(2, 1)
            if not watched.enforced:
                raise NoLimits("CPU limits are not enforced on this machine: pauses mean nothing")
            yield player


async def measure_dense() -> dict[str, Any]:
    """Change the number of ps of a model without tables several times."""
    size = SIZES[DENSE]
    limits = {
        role: Resources(cpu=CORES, memory_gib=BESIDE_GIB + 16 * size * 4 / 2**30) for role in CPU
    }
    request = Request(
        program=PROGRAM.with_name("dense.py"),
        parameters={"layers": size // dense.LAYER},
        limits=limits,
        batch=DENSE_BATCH,
    )
    async with running_job(request) as player:
        speed, _ = await train_steadily(player.watched)
        pauses = [resumed.pause_s or 0.0 async for resumed in hand_overs(player, f"dense {DENSE}")]
    return {f"dense_pause_s_{DENSE}": median(pauses), "dense_step_s": DENSE_BATCH / speed}


async def hand_overs(player: Player, name: str) -> AsyncIterator[TrainingResumed]:
    """Change the number of ps to 3 and back to 2 several times. Yield the end of each pause, when
    training has gone on for `STEADY_S`.
    """
    for number in range(HAND_OVERS):
        await player.decide(3 if number % 2 == 0 else 2, 1)
        resumed = player.watched.of(TrainingResumed)[-1]
        say(f"{name} hand-over {number + 1}/{HAND_OVERS}: {resumed.pause_s or 0.0:.2f} s")
        say(f"      {resumed.phases}")
        await asyncio.sleep(STEADY_S)
        yield resumed


async def measure(name: str) -> Measured:
    """Change the number of ps several times. A ps has the memory that `weir doctor` recommends, and
    some for changed rows.
    """
    rows = SIZES[name] // (TABLES * WIDTH)
    copies = 2 if OPTIMIZER == "adagrad" else 1  # the tables and their slots
    gib = copies * SIZES[name] * 4 / 2**30
    # On each of two ps, two generations of one half are as large as all tables.
    both_gib = gib + TABLES * rows * MARK_BYTES / 2**30
    ps_gib = PS_GIB + NEXT_PS_GIB + both_gib + DELTA_GIB
    request = table_request({"rows": rows, "kind": OPTIMIZER}, gib, ps_gib=ps_gib)
    async with running_job(request) as player:
        watched = player.watched
        pauses: list[float] = []
        peaks: dict[Role, float] = {"chief": 0.0, "worker": 0.0}
        rounds: list[tuple[TableRound, ...]] = []
        speed, example_bytes = await train_steadily(watched)
        update_peaks(peaks, watched)
        async for resumed in hand_overs(player, f"{name:5}"):
            pauses.append(resumed.pause_s or 0.0)
            rounds.append(resumed.table_rounds)
            say_rounds(resumed.table_rounds)
            update_peaks(peaks, watched)
    return Measured(
        pauses_s=tuple(pauses),
        examples_per_s=speed,
        chief_mb=peaks["chief"],
        worker_mb=peaks["worker"],
        batch_bytes=example_bytes * BATCH,
        rounds=tuple(rounds),
        standing_saves=len([each for each in watched.of(CheckpointSaved) if each.stood]),
        row_bytes=2 * 4 * WIDTH * sum(different_rows(rows)),
    )


def update_peaks(peaks: dict[Role, float], watched: Trial) -> None:
    """Raise the peaks of memory, in MB, to those of the processes that run now."""
    for role in peaks:
        peaks[role] = max(peaks[role], peak_memory_mb(watched, role))


def peak_memory_mb(watched: Trial, role: Role) -> float:
    """Return the largest peak of resident memory among the running processes of a role's tasks."""
    found = processes.processes_by_pod()
    pids = [pid for uid in pod_uids(watched, role) for pid in found.get(uid, [])]
    return max(map(peak_of_process_mb, pids), default=0.0)


def pod_uids(watched: Trial, role: Role) -> list[str]:
    """Return the uid of each pod of a role in the newest generation, in order of its tasks."""
    cluster: ClusterSpecPublished = watched.of(ClusterSpecPublished)[-1]
    uids = {ready.pod: ready.pod_uid for ready in watched.of(TaskReady)}
    return [uids[task.pod] for task in cluster.tasks if task.role == role]


def peak_of_process_mb(pid: int) -> float:
    """Return the peak of a process's resident memory; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def say_rounds(rounds: Sequence[TableRound]) -> None:
    for each in rounds:
        when = "in the pause" if each.paused else "before it"
        size = f"{each.rows:11,} rows {each.bytes / 2**20:9,.1f} MiB {each.seconds:6.2f} s"
        say(f"      {size} {when}")


def largest_read_in_pause(measured: Measured) -> int:
    """Return the most bytes of tables that a hand-over has read in its pause."""
    read = [sum(each.bytes for each in rounds if each.paused) for rounds in measured.rounds]
    return max(read, default=0)


def loopback_bytes() -> int:
    """Return the bytes that the loopback interface has received."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    raise NoLimits("there is no loopback interface to count bytes")


async def steady_job(whole: bool) -> Steady:
    """Train with tables of a million rows, and save every `SAVE_EVERY_S`."""
    gib = TABLES * ONE_TABLE_ROWS * WIDTH * 4 / 2**30
    parameters = {"rows": ONE_TABLE_ROWS, "whole": whole, "kind": "adagrad"}
    worker_gib = WORKER_GIB + COPIES * gib if whole else WORKER_GIB
    request = table_request(parameters, 4 * gib, SAVE_EVERY_S, worker_gib)
    async with running_job(request) as player:
        watched = player.watched
        speed, _ = await train_steadily(watched)
        await watched.until(lambda: len(watched.of(CheckpointSaved)) > 1, PATIENCE_S, "two saves")
        _, *saves = watched.of(CheckpointSaved)
    say(f"{'whole' if whole else 'divided'} tables: {speed:,.0f} examples/s, {len(saves)} saves")
    return Steady(
        examples_per_s=speed,
        save_s=median([each.cost_s for each in saves]),
        save_bytes=median([each.bytes for each in saves]),
    )


async def train_steadily(watched: Trial) -> tuple[float, float]:
    """Wait `STEADY_S`, then measure between two reports that are `STEADY_S` or more apart. Return
    the examples a second, and the bytes sent for an example. Raise `Failed` if a task ends.
    """

    async def next_report(at_s: float, samples: int) -> ProgressReported:
        """Return the first report from a time on that has more examples."""

        def later_report() -> ProgressReported | None:
            for exited in watched.of(TaskExited):
                raise Failed(f"{exited.pod} ended: {exited.reason} {exited.message}")
            reports = watched.of(ProgressReported)
            later = (each for each in reports if each.reported_s >= at_s)
            return next((each for each in later if each.samples > samples), None)

        report: ProgressReported = await watched.until(later_report, PATIENCE_S, "progress")
        return report

    first = await next_report(time.time() + STEADY_S, 0)
    sent = loopback_bytes()
    last = await next_report(first.reported_s + STEADY_S, first.samples)
    sent = loopback_bytes() - sent
    examples = last.samples - first.samples
    return examples / (last.reported_s - first.reported_s), sent / examples


def different_rows(rows: int) -> list[int]:
    """Return the number of different ids of each table in a batch. `rows`: of a table."""
    inputs, _ = next(iter(zipf_tables.dataset(0, BATCH, rows).batch(BATCH)))
    return [len(np.unique(ids)) for ids in inputs]


def marking_s() -> float:
    """Return the seconds of CPU that marking the changed rows of an update takes."""
    marks = RowMarks(tf.Variable(1), tf.Variable(tf.zeros([ONE_TABLE_ROWS], tf.int32)))
    (count, *_) = different_rows(ONE_TABLE_ROWS)
    ids, rows = tf.range(0, 7 * count, 7), tf.zeros([count, WIDTH])
    marked = tf.function(marks.record)
    plain = tf.function(lambda ids, rows: (ids, rows))

    def seconds(function: Any) -> float:
        function(ids, rows)
        began_s = time.process_time()
        for _ in range(MARKINGS):
            function(ids, rows)
        return (time.process_time() - began_s) / MARKINGS

    return TABLES * (seconds(marked) - seconds(plain))


async def main() -> dict[str, Any]:
    found = {name: await measure(name) for name in CHOSEN}
    whole, divided = await steady_job(True), await steady_job(False)
    medians = {name: median(each.pauses_s) for name, each in found.items()}
    return {
        **{f"pause_s_{name}": pause for name, pause in medians.items()},
        "pause_growth": max(medians.values()) / min(medians.values()),
        "pauses_s": {name: each.pauses_s for name, each in found.items()},
        "lookups_per_s": {
            name: round(each.examples_per_s * TABLES * FEATURES) for name, each in found.items()
        },
        "chief_memory_mb": {name: round(each.chief_mb) for name, each in found.items()},
        "worker_memory_mb": {name: round(each.worker_mb) for name, each in found.items()},
        "standing_saves": {name: each.standing_saves for name, each in found.items()},
        "bytes_in_pause": {name: largest_read_in_pause(each) for name, each in found.items()},
        "bytes_per_batch": {name: round(each.batch_bytes) for name, each in found.items()},
        "row_bytes_per_batch": {name: each.row_bytes for name, each in found.items()},
        "lookup_speedup": divided.examples_per_s / whole.examples_per_s,
        "save_cost": divided.save_s / whole.save_s,
        "save_bytes": [divided.save_bytes, whole.save_bytes],
        "dirty_cost": marking_s() * found[CHOSEN[0]].examples_per_s / BATCH,
        "optimizer": OPTIMIZER,
        "consistency": CONSISTENCY,
        **await measure_dense(),
    }


if __name__ == "__main__":
    finish_or_refuse(main())
