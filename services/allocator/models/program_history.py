"""The history of a program, from its jobs that are over.

It has their speeds, pauses, and the number of examples of an epoch; from those that succeeded also
their last plan and the memory they used.

A job that waits has reported nothing yet, but its program may have run before. Another version of
it, a file of the same name, gives information about the plan only, not about its speed.

`finished_job` makes the record of a job that succeeded, for jobs like it. Memory that was never
measured counts as the memory of its tasks. Only the last reports of a job are kept: if none from
its beginning is left, the earliest one gives the memory of all its ps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from services.allocator.models.fitting import is_believable
from services.allocator.policies.contract import (
    BEGINNING_SHARE,
    FinishedJob,
    Observed,
    Plan,
    ProgramHistory,
    TimedPlan,
    worker_batch,
)
from services.allocator.state.job import Job
from services.allocator.state.state import ClosedJob
from shared.messages import AllocationDecided, JobRequested, Resources, Role


def epoch_samples(request: JobRequested, total_samples: int) -> float | None:
    """Return the number of samples of an epoch; None: not known."""
    if total_samples <= 0:
        return None
    return total_samples / request.epochs


def history_of(kins: Mapping[str, ProgramHistory], request: JobRequested) -> ProgramHistory | None:
    """Return the history of a request's program; if it never ran, of another version of it."""
    if not kins:
        return None
    same_version = kins.get(request.program_version)
    return same_version or kins.get(_versions_key(request))


def _versions_key(request: JobRequested) -> str:
    """Return the key of all versions of a program."""
    return f"name {request.program.name}"


def histories_by_program(
    closed: Mapping[str, ClosedJob], known: Mapping[str, tuple[FinishedJob, ...]] | None = None
) -> dict[str, ProgramHistory]:
    """Return the history of finished jobs, by the version of their program and by its name.

    `known`: `finished_job` of each closed job, if the caller has it.
    """
    if known is None:
        known = {key: tuple(finished_job(end)) for key, end in closed.items()}
    past = _past_by_name(closed, known)

    kins = {}
    for version, jobs in _jobs_by_version(closed).items():
        newest = jobs[-1].request
        kins[version] = _program_history(jobs, past[_versions_key(newest)])
    for name, versions in past.items():
        if versions:
            kins[name] = ProgramHistory(past=tuple(versions))
    return kins


def _jobs_by_version(closed: Mapping[str, ClosedJob]) -> dict[str, list[Job]]:
    """Return the jobs of each version of a program, the oldest first."""
    found: dict[str, list[Job]] = {}
    for end in closed.values():
        of_version = found.setdefault(end.job.request.program_version, [])
        of_version.append(end.job)
    return found


def _past_by_name(
    closed: Mapping[str, ClosedJob], known: Mapping[str, tuple[FinishedJob, ...]]
) -> dict[str, list[FinishedJob]]:
    """Return the records of all versions of each program, the oldest first."""
    found: dict[str, list[FinishedJob]] = {}
    for key, end in closed.items():
        of_name = found.setdefault(_versions_key(end.job.request), [])
        of_name.extend(known[key])
    return found


def _program_history(jobs: Sequence[Job], past: Sequence[FinishedJob]) -> ProgramHistory:
    """Return the history of one program. `jobs`: those of this version, the oldest first."""
    observed: list[Observed] = []
    pauses: list[float] = []
    ended: list[tuple[float, float]] = []
    newest_epoch: float | None = None
    for job in jobs:
        observed += job.observed
        pauses += job.pauses
        progress = job.progress
        if progress is None:
            continue
        ended.append((job.asked_s, float(progress.samples)))
        samples = epoch_samples(job.request, progress.total_samples)
        if samples:
            newest_epoch = samples

    return ProgramHistory(
        observed=tuple(observed),
        epoch_samples=newest_epoch,
        pause_s=_mean_pause(pauses),
        ended=tuple(ended),
        past=tuple(past),
    )


def _mean_pause(pauses: Sequence[float]) -> float | None:
    """Return the mean in seconds; None where no pause was measured."""
    if not pauses:
        return None
    return sum(pauses) / len(pauses)


TIMED_KEPT = 12


def finished_job(end: ClosedJob) -> Iterator[FinishedJob]:
    """Yield the record of a job; nothing if it did not succeed, or had no ps."""
    job = end.job
    runs = job.active_decision
    if end.finished.outcome != "succeeded" or runs is None:
        return
    ps_tasks = _tasks_of(runs, "ps")
    worker_tasks = _tasks_of(runs, "worker")
    if not ps_tasks or not worker_tasks:
        return
    ps = max(ps_tasks, key=_size_order)
    worker = max(worker_tasks, key=_size_order)
    if min(ps.cpu, worker.cpu) <= 0:
        return

    yield FinishedJob(
        request=job.request,
        plan=Plan(len(ps_tasks), len(worker_tasks), ps.cpu, worker.cpu),
        ps_gib=_early_gib(job) or ps.memory_gib * len(ps_tasks),
        worker_gib=_worker_gib(job) or worker.memory_gib,
        timed=_timed_plans(job)[-TIMED_KEPT:],
        finished_s=end.finished.finished_s,
    )


def _tasks_of(runs: AllocationDecided, role: Role) -> list[Resources]:
    """Return the resources of each task of a role."""
    return [task.resources for task in runs.tasks if task.role == role]


def _size_order(has: Resources) -> tuple[float, float]:
    """Return the sort key of a task: its cores, then its memory."""
    return has.cpu, has.memory_gib


def _early_gib(job: Job) -> float:
    """Return the GiB of all ps together at the beginning; 0 where it was not measured."""
    total = job.progress.total_samples if job.progress else 0
    known = []
    early = []
    for reading in job.recent:
        if _is_measured(reading.ps_gib):
            known.append(reading)
            if reading.samples <= BEGINNING_SHARE * total:
                early.append(reading)

    most = 0.0
    for reading in early or known[:1]:
        of_each = reading.ps_gib or 0.0
        most = max(most, of_each * reading.ps)
    return most


def _worker_gib(job: Job) -> float:
    """Return the GiB of the worker that used most; 0 where it was not measured."""
    most = 0.0
    for reading in job.recent:
        if _is_measured(reading.worker_gib):
            most = max(most, reading.worker_gib or 0.0)
    return most


def _is_measured(gib: float | None) -> bool:
    """Return True if an amount of memory is a finite number above 0."""
    if gib is None:
        return False
    return math.isfinite(gib) and gib > 0


def _timed_plans(job: Job) -> tuple[TimedPlan, ...]:
    """Return the observed speeds that can be timed."""
    found = []
    for seen in job.tried:
        if seen.ps_cpu and seen.worker_cpu and is_believable(seen):
            found.append(timed_plan(job.request, seen))
    return tuple(found)


def timed_plan(request: JobRequested, seen: Observed) -> TimedPlan:
    """Return a speed as seconds an iteration."""
    ps_cpu = seen.ps_cpu or 0.0
    worker_cpu = seen.worker_cpu or 0.0
    plan = Plan(seen.ps, seen.workers, ps_cpu, worker_cpu)
    batch = max(1, round(worker_batch(request, seen.batch, seen.workers)))
    iteration_s = seen.workers * batch / seen.samples_per_second
    return TimedPlan(plan, batch, iteration_s)
