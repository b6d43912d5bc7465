"""Non-negative least squares: minimise |A x - b| over x >= 0.

The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23), on the normal equations
of columns scaled to length one. Columns begin at zero; the one along which the error falls fastest is set free, the
free ones are solved for, and one that would turn negative goes back to zero. It ends where no column at zero would
lower the error, which is the optimum because the problem is convex. Made for few columns (performance models have
seven): the cost is that of some solutions of a system of that size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TOLERANCE = 1e-10  # of the steepest slope at the start
JITTER = 1e-13  # on the diagonal, so that equal columns share instead of failing


def nnls(a: Array, b: Array) -> Array:
    """x [columns], for A [rows, columns] and b [rows], all finite."""
    largest = np.abs(a).max(axis=0, initial=0.0)
    largest[largest == 0.0] = 1.0
    length = largest * np.maximum(np.sqrt(np.square(a / largest).sum(axis=0)), 1.0)
    height = float(np.abs(b).max(initial=0.0)) or 1.0
    scaled = a / length
    gram = scaled.T @ scaled + JITTER * np.eye(a.shape[1])
    found: Array = _solved(gram, scaled.T @ (b / height)) * (height / length)
    return found


def _solved(gram: Array, target: Array) -> Array:
    x = np.zeros(len(target))
    free = np.zeros(len(target), dtype=bool)
    small = TOLERANCE * max(float(np.abs(target).max(initial=0.0)), 1e-300)
    for _ in range(3 * len(target)):
        slope = np.where(free, -np.inf, target - gram @ x)
        steepest = int(slope.argmax())
        if slope[steepest] <= small:
            break
        free[steepest] = True
        x = _inward(gram, target, x, free)
    return x


def _inward(gram: Array, target: Array, x: Array, free: NDArray[np.bool_]) -> Array:
    """Solve for the free columns; as long as one would be negative, go as far as the bound and fix it there."""
    while free.any():
        goal = np.zeros(len(x))
        goal[free] = np.linalg.solve(gram[np.ix_(free, free)], target[free])
        wrong = free & (goal <= 0.0)
        if not wrong.any():
            return goal
        way = (x[wrong] / (x[wrong] - goal[wrong])).min()
        x = x + way * (goal - x)
        free &= ~(wrong & (x <= 1e-15))
        x[~free] = 0.0
    return x
