"""The performance model: the speed (throughput) of a job at sizes that it never had.

One step of n samples by each of w workers, with p ps, takes

    T = a n/k + b q + c w/(p h) + d r w/p + e w + f p + g N/p + i x                              [s]

    a  gradient on the worker's k cores     b  the cost of each of its q passes at any size
    c  update on the ps' h cores            d  push and pull over the ps' links; r grows with
                                               the traffic that leaves its node
    e  each worker (barrier, incast)        f  each ps (a request to every one)
    g  look-up of embeddings for N samples, spread over the ps
    i  devices without ps that are on more than one node (x = 1): latency, and the slowest link

A worker that holds m samples at once computes its n samples in q = ceil(n/m) passes, and exchanges
gradients once. No coefficient is negative. Synchronous: `batch` is that of all workers together, n
= batch/w, N = batch, speed = batch/T. Asynchronous: `batch` is each worker's, n = N = batch, speed
= w batch/T. Without ps (p = 0: devices side by side) the terms of ps are 0, a ring carries (w -
1)/w of the bytes in place of w/p, and e counts its w - 1 hops.

Sources. Optimus (EuroSys 2018; its authors' code) has a, b, d, e, f: sync a M/w + b + c w/p + d w +
e p. DLRover-RM (PVLDB 2024) has a, c, d, g and constants: the split is theirs, the exact forms are
recalled. Dike (Electronics 2019) takes compute, transfer and update from the model's profile: its
formulas are our reconstruction (`model_profile.py`).

Measured speeds are less smooth than any such formula: shards do not divide evenly among hosts. The
residual of log T is modelled as a Gaussian process (universal kriging; Rasmussen & Williams,
Gaussian Processes for Machine Learning, 2006, section 2.7): a smooth part, a deviation of each
number of ps and of workers, and one of each size. It corrects the formula near measured sizes, and
gives the uncertainty elsewhere. `fitting.py` fits the coefficients. This combination is ours; its
constants were chosen on random surfaces, which show a broad plateau.

`grid_log_speeds` gives the speeds of many jobs at every combination of some numbers of ps, workers
and batches in one pass. Its numbers are those of each job's `Fit.mean`, but it is faster. The
similarity of a size and an observation k is a product of factors: one for the number of ps (p), one
for the number of workers (w), and one for the batch with the usual cores (b). N is a factor of
nearness, S one of equality. So the residual is, with the weight of each observation,

    sum_k  weight_k (SMOOTH^2 Np Nw Nb + QUIRK^2 (Sp + Sw) Nb + ROUGH^2 Sp Sw Sb)

This is a product of two matrices: one has a row for each number of ps, the other one for each
combination of workers and batch. Neither has a row for every size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Form = Literal["synchronous", "asynchronous"]
Forms = NDArray[np.str_]
Usual = tuple[float, float, float, float]
"""Batch, cores a ps, cores a worker, share of traffic that leaves its node."""

TERMS = ("compute", "fixed", "update", "link", "workers", "ps", "look-up", "apart")
TERM_COUNT = len(TERMS)
SHARES = (0.25, 0.2, 0.15, 0.3, 0.04, 0.005, 0.055, 0.05)
"""The share of each term (`TERMS`) of a step of one ps and one worker on the first batch, if
nothing is known about the model. The last one is in addition to the others, because one worker is
never apart.
"""
LOCAL = 0.2
"""The cost of a byte that stays on its node, relative to one that leaves it."""
NOISE = 0.03
"""Relative standard deviation of one observed speed; the next three are such deviations, too."""
SMOOTH = 0.10
"""The smooth part of the formula's error."""
QUIRK = 0.10
"""The error for one number of ps, at any number of workers; and the other way round."""
ROUGH = 0.03
"""The error for one size alone."""
LENGTH_SCALE = 0.8
"""The distance at which sizes are still similar, in natural logarithms of ps, workers, batch and
cores.
"""
SAME = 1e-12
"""Squares of such differences below this count as 0."""
ROUNDING = 1e-9
SMALLEST = 1e-9
"""Least coefficient, as a share of a step: so that no time is zero."""


