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

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.models.history import Plan, Timed
from services.allocator.models.nnls import nnls

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
    seen = [*similar, *timed]
    plans, batch = grid([t.plan for t in seen]), np.array([float(t.batch) for t in seen])
    step_s = np.array([t.step_s for t in seen])
    weights = np.array([HISTORY_WEIGHT] * len(similar) + [1.0] * len(timed))

    def solved(bounds: Array) -> tuple[float, Model]:
        rows = columns(np.minimum(plans, bounds), batch, shape) / step_s[:, None]
        coefficients = _solved(rows, weights, shares)
        return float(np.square((rows @ coefficients - 1) * weights).sum()), Model(coefficients, bounds)

    error, model = solved(np.full(4, math.inf))
    for column in (WORKER_CPU, PS_CPU):
        tried = [solved(bounds) for bounds in _bounded(model.bounds, column, plans)]
        least, bounded = min(tried, key=lambda fit: fit[0], default=(math.inf, model))
        if least + noise(weights) < CLEARLY * (error + noise(weights)):
            error, model = least, bounded
    return model


def noise(weights: Array) -> float:
    return NOISE**2 * float(np.square(weights).sum())


def _bounded(bounds: Array, column: int, plans: Array) -> list[Array]:
    """Bounds with another one: each number of cores that was tried, but the largest."""
    tried = np.unique(plans[:, column])[:-1]
    some = tried[np.unique(np.linspace(0, len(tried) - 1, BOUNDS_TRIED).astype(int))] if len(tried) else tried
    return [np.where(np.arange(4) == column, cores, bounds) for cores in some]


def _solved(rows: Array, weights: Array, shares: Sequence[float] | None) -> Array:
    matrix, target = rows * weights[:, None], weights
    if shares is not None:
        matrix = np.vstack([matrix, np.diag(rows[-1]) * USE_WEIGHT])
        target = np.concatenate([target, np.array(shares) * USE_WEIGHT])
    return nnls(matrix, target)


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
