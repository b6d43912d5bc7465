"""Fit the performance model (`speed.py`) to observed speeds, for one job or for many side by side.

The method is non-negative least squares on the relative error of T. The prior adds rows, so that a
term keeps its prior share if no observation gives information about it. The fit is repeated with
lower weights for outliers (Cauchy's weights, as in Huber & Ronchetti, Robust Statistics, 2009). The
errors of similar sizes are correlated, and are weighted accordingly.

A cluster has hundreds of programs, and few have many observations: they are fitted in one pass, in
arrays [models, observations, ...]. If a model has fewer observations than others in its array, a
missing observation has no terms and is correlated with no other, so that it changes nothing.

`observation_rows` turns observed speeds into rows of numbers. If the cores of an observation are
not known, the last known ones are used.

`nnls` minimises |A x - b| over x >= 0, for one problem or for many. scipy solves each problem by
the active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23).
Before that, columns are scaled to length one, and b to a largest element of one. So units of any
size neither overflow nor decide which column becomes free first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from services.allocator.models.speed import (
    NOISE,
    RESIDUAL_VARIANCE,
    SHARES,
    SMALLEST,
    Array,
    Fit,
    FitArrays,
    Form,
    Forms,
    Points,
    Usual,
    sensitivities,
)
from services.allocator.policies.contract import Observed

DOUBT = 2.0
"""Standard deviation of a prior share, relative to it."""
LEVEL = 0.75
"""The quantile of the observed times, relative to those of the prior, that is the prior's level. If
one term is nearly all of a step, most sizes have far less of it than the prior says. With the
median as level, the standard deviation of that term would be too small.
"""
LEAST_SHARE = 0.015
"""Added to each share, so that no term is ruled out."""
OUTLIER = 4.0
"""An error of this many standard deviations halves the weight of an observation."""
REWEIGHTINGS = 2
SHORTEST = 8
"""Models with up to this many observations are fitted side by side; so are those with up to twice
as many, and so on.
"""
PAIRS = 1 << 18
"""The most pairs of observations in one pass, so that arrays stay small."""
SPEEDS = (1e-6, 1e12)
"""The plausible range of samples a second; a report of anything else is wrong."""
CORES = (1e-3, 1e4)
"""The plausible range of the cores of a task."""


class UsableObservation(Observed, frozen=True):
    """An observed speed with a known placement: the share of traffic that left its node."""

    remote: float = 1.0


class ObservationRows(NamedTuple):
    """The observed speeds of one job, as arrays."""

    rows: Array
    """Points (`speed.Points`) [observations, 6]."""
    times: Array
    """Seconds for a point's batch [observations]."""
    usual: Usual
    """The last batch, the last known cores of a ps and of a worker (1: not known), and the last
    share of remote traffic.
    """


def observation_rows(observed: Sequence[Observed], batch: int) -> ObservationRows:
    """Return the believable observations as arrays. `batch`: the usual batch if there are none."""
    seen = [point for point in observed if is_believable(point)]
    ps_cpu, worker_cpu = _last_cores(seen)
    rows = np.empty((len(seen), 6))
    speeds = np.empty(len(seen))
    for at, point in enumerate(seen):
        rows[at] = _point_row(point, ps_cpu, worker_cpu)
        speeds[at] = point.samples_per_second

    batches = rows[:, 2]
    usual = (float(max(1, batch)), ps_cpu, worker_cpu, 1.0)
    if seen:
        last_batch = float(batches[-1])
        last_remote = float(rows[-1, 5])
        usual = (last_batch, ps_cpu, worker_cpu, last_remote)
    return ObservationRows(rows, batches / speeds, usual)


def _last_cores(seen: Sequence[Observed]) -> tuple[float, float]:
    """Return the last known cores of a ps and of a worker; 1: not known."""
    ps_cpu = 1.0
    worker_cpu = 1.0
    for point in seen:
        ps_cpu = _usable_cores(point.ps_cpu) or ps_cpu
        worker_cpu = _usable_cores(point.worker_cpu) or worker_cpu
    return ps_cpu, worker_cpu


