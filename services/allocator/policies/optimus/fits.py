"""Optimus' two models (EuroSys 2018): the speed of a job at a size, and the epoch of convergence.

    sync step    M / v   = a M/w + b + c w/p + d w + e p    [s]   all coefficients >= 0
    async step   w M / v = a + b w/p + c w + d p            [s]
    loss(e)              = 1 / (a e + b) + c                      after e epochs; a, b, c >= 0

M is the batch, v the examples/s with p ps and w workers.

From the authors' code: a measured speed goes before a fitted one; each later third of the losses
has four times the weight; a job has converged when the fitted loss falls by at most 0.05 in 10
epochs. They fit v by trust region; here, as in the paper, non-negative least squares, on relative
errors of the step. A job with `consistency: global-batch` or `exact` is synchronous; of other jobs
the formula that misses the points less is taken. Jobs without ps have no terms in p.

Optimus' probes: the sizes of a program that are measured before the fit.

From the authors' code: 8 points of each new program, at random p = w in 1..10 and none twice, three
minutes each; jobs of one program share their points, as the mean where several measured the same.
Ours: a probe is a stretch of the job's own training, not a run beside it, within the job's bounds;
the order of the sizes is random by the job's name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from services.allocator.models.fitting import nnls, nnls_each
from services.allocator.policies.contract import JobSnapshot, Size

Floats = npt.NDArray[np.float64]
Rate = Callable[[Size], float]
"""Examples a second at a size; 0: not known."""
Points = Mapping[Size, float]
"""Measured examples a second, by size."""
System = tuple[Floats, Floats]
"""Matrix [points, 5] and goals [points] of least squares."""


class SpeedModel(msgspec.Struct, frozen=True):
    """The speed at any size. `coefficients`: of `_speed_terms`; empty where nothing was
    measured.
    """

    points: Points
    batch: int
    coefficients: tuple[float, ...] = ()
    synchronous: bool = True

    def __call__(self, size: Size) -> float:
        """Return examples a second: as measured, else as fitted."""
        measured = self.points.get(size)
        if measured:
            return measured
        if not self.coefficients:
            return 0.0
        terms, examples = _speed_terms(size, self.batch, self.synchronous)
        step_s = 0.0
        for coefficient, term in zip(self.coefficients, terms, strict=True):
            step_s += coefficient * term
        return examples / step_s if step_s > 0 else 0.0


def speed_model(points: Points, batch: int) -> SpeedModel:
    """Fit the speeds of one program."""
    return speed_models([(points, batch)])[0]


def speed_models(
    cases: Sequence[tuple[Points, int]], synchronous: Collection[int] = ()
) -> list[SpeedModel]:
    """Fit the speeds of many programs side by side. A case: points, and the batch. `synchronous`:
    the indices of the programs that are so by their requests; of the others the points decide.
    """
    # Two systems for each program: as a synchronous and as an asynchronous one.
    systems = []
    for points, batch in cases:
        if points:
            systems.append(_speed_system(points, batch, synchronous=True))
            systems.append(_speed_system(points, batch, synchronous=False))
    fits = _solve_systems(systems)

    models = []
    for at, (points, batch) in enumerate(cases):
        if not points:
            models.append(SpeedModel(points, batch))
            continue
        sync_error, coefficients = next(fits)
        async_error, async_coefficients = next(fits)
        is_synchronous = at in synchronous or sync_error <= async_error
        if not is_synchronous:
            coefficients = async_coefficients
        models.append(SpeedModel(points, batch, tuple(coefficients.tolist()), is_synchronous))
    return models


def _speed_terms(size: Size, batch: int, synchronous: bool) -> tuple[tuple[float, ...], float]:
    """Return the five terms of a step at a size, and the examples in it; a term that a kind of job
    does not have is 0.
    """
    p, w = size.ps, size.workers
    workers_per_ps = w / p if p else 0.0
    if synchronous:
        return (batch / w, 1.0, w, workers_per_ps, p), batch
    return (0.0, 1.0, w, workers_per_ps, p), w * batch


def _speed_system(points: Points, batch: int, synchronous: bool) -> System:
    """Return the terms of each point, relative to the time of its step, and goals of 1."""
    rows = []
    for size, speed in points.items():
        terms, examples = _speed_terms(size, batch, synchronous)
        rows.append(np.array(terms) * speed / examples)
    return np.array(rows), np.ones(len(rows))


def _solve_systems(systems: Sequence[System]) -> Iterator[tuple[float, Floats]]:
    """Yield the sum of squared relative errors of each system, and its coefficients."""
    for (matrix, goals), coefficients in zip(systems, nnls_each(systems), strict=True):
        error = np.sum((matrix @ coefficients - goals) ** 2)
        yield float(error), coefficients


# ---------------------------------------------------------------- convergence


class Quiet(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of convergence: the loss fell by at most `fall` in `epochs`. An epoch later than
    `last` is not believed.
    """

    epochs: int = 10
    fall: float = 0.05
    last: int = 100


