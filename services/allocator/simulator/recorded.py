"""Yesterday as a scenario: a recorded log becomes jobs, machines, tenants and speeds, to try another policy on.

The log is folded as the allocator folds it, and what is needed is read off:

    jobs      accepted requests, without their policy; how much there is to do, from their reports
    speeds    of each program, at the sizes at which it ran (geometric mean of its reports)
    loss      of each program, from the reports of its jobs
    restarts  the mean of the measured pauses of hand-overs
    machines  see `grounds.py`

Sizes that never ran have no speed of their own: between those that ran it is interpolated, and beyond them nothing
gains (`surfaces.py`). So a policy that would have gone where nobody went gets no credit for it. Jobs that never
reported how much there is to do are left out, and named. The recorded run itself is told beside the simulated ones;
its pauses are the measured ones, and where a task was lost, the time until the next generation trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import fmean, median

import msgspec
from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.policies.contract import Reading
from services.allocator.simulator.grounds import Grounds
from services.allocator.simulator.log_file import Told
from services.allocator.simulator.losses import Curve
from services.allocator.simulator.outcome import Run
from services.allocator.simulator.record import Record
from services.allocator.simulator.scenario import Scenario, Work
from services.allocator.simulator.surfaces import Measured, Surface
from services.allocator.state import State, apply
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobAccepted,
    JobFinished,
    JobMessage,
    ProgressReported,
    TaskExited,
    TrainingResumed,
)

NAME = "recorded"
PAUSE_S = 1.0
"""Where no pause was measured."""
REPORT_S = (1.0, 60.0)
"""The shortest and the longest time between two reports that is simulated."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The scenario, the run as it was, and the jobs that had to be left out."""

    scenario: Scenario
    run: Run
    left_out: tuple[str, ...]


@dataclass
class Known:
    """One job as the log tells of it. `lost_s`: when it lost a task that is not replaced yet."""

    accepted: JobAccepted
    record: Record
    readings: list[Reading] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    total: int = 0
    lost_s: float = inf


def past(log: Sequence[Told]) -> Past:
    """Of at least one message, by time."""
    jobs, grounds, state, from_s = dict[int, Known](), Grounds(), State(), log[0].at_s
    for one in log:
        state = apply(state, one.message, one.stream, one.sequence, one.at_s)
        now = one.at_s - from_s
        if isinstance(one.message, CapacityChanged):
            grounds.see(one.message, now)
        elif isinstance(one.message, JobAccepted):
            _begin(jobs, one.message, state, from_s)
        elif isinstance(one.message, JobMessage):
            known = jobs.get(one.message.uid)
            if known is not None and known.accepted.key() == one.message.key():
                _note(known, one.message, state, now)
    whole = [known for known in jobs.values() if known.total]
    for known in whole:
        known.record.work = replace(known.record.work, samples=known.total)
    return Past(
        scenario=_scenario(whole, grounds),
        run=Run(
            policy=NAME,
            records=tuple(known.record for known in whole),
            held=tuple(grounds.held),
            decision_ms=(),
            ended_s=log[-1].at_s - from_s,
        ),
        left_out=tuple(known.record.work.job for known in jobs.values() if not known.total),
    )


def _begin(jobs: dict[int, Known], accepted: JobAccepted, state: State, from_s: float) -> None:
    """A name that is used again gets its uid behind it."""
    job = state.jobs.get(accepted.key())
    if job is None or job.uid != accepted.uid or accepted.uid in jobs:
        return
    asked, names = accepted.request, {known.record.work.job for known in jobs.values()}
    work = Work(
        job=asked.job if asked.job not in names else f"{asked.job}-{accepted.uid}",
        model=asked.program.digest,
        samples=0,
        submitted_s=max(0.0, job.asked_s - from_s),
        batch=asked.batch,
        ps=asked.ps,
        workers=asked.workers,
        device_batch_max=asked.device_batch_max,
        priority=asked.priority,
        namespace=asked.namespace,
        worker_gpu=asked.resources.worker.gpu if asked.resources else 0,
        asked=asked,
    )
    jobs[accepted.uid] = Known(accepted, Record(work))


def _note(known: Known, message: JobMessage, state: State, now: float) -> None:
    job = state.jobs.get(message.key())
    if isinstance(message, ProgressReported) and job and job.progress is message:
        known.total = message.total_samples
        known.readings.append(job.recent[-1])
    elif isinstance(message, AllocationDecided):
        known.record.decided(message, now)
    elif isinstance(message, TrainingResumed):
        known.pauses += [message.handover_s] if message.handover_s is not None else []
        known.record.resumed(now, known.lost_s if message.pause_s is None else now - message.pause_s)
        known.lost_s = inf
    elif isinstance(message, TaskExited) and job and _needs(job, message.pod):
        known.lost_s = min(known.lost_s, now)
    elif isinstance(message, JobFinished):
        known.record.over(message.outcome, now)


def _needs(job: Job, pod: str) -> bool:
    return any(job.pod(task) == pod for task in (job.wanted.tasks if job.wanted else ()))


# ---------------------------------------------------------------- what is read off


def _scenario(jobs: Sequence[Known], grounds: Grounds) -> Scenario:
    pauses = [pause for known in jobs for pause in known.pauses]
    gaps = [late.at_s - early.at_s for known in jobs for early, late in pairwise(known.readings)]
    return Scenario(
        jobs=tuple(known.record.work for known in jobs),
        cluster=grounds.cluster(),
        surfaces={model: Surface(points) for model, points in _speeds(jobs).items()},
        losses={model: Curve(points) for model, points in _losses(jobs).items()},
        restart_s=fmean(pauses) if pauses else PAUSE_S,
        report_s=min(max(median(gaps) if gaps else 0.0, REPORT_S[0]), REPORT_S[1]),
    )


def _speeds(jobs: Sequence[Known]) -> dict[str, list[Measured]]:
    points: dict[str, list[Measured]] = {known.record.work.model: [] for known in jobs}
    for known in jobs:
        points[known.record.work.model] += _measured(known.readings)
    return points


def _measured(readings: Sequence[Reading]) -> Iterator[Measured]:
    for one in readings:
        if one.samples_per_second > 0 and one.workers > 0:
            yield Measured(one.ps, one.workers, one.batch, one.samples_per_second)


def _losses(jobs: Sequence[Known]) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for known in jobs:
        told = [(float(one.samples), one.loss) for one in known.readings if one.loss is not None]
        points[known.record.work.model] = points.get(known.record.work.model, []) + told
    return {model: known for model, known in points.items() if known}
