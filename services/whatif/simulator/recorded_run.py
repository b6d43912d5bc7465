"""A recorded log as a scenario: its jobs, machines and speeds, to be run under another policy.

The log is folded as the allocator folds it. The parts of the scenario:

    jobs      accepted requests, without their policy; the amount of work is from their reports
    speeds    of each program, at the sizes at which it ran (geometric mean of its reports)
    loss      of each program, from the reports of its jobs
    restarts  the mean of the measured pauses of hand-overs
    machines  see `fake_cluster.py`

The speed of a size that never ran is interpolated between those that ran; beyond them it does not
rise (`scenario.py`). So a policy gains nothing from sizes that were never measured. Jobs that never
reported their amount of work are left out, and named. The recorded run is shown beside the
simulated ones. Its pauses are the measured ones; after a lost task, the time until the next
generation trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import fmean, median

import msgspec
from msgspec.structs import replace

from services.allocator.policies.contract import Reading
from services.allocator.state.job import Job
from services.allocator.state.state import State, apply
from services.whatif.event_log import LogEntry
from services.whatif.simulator.fake_cluster import RecordedCluster
from services.whatif.simulator.outcome import JobRecord, Run
from services.whatif.simulator.scenario import Curve, Measured, Point, Scenario, Surface, Work
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobAccepted,
    JobFinished,
    JobMessage,
    JobRequested,
    ProgressReported,
    TaskExited,
    TrainingResumed,
)

NAME = "recorded"
PAUSE_S = 1.0
"""The pause if none was measured."""
REPORT_S = (1.0, 60.0)
"""The shortest and the longest time between two reports that is simulated."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded log."""

    scenario: Scenario
    run: Run
    """The run as it was recorded."""
    left_out: tuple[str, ...]
    """The jobs that never reported their amount of work."""


@dataclass
class Known:
    """One job in the log."""

    accepted: JobAccepted
    record: JobRecord
    readings: list[Reading] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    """The measured pauses of its hand-overs in seconds."""
    total: int = 0
    """The total number of samples to apply; 0: not reported yet."""
    gradient_noise: float | None = None
    """The last one that it reported."""
    lost_s: float = inf
    """The time at which it lost a task that is not replaced yet; infinite: there is none."""


def read_recorded_run(log: Sequence[LogEntry]) -> RecordedRun:
    """Return the scenario and the run of a log, which is sorted by time and has at least one
    message.
    """
    grounds = RecordedCluster()
    whole = []
    left_out = []
    for known in _fold_log(log, grounds).values():
        record = known.record
        if known.total:
            record.work = replace(
                record.work, samples=known.total, gradient_noise=known.gradient_noise
            )
            whole.append(known)
        else:
            left_out.append(record.work.job)

    run = Run(
        policy=NAME,
        records=tuple([known.record for known in whole]),
        held=tuple(grounds.held),
        decision_ms=(),
        ended_s=log[-1].at_s - log[0].at_s,
    )
    return RecordedRun(scenario=_scenario(whole, grounds), run=run, left_out=tuple(left_out))


def _fold_log(log: Sequence[LogEntry], grounds: RecordedCluster) -> dict[int, Known]:
    """Return the accepted jobs of a log by their uid. `grounds` observes the nodes."""
    jobs: dict[int, Known] = {}
    state = State()
    from_s = log[0].at_s

    for told in log:
        message = told.message
        state = apply(state, message, told.stream, told.sequence, told.at_s)
        now = told.at_s - from_s
        if isinstance(message, CapacityChanged):
            grounds.observe(message, now)
        elif isinstance(message, JobAccepted):
            _begin_job(jobs, message, state, from_s)
        elif isinstance(message, JobMessage):
            known = _job_of(jobs, message)
            if known is not None:
                _note_entry(known, message, state, now)
    return jobs


def _job_of(jobs: Mapping[int, Known], message: JobMessage) -> Known | None:
    """Return the accepted job that a message is about."""
    known = jobs.get(message.uid)
    if known is None or known.accepted.key() != message.key():
        return None
    return known


def _begin_job(jobs: dict[int, Known], accepted: JobAccepted, state: State, from_s: float) -> None:
    """Add an accepted job, if the state has the same one."""
    job = state.jobs.get(accepted.key())
    if job is None or job.uid != accepted.uid or accepted.uid in jobs:
        return

    name = _unused_name(jobs, accepted)
    submitted_s = max(0.0, job.asked_s - from_s)
    work = _work_of(accepted.request, name, submitted_s)
    jobs[accepted.uid] = Known(accepted, JobRecord(work))