class Points(msgspec.Struct, frozen=True, eq=False):
    """Sizes, one in each row: ps, workers, batch, cores a ps, cores a worker, share of traffic that
    leaves its node.

    Shape (..., sizes, 6): leading axes are points of several jobs, side by side; there is then a
    `form` for each of them, and a `device`: samples that a worker holds at once.
    """

    rows: Array
    device: float | Array = math.inf

    def columns(self, form: Form | Forms) -> Array:
        """Return the factor of each coefficient that gives seconds for `batch` samples [...,
        sizes, terms].
        """
        p, w, batch, ps_cpu, worker_cpu, remote = _separate_numbers(self.rows)
        synchronous = (np.asarray(form) == "synchronous")[..., None]
        has_ps = p > 0
        served = has_ps.astype(float)
        at_least_one = np.maximum(p, 1.0)
        per_ps = w / at_least_one
        exchanged = np.where(has_ps, per_ps, (w - 1) / w)
        byte_cost = LOCAL + (1 - LOCAL) * remote

        each = batch / np.where(synchronous, w, 1.0)
        held = np.asarray(self.device)[..., None]
        passes = np.ceil(each / held - ROUNDING).clip(1.0)

        # The terms in the order of `TERMS` [..., sizes].
        columns = np.empty((*p.shape, TERM_COUNT))
        columns[..., 0] = each / worker_cpu
        columns[..., 1] = passes
        columns[..., 2] = served * per_ps / ps_cpu
        columns[..., 3] = exchanged * byte_cost
        columns[..., 4] = w - 1 + served
        columns[..., 5] = p
        columns[..., 6] = served * batch / at_least_one
        columns[..., 7] = (1 - served) * (w > 1) * remote
        steps = np.where(synchronous, 1.0, w)
        columns /= steps[..., None]
        return columns

    def gp_covariance(self, others: Points) -> Array:
        """Return the covariance of the formula's residual of log T [..., sizes, others]."""
        mine = log_sizes(self.rows)
        theirs = log_sizes(others.rows)
        apart = []
        same = []
        for n in range(5):
            squares = (mine[..., :, None, n] - theirs[..., None, :, n]) ** 2
            apart.append(squares)
            same.append(squares < SAME)

        smooth = _nearness(apart)
        besides = _nearness(apart[2:])
        quirks = (same[0] * 1.0 + same[1]) * besides
        rough = np.logical_and.reduce(same)
        covariance = SMOOTH**2 * smooth + QUIRK**2 * quirks + ROUGH**2 * rough
        return np.asarray(covariance)


