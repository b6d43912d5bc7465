"""How long an iteration takes on a plan: the throughput model of DLRover-RM (Wang et al., PVLDB 17(12), 2024).

Asynchronous training with w workers of lambda_w cores and p ps of lambda_p cores, m examples an update of one worker,
model size M, bandwidth B, embedding dimension D. Seconds an iteration, and examples a second:

    T = a1 m / lambda_w  +  a2 w / (p lambda_p)  +  a3 (M / p) (w / B)  +  a4 m D / p  +  b         [s]
        gradient            updates                 push and pull          embeddings     the rest
    Psi = w m / T,   a1..a4, b >= 0, by non-negative least squares on what was seen of this job

From the paper's public material: the terms' meaning, and non-negative least squares. Recalled and not checked: the
exact forms; that their four constants merge into b is ours. Ours, too:

- residuals count relative to T, and more terms than plans seen are held by pseudo-observations of less weight: from
  finished jobs that are similar, and from CPU use (busy workers: gradients; busy ps: updates and embeddings);
- a task cannot use any number of cores at once: beyond `useful` ones lambda counts as that. Whether there is such a
  bound, and which of the numbers that were tried it is, is what makes the residuals least, if clearly so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.models.nnls import nnls_each
from services.allocator.policies.contract import Plan, Timed

Array = NDArray[np.float64]

HISTORY_WEIGHT, USE_WEIGHT = 0.3, 0.2  # of a pseudo-observation against one of the job's own
SHORTEST_S = 1e-9  # no iteration is shorter
CLEARLY = 0.7  # a bound leaves no more than this of the squared residuals
NOISE = 0.02  # residuals of so much, relative, tell nothing
PS_CPU, WORKER_CPU = 2, 3  # columns of a plan
BOUNDS_TRIED = 8


class Shape(msgspec.Struct, frozen=True):
    """M, B and D. Where one is not known it is constant, and its coefficient holds it."""

    size: float = 1.0
    bandwidth: float = 1.0
    embedding: float = 1.0


PLAIN = Shape()


class Model(msgspec.Struct, frozen=True):
    """`coefficients`: a1..a4, b. `bounds` of a plan's four numbers: cores that a ps, and a worker, can use at once."""

    coefficients: Array
    bounds: Array


def columns(plans: Array, batch: Array | float, shape: Shape = PLAIN) -> Array:
    """What each coefficient is multiplied with [plans, 5]; `plans` [plans, 4]: ps, workers, cores a ps, a worker."""
    p, w, ps_cpu, worker_cpu = plans.T
    m = np.broadcast_to(np.asarray(batch, dtype=np.float64), p.shape)
    link = w / p * (shape.size / shape.bandwidth)
    return np.stack([m / worker_cpu, w / (p * ps_cpu), link, m * shape.embedding / p, np.ones_like(p)], axis=1)


def iteration_s(plans: Array, batch: float, model: Model, shape: Shape = PLAIN) -> Array:
    return np.maximum(columns(np.minimum(plans, model.bounds), batch, shape) @ model.coefficients, SHORTEST_S)


def throughput(plans: Array, batch: float, model: Model, shape: Shape = PLAIN) -> Array:
    """Examples a second."""
    return plans[:, 1] * batch / iteration_s(plans, batch, model, shape)


# ---------------------------------------------------------------- the fit


def fitted(
    timed: Sequence[Timed],
    shape: Shape = PLAIN,
    similar: Sequence[Timed] = (),
    shares: Sequence[float] | None = None,
) -> Model:
    """From one observation or more. `shares`: how the last of them seems to divide among the terms."""
    return fitted_each([Case(timed, similar, shares)], shape)[0]


class Case(NamedTuple):
    """What `fitted` is told of one job."""

    timed: Sequence[Timed]
    similar: Sequence[Timed] = ()
    shares: Sequence[float] | None = None


