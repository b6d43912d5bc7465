"""How fast a job would train at a size it never had: the performance model.

One step of n samples by each of w workers, with p ps, takes

    T = a n/k + b q + c w/(p h) + d r w/p + e w + f p + g N/p + i x                              [s]

    a  gradient on the worker's k cores     b  what each of its q passes costs at any size
    c  update on the ps' h cores            d  push and pull over the ps' links; r grows with what leaves its node
    e  each worker (barrier, incast)        f  each ps (a request to every one)
    g  look-up of embeddings for N samples, spread over the ps
    i  devices without ps that stand on more than one node (x = 1): latency, and the slowest link

A worker that holds m samples at once goes through its n in q = ceil(n/m) passes, and exchanges gradients once; and no
coefficient is negative. Synchronous: `batch` is everybody's, n = batch/w, N = batch, speed = batch/T.
Asynchronous: `batch` is each worker's, n = N = batch, speed = w batch/T. Without ps (p = 0: devices side by side) the
terms of ps fall away, a ring carries (w - 1)/w of the bytes in place of w/p, and e counts its w - 1 hops.

Sources. Optimus (EuroSys 2018; its authors' code) has a, b, d, e, f: sync a M/w + b + c w/p + d w + e p. DLRover-RM
(PVLDB 2024) has a, c, d, g and constants: the split is theirs, the exact forms are recalled. Dike (Electronics 2019)
takes compute, transfer and update from the model's profile: its formulas are our reconstruction (`estimate.py`).

Measured speeds are rougher than any such formula: shards do not divide evenly among hosts. What the formula leaves over
of log T is taken as a Gaussian process (universal kriging; Rasmussen & Williams, Gaussian Processes for Machine
Learning, 2006, section 2.7): a smooth part, a quirk of each number of ps and of workers, and one of each size. It
corrects the formula where something was measured, and says how far to trust it elsewhere. How a model comes to its
coefficients is another file (`fitting.py`). This combination is ours; its constants were chosen on random surfaces,
which show a broad plateau.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Form = Literal["synchronous", "asynchronous"]
Forms = NDArray[np.str_]
Usual = tuple[float, float, float, float]
"""Batch, cores a ps, cores a worker, share of traffic that leaves its node."""

TERMS = ("compute", "fixed", "update", "link", "workers", "ps", "look-up", "apart")
SHARES = (0.25, 0.2, 0.15, 0.3, 0.04, 0.005, 0.055, 0.05)
"""Of a step of one ps and one worker on the first batch, by `TERMS`, where nothing is known of the model; the last is
beside it, as one worker is never apart."""
LOCAL = 0.2
"""What a byte costs that stays on its node, of what one costs that leaves it."""
NOISE = 0.03
"""Standard deviation of one observed speed, relative; so are the next four."""
SMOOTH = 0.10
"""What the formula misses in broad shape."""
QUIRK = 0.10
"""Of a number of ps, at any number of workers; and the other way round."""
ROUGH = 0.03
"""Of one size alone."""
REACH = 0.8
"""How far apart sizes are alike, in natural logarithms of ps, workers, batch and cores."""
SAME = 1e-12
"""Squares of such differences below this are none."""
ROUNDING = 1e-9
SMALLEST = 1e-9
"""Least coefficient, as a share of a step: so that no time is zero."""


class Points(msgspec.Struct, frozen=True, eq=False):
    """Sizes, one a row: ps, workers, batch, cores a ps, cores a worker, share of traffic that leaves its node.

    Shape (..., sizes, 6): leading axes are points of several jobs, side by side; there is then a `form` for each of
    them, and a `device`: samples that a worker holds at once.
    """

    rows: Array
    device: float | Array = math.inf

    def columns(self, form: Form | Forms) -> Array:
        """What each coefficient is multiplied with to give seconds for `batch` samples [..., sizes, terms]."""
        p, w, batch, ps_cpu, worker_cpu, remote = (np.ascontiguousarray(self.rows[..., n]) for n in range(6))
        synchronous = (np.asarray(form) == "synchronous")[..., None]
        served, at_least_one = (p > 0).astype(float), np.maximum(p, 1.0)
        per_ps = w / at_least_one
        carried = np.where(p > 0, per_ps, (w - 1) / w) * (LOCAL + (1 - LOCAL) * remote)
        each = batch / np.where(synchronous, w, 1.0)
        update, lookup = served * per_ps / ps_cpu, served * batch / at_least_one
        held = np.asarray(self.device)[..., None]
        passes, apart = np.ceil(each / held - ROUNDING).clip(1.0), (1 - served) * (w > 1) * remote
        terms = (each / worker_cpu, passes, update, carried, w - 1 + served, p, lookup, apart)
        columns = np.empty((*p.shape, len(terms)))
        for n, term in enumerate(terms):
            columns[..., n] = term
        columns /= np.where(synchronous, 1.0, w)[..., None]
        return columns

    def alike(self, others: Points) -> Array:
        """Covariance of what the formula leaves over of log T [..., sizes, others]."""
        mine, theirs = (logs(points.rows) for points in (self, others))
        apart = [(mine[..., :, None, n] - theirs[..., None, :, n]) ** 2 for n in range(5)]
        same = [each < SAME for each in apart]
        near = np.exp(-0.5 * sum(apart) / REACH**2)
        besides = np.exp(-0.5 * sum(apart[2:]) / REACH**2)
        quirks = (same[0] * 1.0 + same[1]) * besides
        return np.asarray(SMOOTH**2 * near + QUIRK**2 * quirks + ROUGH**2 * np.logical_and.reduce(same))


def logs(numbers: Array) -> Array:
    """In which sizes are near to each other."""
    return np.asarray(np.log(np.maximum(numbers, 0.5)))


LEFT_OVER = SMOOTH**2 + 2 * QUIRK**2 + ROUGH**2
"""The variance of it, anywhere."""


class Fit(msgspec.Struct, frozen=True, eq=False):
    """A fitted model; `fitting.py` makes it. `observed`: points; `usual`: of a size, where nothing else is said."""

    form: Form
    usual: Usual
    coefficients: Array
    doubts: Array
    observed: Points
    pull: Array
    factor: Array
    misfit: float

    def speed(self, ps: int, workers: int, batch: int | None = None) -> float:
        """Samples a second, the median."""
        return float(np.exp(self.mean(self.points([(ps, workers)], batch))[0]))

    def spread(self, ps: int, workers: int, batch: int | None = None) -> float:
        """Standard deviation of that, relative: the job's true speed at the size, without the noise of observing it."""
        return float(self.predict(self.points([(ps, workers)], batch))[1][0])

    def seconds(self, ps: int, workers: int, batch: int | None = None) -> dict[str, float]:
        """For `batch` samples, by term, by the formula alone."""
        terms = self.points([(ps, workers)], batch).columns(self.form)[0] * self.coefficients
        return dict(zip(TERMS, terms.tolist(), strict=True))

    def points(self, sizes: Iterable[tuple[int, int]], batch: int | None = None) -> Points:
        """Sizes (ps, workers) with the last observed batch and cores, or another batch."""
        rest = self.usual if batch is None else (float(batch), *self.usual[1:])
        rows = np.array([(ps, workers, *rest) for ps, workers in sizes], dtype=float).reshape(-1, 6)
        return Points(rows, self.observed.device)

    def mean(self, points: Points) -> Array:
        """Of log speed [sizes]."""
        return self._mean(points, points.columns(self.form), points.alike(self.observed))

    def _mean(self, points: Points, columns: Array, alike: Array) -> Array:
        return np.asarray(np.log(points.rows[:, 2]) - np.log(columns @ self.coefficients) - alike @ self.pull)

    def predict(self, points: Points) -> tuple[Array, Array]:
        """The mean of log speed, and its standard deviation [sizes]."""
        columns, alike = points.columns(self.form), points.alike(self.observed)
        mine = leaning(columns, self.coefficients, self.doubts)
        theirs = leaning(self.observed.columns(self.form), self.coefficients, self.doubts)
        known = np.linalg.solve(self.factor, (alike + mine @ theirs.T).T)
        variance = LEFT_OVER + (mine**2).sum(axis=1) - (known**2).sum(axis=0)
        return self._mean(points, columns, alike), np.sqrt(np.maximum(variance, 1e-12))


def leaning(columns: Array, coefficients: Array, doubts: Array) -> Array:
    """How far each coefficient may move log T, as a standard deviation [..., sizes, terms].

    No further than by the term's absence, because no time is saved beyond a term's own. So a term that seems to be
    nothing promises nothing, and the spread says how much faster a size may be rather than how much slower.
    """
    formula = columns @ coefficients[..., None]
    terms = columns * coefficients[..., None, :] / formula
    absence = -np.log1p(-np.minimum(terms, 1.0 - SMALLEST))
    return np.asarray(np.minimum(columns * doubts[..., None, :] / formula, absence))
