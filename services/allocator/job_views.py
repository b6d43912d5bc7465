"""The view of each job for `weir jobs`: derived from the state, stored in a bucket, rebuildable.

A job is shown as silent if it trains and sends no report (its heartbeat): its program may hang. A
trainer reports every second, but only after an update. So the longest normal silence is
`unreported_s`, or twice the time between the last two reports, if updates are that slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, isfinite
from typing import Literal

import msgspec
from msgspec.structs import replace

from services.allocator.state.job import Job
from services.allocator.state.policy_view import size_of
from services.allocator.state.state import ClosedJob, State
from shared.messages import AllocationDecided, Outcome, ProgressReported, Staleness

Phase = Literal[
    "Pending", "Starting", "Running", "Scaling", "Resuming", "Succeeded", "Failed", "Cancelled"
]
TRAINS: tuple[Phase, ...] = ("Running", "Scaling")
SILENT = "Silent"
"""Shown in place of the phase of a job that may hang."""
SUSPENDED = "Suspended"
"""Shown in place of the phase of a job that waits because its user suspended it."""
ENDED: dict[Outcome, Phase] = {
    "succeeded": "Succeeded",
    "failed": "Failed",
    "cancelled": "Cancelled",
}


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """The view of one job. `why`: the reason for its size. `ps`, `workers`: the numbers that run;
    `wanted_*`: the decided ones. The last reported speed (examples/s), and the weighted mean of the
    reports at its size, are 0 while nothing trains. `pauses`: seconds of its last hand-overs; `weir
    jobs` shows the last one.

    `suspended`: its user suspended it, and it has no tasks any more. `silent`: it should train, and
    has reported nothing for too long (`silent_s`). `epoch`: the number of complete epochs. After
    its end, `why` is the cause of the end, and `metrics` are the last ones.
    """

    job: str
    namespace: str
    uid: int
    phase: Phase
    silent: bool = False
    suspended: bool = False
    ps: int = 0
    workers: int = 0
    batch: int = 0
    wanted_ps: int = 0
    wanted_workers: int = 0
    generation: int = 0
    revision: int = 0
    step: int = 0
    epoch: int = 0
    samples: int = 0
    total_samples: int = 0
    samples_per_second: float = 0.0
    mean_samples_per_second: float = 0.0
    loss: float | None = None
    staleness: Staleness | None = None
    pauses: tuple[float, ...] = ()
    reason: str = ""
    why: str = ""
    submitted_s: float = 0.0
    resumed_s: float = 0.0
    finished_s: float = 0.0
    metrics: dict[str, float] = {}

    @property
    def shown_phase(self) -> str:
        """Return the phase that users see."""
        if self.suspended:
            return SUSPENDED
        if self.silent:
            return SILENT
        return self.phase


def phase_of(job: Job) -> Phase:
    """Return the phase. A job without training, because its generation broke or was shut down,
    continues from its checkpoint, or waits until there is room for it.
    """
    if job.running is None:
        return "Pending" if job.pending_generation is None else "Starting"
    if job.stands_still:
        is_decided = job.pending_decision is not None and bool(job.pending_decision.tasks)
        return "Resuming" if is_decided else "Pending"
    return "Running" if job.pending_generation is None else "Scaling"


def speed_of(job: Job) -> float:
    """Return the last reported speed (examples/s); 0 if nothing trains or if it is not a number."""
    if job.progress is None or job.stands_still:
        return 0.0
    speed = job.progress.samples_per_second
    return speed if isfinite(speed) else 0.0


def mean_speed_of(job: Job) -> float:
    """Return the mean speed (examples/s) at the running size and batch (`state/observations.py`).
    It changes less than the speed of one report.
    """
    now = speed_of(job)
    decision = job.active_decision
    if not now or decision is None:
        return now
    size = size_of(decision)
    running = (size.ps, size.workers, decision.batch)
    for observed in reversed(job.observed):
        if (observed.ps, observed.workers, observed.batch) == running:
            mean = observed.samples_per_second
            return mean if isfinite(mean) else now
    return now


def job_view(job: Job, why: str = "", silent: bool = False) -> JobView:
    """Return the view of a job that is not over. `why`: the reason of its size, or a remark."""
    view = JobView(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        phase=phase_of(job),
        silent=silent,
        suspended=job.suspended_by_user and job.newest_decision is None,
        revision=job.revision,
        samples_per_second=0.0 if silent else speed_of(job),
        mean_samples_per_second=0.0 if silent else mean_speed_of(job),
        pauses=job.pauses,
        why=why,
        submitted_s=job.asked_s,
        resumed_s=job.resumed_s,
    )

    if job.active_decision is not None:
        view = _with_running_size(view, job.active_decision)
    if job.newest_decision is not None:
        view = _with_wanted_size(view, job.newest_decision)
    if job.progress is not None:
        view = _with_progress(view, job.progress)
    return view


def _with_running_size(view: JobView, running: AllocationDecided) -> JobView:
    """Return the view with the size, batch and generation that run."""
    size = size_of(running)
    return replace(
        view,
        ps=size.ps,
        workers=size.workers,
        batch=running.batch,
        generation=running.generation,
    )


def _with_wanted_size(view: JobView, wanted: AllocationDecided) -> JobView:
    """Return the view with the size of the newest decision, and its reason."""
    size = size_of(wanted)
    return replace(
        view,
        wanted_ps=size.ps,
        wanted_workers=size.workers,
        reason=wanted.reason,
    )


def _with_progress(view: JobView, progress: ProgressReported) -> JobView:
    """Return the view with the progress, loss and staleness of the last report."""
    return replace(
        view,
        step=progress.step,
        epoch=progress.epoch,
        samples=progress.samples,
        total_samples=progress.total_samples,
        loss=progress.loss,
        staleness=progress.staleness,
    )


def closed_view(closed: ClosedJob) -> JobView:
    """Return the view of a job that is over."""
    finished = closed.finished
    last = job_view(closed.job)
    epoch = last.epoch
    samples = max(last.samples, finished.samples)
    total_samples = last.total_samples
    if finished.outcome == "succeeded":
        epoch = closed.job.request.epochs
        total_samples = samples
    return replace(
        last,
        phase=ENDED[finished.outcome],
        silent=False,
        suspended=False,
        ps=0,
        workers=0,
        wanted_ps=0,
        wanted_workers=0,
        step=max(last.step, finished.step),
        epoch=epoch,
        samples=samples,
        total_samples=total_samples,
        samples_per_second=0.0,
        mean_samples_per_second=0.0,
        reason="",
        why=finished.cause,
        finished_s=finished.finished_s,
        metrics=finished.metrics,
    )


def silent_s(job: Job, unreported_s: float) -> float:
    """Return the time (s) at which a job counts as silent if nothing is reported until then;
    infinity: never.
    """
    if not unreported_s or phase_of(job) not in TRAINS or job.is_trained:
        return inf
    reported_s = [reading.at_s for reading in job.recent if reading.at_s >= job.resumed_s]
    if not reported_s:
        return job.resumed_s + unreported_s
    last_s = reported_s[-1]
    usual_s = 0.0
    if len(reported_s) > 1:
        usual_s = last_s - reported_s[-2]
    return last_s + max(unreported_s, 2.0 * usual_s)


def next_silence_s(jobs: Iterable[Job], now: float, unreported_s: float) -> float:
    """Return the time (s) at which the next job counts as silent; infinity: none does."""
    next_s = inf
    for job in jobs:
        at_s = silent_s(job, unreported_s)
        if at_s > now:
            next_s = min(next_s, at_s)
    return next_s


def silent_jobs(jobs: Mapping[str, Job], now: float, unreported_s: float) -> dict[str, str]:
    """Return the jobs that are silent now by key, each with a remark for its user."""
    silent = {}
    for key, job in jobs.items():
        if silent_s(job, unreported_s) <= now:
            silent[key] = _remark(job)
    return silent


def _remark(job: Job) -> str:
    """Return the text shown for a job without recent reports: its last step, and the command that
    shows its output.
    """
    step = job.progress.step if job.progress else 0
    return (
        f"no report since step {step}: its program may hang; "
        f"`weir logs {job.request.job}` shows what it prints"
    )


def job_views(
    state: State, why: Mapping[str, str], now: float, unreported_s: float
) -> dict[str, JobView]:
    """Return the view of each job by key, closed jobs too."""
    views: dict[str, JobView] = {}
    for key, closed in state.closed.items():
        if not closed.removed:
            views[key] = closed_view(closed)

    silent = silent_jobs(state.jobs, now, unreported_s)
    for key, job in state.jobs.items():
        if key in silent:
            views[key] = job_view(job, silent[key], silent=True)
        else:
            views[key] = job_view(job, why.get(key, ""))
    return views