def _point_row(point: Observed, ps_cpu: float, worker_cpu: float) -> tuple[float, ...]:
    """Return an observed size as a row. The given cores are used if its own are not known."""
    ps_cpu = _usable_cores(point.ps_cpu) or ps_cpu
    worker_cpu = _usable_cores(point.worker_cpu) or worker_cpu
    share = remote_share(point.nodes)
    if isinstance(point, UsableObservation):
        share = point.remote
    return (point.ps, point.workers, max(1, point.batch), ps_cpu, worker_cpu, share)


def is_believable(seen: Observed) -> bool:
    """Return True if the observation is of training, at a plausible speed."""
    if seen.workers <= 0:
        return False
    least, most = SPEEDS
    return least <= seen.samples_per_second <= most


def remote_share(nodes: int | None) -> float:
    """Return the share of a job's traffic that leaves its node; all of it if the number of nodes is
    not known.
    """
    if nodes == 1:
        return 0.0
    return 1.0


def _usable_cores(cores: float | None) -> float | None:
    """Return the cores of a task if they are plausible; None: they are not."""
    least, most = CORES
    if cores is not None and least <= cores <= most:
        return cores
    return None


class Prior(msgspec.Struct, frozen=True):
    """The assumptions about a model before any observation."""

    shares: tuple[float, ...] = SHARES
    """The share of each term of a step, by `TERMS`."""
    step_s: float | None = None
    """Seconds of a step of one ps and one worker with `batch` samples; None: unknown."""
    form: Form = "synchronous"
    batch: int | None = None
    """The batch that the shares are for; None: the last that was observed."""
    device: float = math.inf
    """Samples that a worker holds at once."""


Case = tuple[Sequence[Observed], Prior]
Known = tuple[ObservationRows, Prior]


def fit_model(observed: Sequence[Observed], prior: Prior | None = None) -> Fit:
    """Return the model of one job, from any number of observations.

    An observation that is not believable (`is_believable`) is left out.
    """
    return fit_models([(observed, prior or Prior())])[0]


def fit_closest_form(cases: Sequence[tuple[Sequence[Observed], Sequence[Prior]]]) -> list[Fit]:
    """Return the model of each case by the prior that explains its observations best.

    That is the most probable prior; of equal ones, the first. The priors of a case have one batch.
    """
    pairs = []
    for observed, priors in cases:
        known = observation_rows(observed, priors[0].batch or 1)
        for prior in priors:
            pairs.append((known, prior))
    fitted = _fit_cases(pairs)

    found = []
    start = 0
    for _, priors in cases:
        end = start + len(priors)
        of_case = fitted[start:end]
        found.append(min(of_case, key=_misfit_of))
        start = end
    return found


def _misfit_of(fitted: Fit) -> float:
    """Return the misfit of a model: how improbable the observations are under it."""
    return fitted.misfit


def fit_models(cases: Sequence[Case]) -> list[Fit]:
    """Return the model of each case, in their order."""
    pairs = []
    for observed, prior in cases:
        batch = prior.batch or 1
        pairs.append((observation_rows(observed, batch), prior))
    return _fit_cases(pairs)


def _fit_cases(cases: Sequence[Known]) -> list[Fit]:
    """Return the model of each case, in their order."""
    found: dict[int, Fit] = {}
    for lot in _case_batches(cases):
        models = _fit_lot([cases[at] for at in lot])
        found.update(zip(lot, models, strict=True))
    return [found[at] for at in range(len(cases))]


