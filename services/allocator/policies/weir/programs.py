"""What jobs of one program have shown together: their pooled speeds, and the model fitted to them.

Jobs that run the same program with the same cores a task are as fast as each other at a size (Optimus' code pools
them, too; DLRover and Pollux learn each job, or its user, alone). So the second job of a program starts with what the
first one learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from services.allocator.kept import Kept, KeptEach, KeptTogether
from services.allocator.models.estimate import prior_of, told
from services.allocator.models.fitting import Prior, closest
from services.allocator.models.speed import Fit, Form
from services.allocator.policies.contract import JobSeen, Observed
from shared.messages import ModelProfile

KEPT = 4096
POINTS_MOST = 48
"""Of a program: the most recent ones."""

Program = tuple[str, float, float, int]


def _program(job: JobSeen) -> Program:
    sizes = job.sizes
    return (job.request.program.digest, sizes.ps.cpu, sizes.worker.cpu, sizes.worker.gpu)


program: Kept[JobSeen, Program] = Kept(_program)
"""Jobs with the same are expected to be equally fast at a size and batch."""


class Shown(msgspec.Struct, frozen=True, cache_hash=True):
    """What tells of a program's speeds. `batch`: its first one; `device`: the largest that a worker holds at once;
    `served`: whether it has ps.
    """

    seen: tuple[Observed, ...]
    profile: ModelProfile | None
    batch: int
    device: float
    served: bool


def modelled(jobs: Sequence[JobSeen]) -> list[tuple[JobSeen, Fit]]:
    """Each job, and its program's model."""
    fits = models(jobs)
    return [(job, fits[name]) for job, name in zip(jobs, program.each(jobs), strict=True)]


def models(jobs: Sequence[JobSeen]) -> dict[Program, Fit]:
    """Each program's, fitted to what all its jobs have shown."""
    together: dict[Program, list[JobSeen]] = {}
    for name, job in zip(program.each(jobs), jobs, strict=True):
        together.setdefault(name, []).append(job)
    return dict(zip(together, _fitted([_shown(name, alike) for name, alike in together.items()]), strict=True))


def _all_shown(jobs: Sequence[JobSeen]) -> Shown:
    one = jobs[0]
    past = [one.kin.observed] if one.kin else []
    profile = next((job.progress.profile for job in jobs if job.progress and job.progress.profile), None)
    seen = pooled([*past, *(job.observed for job in jobs)])
    device = one.request.device_batch_max or math.inf
    return Shown(seen, profile, one.request.batch.start, device, one.most.ps > 0)


_shown: KeptTogether[Program, JobSeen, Shown] = KeptTogether(_all_shown)


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


def _priors(shown: Shown) -> list[Prior]:
    """Whose a batch is, each worker's or everybody's, speeds tell."""
    known = told(shown.profile) if shown.profile else None
    forms: tuple[Form, ...] = ("asynchronous", "synchronous") if shown.served else ("synchronous",)
    return [prior_of(known, shown.batch, form, device=shown.device) for form in forms]


def _closest(shown: Sequence[Shown]) -> list[Fit]:
    return closest([(one.seen, _priors(one)) for one in shown])


_fitted: KeptEach[Shown, Fit] = KeptEach(_closest, lambda shown: shown, KEPT)
