"""Policies on real training, with changes of batch and learning rate.

`make bench-live` (about 20 minutes). Two nodes of a core; another user's pod occupies one of them
until `LEAVE_S` after the start. One job for each policy, each on a stack of its own with the
default policy `static`: the first job names no policy, the others name theirs. All may grow in ps,
workers and batch, and the learning rate follows the square root of the batch. The rate of a
generation is the one that its trainer reported (`TrainingResumed.learning_rate`); the rule beside
it is computed from the rate of the program:

    rate = 0.1 sqrt(batch / 32) bound(workers) / bound(1)    (`services/trainer/worker/scaling.py`)

`dike` and `dlrover` do not change the batch. `dlrover` observes a generation for a minute and
assumes half a minute for its first pause, so it does not change jobs that are much shorter than
this one. Until the trainer has measured the gradient noise scale, `weir` and `elastic-batch` assume
that an example has the same value in every batch of the requested range.

`time_to_loss_ratio`: the time to a given loss with a batch that may grow, divided by that with a
fixed one (`time_to_loss.py`).
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from services.cli import demo
from services.cli.trial import Trial, trial
from services.cli.up import cluster_file
from services.local.stack import Stack
from services.trainer.worker import scaling
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    ClusterSpecPublished,
    JobAccepted,
    JobFinished,
    ProgressReported,
    TrainingResumed,
)
from tests.bench.report import NoLimits, finish_or_refuse, refuse_unknown_programs, say
from tests.bench.time_to_loss import CASES, PROGRAMS, compare_times
from tests.flow.stage import Scene

CLUSTER = "nodes:\n  - {name: node, count: 2, cpu: 1, memory_gib: 8}\n"
TAKEN = "node-2"
POLICIES = tuple(os.environ.get("BENCH_POLICIES", "dike,dlrover,elastic-batch,weir").split(","))
EPOCHS = int(os.environ.get("BENCH_EPOCHS", "90"))
LEAVE_S = float(os.environ.get("BENCH_LEAVE_S", "40"))
PATIENCE_S = 600.0
RATE, START = 0.1, 32
"""Rate and batch of `deploy/jobs/digits.py`, for one worker."""
CLOSE = 1e-6
"""Relative tolerance of a rate: the optimizer stores 32 bits."""
WITHIN = 0.02
REQUEST = {
    **demo.REQUEST,
    "epochs": EPOCHS,
    "batch": {"start": START, "min": START, "max": 256},
    "ps": {"start": 1, "min": 1, "max": 2},
    "workers": {"start": 1, "min": 1, "max": 3},
    "resources": {
        "chief": demo.task_resources(0.25),
        "ps": demo.task_resources(0.25),
        "worker": demo.task_resources(0.5),
    },
    "learning_rate": "sqrt",
}


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """One generation: its time since the request in s, its size, its rate and the rule's."""

    at_s: float
    ps: int
    workers: int
    batch: int
    learning_rate: float
    rule: float
    pause_s: float | None
    reason: str

    def told(self) -> str:
        pause = "" if self.pause_s is None else f" after {self.pause_s:.2f} s"
        size = f"{self.ps} ps, {self.workers} workers, batch {self.batch}"
        return (
            f"{self.at_s:6.1f} s: {size}, rate {self.learning_rate:.4f} (rule"
            f" {self.rule:.4f}){pause}: {self.reason}"
        )


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `policy` is that of the accepted request."""

    policy: str
    total_s: float
    stretches: tuple[Stretch, ...]
    counted: int
    examples: int
    accuracy: float


def by_rule(batch: int, workers: int) -> float:
    return (
        RATE
        * math.sqrt(batch / START)
        * scaling.stability_bound(workers)
        / scaling.stability_bound(1)
    )


async def once(policy: str | None) -> Outcome:
    """Run one job. If `policy` is None, the default of the cluster is used."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with (
            Stack(Path(folder), cluster, {"WEIR_ALLOCATOR_POLICY": "static"}) as stack,
            trial(stack) as watched,
        ):
            await _play(Scene(watched, Path(folder)), {**REQUEST, "policy": policy})
            return _outcome(watched)


