"""Measure how long a generation takes to prepare: `make bench-preparation` (about 8 minutes).

A small net on 1 ps and 2 workers, with a fifth of a core for each task, twice with the same
limits: a job of Weir, and a loop with TensorFlow's own `ClusterCoordinator` (`plain.py`), which does
by hand what a preparation does: it imports TensorFlow and the program, connects, builds the model,
and makes a first step.

The job starts with 1 worker, grows to 2, and shrinks to 1. Reported, as medians over the rounds:

    start_s, plain_start_s     from the order to start the pods to the first update
    start_ratio                start_s / plain_start_s
    first, grown, shrunk       the chief's parts of each preparation, and their sum `seconds`
    plain                      the parts of the plain chief, and their sum
    first_ratio, ...           the sum divided by that of the plain chief

The first generation's parts lack the import of TensorFlow, which its pod does before; the start has
it. The other generations prepare while the one before trains, and share the cores with it.

Environment: BENCH_ROUNDS (3), BENCH_CORES (0.2), BENCH_PROGRAM (another program; for a large model on
idle cores: tests/bench/programs/large_dense.py with 2 cores).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from services.cli.up import cluster_file
from services.local.stack import Stack
from shared.messages import GenerationPrepared
from tests.bench.data import CLUSTER, start_plain, weir_job, write_program
from tests.bench.player import Player, sizes
from tests.bench.report import finish_or_refuse, median, say

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
CORES = float(os.environ.get("BENCH_CORES", "0.2"))
PROGRAM = os.environ.get("BENCH_PROGRAM", "")
MEMORY_GIB = 12
LIMITS = sizes(MEMORY_GIB, chief=CORES, ps=CORES, worker=CORES)
GENERATIONS = {"first": (1, 1), "grown": (1, 2), "shrunk": (1, 1)}
Parts = dict[str, float]


async def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        program = Path(PROGRAM).resolve() if PROGRAM else write_program("array", Path(name))
        rounds = []
        for number in range(ROUNDS):
            measured = {**await with_weir(program), **await by_hand(program)}
            say(f"{number + 1}/{ROUNDS} {_describe(measured)}")
            rounds.append(measured)
    return result(rounds)


async def with_weir(program: Path) -> dict[str, Parts]:
    """Return the parts of the preparation of each generation, and the time of the start."""
    async with weir_job(program, 1, LIMITS, most_workers=2) as job:
        found = {"start": {"seconds": job.started_s}}
        for number, (name, size) in enumerate(GENERATIONS.items(), 1):
            if number > 1:
                await job.player.decide(*size)
            found[name] = _chief_parts(job.player, number)
        return found


def _chief_parts(player: Player, generation: int) -> Parts:
    """Return the parts of the chief's preparation of a generation, and their sum."""
    for prepared in player.watched.of(GenerationPrepared):
        if prepared.generation == generation and prepared.parts is not None:
            return _with_sum(msgspec.to_builtins(prepared.parts))
    raise RuntimeError(f"the chief did not report the preparation of generation {generation}")


def _with_sum(parts: Parts) -> Parts:
    return {**parts, "seconds": sum(parts.values())}


async def by_hand(program: Path) -> dict[str, Parts]:
    """Return the parts of the plain chief's preparation, and the time of its start."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as name,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with Stack(Path(name), cluster, services=()) as stack:
            began_s = time.time()
            progress = await start_plain(
                stack, Path(name) / "plain", program, 1, CORES, memory_gib=MEMORY_GIB
            )
            prepared = progress.with_name("prepared")
            start_s = prepared.stat().st_mtime - began_s
            parts = json.loads(prepared.read_text())
            return {"plain_start": {"seconds": start_s}, "plain": _with_sum(parts)}


def _describe(measured: Mapping[str, Parts]) -> str:
    return ", ".join(f"{name} {parts['seconds']:.1f} s" for name, parts in measured.items())


def result(rounds: Sequence[Mapping[str, Parts]]) -> dict[str, Any]:
    medians = {
        name: {part: median(each[name][part] for each in rounds) for part in parts}
        for name, parts in rounds[0].items()
    }
    start_s, plain_start_s = (medians.pop(name)["seconds"] for name in ("start", "plain_start"))
    ratios = {
        f"{name}_ratio": medians[name]["seconds"] / medians["plain"]["seconds"]
        for name in GENERATIONS
    }
    return {
        "start_s": start_s,
        "plain_start_s": plain_start_s,
        "start_ratio": start_s / plain_start_s,
        **ratios,
        **medians,
        "rounds": len(rounds),
    }


if __name__ == "__main__":
    finish_or_refuse(main())
