"""Optimus' two models (EuroSys 2018): the speed of a job at a size, and the epoch of convergence.

    sync step    M / v   = a M/w + b + c w/p + d w + e p        [s]   v: examples/s with p ps and w workers, M: batch
    async step   w M / v = a + b w/p + c w + d p                [s]   all coefficients >= 0
    loss(e)              = 1 / (a e + b) + c                          after e epochs; a, b, c >= 0

From the authors' code: a measured speed goes before a fitted one; each later third of the losses
has four times the weight; a job has converged when the fitted loss falls by at most 0.05 in 10
epochs. They fit v by trust region; here, as in the paper, non-negative least squares, on relative
errors of the step. The contract does not say whether a job is synchronous, so the formula that
misses the points less is taken. Jobs without ps have no terms in p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from services.allocator.models.nnls import nnls, nnls_each
from services.allocator.policies.contract import Size

Floats = npt.NDArray[np.float64]
Rate = Callable[[Size], float]
"""Examples a second at a size; 0: cannot be told."""
Points = Mapping[Size, float]
"""Examples a second as measured."""


class SpeedModel(msgspec.Struct, frozen=True):
    """The speed at any size. `coefficients`: of `_terms`; empty where nothing was measured."""

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
        terms, examples = _terms(size, self.batch, self.synchronous)
        step_s = 0.0
        for coefficient, term in zip(self.coefficients, terms, strict=True):
            step_s += coefficient * term
        return examples / step_s if step_s > 0 else 0.0


def speed_model(points: Points, batch: int) -> SpeedModel:
    """Fit the speeds of one program."""
    return speed_models([(points, batch)])[0]


def speed_models(cases: Sequence[tuple[Points, int]]) -> list[SpeedModel]:
    """Fit the speeds of many programs side by side. A case: points, and the batch."""
    # Two systems for each program: as a synchronous and as an asynchronous one.
    systems = []
    for points, batch in cases:
        if points:
            systems.append(_system(points, batch, synchronous=True))
            systems.append(_system(points, batch, synchronous=False))
    found = iter(zip(systems, nnls_each(systems), strict=True))

    models = []
    for points, batch in cases:
        if not points:
            models.append(SpeedModel(points, batch))
            continue
        sync_missed, sync = _missed(*next(found))
        async_missed, asynchronous = _missed(*next(found))
        if sync_missed <= async_missed:
            models.append(SpeedModel(points, batch, tuple(sync.tolist()), synchronous=True))
        else:
            models.append(
                SpeedModel(points, batch, tuple(asynchronous.tolist()), synchronous=False)
            )
    return models


def _terms(size: Size, batch: int, synchronous: bool) -> tuple[tuple[float, ...], float]:
    """Return the five terms of a step at a size, and the examples in it; a term that a kind of job
    does not have is 0.
    """
    p, w = size.ps, size.workers
    workers_per_ps = w / p if p else 0.0
    if synchronous:
        return (batch / w, 1.0, w, workers_per_ps, p), batch
    return (0.0, 1.0, w, workers_per_ps, p), w * batch


def _system(points: Points, batch: int, synchronous: bool) -> tuple[Floats, Floats]:
    """Return matrix [points, 5] and goals of the least squares: terms relative to a step's time."""
    rows = []
    for size, speed in points.items():
        terms, examples = _terms(size, batch, synchronous)
        rows.append(np.array(terms) * speed / examples)
    return np.array(rows), np.ones(len(rows))


def _missed(system: tuple[Floats, Floats], found: Floats) -> tuple[float, Floats]:
    """Return the sum of squared relative errors that coefficients leave, and the coefficients."""
    matrix, goals = system
    return float(np.sum((matrix @ found - goals) ** 2)), found


# ---------------------------------------------------------------- convergence


class Quiet(msgspec.Struct, frozen=True, kw_only=True):
    """When a loss counts as converged: it fell by at most `fall` in `epochs`; later than `last` is
    not believed.
    """

    epochs: int = 10
    fall: float = 0.05
    last: int = 100


def converged_epoch(
    epochs: Sequence[float], losses: Sequence[float], progress: float, quiet: Quiet
) -> int | None:
    """Return the epoch from `progress` on at which the fitted loss is quiet; None where that cannot
    be told.
    """
    if len(epochs) < 3:
        return None
    a, b, c = loss_fit(np.array(epochs, dtype=float), np.array(losses, dtype=float))
    back = quiet.epochs - 1
    first = max(0, int(progress) - quiet.epochs) + back
    for epoch in range(first, quiet.last + 1):
        fall = _loss(epoch - back, a, b, c) - _loss(epoch, a, b, c)
        if fall <= quiet.fall:
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
    """Return a, b, c by non-negative least squares, each later third of the points with a standard
    deviation four times less.
    """
    third = math.ceil(len(epochs) / 3)
    sigma = 4.0 ** -np.floor(np.arange(len(epochs)) / third)
    lowest = max(float(losses.min()), 0.0)
    best_error = math.inf
    best = None
    for part in BEGINNINGS:
        start = _started(epochs, losses, lowest * part)
        error, found = _polished(epochs, losses, sigma, start)
        if best is None or error < best_error:
            best_error = error
            best = found
    assert best is not None
    a, b, c = best.tolist()
    return a, b, c


def _started(epochs: Floats, losses: Floats, c: float) -> Floats:
    """Return a and b for a given c, from 1 / (loss - c) = a e + b."""
    above = np.maximum(losses - c, 1e-6)
    rows = np.stack([epochs, np.ones_like(epochs)], axis=1) * above[:, None]
    a, b = nnls(rows, np.ones(len(epochs)))
    return np.array([a, max(b, LEAST), c])


def _polished(epochs: Floats, losses: Floats, sigma: Floats, start: Floats) -> tuple[float, Floats]:
    """Return the squared error and (a, b, c) by Levenberg-Marquardt, each step cut off at 0."""
    found = start
    damping = 1e-2
    error = _squares(epochs, losses, sigma, found)
    for _ in range(ITERATIONS):
        # Slope of the loss along a, b and c [points, 3], and the residuals [points].
        below = found[0] * epochs + found[1]
        slope = np.stack([-epochs / below**2, -1 / below**2, np.ones_like(epochs)], axis=1)
        slope = slope / sigma[:, None]
        missed = (losses - 1 / below - found[2]) / sigma

        bend = slope.T @ slope
        damped = bend + damping * np.diag(np.diag(bend) + 1e-12)
        step = np.linalg.lstsq(damped, slope.T @ missed, rcond=None)[0]
        tried = np.maximum(found + step, [0.0, LEAST, 0.0])
        tried_error = _squares(epochs, losses, sigma, tried)
        if tried_error < error:
            found = tried
            error = tried_error
            damping /= 3
        else:
            damping *= 4
    return error, found


def _squares(epochs: Floats, losses: Floats, sigma: Floats, at: Floats) -> float:
    """Return the sum of the squared residuals."""
    residuals = (losses - 1 / (at[0] * epochs + at[1]) - at[2]) / sigma
    return float(np.sum(residuals**2))
