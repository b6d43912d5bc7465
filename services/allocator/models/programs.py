"""What jobs of one program have shown together: their pooled speeds, and the model fitted to them.

Jobs that run the same program with the same cores a task are as fast as each other at a size (Optimus' code pools
them, too; DLRover and Pollux learn each job, or its user, alone). So the second job of a program starts with what the
first one learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from services.allocator.job import Observed
from services.allocator.kept import KeptTogether
from services.allocator.models.estimate import prior_of, told

if TYPE_CHECKING:  # the policies import this module
    from services.allocator.policies.contract import JobSeen
from services.allocator.models.speed import Fit, Form, closest
from shared.messages import ModelProfile

KEPT = 4096
POINTS_MOST = 48
"""Of a program: the most recent ones."""

Program = tuple[str, float, float, int]


def program(job: JobSeen) -> Program:
    """Jobs with the same are expected to be equally fast at a size and batch."""
    sizes = job.sizes
    return (job.request.program.digest, sizes.ps.cpu, sizes.worker.cpu, sizes.worker.gpu)


def models(jobs: Iterable[JobSeen]) -> dict[Program, Fit]:
    """Each program's, fitted to what all its jobs have shown."""
    together: dict[Program, list[JobSeen]] = {}
    for job in jobs:
        together.setdefault(program(job), []).append(job)
    return {name: _kept(name, alike) for name, alike in together.items()}


def _model(jobs: Sequence[JobSeen]) -> Fit:
    one = jobs[0]
    past = [one.kin.observed] if one.kin else []
    profile = next((job.progress.profile for job in jobs if job.progress and job.progress.profile), None)
    seen = pooled([*past, *(job.observed for job in jobs)])
    device = one.request.device_batch_max or math.inf
    return _fitted(seen, profile, one.request.batch.start, device, one.most.ps > 0)


_kept: KeptTogether[Program, JobSeen, Fit] = KeptTogether(_model)


def pooled(seen: Iterable[Sequence[Observed]]) -> tuple[Observed, ...]:
    """One a size, batch and number of nodes, the mean speed of the jobs that had it."""
    speeds: dict[tuple[int, int, int, int], list[Observed]] = {}
    for point in (point for points in seen for point in points if _usable(point)):
        size = (point.ps, point.workers, point.batch, point.nodes or 0)
        speeds[size] = [*speeds.pop(size, []), point]
    return tuple(_mean(points) for _, points in sorted([*speeds.items()][-POINTS_MOST:]))


def _usable(point: Observed) -> bool:
    return 0.0 < point.samples_per_second < math.inf and point.workers > 0


def _mean(points: Sequence[Observed]) -> Observed:
    last = points[-1]
    mean = sum(point.samples_per_second for point in points) / len(points)
    return Observed(last.ps, last.workers, last.batch, mean, last.ps_cpu, last.worker_cpu, last.nodes)


@lru_cache(KEPT)
def _fitted(seen: tuple[Observed, ...], profile: ModelProfile | None, batch: int, device: float, served: bool) -> Fit:
    """Whose a batch is, each worker's or everybody's, speeds tell."""
    known = told(profile) if profile else None
    forms: tuple[Form, ...] = ("asynchronous", "synchronous") if served else ("synchronous",)
    return closest(seen, [prior_of(known, batch, form, device=device) for form in forms])
