"""What is said of a job's speed, loss and progress, as the reports of its trainers would have left it.

What cannot be (a speed that is not above 0, a loss or an amount that is no number) is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from statistics import fmean

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.outside.document import JobSaid, Profile, Progress, Speed
from services.allocator.policies.contract import Learned, Observed, Reading
from services.allocator.readings import CURVE_KEPT, RECENT_KEPT, counted
from shared.messages import AllocationDecided, ModelProfile, ProgressReported, RoleResources

Size = tuple[int, int, int, int | None]
"""ps, workers, batch, and the number of nodes where devices stand side by side."""


def learned(job: Job, said: JobSaid, now: float) -> Job:
    job = replace(
        job,
        observed=_observed(job, said.observed or ()),
        pauses=(said.pause_s,) if _is_number(said.pause_s) else job.pauses,
    )
    return _progressed(job, said.progress, now) if said.progress else job


def _is_number(value: float | None) -> bool:
    return value is not None and isfinite(value) and value >= 0


# ---------------------------------------------------------------- speed


def _observed(job: Job, said: tuple[Speed, ...]) -> tuple[Observed, ...]:
    """What is said of a size replaces what was known of it; said twice, it counts with its mean. Cores are as asked."""
    means: dict[Size, list[float]] = {}
    for size, speed in _speeds(job, said):
        means.setdefault(size, []).append(speed)
    kept = [known for known in job.observed if (known.ps, known.workers, known.batch, known.nodes) not in means]
    sizes = job.request.resources or RoleResources()
    now = (
        Observed(ps, workers, batch, fmean(speeds), sizes.ps.cpu, sizes.worker.cpu, nodes)
        for (ps, workers, batch, nodes), speeds in means.items()
    )
    return (*kept, *now)


def _speeds(job: Job, said: tuple[Speed, ...]) -> Iterator[tuple[Size, float]]:
    usual = job.runs.batch if job.runs else job.request.batch.start
    for one in said:
        batch = usual if one.batch is None else one.batch
        speed = one.samples_per_second
        if speed is None and one.step_s and one.step_s > 0:
            speed = batch / one.step_s
        finite = speed is not None and isfinite(speed + one.workers + one.ps + batch)
        if finite and speed is not None and speed > 0 and one.workers >= 1 and one.ps >= 0:
            yield (round(one.ps), round(one.workers), round(batch), _nodes(one)), speed


def _nodes(one: Speed) -> int | None:
    if one.nodes is None or one.ps >= 1:
        return None
    return max(1, one.nodes if isinstance(one.nodes, int) else len(set(one.nodes)))


# ---------------------------------------------------------------- progress and loss


def _progressed(job: Job, said: Progress, now: float) -> Job:
    job = replace(job, curve=_curve(job.curve, said))
    runs = job.runs
    if runs is None or said.samples is None or said.total_samples is None:
        return job
    if not _is_number(said.samples) or not _is_number(said.total_samples):
        return job
    report = _report(job, runs, said, now)
    if job.progress and job.progress.samples == report.samples and job.progress.generation == report.generation:
        return replace(job, progress=report)
    return replace(job, progress=report, recent=(*job.recent, _reading(runs, report, now))[-RECENT_KEPT:])


def _report(job: Job, runs: AllocationDecided, said: Progress, now: float) -> ProgressReported:
    size = (counted(runs, "ps"), counted(runs, "worker"), runs.batch)
    speeds = [o.samples_per_second for o in job.observed if (o.ps, o.workers, o.batch) == size]
    samples = round(said.samples or 0)
    return ProgressReported(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=runs.generation,
        step=samples // max(1, runs.batch),
        epoch=0,
        samples=samples,
        total_samples=round(said.total_samples or 0),
        samples_per_second=speeds[0] if speeds else 0.0,
        loss=job.curve[-1].loss if said.loss and job.curve else None,
        gradient_noise=said.gradient_noise if _is_number(said.gradient_noise) else None,
        profile=_profile(said.profile),
        reported_s=now,
    )


def _reading(runs: AllocationDecided, report: ProgressReported, now: float) -> Reading:
    return Reading(
        at_s=now,
        samples=report.samples,
        loss=report.loss,
        samples_per_second=report.samples_per_second,
        ps=counted(runs, "ps"),
        workers=counted(runs, "worker"),
        batch=runs.batch,
    )


def _curve(known: tuple[Learned, ...], said: Progress) -> tuple[Learned, ...]:
    """What is said continues what is known, from its own beginning on; thinned as the fold does it."""
    points = [Learned(round(at), loss) for at, loss in said.loss if loss is not None and isfinite(loss + at)]
    if not points:
        return known
    curve = (*(point for point in known if point.samples < points[0].samples), *points)
    while len(curve) > CURVE_KEPT:
        curve = (*curve[:-1:2], curve[-1])
    return curve


def _profile(said: Profile | None) -> ModelProfile | None:
    """Where the number of variables is not said, it is at most that of parameters."""
    if said is None or not _is_number(said.parameters):
        return None
    parameters = round(said.parameters or 0)
    return ModelProfile(
        parameters=parameters,
        bytes=round(said.bytes) if said.bytes is not None and _is_number(said.bytes) else 4 * parameters,
        variables=round(said.variables) if said.variables is not None else parameters,
    )