def _unused_name(jobs: Mapping[int, Known], accepted: JobAccepted) -> str:
    """Return the name of a job; with its uid appended if another job has this name."""
    name = accepted.request.job
    for known in jobs.values():
        if known.record.work.job == name:
            return f"{name}-{accepted.uid}"
    return name


def _work_of(asked: JobRequested, name: str, submitted_s: float) -> Work:
    """Return the work of a request; the number of samples is not known yet."""
    worker_gpu = 0
    if asked.resources:
        worker_gpu = asked.resources.worker.gpu
    return Work(
        job=name,
        model=asked.program_version,
        samples=0,
        submitted_s=submitted_s,
        batch=asked.batch,
        ps=asked.ps,
        workers=asked.workers,
        device_batch_max=asked.device_batch_max,
        priority=asked.priority,
        namespace=asked.namespace,
        worker_gpu=worker_gpu,
        asked=asked,
    )


def _note_entry(known: Known, message: JobMessage, state: State, now: float) -> None:
    """Record a message about an accepted job; `state` contains it already."""
    job = state.jobs.get(message.key())
    record = known.record
    if isinstance(message, ProgressReported):
        last = known.readings[-1] if known.readings else None
        if job and job.recent and job.recent[-1] is not last:
            known.total = message.total_samples
            if message.gradient_noise is not None:
                known.gradient_noise = message.gradient_noise
            known.readings.append(job.recent[-1])
    elif isinstance(message, AllocationDecided):
        record.add_decision(message, now)
    elif isinstance(message, TrainingResumed):
        _note_resumed(known, message, now)
    elif isinstance(message, TaskExited):
        if job and _needs(job, message.pod):
            known.lost_s = min(known.lost_s, now)
    elif isinstance(message, JobFinished):
        record.over(message.outcome, now)


def _note_resumed(known: Known, resumed: TrainingResumed, now: float) -> None:
    """Record that a generation trains, and for how long the job did not train before."""
    if resumed.handover_s is not None:
        known.pauses.append(resumed.handover_s)
    stopped_s = known.lost_s
    if resumed.pause_s is not None:
        stopped_s = now - resumed.pause_s
    known.record.add_resumption(now, stopped_s)
    known.lost_s = inf


def _needs(job: Job, pod: str) -> bool:
    """Return True if the newest decision of the job has a task with this pod."""
    if job.newest_decision is None:
        return False
    return any(job.pod(task) == pod for task in job.newest_decision.tasks)


# ---------------------------------------------------------------- the scenario of a log


def _scenario(jobs: Sequence[Known], grounds: RecordedCluster) -> Scenario:
    """Return the scenario of the jobs whose amount of work is known."""
    works = []
    pauses: list[float] = []
    for known in jobs:
        works.append(known.record.work)
        pauses += known.pauses
    restart_s = fmean(pauses) if pauses else PAUSE_S
    return Scenario(
        jobs=tuple(works),
        cluster=grounds.cluster(),
        surfaces=_surfaces(jobs),
        losses=_losses(jobs),
        restart_s=restart_s,
        report_s=_report_gap_s(jobs),
    )


def _report_gap_s(jobs: Sequence[Known]) -> float:
    """Return the median time between two reports of a job, within `REPORT_S`."""
    gaps: list[float] = []
    for known in jobs:
        for early, late in pairwise(known.readings):
            gaps.append(late.at_s - early.at_s)

    shortest_s, longest_s = REPORT_S
    gap_s = median(gaps) if gaps else 0.0
    return min(max(gap_s, shortest_s), longest_s)


def _surfaces(jobs: Sequence[Known]) -> dict[str, Surface]:
    """Return the measured speeds of each model."""
    points: dict[str, list[Measured]] = {}
    for known in jobs:
        model = known.record.work.model
        of_model = points.setdefault(model, [])
        for one in known.readings:
            speed = one.samples_per_second
            if speed > 0 and one.workers > 0:
                of_model.append(Measured(one.ps, one.workers, one.batch, speed))
    return {model: Surface(measured) for model, measured in points.items()}


def _losses(jobs: Sequence[Known]) -> dict[str, Curve]:
    """Return the loss curve of each model that reported a loss."""
    points: dict[str, list[Point]] = {}
    for known in jobs:
        model = known.record.work.model
        for one in known.readings:
            if one.loss is not None:
                of_model = points.setdefault(model, [])
                of_model.append((float(one.samples), one.loss))
    return {model: Curve(known_losses) for model, known_losses in points.items()}
