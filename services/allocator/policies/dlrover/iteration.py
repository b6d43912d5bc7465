"""The time of an iteration on a plan: the throughput model of DLRover-RM (Wang et al., PVLDB
17(12), 2024).

Asynchronous training with w workers of lambda_w cores and p ps of lambda_p cores, m examples an
update of one worker, model size M, bandwidth B, embedding dimension D. Seconds an iteration, and
examples a second:

    T = a1 m / lambda_w  +  a2 w / (p lambda_p)  +  a3 (M / p) (w / B)  +  a4 m D / p  +  b     [s]
        gradient            updates                 push and pull          embeddings     the rest
    Psi = w m / T,   a1..a4, b >= 0, by non-negative least squares on this job's observations

From the paper's public material: the terms' meaning, and non-negative least squares. Recalled and
not checked: the exact forms; that their four constants merge into b is ours. Ours, too:

- residuals are relative to T; if fewer plans than terms were observed, pseudo-observations of less
  weight determine the rest: from similar finished jobs, and from CPU use (busy workers: gradients;
  busy ps: updates and embeddings);
- where all workers make each update together (`consistency: global-batch`), m is the batch divided
  by w, and T is the time of an update of all of them;
- a task cannot use an unlimited number of cores: beyond a bound, lambda counts as the bound. There
  is a bound if one of the numbers that were tried leaves clearly smaller residuals; of several, the
  one that leaves the smallest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.models.fitting import nnls_each
from services.allocator.policies.contract import Plan, TimedPlan

Array = NDArray[np.float64]
System = tuple[Array, Array]
"""Matrix and goals of least squares."""

HISTORY_WEIGHT = 0.3  # of a similar job's observation against one of the job's own
USE_WEIGHT = 0.2  # of a pseudo-observation of CPU use against one of the job's own
SHORTEST_S = 1e-9  # no iteration is shorter
CLEARLY = 0.7  # a bound must leave less than this share of the squared residuals
NOISE = 0.02  # relative residuals of this size are noise
PS_CPU = 2  # column of a plan
WORKER_CPU = 3
BOUNDS_TRIED = 8


class Shape(msgspec.Struct, frozen=True):
    """M, B and D. An unknown one is constant, and a part of its coefficient."""

    size: float = 1.0
    bandwidth: float = 1.0
    embedding: float = 1.0


PLAIN = Shape()


class Model(msgspec.Struct, frozen=True):
    """`coefficients`: a1..a4, b. `bounds`: the upper limits of a plan's four numbers, that is, the
    cores that a ps, and a worker, can use at once.
    """

    coefficients: Array
    bounds: Array


def term_columns(plans: Array, batch: Array | float, shape: Shape = PLAIN) -> Array:
    """Return the factor of each coefficient [plans, 5].

    `plans` [plans, 4]: ps, workers, cores a ps, cores a worker; `batch`: of one worker, one number
    or [plans].
    """
    p, w, ps_cpu, worker_cpu = plans.T
    m = np.broadcast_to(np.asarray(batch, dtype=np.float64), p.shape)
    factors = np.empty((len(plans), 5))
    factors[:, 0] = m / worker_cpu
    factors[:, 1] = w / (p * ps_cpu)
    factors[:, 2] = w / p * (shape.size / shape.bandwidth)
    factors[:, 3] = m * shape.embedding / p
    factors[:, 4] = 1.0
    return factors


def iteration_s(plans: Array, batch: float, model: Model, shape: Shape = PLAIN) -> Array:
    """Return seconds an iteration [plans]; `plans` [plans, 4]."""
    return step_s(plans.T, batch, model, shape)


def plan_throughput(plans: Array, batch: float, model: Model, shape: Shape = PLAIN) -> Array:
    """Return examples a second [plans]."""
    return plans[:, 1] * batch / iteration_s(plans, batch, model, shape)


def step_s(
    plans: Iterable[Array],
    batch: Array | float,
    model: Model,
    shape: Shape = PLAIN,
) -> Array:
    """Return seconds an iteration, in the broadcast shape of the four arrays of `plans`: ps,
    workers, cores a ps, cores a worker. `batch`: of one worker, one number or in that shape.
    """
    ps, workers, ps_cpu, worker_cpu = plans
    gradient, updates, link, embeddings, rest = model.coefficients.tolist()
    useful_ps_cpu = np.minimum(ps_cpu, model.bounds[PS_CPU])
    useful_worker_cpu = np.minimum(worker_cpu, model.bounds[WORKER_CPU])

    # Terms of few numbers are added first: their arrays are small.
    transfer_s = shape.size / shape.bandwidth
    transfers = link * (workers / ps * transfer_s)
    transfers = transfers + embeddings * (batch * shape.embedding / ps) + rest
    on_ps = updates * (workers / (ps * useful_ps_cpu)) + transfers
    seconds = gradient * (batch / useful_worker_cpu) + on_ps
    return np.asarray(np.maximum(seconds, SHORTEST_S))


# ---------------------------------------------------------------- the fit


class Case(NamedTuple):
    """The observations of one job."""

    timed: Sequence[TimedPlan]
    """The job's own observations."""
    similar: Sequence[TimedPlan] = ()
    """Observations of similar finished jobs."""
    shares: Sequence[float] | None = None
    """The estimated share of each term of its last iteration; None: not known."""


