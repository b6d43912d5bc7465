"""FlowCon on real training, against equal shares in the same run.

`make bench-flowcon-live` (about 10 minutes). One node of one core, on a CPU of its own if the
machine has two. Three TensorFlow jobs of a chief, a ps and a worker start as in the seed's schedule
(0, 40 and 80 s), scaled by `SCALE`: a variational auto-encoder, a classifier that is flat after
seconds, and a classifier that improves during its whole training, which starts last. They report
their losses each second. Every pod's CPU limit is soft in both arms, so no core idles that a pod
could use:

    equal    policy `static`: every job requests the same third of the node all the time. The kernel
             weighs pods by their requests (`cpu.shares`), as for Docker's containers by default.
    flowcon  policy `flowcon`: requests change through the `resize` subresource, without restarts.

completion       of a job: from submission to end, in s
late_job_cut     1 - completion of the last job under `flowcon` / under `equal`
makespan_change  (last end - first submission) under `flowcon` / under `equal` - 1
longest_gap_s    longest time without a report of a new update, of a job that trains; there is one
                 report per second
gap_at_resize_s  the same, of gaps in which a pod of that job was resized
resize_s         from a decision to the report that a pod has its new cores, median and maximum
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from services.cli.trial import Failed, Trial, trial
from services.cli.up import cluster_file
from services.local.stack import Stack
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobFinished,
    ProgressReported,
    TaskStarted,
    TaskUpdated,
    TrainingResumed,
)
from tests.bench import alone
from tests.bench.report import NoLimits, finish_or_refuse, median, say

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
STARTS_S = (0.0, 40.0, 80.0)
CLUSTER = "nodes:\n  - {name: node, cpu: 1, memory_gib: 16}\n"
PROGRAMS = Path(__file__).with_name("programs")
PATIENCE_S = 600.0
WORK = float(os.environ.get("BENCH_WORK", "1"))
JOBS = {
    name: max(1, round(WORK * epochs))
    for name, epochs in (("vae", 350), ("cancer", 710), ("late", 144))
}
"""Number of epochs of each job, in the order of their start.

With BENCH_WORK=1 they are long enough that a start, which takes half a minute here and seconds in
the seed, is at most a quarter of the last job.
"""
BATCH = {"start": 256, "min": 256, "max": 256}
ONE = {"start": 1, "min": 1, "max": 1}
CORES = {"chief": 0.18, "ps": 0.18, "worker": 0.6}
"""Cores of the tasks of a job that has the node to itself."""
ARMS = {"equal": ("static", 1 / 3), "flowcon": ("flowcon", 1.0)}
"""Policy, and the share of those cores that a job requests."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One job in one arm; times in s."""

    completion_s: float
    until_first_step_s: float
    longest_gap_s: float
    gap_at_resize_s: float
    starts: int
    exactly_once: bool
    last_loss: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    makespan_s: float
    jobs: dict[str, Run]
    resizes: int
    resize_s: tuple[float, ...]


def request(job: str, arm: str) -> dict[str, Any]:
    policy, part = ARMS[arm]
    sizes = {
        role: {"cpu": round(cores * part, 3), "memory_gib": 1.6} for role, cores in CORES.items()
    }
    return {
        "job": job,
        "epochs": JOBS[job],
        "batch": BATCH,
        "ps": ONE,
        "workers": ONE,
        "resources": sizes,
        "policy": policy,
        "cpu_limits": "soft",
        "checkpoint": {"every_s": PATIENCE_S},
    }


# ---------------------------------------------------------------- one arm


async def once(arm: str) -> Outcome:
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with Stack(Path(folder), cluster) as stack, trial(stack) as watched:
            alone.on_a_cpu(stack)
            submitted = await _play(watched, arm)
            return _outcome(watched, submitted)


async def _play(watched: Trial, arm: str) -> dict[str, float]:
    """Run the jobs of one arm; return when each was submitted."""
    await watched.until(lambda: watched.of(CapacityChanged), PATIENCE_S, "the node")
    began, submitted = time.time(), {}
    for job, start_s in zip(JOBS, STARTS_S, strict=True):
        await asyncio.sleep(max(0.0, began + start_s * SCALE - time.time()))
        await watched.submit(request(job, arm), PROGRAMS / f"{job}.py")
        submitted[job] = watched.submitted_s
        await watched.until(lambda: watched.of(TaskStarted), PATIENCE_S, "a pod")
        alone.outweigh(watched.stack)
    if not watched.enforced:
        raise NoLimits("CPU limits are not enforced on this machine: the comparison means nothing")
    await _all_over(watched)
    return submitted


