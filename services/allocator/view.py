"""The current view of each job, for `weir jobs`: derived from the state, kept in a bucket, rebuildable."""

from __future__ import annotations

from math import isfinite
from typing import Literal

import msgspec

from services.allocator.job import Job
from services.allocator.seen import size_of
from services.allocator.state import Closed
from shared.messages import Outcome

Phase = Literal["Pending", "Starting", "Running", "Scaling", "Resuming", "Succeeded", "Failed", "Cancelled"]
TRAINS: tuple[Phase, ...] = ("Running", "Scaling")
SILENT = "Silent"
"""What people see in place of the phase of a job whose program may hang."""
SUSPENDED = "Suspended"
"""The same of a job that waits because its user suspended it."""
ENDED: dict[Outcome, Phase] = {"succeeded": "Succeeded", "failed": "Failed", "cancelled": "Cancelled"}


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job at a glance. `why`: why it is, or is not, growing. `ps` and `workers` run; `wanted_*` are decided. Its
    speed, as last reported, and the mean of such reports at its size, of which the newest counts most, are 0 while
    nothing trains. `pauses`: of its last hand-overs, as `weir jobs` shows the last.

    `suspended`: its user did that, and it has nothing any more.
    `silent`: it should train, and has reported nothing for too long (`silence.py`).
    `epoch`: how many are complete. Once it is over: `why` is the cause of its end, `metrics` are the last ones.
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
    pauses: tuple[float, ...] = ()
    reason: str = ""
    why: str = ""
    submitted_s: float = 0.0
    resumed_s: float = 0.0
    finished_s: float = 0.0
    metrics: dict[str, float] = {}

    @property
    def shown_phase(self) -> str:
        """The phase as people see it."""
        return SUSPENDED if self.suspended else SILENT if self.silent else self.phase


def phase_of(job: Job) -> Phase:
    """Whose generation has broken or was shut down goes on from its checkpoint, or waits until there is room for it."""
    if job.running is None:
        return "Pending" if job.coming is None else "Starting"
    if job.stands_still:
        return "Resuming" if job.flies and job.flies.tasks else "Pending"
    return "Running" if job.coming is None else "Scaling"


def speed_of(job: Job) -> float:
    """Examples a second, as last reported; 0 while nothing trains, and where it is no number."""
    said = job.progress
    return said.samples_per_second if said and isfinite(said.samples_per_second) and not job.stands_still else 0.0


def mean_speed_of(job: Job) -> float:
    """The same as a mean at the size and batch that runs (`readings.py`), for what is to hold longer than a report."""
    now, runs = speed_of(job), job.runs
    if not now or runs is None:
        return now
    size = size_of(runs)
    here = (o for o in reversed(job.observed) if (o.ps, o.workers, o.batch) == (size.ps, size.workers, runs.batch))
    mean = next((o.samples_per_second for o in here), now)
    return mean if isfinite(mean) else now


def job_view(job: Job, why: str = "", silent: bool = False) -> JobView:
    runs, wanted, progress = job.runs, job.wanted, job.progress
    size, goal = (size_of(d) if d else None for d in (runs, wanted))
    return JobView(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        phase=phase_of(job),
        silent=silent,
        suspended=job.suspended_by_user and job.wanted is None,
        ps=size.ps if size else 0,
        workers=size.workers if size else 0,
        batch=runs.batch if runs else 0,
        wanted_ps=goal.ps if goal else 0,
        wanted_workers=goal.workers if goal else 0,
        generation=runs.generation if runs else 0,
        revision=job.revision,
        step=progress.step if progress else 0,
        epoch=progress.epoch if progress else 0,
        samples=progress.samples if progress else 0,
        total_samples=progress.total_samples if progress else 0,
        samples_per_second=0.0 if silent else speed_of(job),
        mean_samples_per_second=0.0 if silent else mean_speed_of(job),
        loss=progress.loss if progress else None,
        pauses=job.pauses,
        reason=wanted.reason if wanted else "",
        why=why,
        submitted_s=job.asked_s,
        resumed_s=job.resumed_s,
    )


def closed_view(closed: Closed) -> JobView:
    finished, last = closed.finished, job_view(closed.job)
    samples, whole = max(last.samples, finished.samples), finished.outcome == "succeeded"
    return msgspec.structs.replace(
        last,
        phase=ENDED[finished.outcome],
        silent=False,
        suspended=False,
        ps=0,
        workers=0,
        wanted_ps=0,
        wanted_workers=0,
        step=max(last.step, finished.step),
        epoch=closed.job.request.epochs if whole else last.epoch,
        samples=samples,
        total_samples=samples if whole else last.total_samples,
        samples_per_second=0.0,
        mean_samples_per_second=0.0,
        reason="",
        why=finished.cause,
        finished_s=finished.finished_s,
        metrics=finished.metrics,
    )
