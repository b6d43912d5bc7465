"""Non-negative least squares: minimise |A x - b| over x >= 0, for one problem or for many side by side.

The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23), on the normal equations
of columns scaled to length one. Columns begin at zero, or at a guess; the one along which the error falls fastest is
set free, the free ones are solved for, and one that would turn negative goes back to zero. It ends where no column at
zero would lower the error, which is the optimum because the problem is convex. Made for few columns (performance models
have seven): the cost is that of some solutions of a system of that size. Many problems go step by step together; one
that has ended stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

TOLERANCE = 1e-10  # of the steepest slope at the start
JITTER = 1e-13  # on the diagonal, so that equal columns share instead of failing


def nnls(a: Array, b: Array, guess: Array | None = None) -> Array:
    """x [..., columns], for A [..., rows, columns] and b [..., rows], all finite.

    `guess` [..., columns], none negative: where to begin. Near the answer it saves time; where several x are as good as
    each other, it decides which of them is found.
    """
    problems, columns = math.prod(a.shape[:-2]), a.shape[-1]
    largest = np.abs(a).max(axis=-2, initial=0.0)
    largest[largest == 0.0] = 1.0
    length = largest * np.maximum(np.sqrt(np.square(a / largest[..., None, :]).sum(axis=-2)), 1.0)
    height = np.abs(b).max(axis=-1, initial=0.0, keepdims=True)
    height[height == 0.0] = 1.0
    scaled = a / length[..., None, :]
    turned = np.swapaxes(scaled, -1, -2)
    gram = (turned @ scaled + JITTER * np.eye(columns)).reshape(problems, columns, columns)
    target = (turned @ (b / height)[..., None]).reshape(problems, columns)
    start = np.zeros_like(target) if guess is None else (guess / (height / length)).reshape(problems, columns)
    return np.asarray(_solved(gram, target, start).reshape(length.shape) * (height / length))


def nnls_each(systems: Sequence[tuple[Array, Array]]) -> Array:
    """x [systems, columns], for an A and a b each. Who has fewer rows has zeros below, which change nothing."""
    if not systems:
        return np.zeros((0, 0))
    most, columns = max(len(b) for _, b in systems), systems[0][0].shape[1]
    rows, goals = np.zeros((len(systems), most, columns)), np.zeros((len(systems), most))
    for n, (a, b) in enumerate(systems):
        rows[n, : len(b)], goals[n, : len(b)] = a, b
    return nnls(rows, goals)


def _solved(gram: Array, target: Array, start: Array) -> Array:
    """x [problems, columns]"""
    small = TOLERANCE * np.maximum(np.abs(target).max(axis=1, initial=0.0), 1e-300)
    x, free = _inward(gram, target, start, start > 0.0)
    going = np.arange(len(target))
    for _ in range(3 * target.shape[1]):
        slope = np.where(free[going], -np.inf, target[going] - (gram[going] @ x[going, :, None])[..., 0])
        steep = slope.max(axis=1) > small[going]
        going, steepest = going[steep], slope[steep].argmax(axis=1)
        if not len(going):
            break
        free[going, steepest] = True
        x[going], free[going] = _inward(gram[going], target[going], x[going], free[going])
    return x


def _inward(gram: Array, target: Array, x: Array, free: Flags) -> tuple[Array, Flags]:
    """Solve for the free columns; as long as one would be negative, go as far as the bound and fix it there."""
    while True:
        goal = _goal(gram, target, free)
        wrong = free & (goal <= 0.0)
        if not wrong.any():
            return goal, free
        reach = np.where(wrong, x / np.where(wrong, np.maximum(x - goal, 1e-300), 1.0), 1.0)
        x = x + reach.min(axis=1, keepdims=True) * (goal - x)
        free = free & ~(wrong & (x <= 1e-15))
        x = np.where(free, x, 0.0)


def _goal(gram: Array, target: Array, free: Flags) -> Array:
    """The least error with only these columns free; the others' are zero."""
    both = free[:, :, None] & free[:, None, :]
    system = np.where(both, gram, np.eye(target.shape[1]))
    return np.asarray(np.linalg.solve(system, np.where(free, target, 0.0)[..., None])[..., 0])