def _separate_numbers(rows: Array) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Return the columns of `Points.rows`, each contiguous [..., sizes]."""
    ps = np.ascontiguousarray(rows[..., 0])
    workers = np.ascontiguousarray(rows[..., 1])
    batch = np.ascontiguousarray(rows[..., 2])
    ps_cpu = np.ascontiguousarray(rows[..., 3])
    worker_cpu = np.ascontiguousarray(rows[..., 4])
    remote = np.ascontiguousarray(rows[..., 5])
    return ps, workers, batch, ps_cpu, worker_cpu, remote


def log_sizes(numbers: Array) -> Array:
    """Return the logarithms that measure the distance between sizes."""
    return np.asarray(np.log(np.maximum(numbers, 0.5)))


def _nearness(squares: Sequence[Array]) -> Array:
    """Return the similarity of sizes, by the squares of their differences; 1: they are equal."""
    return np.asarray(np.exp(-0.5 * sum(squares) / LENGTH_SCALE**2))


RESIDUAL_VARIANCE = SMOOTH**2 + 2 * QUIRK**2 + ROUGH**2
"""The variance of the residual of log T, at every size."""


# ---------------------------------------------------------------- a fitted model


class FitArrays(NamedTuple):
    """The numbers of a model: `device` [1], `coefficients` and `prior_std` [terms], `rows`
    [observations, 6], `gp_weights` [observations], `factor` [observations, observations]; see the
    properties of `Fit`.
    """

    device: Array
    coefficients: Array
    prior_std: Array
    rows: Array
    gp_weights: Array
    factor: Array


ROWS_START = 8 + 16 * TERM_COUNT
"""Bytes of a device, coefficients and their deviations; the rows come after them."""


class Fit(msgspec.Struct, frozen=True, eq=False):
    """A fitted model; `fitting.py` makes it.

    Its numbers are bytes, so that a model is stored and read again like any other value.
    """

    form: Form
    usual: Usual
    """Batch, cores and traffic of a size, unless others are given."""
    misfit: float
    """The improbability of the observations under this model."""
    count: int
    """The number of observations."""
    numbers: bytes
    """Float64: of the device, of all terms and of all observations in turn (`pack`)."""

    @classmethod
    def pack(cls, form: Form, usual: Usual, misfit: float, arrays: FitArrays) -> Fit:
        """Make a model from its arrays."""
        numbers = b""
        for part in arrays:
            contiguous = np.ascontiguousarray(part, dtype=np.float64)
            numbers += contiguous.tobytes()
        return cls(form, usual, misfit, len(arrays.gp_weights), numbers)

    @property
    def device(self) -> float:
        """Samples that a worker holds at once."""
        return float(np.frombuffer(self.numbers, count=1)[0])

    @property
    def coefficients(self) -> Array:
        """Seconds for each unit of a term's column [terms]."""
        return np.frombuffer(self.numbers, count=TERM_COUNT, offset=8)

    @property
    def prior_std(self) -> Array:
        """Standard deviation of each coefficient's prior [terms]."""
        return np.frombuffer(self.numbers, count=TERM_COUNT, offset=8 + 8 * TERM_COUNT)

    @property
    def rows(self) -> Array:
        """Sizes that were observed [observations, 6], as in `Points`."""
        numbers = np.frombuffer(self.numbers, count=6 * self.count, offset=ROWS_START)
        return numbers.reshape(-1, 6)

    @property
    def observed_points(self) -> Points:
        """The `rows`, as points."""
        return Points(self.rows, self.device)

    @property
    def gp_weights(self) -> Array:
        """The weight of each observation in the residual [observations]."""
        start = ROWS_START + 48 * self.count
        return np.frombuffer(self.numbers, count=self.count, offset=start)

    @property
    def factor(self) -> Array:
        """Cholesky factor of the observations' covariance [observations, observations]."""
        if not self.count:
            return np.zeros((0, 0))
        start = ROWS_START + 56 * self.count
        numbers = np.frombuffer(self.numbers, offset=start)
        return numbers.reshape(self.count, self.count)

    def speed(self, ps: int, workers: int, batch: int | None = None) -> float:
        """Return the median speed in samples a second."""
        points = self.points([(ps, workers)], batch)
        log_speeds = self.mean(points)
        return float(np.exp(log_speeds[0]))

    def speed_std(self, ps: int, workers: int, batch: int | None = None) -> float:
        """Return the standard deviation of the speed, relative.

        It is that of the job's true speed at the size, without the noise of one observation.
        """
        points = self.points([(ps, workers)], batch)
        _, spreads = self.predict(points)
        return float(spreads[0])

    def seconds(self, ps: int, workers: int, batch: int | None = None) -> dict[str, float]:
        """Return the seconds for `batch` samples, by term, by the formula alone."""
        points = self.points([(ps, workers)], batch)
        columns = points.columns(self.form)
        seconds = columns[0] * self.coefficients
        return dict(zip(TERMS, seconds.tolist(), strict=True))

    def points(self, sizes: Iterable[tuple[int, int]], batch: int | None = None) -> Points:
        """Return sizes (ps, workers) with the last observed batch and cores, or another batch."""
        usual_batch, *rest = self.usual
        chosen = usual_batch if batch is None else float(batch)
        rows = [(ps, workers, chosen, *rest) for ps, workers in sizes]
        numbers = np.array(rows, dtype=float)
        return Points(numbers.reshape(-1, 6), self.device)

    def mean(self, points: Points) -> Array:
        """Return the mean of log speed [sizes]."""
        columns = points.columns(self.form)
        alike = points.gp_covariance(self.observed_points)
        return self._mean(points, columns, alike)

    def _mean(self, points: Points, columns: Array, alike: Array) -> Array:
        """Return the mean of log speed [sizes]. `alike`: the covariance with the observations."""
        batches = points.rows[:, 2]
        seconds = columns @ self.coefficients
        left_over = alike @ self.gp_weights
        return np.asarray(np.log(batches) - np.log(seconds) - left_over)

    def predict(self, points: Points) -> tuple[Array, Array]:
        """Return the mean of log speed, and its standard deviation [sizes]."""
        observed = self.observed_points
        columns = points.columns(self.form)
        alike = points.gp_covariance(observed)
        mine = sensitivities(columns, self.coefficients, self.prior_std)
        theirs = sensitivities(observed.columns(self.form), self.coefficients, self.prior_std)

        covariance = alike + mine @ theirs.T
        known = np.linalg.solve(self.factor, covariance.T)
        doubted = (mine**2).sum(axis=1)
        explained = (known**2).sum(axis=0)
        variance = RESIDUAL_VARIANCE + doubted - explained
        spread = np.sqrt(np.maximum(variance, 1e-12))
        return self._mean(points, columns, alike), spread