def fitted_each(cases: Sequence[Case], shape: Shape = PLAIN) -> list[Model]:
    """Of many jobs: first without bounds, side by side; then each with those that were tried."""
    tables = [_table(case, shape) for case in cases]
    free = np.full(4, math.inf)
    firsts = nnls_each([_system(table, _rows(table, free)) for table in tables])
    return [_bounded_if_clear(table, free, first) for table, first in zip(tables, firsts, strict=True)]


class Table(NamedTuple):
    """A case as arrays [observations, ...]."""

    plans: Array
    batch: Array
    step_s: Array
    weights: Array
    shares: Sequence[float] | None
    shape: Shape


def _table(case: Case, shape: Shape) -> Table:
    seen = [*case.similar, *case.timed]
    plans, batch = grid([t.plan for t in seen]), np.array([float(t.batch) for t in seen])
    weights = np.array([HISTORY_WEIGHT] * len(case.similar) + [1.0] * len(case.timed))
    return Table(plans, batch, np.array([t.step_s for t in seen]), weights, case.shares, shape)


def _rows(table: Table, bounds: Array) -> Array:
    return columns(np.minimum(table.plans, bounds), table.batch, table.shape) / table.step_s[:, None]


def _error(table: Table, bounds: Array, coefficients: Array) -> float:
    return float(np.square((_rows(table, bounds) @ coefficients - 1) * table.weights).sum())


def _bounded_if_clear(table: Table, free: Array, first: Array) -> Model:
    model, error, allowance = Model(first, free), _error(table, free, first), noise(table.weights)
    for column in (WORKER_CPU, PS_CPU):
        tried = _bounded(model.bounds, column, table.plans)
        fits = nnls_each([_system(table, _rows(table, bounds)) for bounds in tried])
        models = [Model(coefficients, bounds) for coefficients, bounds in zip(fits, tried, strict=True)]
        errors = [_error(table, one.bounds, one.coefficients) for one in models]
        least = min(errors, default=math.inf)
        if least + allowance < CLEARLY * (error + allowance):
            error, model = least, models[errors.index(least)]
    return model


def noise(weights: Array) -> float:
    return NOISE**2 * float(np.square(weights).sum())


def _bounded(bounds: Array, column: int, plans: Array) -> list[Array]:
    """Bounds with another one: each number of cores that was tried, but the largest."""
    tried = np.array(sorted(set(plans[:, column].tolist()))[:-1])
    some = tried[np.unique(np.linspace(0, len(tried) - 1, BOUNDS_TRIED).astype(int))] if len(tried) else tried
    return [np.where(np.arange(4) == column, cores, bounds) for cores in some]


def _system(table: Table, rows: Array) -> tuple[Array, Array]:
    """Matrix and goals of the least squares."""
    matrix, target = rows * table.weights[:, None], table.weights
    if table.shares is not None:
        matrix = np.vstack([matrix, np.diag(rows[-1]) * USE_WEIGHT])
        target = np.concatenate([target, np.array(table.shares) * USE_WEIGHT])
    return matrix, target


def shares_of(busy_workers: float, busy_ps: float) -> tuple[float, float, float, float, float]:
    """How CPU use (parts of the cores given, 0..1) suggests that an iteration divides among the terms."""
    worker, ps = min(max(busy_workers, 0.0), 1.0), min(max(busy_ps, 0.0), 1.0)
    on_ps, idle = (1 - worker) * ps / 2, (1 - worker) * (1 - ps) / 2
    return (worker, on_ps, idle, on_ps, idle)


def grid(plans: Sequence[Plan]) -> Array:
    return np.array([msgspec.structs.astuple(plan) for plan in plans], dtype=np.float64).reshape(-1, 4)


def usable(timed: Sequence[Timed]) -> list[Timed]:
    """Without what cannot be: no workers, no cores, no time, not a number."""
    return [
        t
        for t in timed
        if min(msgspec.structs.astuple(t.plan)) > 0 and t.batch > 0 and t.step_s > 0 and math.isfinite(t.step_s)
    ]