async def _play(scene: Scene, request: dict[str, Any]) -> None:
    watched, stranger = scene.watched, await scene.stranger_comes(TAKEN)
    await watched.until(lambda: _taken(watched), PATIENCE_S, "the stranger")
    await watched.submit(request, demo.JOBS / "digits.py")
    await watched.until(lambda: watched.of(TrainingResumed), PATIENCE_S, "the start")
    if not watched.enforced:
        raise NoLimits(
            "CPU limits are not enforced on this machine: no size would differ from another"
        )
    await asyncio.sleep(LEAVE_S)
    await scene.stranger_leaves(stranger)
    await watched.await_finish(PATIENCE_S)


def _taken(watched: Trial) -> bool:
    return any(seen.node == TAKEN and not seen.free.cpu for seen in watched.of(CapacityChanged))


def _outcome(watched: Trial) -> Outcome:
    over: JobFinished = watched.of(JobFinished)[-1]
    return Outcome(
        policy=watched.of(JobAccepted)[-1].request.policy,
        total_s=over.finished_s - watched.submitted_s,
        stretches=tuple(_stretches(watched)),
        counted=over.counted,
        examples=watched.of(ProgressReported)[-1].total_samples,
        accuracy=over.metrics["accuracy"],
    )


def _stretches(watched: Trial) -> list[Stretch]:
    specs = {m.generation: m for m in watched.of(ClusterSpecPublished)}
    reasons = {m.generation: m.reason for m in watched.of(AllocationDecided)}
    heard = [(h.stored_s - watched.submitted_s, h.message) for h in watched.heard]
    return [
        _stretch(at_s, specs[m.generation], m, reasons[m.generation])
        for at_s, m in heard
        if isinstance(m, TrainingResumed)
    ]


def _stretch(
    at_s: float, spec: ClusterSpecPublished, resumed: TrainingResumed, reason: str
) -> Stretch:
    ps, workers = len(spec.addresses("ps")), len(spec.addresses("worker"))
    return Stretch(
        at_s=round(at_s, 1),
        ps=ps,
        workers=workers,
        batch=spec.batch,
        learning_rate=round(resumed.learning_rate or 0.0, 7),
        rule=round(by_rule(spec.batch, workers), 7),
        pause_s=None if resumed.pause_s is None else round(resumed.pause_s, 3),
        reason=reason,
    )


async def main() -> dict[str, Any]:
    refuse_unknown_programs(PROGRAMS, CASES)
    runs = {}
    for policy in (None, *POLICIES):
        done = await once(policy)
        runs[done.policy] = done
        say(
            f"{done.policy}: {done.total_s:.1f} s, accuracy {done.accuracy:.3f}, {done.counted} of"
            f" {done.examples}"
        )
        for stretch in done.stretches:
            say(f"  {stretch.told()}")
    return {**result(runs), **await compare_times()}


def result(runs: dict[str, Outcome]) -> dict[str, Any]:
    static = runs["static"].accuracy
    stretches = [stretch for run in runs.values() for stretch in run.stretches]
    return {
        "batch_changed_by": [name for name, run in runs.items() if batch_changes(run)],
        "rates_follow_the_rule": all(
            math.isclose(s.learning_rate, s.rule, rel_tol=CLOSE) for s in stretches
        ),
        "exactly_once": all(run.counted == run.examples for run in runs.values()),
        "accuracy_within": all(abs(run.accuracy - static) <= WITHIN for run in runs.values()),
        "longest_pause_s": max(
            (s.pause_s for s in stretches if s.pause_s is not None), default=0.0
        ),
        "runs": {name: _told(run, static) for name, run in runs.items()},
        "cpu_limits_enforced": True,
    }


def _told(run: Outcome, static: float) -> dict[str, Any]:
    return {
        "total_s": round(run.total_s, 1),
        "generations": [msgspec.to_builtins(stretch) for stretch in run.stretches],
        "batch_changes": batch_changes(run),
        "examples_expected": run.examples,
        "examples_counted": run.counted,
        "accuracy": round(run.accuracy, 4),
        "accuracy_against_static": round(run.accuracy - static, 4),
    }


def batch_changes(run: Outcome) -> list[dict[str, Any]]:
    """Return every hand-over that changed the batch: batch and rate before and after."""
    return [
        {
            "batch": [before.batch, after.batch],
            "learning_rate": [before.learning_rate, after.learning_rate],
            "rule": [before.rule, after.rule],
        }
        for before, after in pairwise(run.stretches)
        if before.batch != after.batch
    ]


if __name__ == "__main__":
    finish_or_refuse(main())