def sensitivities(columns: Array, coefficients: Array, prior_std: Array) -> Array:
    """Return how far each coefficient may move log T, as a standard deviation [..., sizes, terms].

    This is at most the effect of the term's absence, because no more time than a term's own can be
    saved. So a term that is nearly 0 promises no gain, and the standard deviation of a speed shows
    how much faster a size may be rather than how much slower.
    """
    formula = columns @ coefficients[..., None]
    terms = columns * coefficients[..., None, :] / formula
    absence = -np.log1p(-np.minimum(terms, 1.0 - SMALLEST))
    doubted = columns * prior_std[..., None, :] / formula
    return np.asarray(np.minimum(doubted, absence))


class Grid(NamedTuple):
    """The grid of each job: numbers of ps [jobs, n], of workers [jobs, m], batches [jobs, b]."""

    ps: Array
    workers: Array
    batches: Array

    def sizes(self) -> Array:
        """Return every combination: ps, workers, batch [jobs, n m b, 3]. The batch changes first,
        then the workers.
        """
        jobs, count = self.ps.shape
        found = np.empty((jobs, count, self.workers.shape[1], self.batches.shape[1], 3))
        found[..., 0] = self.ps[:, :, None, None]
        found[..., 1] = self.workers[:, None, :, None]
        found[..., 2] = self.batches[:, None, None, :]
        return found.reshape(jobs, -1, 3)


def pad_rows(rows: Sequence[tuple[int, ...]]) -> Array:
    """Return the rows as one array. A shorter row is filled up with its last number, because the
    same size twice changes nothing.
    """
    most = max(map(len, rows))
    different: dict[tuple[int, ...], int] = {}
    full: list[tuple[int, ...]] = []
    places = []
    for row in rows:
        if row not in different:
            different[row] = len(full)
            full.append(row + row[-1:] * (most - len(row)))
        places.append(different[row])
    return np.array(full, dtype=np.float64)[places]


