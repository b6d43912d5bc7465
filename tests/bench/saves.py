"""Measure the cost of a periodic checkpoint, written during training or in a pause.

`make bench-saves` (4 minutes). The same job of ten million parameters and their slots (80 MB) on
one ps, with the same CPU limits, saves every few seconds; once with enough memory for a copy of the
changed rows, once without, so that training stops while all rows are saved. Its two tables are
divided: beside training only the rows that changed are saved. So that is measured twice: ids by a
Zipf law with exponent 1.1 change a part of the rows between two saves, and ids that are used
equally often change all of them (figures that end in `_all_rows`). Both are compared with saves
that stop training of ids that are used equally often: these have all rows whatever the ids are. With
BENCH_TABLES=4 the tables are too small to be divided, and each save has all rows.

`pause`: from the start of the drain until batches are scheduled again. `cost`: seconds of training
lost, by the pause and by writing during training, computed from the examples applied meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from services.cli.trial import Failed, Trial, trial
from services.cli.up import cluster_file
from services.local.stack import Stack
from shared.messages import CheckpointSaved, ProgressReported, Resources
from tests.bench.player import CLUSTER, Player, sizes
from tests.bench.report import NoLimits, finish_or_refuse, median, say

PROGRAM = Path(__file__).with_name("programs") / "tables.py"
TABLES = int(os.environ.get("BENCH_TABLES", "2"))
SOME_ROWS, ALL_ROWS = 1.1, 0.0
"""Exponents of the Zipf law that ids follow. Between two saves they change some rows, or all."""
SAVES = int(os.environ.get("BENCH_SAVES", "8"))
EVERY_S = 5.0
SPAN = {"start": 1, "min": 1, "max": 1}
ROOMY_GIB = 4.0
NARROW_GIB = (0.5, 0.42, 0.36)
"""Tried in this order until training stops for saves. A ps uses less of its own memory if other
processes on the machine share its pages, and then has room for more changed rows.
"""
ENOUGH_BESIDE = 2
"""Saves during training that show that the changed rows fit."""
WITHIN_S = SAVES * (EVERY_S + 10) + 90


async def saves(memory_gib: float, exponent: float) -> tuple[list[CheckpointSaved], int]:
    """Return checkpoints that were all written during training or all in a pause, and the number of
    parameters. There are none if training does not stop for saves with this memory.
    """
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with (
            Stack(Path(folder), cluster, services=("launcher",)) as stack,
            trial(stack) as watched,
        ):
            fixed = {
                "job": "tables",
                "epochs": 1000,
                "params": {"tables": TABLES, "exponent": exponent},
                "batch": {"start": 256, "min": 256, "max": 256},
            }
            asked = {**fixed, "ps": SPAN, "workers": SPAN, "checkpoint": {"every_s": EVERY_S}}
            uid, request = await watched.submit(asked, PROGRAM)
            limits = {
                **sizes(chief=0.3, worker=0.35),
                "ps": Resources(cpu=0.5, memory_gib=memory_gib),
            }
            player = Player(watched, uid, request, limits)
            await player.decide(1, 1)
            if not watched.enforced:
                raise NoLimits(
                    "CPU limits are not enforced on this machine: the comparison means nothing"
                )
            beside = memory_gib == ROOMY_GIB
            await watched.until(
                lambda: _has_enough_saves(watched, beside), WITHIN_S, f"{SAVES} saves"
            )
            found = _periodic_saves(watched, beside)
            for saved in found:
                took = (
                    f"pause {saved.pause_s:6.3f} s, cost {saved.cost_s:6.3f} s, in"
                    f" {saved.seconds:6.3f} s"
                )
                say(f"{'beside' if beside else 'standing':9} {took}")
            return found, watched.of(ProgressReported)[-1].profile.parameters


def _has_enough_saves(watched: Trial, beside: bool) -> bool:
    """Return True also if training does not stop for saves because the changed rows fit."""
    found = len(_periodic_saves(watched, beside))
    if not beside and not found:
        return len(_periodic_saves(watched, beside=True)) >= ENOUGH_BESIDE
    return found >= SAVES


async def standing_saves() -> tuple[list[CheckpointSaved], int]:
    """Return checkpoints that were written while training stood still, and the number of
    parameters.
    """
    for memory_gib in NARROW_GIB:
        found, parameters = await saves(memory_gib, ALL_ROWS)
        if found:
            return found, parameters
        say(f"the changed rows fit into {memory_gib:g} GiB")
    raise Failed(f"the changed rows fit into every one of {NARROW_GIB} GiB: run this alone")


def _periodic_saves(watched: Trial, beside: bool) -> list[CheckpointSaved]:
    """Return the checkpoints that were written in the way that the memory allows.

    Checkpoints before the ps reported its free memory are left out.
    """
    found = [m for m in watched.of(CheckpointSaved) if not m.final]
    return [m for m in found if (not m.stood) == beside and "not known" not in m.stood]


async def main() -> dict[str, Any]:
    say("all rows change")
    standing, parameters = await standing_saves()
    all_rows, _ = await saves(ROOMY_GIB, ALL_ROWS)
    say("some rows change")
    some_rows, _ = await saves(ROOMY_GIB, SOME_ROWS)
    of_all = {f"{name}_all_rows": each for name, each in compare(standing, all_rows).items()}
    return {
        "saves": SAVES,
        "tables": TABLES,
        "parameters": parameters,
        **compare(standing, some_rows),
        **of_all,
        "cpu_limits_enforced": True,
    }


def compare(standing: list[CheckpointSaved], beside: list[CheckpointSaved]) -> dict[str, float]:
    figures: dict[str, float] = {"bytes": beside[-1].bytes, "standing_bytes": standing[-1].bytes}
    for name in ("pause_s", "cost_s", "seconds", "drain_s"):
        before, after = (median(getattr(m, name) for m in made) for made in (standing, beside))
        figures |= {f"standing_{name}": before, f"beside_{name}": after}
    for name in ("pause_s", "cost_s"):
        figures[f"{name[:-2]}_ratio"] = figures[f"beside_{name}"] / figures[f"standing_{name}"]
    return figures


if __name__ == "__main__":
    finish_or_refuse(main())
