"""Measure the pause of a hand-over, make-before-break and restart.

`make bench-pause` (about 16 minutes). A job of ten million parameters alternates between 1 ps + 1
worker and 2 + 2, five times each way, once with each kind of hand-over. The benchmark takes the
place of the allocator, so sizes and times are the same. Pause: from the last update applied before
to the first after, by the clocks of the workers. `lost_work_s`: examples not applied between the
decision and 30 s after the resumption, compared with the undisturbed speed of each generation,
divided by the speed before. The baseline: the same restart without Weir, in the same pods.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from services.cli.trial import trial
from services.cli.up import cluster_file
from services.console.report import runs
from services.local.stack import Stack
from shared.messages import (
    GenerationPrepared,
    Phases,
    ProgressReported,
    TrainingResumed,
)
from tests.bench import hand, handwritten
from tests.bench.player import CLUSTER, PATIENCE_S, Player, sizes
from tests.bench.report import NoLimits, finish_or_refuse, median, percentile, say

PROGRAM = Path(__file__).with_name("programs") / "tables.py"
EACH_WAY = int(os.environ.get("BENCH_EACH_WAY", "5"))
HAND_ROUNDS = int(os.environ.get("BENCH_HAND_ROUNDS", "3"))
WARM_S, AFTER_S = (
    float(os.environ.get("BENCH_WARM_S", "8")),
    float(os.environ.get("BENCH_AFTER_S", "30")),
)
BEFORE_S, STEADY_S = 6.0, 2 / 3 * AFTER_S
SMALL, LARGE = (1, 1), (2, 2)
SIZES = sizes(chief=0.3, ps=0.5, worker=0.35)
TASKS = [("chief", 0), ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
SPAN = {"start": 1, "min": 1, "max": 2}


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """The measured values of one hand-over."""

    grows: bool
    pause_s: float
    phases: Phases
    lost_work_s: float
    prepare_s: float


async def with_weir(mode: str) -> tuple[list[HandOver], int]:
    """Alternate between the sizes; return the hand-overs, and the model's number of parameters."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with (
            Stack(Path(folder), cluster, services=("launcher",)) as stack,
            trial(stack) as watched,
        ):
            asked = {
                "job": "tables",
                "epochs": 1000,
                "batch": {"start": 256, "min": 256, "max": 256},
            }
            uid, request = await watched.submit(
                {**asked, "ps": SPAN, "workers": SPAN, "handover": mode}, PROGRAM
            )
            player = Player(watched, uid, request, SIZES)
            await player.decide(*SMALL)
            if not watched.enforced:
                raise NoLimits(
                    "CPU limits are not enforced on this machine: the comparison means nothing"
                )
            done = [await _hand_over(player, mode, number) for number in range(2 * EACH_WAY)]
            return done, watched.of(ProgressReported)[-1].profile.parameters


async def _hand_over(player: Player, mode: str, number: int) -> HandOver:
    grows = number % 2 == 0
    if number == 0:
        await asyncio.sleep(WARM_S)
    decided_s = await player.decide(*(LARGE if grows else SMALL))
    resumed_s = time.time()
    await asyncio.sleep(AFTER_S + 1.5)
    watched = player.watched
    resumed: TrainingResumed = watched.of(TrainingResumed)[-1]
    reports = watched.of(ProgressReported)
    before = runs.mean_speed(reports, decided_s - BEFORE_S, decided_s)
    after = runs.mean_speed(reports, resumed_s + AFTER_S - STEADY_S, resumed_s + AFTER_S)
    did = runs.samples_at(reports, resumed_s + AFTER_S) - runs.samples_at(reports, decided_s)
    could = before * (resumed_s - decided_s) + after * AFTER_S
    prepared = [
        p.seconds for p in watched.of(GenerationPrepared) if p.generation == player.generation
    ]
    done = HandOver(
        grows=grows,
        pause_s=float(resumed.pause_s or 0.0),
        phases=resumed.phases,
        lost_work_s=(could - did) / before,
        prepare_s=max(prepared, default=0.0),
    )
    way = "grow" if grows else "shrink"
    say(
        f"{mode:17} {number + 1:2}/{2 * EACH_WAY} {way:6} pause {done.pause_s:6.2f} s, lost"
        f" {done.lost_work_s:6.1f} s"
    )
    return done


# ---------------------------------------------------------------- without Weir


async def by_hand() -> list[float]:
    """Return the pauses in s of a restart without Weir, with the same program and limits."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with Stack(Path(folder), cluster, services=()) as stack:
            shared = Path(folder) / "hand"
            shared.mkdir()
            command = ["python", "-m", "tests.bench.handwritten", str(shared), str(PROGRAM)]
            await hand.pods(stack, command, TASKS, SIZES)
            pauses = []
            handwritten.write(shared / "cluster-0.json", _cluster(*SMALL))
            for number in range(HAND_ROUNDS):
                await _until(shared / f"first-{number}")
                await asyncio.sleep(WARM_S)
                size = LARGE if number % 2 == 0 else SMALL
                handwritten.write(shared / f"cluster-{number + 1}.json", _cluster(*size))
                handwritten.write(shared / f"stop-{number}", "")
                await _until(shared / f"first-{number + 1}")
                first, last = (
                    float((shared / f).read_text())
                    for f in (f"first-{number + 1}", f"last-{number}")
                )
                pauses.append(first - last)
                say(
                    f"by hand           {number + 1:2}/{HAND_ROUNDS}        pause"
                    f" {pauses[-1]:6.2f} s"
                )
            return pauses


def _cluster(ps: int, workers: int) -> str:
    """Return a cluster for one round, with new ports, so that old children cannot interfere."""
    return hand.cluster({"chief": 1, "ps": ps, "worker": workers})


async def _until(path: Path) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not path.exists():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(
            f"the job by hand has not written {path.name} within {PATIENCE_S:g} s"
        ) from None


# ---------------------------------------------------------------- results


async def main() -> dict[str, Any]:
    hand = await by_hand()
    fast, parameters = await with_weir("make-before-break")
    slow, _ = await with_weir("restart")
    return result(fast, slow, hand, parameters)


def result(
    fast: list[HandOver], slow: list[HandOver], hand: list[float], parameters: int
) -> dict[str, Any]:
    fast_s, slow_s = median(h.pause_s for h in fast), median(h.pause_s for h in slow)
    lost = {
        name: sum(h.lost_work_s for h in done) / len(done)
        for name, done in (("fast", fast), ("slow", slow))
    }
    return {
        "make_before_break_median_s": fast_s,
        "make_before_break_p95_s": percentile((h.pause_s for h in fast), 0.95),
        "restart_median_s": slow_s,
        "ratio": fast_s / slow_s,
        "parameters": parameters,
        **{p: median(getattr(h.phases, p) for h in fast) for p in Phases.__struct_fields__},
        "lost_work_s": lost["fast"],
        "lost_work_restart_s": lost["slow"],
        "lost_work_ratio": lost["fast"] / lost["slow"],
        **_by_way("lost_work_s", fast),
        **_by_way("lost_work_restart_s", slow),
        "handwritten_median_s": median(hand),
        "restart_vs_handwritten": slow_s / median(hand),
        "hand_overs_each_way": EACH_WAY,
        "cpu_limits_enforced": True,
    }


def _by_way(name: str, done: list[HandOver]) -> dict[str, float]:
    ways = {"grow": True, "shrink": False}
    return {
        f"{name}_{way}": median(h.lost_work_s for h in done if h.grows == grows)
        for way, grows in ways.items()
    }


if __name__ == "__main__":
    finish_or_refuse(main())