def converged_epoch(
    epochs: Sequence[float], losses: Sequence[float], progress: float, quiet: Quiet
) -> int | None:
    """Return the first epoch from `progress` on with a quiet fitted loss; None: it is not known."""
    if len(epochs) < 3:
        return None

    epoch_array = np.array(epochs, dtype=float)
    loss_array = np.array(losses, dtype=float)
    a, b, c = loss_fit(epoch_array, loss_array)

    back = quiet.epochs - 1
    first = max(0, int(progress) - quiet.epochs) + back
    for epoch in range(first, quiet.last + 1):
        before = _loss_at(epoch - back, a, b, c)
        if before - _loss_at(epoch, a, b, c) <= quiet.fall:
            return epoch
    return None


def _loss_at(epoch: float, a: float, b: float, c: float) -> float:
    """Return the fitted loss after an epoch."""
    return 1.0 / max(a * epoch + b, LEAST) + c


LEAST = 1e-9
"""The least value of a e + b, so that a loss stays finite."""
BEGINNINGS = (0.0, 0.5, 0.9, 0.99)
"""The values of c from which the fit starts, as parts of the lowest loss."""
ITERATIONS = 80


class LossPoints(NamedTuple):
    """A loss curve with the standard deviation of each point; all of shape [points]."""

    epochs: Floats
    losses: Floats
    sigma: Floats

    def residuals(self, at: Floats) -> Floats:
        """Return the residuals for these a, b, c, in standard deviations [points]."""
        below = at[0] * self.epochs + at[1]
        residuals: Floats = (self.losses - 1 / below - at[2]) / self.sigma
        return residuals

    def slopes(self, at: Floats) -> Floats:
        """Return the slopes of the loss along a, b and c, in standard deviations [points, 3]."""
        below = at[0] * self.epochs + at[1]
        along_a = -self.epochs / below**2
        along_b = -1 / below**2
        along_c = np.ones_like(self.epochs)
        slopes = np.stack([along_a, along_b, along_c], axis=1)
        return slopes / self.sigma[:, None]


def loss_fit(epochs: Floats, losses: Floats) -> tuple[float, float, float]:
    """Return a, b, c by non-negative least squares, each later third of the points with a standard
    deviation four times less.
    """
    third = math.ceil(len(epochs) / 3)
    thirds_before = np.floor(np.arange(len(epochs)) / third)
    sigma = 4.0**-thirds_before
    points = LossPoints(epochs, losses, sigma)

    lowest = max(float(losses.min()), 0.0)
    fits = []
    for part in BEGINNINGS:
        start = _start_coefficients(epochs, losses, lowest * part)
        fits.append(_polish_fit(points, start))
    _, best = min(fits, key=itemgetter(0))
    a, b, c = best.tolist()
    return a, b, c


def _start_coefficients(epochs: Floats, losses: Floats, c: float) -> Floats:
    """Return a and b for a given c, from 1 / (loss - c) = a e + b."""
    above = np.maximum(losses - c, 1e-6)
    terms = np.stack([epochs, np.ones_like(epochs)], axis=1)
    a, b = nnls(terms * above[:, None], np.ones(len(epochs)))
    return np.array([a, max(b, LEAST), c])


