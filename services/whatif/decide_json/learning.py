"""A job's speed, loss and progress from outside, as the reports of its trainers would leave them.

Impossible values (a speed that is not above 0, a loss or an amount that is no number) are passed
over.
"""

from __future__ import annotations

from math import isfinite
from statistics import fmean

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.policies.contract import Learned, Observed, Reading
from services.allocator.readings import CURVE_KEPT, RECENT_KEPT, counted
from services.whatif.decide_json.document import JobSaid, Profile, Progress, Speed
from shared.messages import AllocationDecided, ModelProfile, ProgressReported, RoleResources

Size = tuple[int, int, int, int | None]
"""ps, workers, batch, and the number of nodes where devices stand side by side."""


def learned(job: Job, said: JobSaid, now: float) -> Job:
    """Return the job with the speeds, the pause and the progress of the newest document."""
    pauses = job.pauses
    if said.pause_s is not None and _is_number(said.pause_s):
        pauses = (said.pause_s,)
    observed = _all_observed(job, said.observed or ())
    job = replace(job, observed=observed, pauses=pauses)
    if said.progress is None:
        return job
    return _with_progress(job, said.progress, now)


def _is_number(value: float | None) -> bool:
    """Tell if a value is known, finite and not negative."""
    return value is not None and isfinite(value) and value >= 0


# ---------------------------------------------------------------- speed


def _all_observed(job: Job, said: tuple[Speed, ...]) -> tuple[Observed, ...]:
    """Return the observed speeds of all sizes; a new speed of a size replaces its old one."""
    speeds_by_size = _speeds_by_size(job, said)
    observed = []
    for known in job.observed:
        size = (known.ps, known.workers, known.batch, known.nodes)
        if size not in speeds_by_size:
            observed.append(known)
    for size, speeds in speeds_by_size.items():
        new = _observed_at(size, speeds, job)
        observed.append(new)
    return tuple(observed)


def _observed_at(size: Size, speeds: list[float], job: Job) -> Observed:
    """Return the mean of the speeds of one size. The cores of a task are those of its request."""
    ps, workers, batch, nodes = size
    resources = job.request.resources or RoleResources()
    return Observed(
        ps,
        workers,
        batch,
        fmean(speeds),
        resources.ps.cpu,
        resources.worker.cpu,
        nodes,
    )


def _speeds_by_size(job: Job, said: tuple[Speed, ...]) -> dict[Size, list[float]]:
    """Return the speeds (samples a second) of all usable observations."""
    usual = job.runs.batch if job.runs else job.request.batch.start
    by_size: dict[Size, list[float]] = {}
    for one in said:
        batch = usual if one.batch is None else one.batch
        speed = _samples_per_second(one, batch)
        if speed is None or not isfinite(speed + one.workers + one.ps + batch):
            continue
        if speed > 0 and one.workers >= 1 and one.ps >= 0:
            size = _rounded_size(one, batch)
            by_size.setdefault(size, []).append(speed)
    return by_size


def _samples_per_second(said: Speed, batch: float) -> float | None:
    """Return the speed as said, or else that of its steps; None if it is unknown."""
    if said.samples_per_second is not None:
        return said.samples_per_second
    if said.step_s and said.step_s > 0:
        return batch / said.step_s
    return None


def _rounded_size(said: Speed, batch: float) -> Size:
    """Return ps, workers, batch and nodes as whole numbers, by which speeds of one size are found.
    The number of nodes is None if it is not known or makes no difference.
    """
    ps = round(said.ps)
    workers = round(said.workers)
    return ps, workers, round(batch), _node_count(said)


def _node_count(said: Speed) -> int | None:
    """Return the number of nodes. It counts only where devices stand side by side."""
    nodes = said.nodes
    if nodes is None or said.ps >= 1:
        return None
    if not isinstance(nodes, int):
        nodes = len(set(nodes))
    return max(1, nodes)


# ---------------------------------------------------------------- progress and loss


def _with_progress(job: Job, said: Progress, now: float) -> Job:
    """Return the job with the loss curve, and with a report if a decision of it runs."""
    job = replace(job, curve=_loss_curve(job.curve, said))
    runs = job.runs
    if runs is None:
        return job
    if not _is_number(said.samples) or not _is_number(said.total_samples):
        return job

    report = _progress_report(job, runs, said, now)
    last = job.progress
    job = replace(job, progress=report)
    if last and _says_same(last, report):
        return job
    recent = (*job.recent, _reading(runs, report, now))
    return replace(job, recent=recent[-RECENT_KEPT:])


def _says_same(last: ProgressReported, report: ProgressReported) -> bool:
    """Tell if a report has nothing new, so that it is no further reading."""
    return last.samples == report.samples and last.generation == report.generation


def _progress_report(
    job: Job, runs: AllocationDecided, said: Progress, now: float
) -> ProgressReported:
    """Return the report that the trainers of a decision would make of this progress."""
    loss = None
    if said.loss and job.curve:
        loss = job.curve[-1].loss
    noise = None
    if _is_number(said.gradient_noise):
        noise = said.gradient_noise

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
        samples_per_second=_observed_speed(job, runs),
        loss=loss,
        gradient_noise=noise,
        profile=_profile(said.profile),
        reported_s=now,
    )


def _observed_speed(job: Job, runs: AllocationDecided) -> float:
    """Return the speed of the job at the size of a decision; 0 if it is unknown."""
    size = (counted(runs, "ps"), counted(runs, "worker"), runs.batch)
    for known in job.observed:
        if (known.ps, known.workers, known.batch) == size:
            return known.samples_per_second
    return 0.0


def _reading(runs: AllocationDecided, report: ProgressReported, now: float) -> Reading:
    """Return a report with the size that runs. CPU and memory of the tasks are not known from
    outside.
    """
    return Reading(
        at_s=now,
        samples=report.samples,
        loss=report.loss,
        samples_per_second=report.samples_per_second,
        ps=counted(runs, "ps"),
        workers=counted(runs, "worker"),
        batch=runs.batch,
    )


def _loss_curve(known: tuple[Learned, ...], said: Progress) -> tuple[Learned, ...]:
    """Return the known curve, replaced from the first new point on; thinned as in the fold."""
    points = _loss_points(said)
    if not points:
        return known

    first = points[0].samples
    curve = [point for point in known if point.samples < first]
    curve += points
    return tuple(_thinned_curve(curve))


def _thinned_curve(curve: list[Learned]) -> list[Learned]:
    """Leave out every second point, but not the last one, until the curve is short enough."""
    while len(curve) > CURVE_KEPT:
        curve = [*curve[:-1:2], curve[-1]]
    return curve


def _loss_points(said: Progress) -> list[Learned]:
    """Return the points of the loss that are numbers."""
    points = []
    for at, loss in said.loss:
        if loss is not None and isfinite(loss + at):
            point = Learned(round(at), loss)
            points.append(point)
    return points


def _profile(said: Profile | None) -> ModelProfile | None:
    """Return the model's profile, or None if the number of parameters is unknown.

    An unknown parameter has 4 bytes. The number of variables is at most that of parameters.
    """
    if said is None or not _is_number(said.parameters):
        return None
    parameters = round(said.parameters or 0)
    size = 4 * parameters
    if said.bytes is not None and _is_number(said.bytes):
        size = round(said.bytes)
    variables = parameters
    if said.variables is not None:
        variables = round(said.variables)
    return ModelProfile(parameters=parameters, bytes=size, variables=variables)
