"""How fast jobs would be at every combination of some numbers of ps, of workers and of batches:
many jobs in one pass.

The same numbers as each job's `Fit.mean`, but quicker. How alike a size is to an observation k
falls into a factor for each number of ps (p), of workers (w), and for each batch with the usual
cores (b); N is near, S is the same. So what the formula leaves over is, with what each observation
pulls,

    sum_k  pull_k (SMOOTH^2 Np Nw Nb + QUIRK^2 (Sp + Sw) Nb + ROUGH^2 Sp Sw Sb)

a product of two matrices, of which each has only the numbers along one axis, not every size, for
its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from services.allocator.models.speed import (
    QUIRK,
    REACH,
    ROUGH,
    SAME,
    SMOOTH,
    Array,
    Fit,
    Points,
    logs,
)


class Grid(NamedTuple):
    """One a job: numbers of ps [jobs, n], of workers [jobs, m], batches [jobs, b]."""

    ps: Array
    workers: Array
    batches: Array

    def sizes(self) -> Array:
        """Every combination: ps, workers, batch [jobs, n m b, 3]; the batch changes first, then the
        workers.
        """
        jobs, count = self.ps.shape
        found = np.empty((jobs, count, self.workers.shape[1], self.batches.shape[1], 3))
        found[..., 0] = self.ps[:, :, None, None]
        found[..., 1] = self.workers[:, None, :, None]
        found[..., 2] = self.batches[:, None, None, :]
        return found.reshape(jobs, -1, 3)


def filled(rows: Sequence[tuple[int, ...]]) -> Array:
    """Side by side; a shorter row is filled up with its last number, for the same size twice
    changes nothing.
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


def log_speeds(fits: Sequence[Fit], grid: Grid, sizes: Array, together: Sequence[int]) -> Array:
    """Of a model a job, with its usual cores and traffic, at `sizes` [jobs, sizes].

    `sizes`: those of the grid, [jobs, sizes, 3], with batches that may be near the grid's (what the
    formula leaves over is taken on it); `together`: how many of a job's workers one node holds;
    more of them leave it, where there are no ps.
    """
    there = points(fits, sizes, together)
    # Seconds by the formula [jobs, sizes], and how far it is off there, in logarithms.
    columns = there.columns(np.array([fitted.form for fitted in fits]))
    coefficients = np.array([fitted.coefficients for fitted in fits])
    formula = (columns @ coefficients[..., None])[..., 0]
    off = _left_over(fits, grid, there.rows[:, 0, 3:5])
    return np.asarray(np.log(sizes[..., 2] / formula) - off)


def points(fits: Sequence[Fit], sizes: Array, together: Sequence[int]) -> Points:
    """Sizes [jobs, sizes, 3] with each model's usual cores and traffic; `together` as above."""
    usual = np.array([fitted.usual[1:] for fitted in fits])
    apart = sizes[..., 1] > np.array(together)[:, None]
    rows = np.empty((*sizes.shape[:2], 6))
    rows[..., :3] = sizes
    rows[..., 3:5] = usual[:, None, :2]
    rows[..., 5] = np.where(sizes[..., 0] > 0, usual[:, 2:], apart)
    return Points(rows, np.array([fitted.device for fitted in fits]))


def _left_over(fits: Sequence[Fit], grid: Grid, cores: Array) -> Array:
    """Of log T [jobs, sizes]. `cores`: a ps, a worker [jobs, 2]."""
    pull, seen = _observed(fits)
    # Squares of the distances to each observation, along one axis [jobs, numbers, observations].
    ps = (logs(grid.ps)[..., None] - seen[..., 0]) ** 2
    workers = (logs(grid.workers)[..., None] - seen[..., 1]) ** 2
    batch = (logs(grid.batches)[..., None] - seen[..., 2]) ** 2
    rest = (logs(cores)[:, None, None] - seen[..., 3:5]) ** 2
    beside = pull * _near(batch + rest.sum(axis=-1))
    here = pull * _same(np.maximum(batch, rest.max(axis=-1)))
    # The factors of the four terms, side by side [jobs, numbers, 4 observations].
    by_ps = _joined(
        SMOOTH**2 * _near(ps),
        QUIRK**2 * _same(ps),
        np.full_like(ps, QUIRK**2),
        ROUGH**2 * _same(ps),
    )
    by_workers = _joined(_near(workers), np.ones_like(workers), _same(workers), _same(workers))
    by_batch = _joined(beside, beside, beside, here)
    # Their products, summed over observations [jobs, n m b].
    by_both = by_workers[:, :, None] * by_batch[:, None]
    flat = by_both.reshape(len(fits), -1, by_both.shape[-1])
    found = by_ps @ np.swapaxes(flat, 1, 2)
    return np.asarray(found.reshape(len(fits), -1))


def _observed(fits: Sequence[Fit]) -> tuple[Array, Array]:
    """Return what each observation pulls [jobs, 1, observations], and logarithms of where it was; a
    missing one pulls not.
    """
    most = 1
    for fitted in fits:
        most = max(most, fitted.count)
    pull = np.zeros((len(fits), 1, most))
    seen = np.ones((len(fits), 1, most, 6))
    for at, fitted in enumerate(fits):
        pull[at, 0, : fitted.count] = fitted.pull
        seen[at, 0, : fitted.count] = fitted.rows
    return pull, logs(seen)


def _near(apart: Array) -> Array:
    return np.asarray(np.exp(-0.5 * apart / REACH**2))


def _same(apart: Array) -> Array:
    return (apart < SAME).astype(np.float64)


def _joined(*parts: Array) -> Array:
    return np.concatenate(parts, axis=2)