def _case_batches(cases: Sequence[Known]) -> Iterator[list[int]]:
    """Yield the indices of the models to fit side by side: those with about as many
    observations.
    """
    alike: dict[int, list[int]] = {}
    for at, (known, _) in enumerate(cases):
        of_length = alike.setdefault(_lot_length(known), [])
        of_length.append(at)
    for length, together in alike.items():
        each = max(1, PAIRS // length**2)
        for start in range(0, len(together), each):
            yield together[start : start + each]


def _lot_length(known: ObservationRows) -> int:
    """Return the largest number of observations of the models that are fitted beside this one."""
    power = 1 << (len(known.times) - 1).bit_length()
    return max(SHORTEST, power)


class Stack(NamedTuple):
    """Models side by side."""

    points: Points
    basis: Array
    """Columns of the points [models, observations, terms]."""
    times: Array
    """Seconds for a point's batch [models, observations]."""
    there: NDArray[np.bool_]
    """False where an observation is missing [models, observations]."""
    prior_mean: Array
    """The prior's coefficients [models, terms]."""
    prior_std: Array
    """Standard deviations of the prior's coefficients [models, terms]."""
    least: Array
    """The least value of each coefficient [models, terms]."""


def _stack_cases(cases: Sequence[Known]) -> Stack:
    """Return the arrays of some cases. A missing observation is filled with ones."""
    form = np.array([prior.form for _, prior in cases])
    device = np.array([prior.device for _, prior in cases])
    shares = np.array([prior.shares for _, prior in cases])
    rows, times, there = _pad_evidence([known for known, _ in cases])
    points = Points(rows, device)
    basis = points.columns(form)

    # The level of each model: its times, as a multiple of the shares of its prior.
    one = _of_one(cases, form, device)
    expected = _formula_seconds(basis / one[:, None], shares)
    levels = _time_levels(times / expected, cases)
    unit = levels[:, None] / one
    return Stack(
        points=points,
        basis=basis,
        times=times,
        there=there,
        prior_mean=unit * shares,
        prior_std=unit * DOUBT * (shares + LEAST_SHARE),
        least=unit * SMALLEST,
    )


def _pad_evidence(
    known: Sequence[ObservationRows],
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return sizes [models, observations, 6], times [models, observations] and `Stack.there`."""
    counts = np.array([len(one.times) for one in known])
    most = max(1, int(counts.max()))
    there = np.arange(most) < counts[:, None]

    rows = np.ones((len(known), most, 6))
    times = np.ones((len(known), most))
    for at, one in enumerate(known):
        count = len(one.times)
        rows[at, :count] = one.rows
        times[at, :count] = one.times
    return rows, times, there


def _of_one(cases: Sequence[Known], form: Forms, device: Array) -> Array:
    """Return the columns of one ps and one worker on the first batch [models, terms].

    The column of the term `apart` is 1, because its share is in addition to the others.
    """
    rows = []
    for known, prior in cases:
        usual_batch, ps_cpu, worker_cpu, _ = known.usual
        batch = float(prior.batch or usual_batch)
        rows.append([(1.0, 1.0, batch, ps_cpu, worker_cpu, 1.0)])
    points = Points(np.array(rows), device)
    one = points.columns(form)[:, 0]
    one[:, -1] = 1.0
    return one


def _time_levels(slower: Array, cases: Sequence[Known]) -> Array:
    """Return the seconds of a step of one ps and one worker, for each model.

    `slower`: times, relative to those of the prior [models, observations].
    """
    log_slower = np.log(slower).tolist()
    found = []
    for (known, prior), ratios in zip(cases, log_slower, strict=True):
        count = len(known.times)
        level = prior.step_s or 1.0
        if count:
            log_level = _quantile(ratios[:count], LEVEL)
            level = math.exp(log_level)
        found.append(level)
    return np.array(found)


def _quantile(numbers: Sequence[float], share: float) -> float:
    """Return a quantile, linear between its neighbours."""
    ordered = sorted(numbers)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = math.ceil(at)
    gap = ordered[high] - ordered[low]
    return ordered[low] + gap * (at - low)


class Solution(NamedTuple):
    """The fitted coefficients of models side by side."""

    coefficients: Array
    """In seconds [models, terms]."""
    errors: Array
    """The remaining errors of log T [models, observations]."""
    covariance: Array
    """Covariance of the errors [models, observations, observations]."""


def _fit_lot(cases: Sequence[Known]) -> list[Fit]:
    """Return the models of some cases, fitted side by side."""
    stack = _stack_cases(cases)
    solution = _robust_solution(stack)
    solved = np.linalg.solve(solution.covariance, solution.errors[..., None])
    weights = np.asarray(solved[..., 0])
    factor = _covariance_factor(stack, solution)
    misfits = _improbabilities(stack, solution, weights)

    found = []
    for at, (known, prior) in enumerate(cases):
        count = len(known.times)
        arrays = FitArrays(
            device=np.array([prior.device]),
            coefficients=solution.coefficients[at],
            prior_std=stack.prior_std[at],
            rows=known.rows,
            gp_weights=weights[at, :count],
            factor=factor[at, :count, :count],
        )
        misfit = float(misfits[at])
        found.append(Fit.pack(prior.form, known.usual, misfit, arrays))
    return found


def _robust_solution(stack: Stack) -> Solution:
    """Fit all observations with the same noise, then again with more noise for outliers
    (iteratively reweighted least squares; errors are correlated, coefficients have a prior).
    """
    there = stack.there
    alike = _alike_observations(stack)
    diagonal = np.eye(there.shape[1])
    log_times = np.log(stack.times)

    errors = np.zeros(there.shape)
    for _ in range(1 + REWEIGHTINGS):
        noise = np.where(there, _noise_variance(errors), 1.0)
        covariance = alike + diagonal * noise[..., None]
        free = _solve_coefficients(stack, covariance)
        coefficients = np.maximum(free * stack.prior_std, stack.least)
        foreseen = _formula_seconds(stack.basis, coefficients)
        errors = np.where(there, log_times - np.log(foreseen), 0.0)
    return Solution(coefficients, errors, covariance)


def _alike_observations(stack: Stack) -> Array:
    """Return the covariance of the formula's errors [models, observations, observations]; 0 for a
    missing observation.
    """
    there = stack.there
    pairs = there[:, :, None] & there[:, None, :]
    alike = stack.points.gp_covariance(stack.points)
    return np.where(pairs, alike, 0.0)


def _formula_seconds(basis: Array, coefficients: Array) -> Array:
    """Return the seconds of each point by the formula [models, observations]."""
    seconds: Array = (basis @ coefficients[..., None])[..., 0]
    return seconds


def _solve_coefficients(stack: Stack, covariance: Array) -> Array:
    """Return the coefficients in units of their standard deviations, none negative [models, terms].

    They minimise the squares of the relative errors, which have this covariance, and of the
    distances from the prior.
    """
    white = _independent_equations(stack, covariance)
    # Add a row for each term of the prior.
    models, terms = stack.prior_std.shape
    prior = np.broadcast_to(np.eye(terms), (models, terms, terms))
    prior_goals = stack.prior_mean / stack.prior_std
    rows = np.concatenate([white[..., :-1], prior], axis=1)
    wanted = np.concatenate([white[..., -1], prior_goals], axis=1)
    return nnls(rows, wanted)


def _independent_equations(stack: Stack, covariance: Array) -> Array:
    """Return an equation for each observation, its goal last [models, observations, terms + 1].

    Their errors have this `covariance`; the equations are transformed so that the errors become
    independent.
    """
    relative = stack.basis / stack.times[..., None] * stack.prior_std[:, None]
    relative = np.where(stack.there[..., None], relative, 0.0)
    goals = stack.there.astype(float)
    equations = np.concatenate([relative, goals[..., None]], axis=2)
    factor = np.linalg.cholesky(covariance)
    return np.asarray(np.linalg.solve(factor, equations))


def _covariance_factor(stack: Stack, solution: Solution) -> Array:
    """Return the Cholesky factor of the covariance of the observations [models, observations,
    observations]. It includes the covariance of the coefficients.
    """
    lean = sensitivities(stack.basis, solution.coefficients, stack.prior_std)
    lean = np.where(stack.there[..., None], lean, 0.0)
    covariance = solution.covariance + lean @ np.swapaxes(lean, 1, 2)
    return np.asarray(np.linalg.cholesky(covariance))


def _improbabilities(stack: Stack, solution: Solution, weights: Array) -> Array:
    """Return how improbable the observations are under each model [models]."""
    drift = (solution.coefficients - stack.prior_mean) / stack.prior_std
    drift_cost = (drift**2).sum(axis=1)
    error_cost = (solution.errors * weights).sum(axis=1)
    _, log_determinant = np.linalg.slogdet(solution.covariance)
    return np.asarray(error_cost + drift_cost + log_determinant)


def _noise_variance(errors: Array) -> Array:
    """Return the variance of the noise of each observation. An outlier counts as noisier, so that
    its weight is 1 / (1 + (error / scale)^2).
    """
    usual = RESIDUAL_VARIANCE + NOISE**2
    heavier = 1.0 + errors**2 / (OUTLIER**2 * usual)
    return np.asarray(usual * heavier - RESIDUAL_VARIANCE)


# ---------------------------------------------------------------- non-negative least squares

ROUNDS = 30
"""The most iterations for each column: ten times as many as usual, because scipy raises an error
beyond them.
"""


def nnls(a: Array, b: Array) -> Array:
    """Return x [..., columns], for A [..., rows, columns] and b [..., rows].

    x is NaN for a problem with a number that is not finite. So the extreme speeds of one job do not
    affect the other jobs that are solved with it.
    """
    rows, columns = a.shape[-2:]
    if not rows or not columns:
        return np.zeros((*a.shape[:-2], columns))

    length = _column_lengths(a)
    height = np.abs(b).max(axis=-1, keepdims=True)
    height[height == 0.0] = 1.0

    # One problem after the other [problems, ...].
    problems = math.prod(a.shape[:-2])
    scaled = (a / length[..., None, :]).reshape(problems, rows, columns)
    target = (b / height).reshape(problems, rows)
    x = _solve_each(scaled, target)
    return np.asarray(x.reshape(length.shape) * (height / length))


def _column_lengths(a: Array) -> Array:
    """Return the length of each column [..., columns], without squares that overflow or
    underflow.
    """
    largest = np.abs(a).max(axis=-2)
    largest[largest == 0.0] = 1.0
    relative = a / largest[..., None, :]
    squares = np.square(relative).sum(axis=-2)
    return np.asarray(largest * np.maximum(np.sqrt(squares), 1.0))


def _solve_each(a: Array, b: Array) -> Array:
    """Return x [problems, columns]; NaN for a problem with a number that is not finite."""
    problems, _, columns = a.shape
    finite_a = np.isfinite(a).all(axis=(1, 2))
    finite_b = np.isfinite(b).all(axis=1)
    x = np.full((problems, columns), np.nan)
    most_rounds = ROUNDS * columns
    for n in np.flatnonzero(finite_a & finite_b):
        solution, _ = optimize.nnls(a[n], b[n], maxiter=most_rounds)
        x[n] = solution
    return x


def nnls_each(systems: Sequence[tuple[Array, Array]]) -> Array:
    """Return x [systems, columns], for an A and a b of each system; rows may differ in number."""
    if not systems:
        return np.zeros((0, 0))

    # Rows of zeros below the shorter ones change nothing, and the systems fit into one array.
    most = max(len(b) for _, b in systems)
    first_a, _ = systems[0]
    columns = first_a.shape[1]
    rows = np.zeros((len(systems), most, columns))
    goals = np.zeros((len(systems), most))
    for n, (a, b) in enumerate(systems):
        rows[n, : len(b)] = a
        goals[n, : len(b)] = b
    return nnls(rows, goals)
