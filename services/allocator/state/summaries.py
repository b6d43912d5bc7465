"""The summary of a job that is over: later jobs of its program learn from it, and people look at
it.

Law: a summary gives the same history (`models/`), the same view and the same uid, serials and
request as its job.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from services.allocator.policies.contract import BEGINNING_SHARE, Reading
from services.allocator.state.job import Job
from shared.messages import JobFinished
from shared.text import cut_middle

SIZES_KEPT = 64
"""Sizes with a speed that is kept: the ones that ran last."""
LONGEST_CAUSE = 4_000
"""Characters of the cause of an end."""


def summary_of(job: Job) -> Job:
    """Return the job without the fields that only a running one needs."""
    decided = {}
    for generation in (job.running, job.pending_generation):
        if generation is not None:
            decided[generation] = replace(job.decided[generation], alternatives=())
    progress = job.progress
    total_samples = 0
    if progress is not None:
        total_samples = progress.total_samples
        progress = replace(progress, usage=())
    return replace(
        job,
        decided=decided,
        given_up={},
        exits={},
        leaving={},
        failed_generations=(),
        failed_s={},
        killed_generations=(),
        starving={},
        starved={},
        resized_from={},
        early=None,
        suspension=None,
        progress=progress,
        observed=job.observed[-SIZES_KEPT:],
        recent=_informative_reports(job.recent, total_samples),
        curve=(),
    )


def end_of(finished: JobFinished) -> JobFinished:
    """Return the end without the middle of a long cause."""
    return replace(finished, cause=cut_middle(finished.cause, LONGEST_CAUSE))


def _informative_reports(reports: Sequence[Reading], total_samples: int) -> tuple[Reading, ...]:
    """Return the last report, and those with the most memory of all ps (early on) and of a worker.

    Where no early report has the memory of the ps, the first that has it is taken.
    """
    if not reports:
        return ()
    ps = _with_most_ps_memory(reports, BEGINNING_SHARE * total_samples)
    worker = _with_most_worker_memory(reports)
    numbers = {ps, worker, len(reports) - 1}
    return tuple([report for number, report in enumerate(reports) if number in numbers])


def _with_most_ps_memory(reports: Sequence[Reading], early_samples: float) -> int | None:
    """Return the number of the report to know the memory of all ps by; None: none has it."""
    first: int | None = None
    most: int | None = None
    most_gib = 0.0
    for number, report in enumerate(reports):
        if not report.ps_gib:
            continue
        if first is None:
            first = number
        gib = report.ps_gib * report.ps
        if report.samples <= early_samples and (most is None or gib > most_gib):
            most = number
            most_gib = gib
    return first if most is None else most


def _with_most_worker_memory(reports: Sequence[Reading]) -> int | None:
    """Return the number of the report with the most memory of a worker; None: none has it."""
    most: int | None = None
    most_gib = 0.0
    for number, report in enumerate(reports):
        if report.worker_gib and report.worker_gib > most_gib:
            most = number
            most_gib = report.worker_gib
    return most