def grid_log_speeds(
    fits: Sequence[Fit], grid: Grid, sizes: Array, together: Sequence[int]
) -> Array:
    """Return log speeds at `sizes` [jobs, sizes], by a model for each job with its usual cores and
    traffic.

    `sizes` [jobs, sizes, 3]: those of the grid, with batches that may differ a little from the
    grid's (the residual is computed on the grid). `together`: how many of a job's workers one node
    holds; without ps, more workers than that have remote traffic.
    """
    there = usual_points(fits, sizes, together)
    # Seconds by the formula [jobs, sizes], and its residual there, in logarithms.
    columns = there.columns(np.array([fitted.form for fitted in fits]))
    coefficients = np.array([fitted.coefficients for fitted in fits])
    formula = (columns @ coefficients[..., None])[..., 0]
    off = _grid_residuals(fits, grid, there.rows[:, 0, 3:5])
    return np.asarray(np.log(sizes[..., 2] / formula) - off)


def usual_points(fits: Sequence[Fit], sizes: Array, together: Sequence[int]) -> Points:
    """Return the sizes [jobs, sizes, 3] with each model's usual cores and traffic. `together`: as
    in `grid_log_speeds`.
    """
    usual = np.array([fitted.usual[1:] for fitted in fits])
    apart = sizes[..., 1] > np.array(together)[:, None]
    rows = np.empty((*sizes.shape[:2], 6))
    rows[..., :3] = sizes
    rows[..., 3:5] = usual[:, None, :2]
    rows[..., 5] = np.where(sizes[..., 0] > 0, usual[:, 2:], apart)
    return Points(rows, np.array([fitted.device for fitted in fits]))


def _grid_residuals(fits: Sequence[Fit], grid: Grid, cores: Array) -> Array:
    """Return the residuals of log T [jobs, sizes]. `cores`: of a ps and of a worker [jobs, 2]."""
    weights, seen = _padded_observations(fits)
    # Squares of the distances to each observation, along one axis [jobs, numbers, observations].
    ps = (log_sizes(grid.ps)[..., None] - seen[..., 0]) ** 2
    workers = (log_sizes(grid.workers)[..., None] - seen[..., 1]) ** 2
    batch = (log_sizes(grid.batches)[..., None] - seen[..., 2]) ** 2
    rest = (log_sizes(cores)[:, None, None] - seen[..., 3:5]) ** 2
    beside = weights * _smooth_kernel(batch + rest.sum(axis=-1))
    here = weights * _equality_kernel(np.maximum(batch, rest.max(axis=-1)))
    # The factors of the four terms, side by side [jobs, numbers, 4 observations].
    by_ps = _side_by_side(
        SMOOTH**2 * _smooth_kernel(ps),
        QUIRK**2 * _equality_kernel(ps),
        np.full_like(ps, QUIRK**2),
        ROUGH**2 * _equality_kernel(ps),
    )
    by_workers = _side_by_side(
        _smooth_kernel(workers),
        np.ones_like(workers),
        _equality_kernel(workers),
        _equality_kernel(workers),
    )
    by_batch = _side_by_side(beside, beside, beside, here)
    # Their products, summed over observations [jobs, n m b].
    by_both = by_workers[:, :, None] * by_batch[:, None]
    flat = by_both.reshape(len(fits), -1, by_both.shape[-1])
    found = by_ps @ np.swapaxes(flat, 1, 2)
    return np.asarray(found.reshape(len(fits), -1))


def _padded_observations(fits: Sequence[Fit]) -> tuple[Array, Array]:
    """Return the weight of each observation [jobs, 1, observations], and the logarithms of its
    sizes. A missing observation has the weight 0.
    """
    most = 1
    for fitted in fits:
        most = max(most, fitted.count)
    weights = np.zeros((len(fits), 1, most))
    seen = np.ones((len(fits), 1, most, 6))
    for at, fitted in enumerate(fits):
        weights[at, 0, : fitted.count] = fitted.gp_weights
        seen[at, 0, : fitted.count] = fitted.rows
    return weights, log_sizes(seen)


def _smooth_kernel(apart: Array) -> Array:
    return np.asarray(np.exp(-0.5 * apart / LENGTH_SCALE**2))


def _equality_kernel(apart: Array) -> Array:
    return (apart < SAME).astype(np.float64)


def _side_by_side(*parts: Array) -> Array:
    return np.concatenate(parts, axis=2)