def _polish_fit(points: LossPoints, start: Floats) -> tuple[float, Floats]:
    """Return the squared error and (a, b, c) by Levenberg-Marquardt, each step cut off at 0."""
    found = start
    residuals = points.residuals(found)
    error = float(np.sum(residuals**2))
    damping = 1e-2

    for _ in range(ITERATIONS):
        step = _damped_step(points.slopes(found), residuals, damping)
        tried = np.maximum(found + step, [0.0, LEAST, 0.0])
        tried_residuals = points.residuals(tried)
        tried_error = float(np.sum(tried_residuals**2))
        if tried_error < error:
            found = tried
            residuals = tried_residuals
            error = tried_error
            damping /= 3
        else:
            damping *= 4
    return error, found


def _damped_step(slopes: Floats, residuals: Floats, damping: float) -> Floats:
    """Return a step of (a, b, c), shorter the larger the damping is."""
    bend = slopes.T @ slopes
    damped = bend + damping * np.diag(np.diag(bend) + 1e-12)
    step = np.linalg.lstsq(damped, slopes.T @ residuals, rcond=None)[0]
    return np.asarray(step, dtype=np.float64)


PROBES = 8
"""The number of points that are wanted of a program."""
LARGEST = 10
"""p = w of the largest probe."""


def batch_of(job: JobSnapshot) -> int:
    """Return the batch; it never changes."""
    return job.batch or job.request.batch.start


def measured_points(job: JobSnapshot) -> dict[Size, float]:
    """Return the job's own points."""
    batch = batch_of(job)
    points = {}
    for seen in job.observed:
        if seen.batch == batch and 0 < seen.samples_per_second < math.inf:
            points[Size(seen.ps, seen.workers)] = seen.samples_per_second
    return points


def probe_program(job: JobSnapshot) -> str:
    """Return a name, the same for jobs that are expected to be equally fast at a size."""
    return f"{job.request.program_version}/{batch_of(job)}"


def pool_points(jobs: Sequence[JobSnapshot]) -> dict[str, Points]:
    """Return the points of each program: the mean of those that its jobs measured."""
    speeds: dict[str, dict[Size, list[float]]] = {}
    for job in jobs:
        own = measured_points(job)
        if not own:
            continue
        by_size = speeds.setdefault(probe_program(job), {})
        for size, speed in own.items():
            by_size.setdefault(size, []).append(speed)

    points: dict[str, Points] = {}
    for name, by_size in speeds.items():
        points[name] = _mean_speeds(by_size)
    return points


def _mean_speeds(by_size: Mapping[Size, Sequence[float]]) -> dict[Size, float]:
    """Return the mean of the speeds at each size."""
    means = {}
    for size, speeds in by_size.items():
        means[size] = sum(speeds) / len(speeds)
    return means


class ProbeOrder(msgspec.Struct, frozen=True):
    """The sizes that a job may probe, in its random order."""

    sizes: tuple[Size, ...]


def fit_probe_orders(jobs: Sequence[JobSnapshot]) -> list[ProbeOrder]:
    """Return the probe order of each job."""
    return [probe_order(job) for job in jobs]


def probe_order(job: JobSnapshot) -> ProbeOrder:
    """Return the order, a function of the job's name and bounds."""
    places = []
    for side in range(1, LARGEST + 1):
        place = hashlib.sha256(f"{job.key}/{side}".encode()).digest()
        places.append((place, _size_within(side, job.least, job.most)))
    places.sort()
    sizes = dict.fromkeys(size for _, size in places)
    return ProbeOrder(tuple(sizes))


def probe_sizes(job: JobSnapshot, known: Points) -> list[Size]:
    """Return the sizes still to be measured, in order; none once enough are known."""
    if len(known) >= PROBES:
        return []
    order = job.model if isinstance(job.model, ProbeOrder) else probe_order(job)
    return [size for size in order.sizes if size not in known]


def _size_within(side: int, least: Size, most: Size) -> Size:
    """Return the size nearest to p = w = `side` within bounds."""
    ps = max(least.ps, min(most.ps, side))
    workers = max(least.workers, min(most.workers, side))
    return Size(ps, workers)
