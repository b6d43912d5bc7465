"""The time to a given loss, with a batch that may grow: an arm of `make bench-live`.

Two jobs of each program with the policy `weir`, one after the other, each on a stack of its own: one
may change its batch, the other has a fixed one. Both have `consistency: global-batch` and the same
bounds of ps and workers, so both grow alike, and only the batch and its learning rate differ.

    curve     the median of the last `WINDOW` reported losses, over the seconds since the first
              update, pauses included
    target    low + TAIL (first - low), where `low` is the higher one of both curves' minima and
              `first` is the first loss of the fixed job; so both jobs reach it
    ratio     seconds of the job with a growing batch / seconds of the fixed one; below 1 is better

`time_to_loss_ratio` is the largest of all programs.

Environment: BENCH_LOSS_PROGRAMS (names with commas; empty: none), BENCH_LOSS_EPOCHS (0: those of the
program).
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from services.cli import demo
from services.cli.trial import Trial, trial
from services.cli.up import cluster_file
from services.local.stack import Stack
from shared.messages import ClusterSpecPublished, ProgressReported, TrainingResumed
from tests.bench.report import NoLimits, say
from tests.zoo.catalogue import FOLDER

CLUSTER = "nodes:\n  - {name: node, count: 2, cpu: 1, memory_gib: 8}\n"
PATIENCE_S = 1500.0
WINDOW, TAIL = 15, 0.003
MOST_TIMES = 8
"""A batch may grow by this factor."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    epochs: int
    batch: int


CASES = {
    "characters": Case(path=demo.JOBS / "characters.py", epochs=24, batch=16),
    "wide_and_deep": Case(path=FOLDER / "wide_and_deep.py", epochs=32, batch=64),
}
PROGRAMS = tuple(filter(None, os.environ.get("BENCH_LOSS_PROGRAMS", ",".join(CASES)).split(",")))
EPOCHS = int(os.environ.get("BENCH_LOSS_EPOCHS", "0"))
Curve = Sequence[tuple[float, float]]
"""Seconds since the first update, and loss."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job. `batches`, `workers`: of each generation that trained."""

    curve: tuple[tuple[float, float], ...]
    batches: tuple[int, ...]
    workers: tuple[int, ...]


async def compare_times() -> dict[str, Any]:
    found = {}
    for name in PROGRAMS:
        fixed = await train(name, 1)
        growing = await train(name, MOST_TIMES)
        found[name] = compare_runs(fixed, growing)
        say(f"{name}: {found[name]}")
    ratios = [each["ratio"] for each in found.values() if each["ratio"] is not None]
    return {"time_to_loss_ratio": max(ratios, default=None), "time_to_loss": found}


def compare_runs(fixed: Run, growing: Run) -> dict[str, Any]:
    target = target_loss(fixed.curve, growing.curve)
    fixed_s, growing_s = time_to(fixed.curve, target), time_to(growing.curve, target)
    return {
        "ratio": round(growing_s / fixed_s, 4) if growing_s and fixed_s else None,
        "loss": round(target, 5),
        "fixed_s": fixed_s,
        "growing_s": growing_s,
        "batches": growing.batches,
        "workers": {"fixed": fixed.workers, "growing": growing.workers},
    }


def smooth(losses: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return each time with the median of the last `WINDOW` losses."""
    known = list(losses)
    return [
        (at_s, statistics.median([loss for _, loss in known[max(0, n - WINDOW + 1) : n + 1]]))
        for n, (at_s, _) in enumerate(known)
    ]


def target_loss(fixed: Curve, growing: Curve) -> float:
    """Return a loss that both curves reach."""
    low = max(min(loss for _, loss in curve) for curve in (fixed, growing))
    return low + TAIL * max(fixed[0][1] - low, 0.0)


def time_to(curve: Curve, target: float) -> float | None:
    """Return the first time in s at which a curve is at or below a loss; None if it never is."""
    return next((round(at_s, 2) for at_s, loss in curve if loss <= target), None)


async def train(name: str, times: int) -> Run:
    """Train a job whose batch may grow to `times` of what it starts with."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with Stack(Path(folder), cluster) as stack, trial(stack) as watched:
            await watched.submit(job_request(name, times), CASES[name].path)
            await watched.until(lambda: watched.of(TrainingResumed), PATIENCE_S, "the start")
            if not watched.enforced:
                raise NoLimits("CPU limits are not enforced on this machine: all sizes are equal")
            await watched.await_finish(PATIENCE_S)
            return _run(watched)


def job_request(name: str, times: int) -> dict[str, Any]:
    case = CASES[name]
    return {
        **demo.REQUEST,
        "job": name.replace("_", "-"),
        "epochs": EPOCHS or case.epochs,
        "batch": {"start": case.batch, "min": case.batch, "max": case.batch * times},
        "ps": {"start": 1, "min": 1, "max": 1},
        "workers": {"start": 1, "min": 1, "max": 3},
        "resources": {
            "chief": demo.task_resources(0.25),
            "ps": demo.task_resources(0.25),
            "worker": demo.task_resources(0.5),
        },
        "learning_rate": "sqrt",
        "consistency": "global-batch",
        "policy": "weir",
    }


def _run(watched: Trial) -> Run:
    specs = {m.generation: m for m in watched.of(ClusterSpecPublished)}
    trained = [specs[m.generation] for m in watched.of(TrainingResumed)]
    began_s = next(h.stored_s for h in watched.heard if isinstance(h.message, TrainingResumed))
    losses = [
        (h.stored_s - began_s, h.message.loss)
        for h in watched.heard
        if isinstance(h.message, ProgressReported) and h.message.loss is not None
    ]
    return Run(
        curve=tuple(smooth(losses)),
        batches=tuple([spec.batch for spec in trained]),
        workers=tuple([len(spec.addresses("worker")) for spec in trained]),
    )
