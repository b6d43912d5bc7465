"""How fast a job would train at a size it never had: the performance model.

One step of n samples by each of w workers, with p ps, takes

    T = a n/k + b q + c w/(p h) + d r w/p + e w + f p + g N/p + i x                              [s]

    a  gradient on the worker's k cores     b  what each of its q passes costs at any size
    c  update on the ps' h cores            d  push and pull over the ps' links; r grows with what leaves its node
    e  each worker (barrier, incast)        f  each ps (a request to every one)
    g  look-up of embeddings for N samples, spread over the ps
    i  devices without ps that stand on more than one node (x = 1): latency, and the slowest link

A worker that holds m samples at once goes through its n in q = ceil(n/m) passes, and exchanges
gradients once; and no coefficient is negative. Synchronous: `batch` is everybody's, n = batch/w, N
= batch, speed = batch/T. Asynchronous: `batch` is each worker's, n = N = batch, speed = w batch/T.
Without ps (p = 0: devices side by side) the terms of ps fall away, a ring carries (w - 1)/w of the
bytes in place of w/p, and e counts its w - 1 hops.

Sources. Optimus (EuroSys 2018; its authors' code) has a, b, d, e, f: sync a M/w + b + c w/p + d w +
e p. DLRover-RM (PVLDB 2024) has a, c, d, g and constants: the split is theirs, the exact forms are
recalled. Dike (Electronics 2019) takes compute, transfer and update from the model's profile: its
formulas are our reconstruction (`estimate.py`).

Measured speeds are rougher than any such formula: shards do not divide evenly among hosts. What the
formula leaves over of log T is taken as a Gaussian process (universal kriging; Rasmussen &
Williams, Gaussian Processes for Machine Learning, 2006, section 2.7): a smooth part, a quirk of
each number of ps and of workers, and one of each size. It corrects the formula where something was
measured, and says how far to trust it elsewhere. How a model comes to its coefficients is another
file (`fitting.py`). This combination is ours; its constants were chosen on random surfaces, which
show a broad plateau.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Form = Literal["synchronous", "asynchronous"]
Forms = NDArray[np.str_]
Usual = tuple[float, float, float, float]
"""Batch, cores a ps, cores a worker, share of traffic that leaves its node."""

TERMS = ("compute", "fixed", "update", "link", "workers", "ps", "look-up", "apart")
TERM_COUNT = len(TERMS)
SHARES = (0.25, 0.2, 0.15, 0.3, 0.04, 0.005, 0.055, 0.05)
"""Of a step of one ps and one worker on the first batch, by `TERMS`, where nothing is known of the
model; the last is beside it, as one worker is never apart.
"""
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
    """Sizes, one a row: ps, workers, batch, cores a ps, cores a worker, share of traffic that
    leaves its node.

    Shape (..., sizes, 6): leading axes are points of several jobs, side by side; there is then a
    `form` for each of them, and a `device`: samples that a worker holds at once.
    """

    rows: Array
    device: float | Array = math.inf

    def columns(self, form: Form | Forms) -> Array:
        """Return what each coefficient is multiplied with to give seconds for `batch` samples [..., sizes,
        terms].
        """
        p = np.ascontiguousarray(self.rows[..., 0])
        w = np.ascontiguousarray(self.rows[..., 1])
        batch = np.ascontiguousarray(self.rows[..., 2])
        ps_cpu = np.ascontiguousarray(self.rows[..., 3])
        worker_cpu = np.ascontiguousarray(self.rows[..., 4])
        remote = np.ascontiguousarray(self.rows[..., 5])
        synchronous = (np.asarray(form) == "synchronous")[..., None]
        served = (p > 0).astype(float)
        at_least_one = np.maximum(p, 1.0)
        per_ps = w / at_least_one
        each = batch / np.where(synchronous, w, 1.0)
        held = np.asarray(self.device)[..., None]
        # The terms in the order of `TERMS` [..., sizes].
        columns = np.empty((*p.shape, TERM_COUNT))
        columns[..., 0] = each / worker_cpu
        columns[..., 1] = np.ceil(each / held - ROUNDING).clip(1.0)
        columns[..., 2] = served * per_ps / ps_cpu
        columns[..., 3] = np.where(p > 0, per_ps, (w - 1) / w) * (LOCAL + (1 - LOCAL) * remote)
        columns[..., 4] = w - 1 + served
        columns[..., 5] = p
        columns[..., 6] = served * batch / at_least_one
        columns[..., 7] = (1 - served) * (w > 1) * remote
        columns /= np.where(synchronous, 1.0, w)[..., None]
        return columns

    def alike(self, others: Points) -> Array:
        """Covariance of what the formula leaves over of log T [..., sizes, others]."""
        mine = logs(self.rows)
        theirs = logs(others.rows)
        apart = [(mine[..., :, None, n] - theirs[..., None, :, n]) ** 2 for n in range(5)]
        same = [each < SAME for each in apart]
        smooth = np.exp(-0.5 * sum(apart) / REACH**2)
        besides = np.exp(-0.5 * sum(apart[2:]) / REACH**2)
        quirks = (same[0] * 1.0 + same[1]) * besides
        rough = np.logical_and.reduce(same)
        return np.asarray(SMOOTH**2 * smooth + QUIRK**2 * quirks + ROUGH**2 * rough)


def logs(numbers: Array) -> Array:
    """In which sizes are near to each other."""
    return np.asarray(np.log(np.maximum(numbers, 0.5)))


LEFT_OVER = SMOOTH**2 + 2 * QUIRK**2 + ROUGH**2
"""The variance of it, anywhere."""


class FitArrays(NamedTuple):
    """The numbers of a model: device [1], coefficients and doubts [terms], `rows` [observations, 6],
    `pull` [observations], `factor` [observations, observations]; see the properties of `Fit`.
    """

    device: Array
    coefficients: Array
    doubts: Array
    rows: Array
    pull: Array
    factor: Array


class Fit(msgspec.Struct, frozen=True, eq=False):
    """A fitted model; `fitting.py` makes it.

    `usual`: batch, cores and traffic of a size where nothing else is said. `numbers`: float64, of the
    device, of all terms and of all `count` observations, one after the other (`pack`); bytes, so
    that a model is stored and read again like any other value.
    """

    form: Form
    usual: Usual
    misfit: float
    count: int
    numbers: bytes

    @classmethod
    def pack(cls, form: Form, usual: Usual, misfit: float, arrays: FitArrays) -> Fit:
        """Make a model of its arrays."""
        numbers = b""
        for part in arrays:
            numbers += np.ascontiguousarray(part, dtype=np.float64).tobytes()
        return cls(form, usual, misfit, len(arrays.pull), numbers)

    @property
    def device(self) -> float:
        """Samples that a worker holds at once."""
        return float(np.frombuffer(self.numbers, count=1)[0])

    @property
    def coefficients(self) -> Array:
        """Seconds for each unit of a term's column [terms]."""
        return np.frombuffer(self.numbers, count=TERM_COUNT, offset=8)

    @property
    def doubts(self) -> Array:
        """Standard deviation of each coefficient's prior [terms]."""
        return np.frombuffer(self.numbers, count=TERM_COUNT, offset=8 + 8 * TERM_COUNT)

    @property
    def rows(self) -> Array:
        """Sizes that were observed [observations, 6], as in `Points`."""
        start = 8 + 16 * TERM_COUNT
        return np.frombuffer(self.numbers, count=6 * self.count, offset=start).reshape(-1, 6)

    @property
    def observed(self) -> Points:
        return Points(self.rows, self.device)

    @property
    def pull(self) -> Array:
        """Weight of each observation in what the formula leaves over [observations]."""
        start = 8 + 16 * TERM_COUNT + 48 * self.count
        return np.frombuffer(self.numbers, count=self.count, offset=start)

    @property
    def factor(self) -> Array:
        """Cholesky factor of the observations' covariance [observations, observations]."""
        start = 8 + 16 * TERM_COUNT + 56 * self.count
        found = np.frombuffer(self.numbers, offset=start) if self.count else np.zeros(0)
        return found.reshape(self.count, self.count)

    def speed(self, ps: int, workers: int, batch: int | None = None) -> float:
        """Samples a second, the median."""
        return float(np.exp(self.mean(self.points([(ps, workers)], batch))[0]))

    def spread(self, ps: int, workers: int, batch: int | None = None) -> float:
        """Standard deviation of that, relative: the job's true speed at the size, without the noise
        of observing it.
        """
        return float(self.predict(self.points([(ps, workers)], batch))[1][0])

    def seconds(self, ps: int, workers: int, batch: int | None = None) -> dict[str, float]:
        """For `batch` samples, by term, by the formula alone."""
        terms = self.points([(ps, workers)], batch).columns(self.form)[0] * self.coefficients
        return dict(zip(TERMS, terms.tolist(), strict=True))

    def points(self, sizes: Iterable[tuple[int, int]], batch: int | None = None) -> Points:
        """Sizes (ps, workers) with the last observed batch and cores, or another batch."""
        usual_batch, *rest = self.usual
        chosen = usual_batch if batch is None else float(batch)
        rows = [(ps, workers, chosen, *rest) for ps, workers in sizes]
        return Points(np.array(rows, dtype=float).reshape(-1, 6), self.device)

    def mean(self, points: Points) -> Array:
        """Of log speed [sizes]."""
        return self._mean(points, points.columns(self.form), points.alike(self.observed))

    def _mean(self, points: Points, columns: Array, alike: Array) -> Array:
        seconds = columns @ self.coefficients
        return np.asarray(np.log(points.rows[:, 2]) - np.log(seconds) - alike @ self.pull)

    def predict(self, points: Points) -> tuple[Array, Array]:
        """The mean of log speed, and its standard deviation [sizes]."""
        columns, alike = points.columns(self.form), points.alike(self.observed)
        mine = leaning(columns, self.coefficients, self.doubts)
        theirs = leaning(self.observed.columns(self.form), self.coefficients, self.doubts)
        known = np.linalg.solve(self.factor, (alike + mine @ theirs.T).T)
        variance = LEFT_OVER + (mine**2).sum(axis=1) - (known**2).sum(axis=0)
        return self._mean(points, columns, alike), np.sqrt(np.maximum(variance, 1e-12))


def leaning(columns: Array, coefficients: Array, doubts: Array) -> Array:
    """Return how far each coefficient may move log T, as a standard deviation [..., sizes, terms].

    No further than by the term's absence, because no time is saved beyond a term's own. So a term
    that seems to be nothing promises nothing, and the spread says how much faster a size may be
    rather than how much slower.
    """
    formula = columns @ coefficients[..., None]
    terms = columns * coefficients[..., None, :] / formula
    absence = -np.log1p(-np.minimum(terms, 1.0 - SMALLEST))
    return np.asarray(np.minimum(columns * doubts[..., None, :] / formula, absence))
