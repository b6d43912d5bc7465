"""Optimus' two models (EuroSys 2018): how fast a job is at a size, and when its loss has converged.

    sync step    M / v   = a M/w + b + c w/p + d w + e p        [s]   v: examples/s with p ps and w workers, M: batch
    async step   w M / v = a + b w/p + c w + d p                [s]   all coefficients >= 0
    loss(e)              = 1 / (a e + b) + c                          after e epochs; a, b, c >= 0

From the authors' code: a measured speed goes before a fitted one; each later third of the losses has four times the
weight; a job has converged when the fitted loss falls by at most 0.05 in 10 epochs. They fit v by trust region; here,
as in the paper, non-negative least squares, on relative errors of the step. The contract does not say whether a job is
synchronous, so the formula that misses the points less is taken. Jobs without ps have no terms in p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from services.allocator.models.nnls import nnls
from services.allocator.policies.contract import Size

Floats = npt.NDArray[np.float64]
Rate = Callable[[Size], float]
"""Examples a second at a size; 0: cannot be told."""
Terms = Callable[[Size, int], tuple[list[float], float]]
"""The terms of a step at a size with a batch, and the examples in it."""
MODELS = 256
"""So many of the last ones are remembered."""


def speed_model(points: Mapping[Size, float], batch: int) -> Rate:
    """The speed at any size; `points`: examples/s as measured."""
    return _model(tuple(points.items()), batch)


@lru_cache(MODELS)
def _model(measured: tuple[tuple[Size, float], ...], batch: int) -> Rate:
    if not measured:
        return lambda size: 0.0
    points = dict(measured)
    fitted = min((_fit(points, batch, terms) for terms in (_sync, _async)), key=lambda fit: fit[0])[1]
    return cache(lambda size: points.get(size) or fitted(size))


def _sync(size: Size, batch: int) -> tuple[list[float], float]:
    p, w = size.ps, size.workers
    return [batch / w, 1.0, w, *([w / p, p] if p else [])], batch


def _async(size: Size, batch: int) -> tuple[list[float], float]:
    p, w = size.ps, size.workers
    return [1.0, w, *([w / p, p] if p else [])], w * batch


def _fit(points: Mapping[Size, float], batch: int, terms: Terms) -> tuple[float, Rate]:
    """How far the best coefficients miss (sum of squared relative errors), and the speeds that they give."""
    rows = []
    for size, speed in points.items():
        row, examples = terms(size, batch)
        rows.append(np.array(row) * speed / examples)
    matrix = np.array(rows)
    found = nnls(matrix, np.ones(len(rows)))

    def rate(size: Size) -> float:
        row, examples = terms(size, batch)
        step_s = float(np.array(row) @ found)
        return examples / step_s if step_s > 0 else 0.0

    return float(np.sum((matrix @ found - 1.0) ** 2)), rate


# ---------------------------------------------------------------- convergence


class Quiet(msgspec.Struct, frozen=True, kw_only=True):
    """When a loss counts as converged: it fell by at most `fall` in `epochs`; later than `last` is not believed."""

    epochs: int = 10
    fall: float = 0.05
    last: int = 100


def converged_epoch(epochs: Sequence[float], losses: Sequence[float], progress: float, quiet: Quiet) -> int | None:
    """The epoch from `progress` on at which the fitted loss is quiet; None where that cannot be told."""
    if len(epochs) < 3:
        return None
    a, b, c = loss_fit(np.array(epochs, dtype=float), np.array(losses, dtype=float))
    back = quiet.epochs - 1
    for epoch in range(max(0, int(progress) - quiet.epochs) + back, quiet.last + 1):
        if _loss(epoch - back, a, b, c) - _loss(epoch, a, b, c) <= quiet.fall:
            return epoch
    return None


def _loss(epoch: float, a: float, b: float, c: float) -> float:
    return 1.0 / max(a * epoch + b, LEAST) + c


LEAST = 1e-9
"""Of a e + b, so that a loss stays finite."""
BEGINNINGS = (0.0, 0.5, 0.9, 0.99)
"""Of c, as parts of the lowest loss."""
ITERATIONS = 80


def loss_fit(epochs: Floats, losses: Floats) -> tuple[float, float, float]:
    """a, b, c: non-negative least squares, each later third of the points with a standard deviation four times less."""
    sigma = 4.0 ** -np.floor(np.arange(len(epochs)) / math.ceil(len(epochs) / 3))
    lowest = max(float(losses.min()), 0.0)
    tried = [_polished(epochs, losses, sigma, _begun(epochs, losses, lowest * part)) for part in BEGINNINGS]
    a, b, c = min(tried, key=lambda fit: fit[0])[1].tolist()
    return a, b, c


def _begun(epochs: Floats, losses: Floats, c: float) -> Floats:
    """a and b for a given c, from 1 / (loss - c) = a e + b."""
    above = np.maximum(losses - c, 1e-6)
    rows = np.stack([epochs, np.ones_like(epochs)], axis=1) * above[:, None]
    a, b = nnls(rows, np.ones(len(epochs)))
    return np.array([a, max(b, LEAST), c])


def _polished(epochs: Floats, losses: Floats, sigma: Floats, start: Floats) -> tuple[float, Floats]:
    """Levenberg-Marquardt, each step cut off at 0: the squared error, and (a, b, c)."""
    at, damping = start, 1e-2
    cost = _squares(epochs, losses, sigma, at)
    for _ in range(ITERATIONS):
        below = at[0] * epochs + at[1]
        slope = np.stack([-epochs / below**2, -1 / below**2, np.ones_like(epochs)], axis=1) / sigma[:, None]
        missed = (losses - 1 / below - at[2]) / sigma
        bend = slope.T @ slope
        step = np.linalg.lstsq(bend + damping * np.diag(np.diag(bend) + 1e-12), slope.T @ missed, rcond=None)[0]
        there = np.maximum(at + step, [0.0, LEAST, 0.0])
        lower = _squares(epochs, losses, sigma, there)
        at, cost, damping = (there, lower, damping / 3) if lower < cost else (at, cost, damping * 4)
    return cost, at


def _squares(epochs: Floats, losses: Floats, sigma: Floats, at: Floats) -> float:
    return float(np.sum(((losses - 1 / (at[0] * epochs + at[1]) - at[2]) / sigma) ** 2))
