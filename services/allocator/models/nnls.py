"""Non-negative least squares: minimise |A x - b| over x >= 0, for one problem or for many.

scipy solves each problem by the active-set method of Lawson and Hanson (Solving Least Squares
Problems, 1974, chapter 23). Columns are scaled to length one before, and b to a largest element of
one: units of any size then neither overflow nor decide the first free column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

Array = NDArray[np.float64]

ROUNDS = 30
"""Iterations at most, for each column: ten times as many as usual, because scipy raises an error
beyond them.
"""


def nnls(a: Array, b: Array) -> Array:
    """Return x [..., columns], for A [..., rows, columns] and b [..., rows].

    It is NaN for a problem with a number that is not finite: one job's speeds may be beyond
    reckoning, and many are solved together.
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
    """Return the length of each column [..., columns], without squares that overflow or vanish."""
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