def fit_throughput(
    timed: Sequence[TimedPlan],
    shape: Shape = PLAIN,
    similar: Sequence[TimedPlan] = (),
    shares: Sequence[float] | None = None,
) -> Model:
    """Fit one job, to one observation or more."""
    return fit_throughputs([Case(timed, similar, shares)], shape)[0]


def fit_throughputs(cases: Sequence[Case], shape: Shape = PLAIN) -> list[Model]:
    """Fit many jobs side by side: first without bounds, then with tried numbers of cores as
    bounds.
    """
    free = np.full(4, math.inf)
    tables = []
    systems = []
    for case in cases:
        table = _case_table(case, shape)
        tables.append(table)
        systems.append(_weighted_system(table, free))
    models = [Model(coefficients, free) for coefficients in nnls_each(systems)]
    for column in (WORKER_CPU, PS_CPU):
        models = _bounded_where_clear(tables, models, column)
    return models


class Table(NamedTuple):
    """A case as arrays: plans [observations, 4]; and [observations] examples an update, seconds an
    iteration, weights of residuals.
    """

    plans: Array
    batch: Array
    step_s: Array
    weights: Array
    shares: Sequence[float] | None
    shape: Shape


def _case_table(case: Case, shape: Shape) -> Table:
    """Return the observations of a case as arrays, those of similar jobs first, with the lower
    weight `HISTORY_WEIGHT`.
    """
    plans = []
    batch = []
    step_s = []
    for timed in [*case.similar, *case.timed]:
        plans.append(timed.plan)
        batch.append(float(timed.batch))
        step_s.append(timed.step_s)
    weights = np.ones(len(plans))
    weights[: len(case.similar)] = HISTORY_WEIGHT
    return Table(
        plans=plan_grid(plans),
        batch=np.array(batch),
        step_s=np.array(step_s),
        weights=weights,
        shares=case.shares,
        shape=shape,
    )


def _rows(table: Table, bounds: Array) -> Array:
    """Return the terms of each iteration, relative to its time [observations, 5]."""
    useful = np.minimum(table.plans, bounds)
    terms = term_columns(useful, table.batch, table.shape)
    return terms / table.step_s[:, None]


def _weighted_system(table: Table, bounds: Array) -> System:
    """Return the matrix and the goals of the least squares problem."""
    rows = _rows(table, bounds)
    matrix = rows * table.weights[:, None]
    goals = table.weights
    if table.shares is None:
        return matrix, goals
    # One pseudo-observation for each term: its share of the last iteration.
    use_rows = np.diag(rows[-1]) * USE_WEIGHT
    use_goals = np.array(table.shares) * USE_WEIGHT
    return np.vstack([matrix, use_rows]), np.concatenate([goals, use_goals])


