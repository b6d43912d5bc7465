"""What is kept of a job that is over: what its successors learn from, and what a person asks about. Pure.

Law: a summary gives the same `Kin` (`models/kin.py`), the same view and the same uid, serials and request as its job.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.models.history import EARLY
from services.allocator.policies.contract import Reading
from shared.messages import AllocationDecided, JobFinished
from shared.words import shortened

SIZES_KEPT = 64
"""Sizes whose speeds are kept: the ones that ran last."""
LONGEST_CAUSE = 4_000
"""Characters of the cause of an end."""


def summary_of(job: Job) -> Job:
    """Return the job without what only a running one needs."""
    last = {generation: job.decided[generation] for generation in (job.running, job.coming) if generation is not None}
    return replace(
        job,
        decided={generation: _without_offers(decision) for generation, decision in last.items()},
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
        progress=replace(job.progress, usage=()) if job.progress else None,
        observed=job.observed[-SIZES_KEPT:],
        recent=_telling(job.recent, job.progress.total_samples if job.progress else 0),
        curve=(),
    )


def end_of(finished: JobFinished) -> JobFinished:
    """Return the end without the middle of a long cause."""
    return replace(finished, cause=shortened(finished.cause, LONGEST_CAUSE))


def _without_offers(decision: AllocationDecided) -> AllocationDecided:
    return replace(decision, alternatives=())


def _telling(reports: Sequence[Reading], total_samples: int) -> tuple[Reading, ...]:
    """Return the last report, and those that tell the most memory of the ps (early on) and of a worker."""
    with_ps = [report for report in reports if report.ps_gib]
    early = [report for report in with_ps if report.samples <= EARLY * total_samples] or with_ps[:1]
    with_worker = [report for report in reports if report.worker_gib]
    chosen = [
        *reports[-1:],
        *([max(early, key=lambda report: (report.ps_gib or 0.0) * report.ps)] if early else []),
        *([max(with_worker, key=attrgetter("worker_gib"))] if with_worker else []),
    ]
    return tuple(report for report in reports if any(report is each for each in chosen))