async def _all_over(watched: Trial) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(over := watched.of(JobFinished)) < len(JOBS):
            if watched.broken.done():
                watched.broken.result()
            if failed := [
                f"{end.job} {end.outcome}: {end.cause}"
                for end in over
                if end.outcome != "succeeded"
            ]:
                raise Failed("\n".join(failed))
            watched.changed.clear()
            await watched.changed.wait()


# ---------------------------------------------------------------- results


def _outcome(watched: Trial, submitted: dict[str, float]) -> Outcome:
    ends = {end.job: end.finished_s for end in watched.of(JobFinished)}
    decided = {(d.uid, d.revision): d.decided_s for d in watched.of(AllocationDecided)}
    updates = [(h.stored_s, h.message) for h in watched.heard if isinstance(h.message, TaskUpdated)]
    return Outcome(
        makespan_s=max(ends.values()) - min(submitted.values()),
        jobs={job: _run(watched, job, at_s, updates) for job, at_s in submitted.items()},
        resizes=len(updates),
        resize_s=tuple(at_s - decided[m.uid, m.revision] for at_s, m in updates),
    )


def _run(
    watched: Trial, job: str, submitted_s: float, updates: Iterable[tuple[float, TaskUpdated]]
) -> Run:
    [over] = [m for m in watched.of(JobFinished) if m.job == job]
    reports = [m for m in watched.of(ProgressReported) if m.job == job]
    resumed = [
        h.stored_s
        for h in watched.heard
        if isinstance(h.message, TrainingResumed) and h.message.job == job
    ]
    resized = [at_s for at_s, m in updates if m.job == job]
    found = gaps(reports)
    return Run(
        completion_s=over.finished_s - submitted_s,
        until_first_step_s=resumed[0] - submitted_s,
        longest_gap_s=max((end - start for start, end in found), default=0.0),
        gap_at_resize_s=max(
            (e - s for s, e in found if any(s <= at_s <= e for at_s in resized)), default=0.0
        ),
        starts=len(resumed),
        exactly_once=over.counted == reports[-1].total_samples,
        last_loss=reports[-1].loss or 0.0,
    )


def gaps(reports: Iterable[ProgressReported]) -> list[tuple[float, float]]:
    """Return the spans between reports of new updates."""
    new = [late.reported_s for early, late in pairwise(reports) if late.samples > early.samples]
    return list(pairwise(new))


def told(arm: str, outcome: Outcome) -> None:
    say(f"{arm}: makespan {outcome.makespan_s:.1f} s, {outcome.resizes} resizes")
    for job, run in outcome.jobs.items():
        gap = f"longest gap {run.longest_gap_s:.2f} s, at a resize {run.gap_at_resize_s:.2f} s"
        say(
            f"  {job:8} {run.completion_s:6.1f} s, first step after {run.until_first_step_s:5.1f}"
            f" s, {gap}"
        )


def result(arms: dict[str, Outcome]) -> dict[str, Any]:
    ours, equal = arms["flowcon"], arms["equal"]
    *_, late = JOBS
    runs = [run for arm in arms.values() for run in arm.jobs.values()]
    return {
        "late_job_cut": 1 - ours.jobs[late].completion_s / equal.jobs[late].completion_s,
        "makespan_change": ours.makespan_s / equal.makespan_s - 1,
        "cuts": {
            j: round(1 - ours.jobs[j].completion_s / equal.jobs[j].completion_s, 4) for j in JOBS
        },
        "resizes": ours.resizes,
        "resize_median_s": median(ours.resize_s or (0.0,)),
        "resize_longest_s": max(ours.resize_s, default=0.0),
        "gap_at_resize_s": max(run.gap_at_resize_s for run in ours.jobs.values()),
        "longest_gap_s": {
            n: round(max(r.longest_gap_s for r in arm.jobs.values()), 3) for n, arm in arms.items()
        },
        "restarts": sum(run.starts - 1 for run in runs),
        "exactly_once": all(run.exactly_once for run in runs),
        "scale": SCALE,
        "arms": {name: _plain(arm) for name, arm in arms.items()},
        "cpu_limits_enforced": True,
    }


def _plain(outcome: Outcome) -> dict[str, Any]:
    jobs = {
        name: {k: round(v, 3) for k, v in msgspec.structs.asdict(run).items()}
        for name, run in outcome.jobs.items()
    }
    return {"makespan_s": round(outcome.makespan_s, 1), "jobs": jobs}


async def main() -> dict[str, Any]:
    arms = {}
    for arm in ARMS:
        arms[arm] = await once(arm)
        told(arm, arms[arm])
    return result(arms)


if __name__ == "__main__":
    finish_or_refuse(main())
