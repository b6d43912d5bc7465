"""The course of a loss, the work that is left, and the worth of a batch.

Loss after s samples (Optimus, EuroSys 2018; convergence of stochastic gradient descent at 1/s):

    loss(s) = 1/(a s + b) + c                  a, b, c >= 0; c may be negative where losses are

fitted with the later points weighing more: of three thirds of the points each has a standard
deviation a quarter of the third's before it (its authors' code). For a given c the rest is linear,
1/(loss - c) = a s + b, and exact for two non-negative columns; c is searched. Where nothing falls a
is 0. From the curve follow, in closed form,

    learned(s)   = (loss(0) - loss(s)) / (loss(0) - c) = a s / (a s + b)   [share of the whole fall]
    converged(W) = the s from which a window of W samples brings less than `CHANGE` of the fall 1/b

The second is Optimus' stopping rule, made relative to the fall. A single spike is smoothed by a
median of three (ours).

A batch M teaches as much a sample as the batch M0 times (phi + M0)/(phi + M), phi being the
gradient noise scale in samples (Pollux, OSDI 2021; McCandlish et al., 2018). Where phi is not known
it is taken to be M0, and a batch below M0 to teach no more than M0 does: doubling the batch is then
believed to cost a third of each sample's worth (ours).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.policies.contract import Learned

Array = NDArray[np.float64]

FEWEST = 4
"""Points that a curve needs."""
PER_THIRD = 16.0
"""Weight (of squared errors) of a third of the points, relative to the third before."""
HIGHEST = 1e100
"""A loss above it is no measurement, and would overflow."""
GUESSES = 25
"""Values of c that are tried in one round of the search."""
ROUNDS = 3
REFITS = 6
"""Lines that are fitted for one c, each with the divisors of the one before."""
CHANGE = 0.01
"""Of the whole fall: less than so much in a window is convergence."""


class Curve(msgspec.Struct, frozen=True):
    """loss(s) = 1/(a s + b) + c"""

    a: float
    """Per sample."""
    b: float
    c: float
    error: float = 0.0
    """Root of the weighted mean squared error, in units of loss."""

    def loss(self, samples: float) -> float:
        """Loss after so many samples."""
        line = self.a * max(samples, 0.0) + self.b
        return 1.0 / line + self.c

    def learned(self, samples: float) -> float:
        """Share of the whole fall, 0 to 1."""
        fallen = self.a * max(samples, 0.0)
        return fallen / (fallen + self.b)

    def converged(self, window: float) -> float:
        """Samples from the start until a window of so many samples brings less than `CHANGE` of the
        whole fall.
        """
        step = self.a * window
        least = CHANGE / self.b
        if step <= 0.0:
            return 0.0
        # a W / (u (u + a W)) = least, for u = a s + b
        root = (step * step + 4.0 * step / least) ** 0.5
        u = (-step + root) / 2.0
        return max(0.0, float((u - self.b) / self.a))


def fitted(points: Sequence[Learned]) -> Curve | None:
    """Return the curve; None where fewer than `FEWEST` points are numbers that a loss may be."""
    usable = _usable_points(points)
    if len(usable) < FEWEST:
        return None

    # In units of the last sample and of the largest loss.
    samples, losses = np.array(usable, dtype=float).T
    extent = max(float(samples[-1]), 1.0)
    height = max(float(np.abs(losses).max()), 1e-12)
    smoothed = _smoothed(losses / height)
    weights = _weights(len(losses))
    curve = _searched(samples / extent, smoothed, weights)
    return Curve(
        a=curve.a / extent / height,
        b=curve.b / height,
        c=curve.c * height,
        error=curve.error * height,
    )


def _usable_points(points: Sequence[Learned]) -> list[tuple[float, float]]:
    """Return samples and losses that may be true, by samples."""
    usable: list[tuple[float, float]] = []
    for point in points:
        if abs(point.loss) <= HIGHEST and point.samples >= 0:
            usable.append((point.samples, point.loss))
    usable.sort()
    return usable


def learned_share(curve: Curve | None, samples: float, total: float) -> float:
    """Return the share that is learned of all that the run will teach, 0 to 1; by samples alone
    where no curve falls.
    """
    if total <= 0:
        return 1.0
    share = min(max(samples / total, 0.0), 1.0)
    if curve is None:
        return share
    learned_at_end = curve.learned(total)
    if learned_at_end <= 0.0:
        return share
    return min(1.0, curve.learned(share * total) / learned_at_end)


def samples_left(
    curve: Curve | None, samples: float, total: float, window: float | None = None
) -> float:
    """Return the samples until the run ends; with a window (an epoch or some), or until it has
    converged, if that is sooner.
    """
    left = max(0.0, total - samples)
    if curve is None or window is None or curve.a <= 0.0:
        return left
    until_converged = max(0.0, curve.converged(window) - samples)
    return min(left, until_converged)


# ---------------------------------------------------------------- the fit of a curve


def _smoothed(losses: Array) -> Array:
    """Return the median of each point and its two neighbours; the ends stay."""
    before = losses[:-2]
    after = losses[2:]
    middle = np.median(np.stack([before, losses[1:-1], after]), axis=0)
    return np.concatenate([losses[:1], middle, losses[-1:]])


def _weights(points: int) -> Array:
    """Return the weight of each point; those of a later third weigh more."""
    third = np.arange(points) * 3 // points
    return np.asarray(PER_THIRD ** third.astype(float))


def _searched(samples: Array, losses: Array, weights: Array) -> Curve:
    """Return the curve with the best c. `samples`, `losses`, `weights` [points].

    c is searched in the whole range, then finer around the best.
    """
    lowest = float(losses.min())
    near, far = _search_range(losses)

    for _ in range(ROUNDS):
        below = np.geomspace(near, far, GUESSES)
        a, b, errors = _curved(samples, losses, weights, lowest - below)
        best = int(errors.argmin())
        before = max(0, best - 1)
        after = min(GUESSES - 1, best + 1)
        near = float(below[before])
        far = float(below[after])

    return Curve(
        a=float(a[best]),
        b=float(b[best]),
        c=lowest - float(below[best]),
        error=float(errors[best]),
    )


def _search_range(losses: Array) -> tuple[float, float]:
    """Return how far c is below the lowest loss: at least, and at most.

    Where no loss is negative, neither is c.
    """
    lowest = float(losses.min())
    span = max(float(np.ptp(losses)), 1e-9)
    near = 1e-3 * span
    far = 2.0 * span
    if lowest > 0:
        far = lowest
    return near, max(far, 2e-3 * span)


def _curved(samples: Array, losses: Array, weights: Array, c: Array) -> tuple[Array, Array, Array]:
    """Return the best a, b >= 0 and the error, for each c [guesses].

    For y = 1/(loss - c) and a line u = a s + b the loss is missed by 1/u - 1/y = (y - u)/(y u):
    straight lines again, once the u in the divisor is that of the fit before. At first nothing is
    divided, which favours low losses; the fit that really misses least is kept.
    """
    c_column = c[:, None]
    y = 1.0 / (losses - c_column)
    u = 1.0 / y

    best_a = c
    best_b = c
    least_error = np.full(len(c), np.inf)
    for _ in range(REFITS):
        a, b = _straight(samples, y, weights / (y * u) ** 2)
        u = a[:, None] * samples + b[:, None]
        missed = 1.0 / u + c_column - losses
        variance = missed**2 @ weights / weights.sum()
        error = np.sqrt(variance)

        better = error < least_error
        best_a = np.where(better, a, best_a)
        best_b = np.where(better, b, best_b)
        least_error = np.where(better, error, least_error)
    return best_a, best_b, least_error


def _straight(samples: Array, y: Array, w: Array) -> tuple[Array, Array]:
    """Return a and b >= 0 [guesses] of the lines through y [guesses, points], with weights w."""
    # Weighted sums of 1, x, y, x x and x y [guesses].
    total = w.sum(axis=1)
    weighted = w * y
    wx = w @ samples
    wy = weighted.sum(axis=1)
    wxx = w @ samples**2
    wxy = weighted @ samples

    # The line of least squares, as far as it rises.
    determinant = total * wxx - wx * wx
    determinant = np.maximum(determinant, 1e-12 * total * wxx)
    slope = (total * wxy - wx * wy) / _divisor(determinant)
    a = np.maximum(0.0, slope)
    b = (wy - a * wx) / total

    # Where it would begin below 0: the line from just above it.
    least = 1e-3 * y.min(axis=1)
    slope = (wxy - least * wx) / _divisor(wxx)
    steep = np.maximum(0.0, slope)
    is_above = b > 0
    return np.where(is_above, a, steep), np.where(is_above, b, least)


def _divisor(numbers: Array) -> Array:
    """Return the numbers, with infinity in place of those that are not positive."""
    return np.where(numbers > 0, numbers, np.inf)