def _squared_error(table: Table, model: Model) -> float:
    """Return the sum of the squared residuals, each weighed."""
    residuals = _rows(table, model.bounds) @ model.coefficients - 1
    return float(np.square(residuals * table.weights).sum())


def _bounded_where_clear(
    tables: Sequence[Table], models: Sequence[Model], column: int
) -> list[Model]:
    """Return the models. One of a model's cores gets a bound if that clearly leaves smaller
    residuals.
    """
    found = []
    best = _best_bounded(tables, models, column)
    for table, before, after in zip(tables, models, best, strict=True):
        allowance = noise_residuals(table.weights)
        error_before = _squared_error(table, before) + allowance
        error_after = _squared_error(table, after) + allowance
        found.append(after if error_after < CLEARLY * error_before else before)
    return found


def _best_bounded(tables: Sequence[Table], models: Sequence[Model], column: int) -> list[Model]:
    """Return for each job the model with the bound that leaves the smallest residuals, of equal
    ones the first; where no bound can be tried, the model as it was.
    """
    # One system for each bound that can be tried, those of all jobs side by side.
    jobs = []
    tried = []
    systems = []
    for n, table in enumerate(tables):
        for bounds in _bounds_to_try(models[n].bounds, column, table.plans):
            jobs.append(n)
            tried.append(bounds)
            systems.append(_weighted_system(table, bounds))

    errors = [math.inf] * len(models)
    best = list(models)
    for n, bounds, coefficients in zip(jobs, tried, nnls_each(systems), strict=True):
        model = Model(coefficients, bounds)
        error = _squared_error(tables[n], model)
        if error < errors[n]:
            errors[n] = error
            best[n] = model
    return best


def noise_residuals(weights: Array) -> float:
    """Return the squared residuals that count as noise."""
    return NOISE**2 * float(np.square(weights).sum())


def _bounds_to_try(bounds: Array, column: int, plans: Array) -> list[Array]:
    """Return the bounds to try in this column: tried numbers of cores, without the largest."""
    all_tried = set(plans[:, column].tolist())
    tried = sorted(all_tried)[:-1]
    if len(tried) > BOUNDS_TRIED:
        evenly = np.linspace(0, len(tried) - 1, BOUNDS_TRIED).astype(int)
        tried = [tried[at] for at in np.unique(evenly).tolist()]
    found = []
    for cores in tried:
        narrower = bounds.copy()
        narrower[column] = cores
        found.append(narrower)
    return found


def shares_of(busy_workers: float, busy_ps: float) -> tuple[float, float, float, float, float]:
    """Return how CPU use (parts of the cores given, 0..1) suggests that an iteration divides among
    the terms.
    """
    worker = min(max(busy_workers, 0.0), 1.0)
    ps = min(max(busy_ps, 0.0), 1.0)
    on_ps = (1 - worker) * ps / 2
    idle = (1 - worker) * (1 - ps) / 2
    return (worker, on_ps, idle, on_ps, idle)


def plan_grid(plans: Sequence[Plan]) -> Array:
    """Return plans as an array [plans, 4]: ps, workers, cores a ps, cores a worker."""
    rows = []
    for plan in plans:
        rows.append((plan.ps, plan.workers, plan.ps_cpu, plan.worker_cpu))
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def usable_plans(timed: Sequence[TimedPlan]) -> list[TimedPlan]:
    """Return the plans that are possible: with workers, cores and a finite time."""
    return [one for one in timed if _is_usable(one)]


def _is_usable(timed: TimedPlan) -> bool:
    """Return True if ps, workers, their cores and the batch are above 0, and the iteration took a
    finite time above 0.
    """
    plan = timed.plan
    least = min(plan.ps, plan.workers, plan.ps_cpu, plan.worker_cpu)
    return least > 0 and timed.batch > 0 and 0 < timed.step_s < math.inf
