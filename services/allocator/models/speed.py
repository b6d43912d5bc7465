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

Fit. Non-negative least squares on the relative error of T, with the prior as further rows, so that a term which no
observation tells of keeps its prior share; then again, with less weight for what lies far off (Cauchy's weights, as in
Huber & Ronchetti, Robust Statistics, 2009). Measured speeds are rougher than any such formula: shards do not divide
evenly among hosts. What the formula leaves over of log T is taken as a Gaussian process (universal kriging; Rasmussen
& Williams, Gaussian Processes for Machine Learning, 2006, section 2.7): a smooth part, a quirk of each number of ps
and of workers, and one of each size. It corrects the formula where something was measured, and says how far to trust
it elsewhere. This combination is ours; its constants were chosen on random surfaces, which show a broad plateau.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.job import Observed
from services.allocator.models.nnls import nnls

Array = NDArray[np.float64]
Form = Literal["synchronous", "asynchronous"]

TERMS = ("compute", "fixed", "update", "link", "workers", "ps", "look-up", "apart")
SHARES = (0.25, 0.2, 0.15, 0.3, 0.04, 0.005, 0.055, 0.15)
"""Of a step of one ps and one worker on the first batch, by `TERMS`, where nothing is known of the model; the last is
beside it, as one worker is never apart."""
DOUBT = 2.0
"""Standard deviation of a prior share, relative to it."""
LEVEL = 0.75
"""Which quantile of observed times, relative to the prior's, is its level. Where one term is nearly all of a step most
sizes have far less of it than the prior says; from their median the doubts would be too small for the term."""
LEAST_SHARE = 0.015
"""What is added to each share before it is doubted, so that no term is ruled out."""
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
OUTLIER = 4.0
"""An error of so many standard deviations halves an observation's weight."""
REWEIGHTED = 2
ROUNDING = 1e-9
SMALLEST = 1e-9
"""Least coefficient, as a share of a step: so that no time is zero."""
SPEEDS = (1e-6, 1e12)
"""Samples a second that may be true; of anything else it is the report that is wrong."""
CORES = (1e-3, 1e4)
"""Cores of a task that may be true."""


class Measured(Observed, frozen=True):
    """An observed speed of which is known how it was placed: the share of traffic that left its node."""

    remote: float = 1.0


class Prior(msgspec.Struct, frozen=True):
    """What is believed before anything was observed. `step_s`: one ps, one worker, `batch` samples; None: unknown.

    `batch` None: the last that was observed. `device`: samples that a worker holds at once.
    """

    shares: tuple[float, ...] = SHARES
    step_s: float | None = None
    form: Form = "synchronous"
    batch: int | None = None
    device: float = math.inf


class Points(msgspec.Struct, frozen=True, eq=False):
    """Sizes, one a row: ps, workers, batch, cores a ps, cores a worker, share of traffic that leaves its node.

    `device`: samples that a worker holds at once.
    """

    rows: Array
    device: float = math.inf

    def columns(self, form: Form) -> Array:
        """What each coefficient is multiplied with to give seconds for `batch` samples [sizes, terms]."""
        p, w, batch, ps_cpu, worker_cpu, remote = self.rows.T
        served, at_least_one = (p > 0).astype(float), np.maximum(p, 1.0)
        per_ps = w / at_least_one
        carried = np.where(p > 0, per_ps, (w - 1) / w) * (LOCAL + (1 - LOCAL) * remote)
        each = batch / w if form == "synchronous" else batch
        update, lookup = served * per_ps / ps_cpu, served * batch / at_least_one
        passes, apart = np.ceil(each / self.device - ROUNDING).clip(1.0), (1 - served) * (w > 1) * remote
        terms = (each / worker_cpu, passes, update, carried, w - 1 + served, p, lookup, apart)
        step = np.stack(terms, axis=1)
        return step if form == "synchronous" else step / w[:, None]

    def alike(self, others: Points) -> Array:
        """Covariance of what the formula leaves over of log T [sizes, others]."""
        mine, theirs = (np.log(np.maximum(points.rows[:, :5], 0.5)) for points in (self, others))
        apart = (mine[:, None, :] - theirs[None, :, :]) ** 2
        same = apart < 1e-12
        near = np.exp(-0.5 * apart.sum(axis=2) / REACH**2)
        besides = np.exp(-0.5 * apart[:, :, 2:].sum(axis=2) / REACH**2)
        quirks = same[:, :, :2].sum(axis=2) * besides
        return np.asarray(SMOOTH**2 * near + QUIRK**2 * quirks + ROUGH**2 * same.all(axis=2))


LEFT_OVER = SMOOTH**2 + 2 * QUIRK**2 + ROUGH**2
"""The variance of it, anywhere."""


class Fit(msgspec.Struct, frozen=True, eq=False):
    """A fitted model; make it with `fit`. `observed` in points, `usual`: what a size has where nothing else is said."""

    form: Form
    usual: tuple[float, float, float, float]
    coefficients: Array
    doubts: Array
    observed: Points
    pull: Array
    factor: Array
    misfit: float

    def speed(self, ps: int, workers: int, batch: int | None = None) -> float:
        """Samples a second, the median."""
        return float(np.exp(self.predict(self.points([(ps, workers)], batch))[0][0]))

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

    def predict(self, points: Points) -> tuple[Array, Array]:
        """The mean of log speed, and its standard deviation [sizes]."""
        basis, cross = points.columns(self.form), points.alike(self.observed)
        formula = basis @ self.coefficients
        log_time = np.log(formula) + cross @ self.pull
        leaning = _leaning(points, self.form, self.coefficients, self.doubts)
        both = cross + leaning @ _leaning(self.observed, self.form, self.coefficients, self.doubts).T
        known = np.linalg.solve(self.factor, both.T)
        variance = LEFT_OVER + (leaning**2).sum(axis=1) - (known**2).sum(axis=0)
        return np.log(points.rows[:, 2]) - log_time, np.sqrt(np.maximum(variance, 1e-12))


def fit(observed: Sequence[Observed], prior: Prior | None = None) -> Fit:
    """From any number of observations; what is not `believable` counts as not observed."""
    prior = prior or Prior()
    seen = [o for o in observed if believable(o)]
    points, usual = _points(seen, prior)
    times = points.rows[:, 2] / np.array([o.samples_per_second for o in seen])
    first = float(prior.batch or usual[0])
    one = Points(np.array([(1.0, 1.0, first, *usual[1:3], 1.0)]), prior.device).columns(prior.form)[0]
    one[-1] = 1.0
    shares = np.array(prior.shares)
    expected = points.columns(prior.form) / one @ shares
    level = float(np.exp(np.quantile(np.log(times / expected), LEVEL))) if seen else (prior.step_s or 1.0)
    believed, doubts = level * shares / one, level * DOUBT * (shares + LEAST_SHARE) / one
    return _fitted(points, times, prior.form, usual, believed, doubts, SMALLEST * level / one)


def believable(seen: Observed) -> bool:
    """Does it tell of training, at a speed that may be true?"""
    return seen.workers > 0 and SPEEDS[0] <= seen.samples_per_second <= SPEEDS[1]


def closest(observed: Sequence[Observed], priors: Sequence[Prior]) -> Fit:
    """By the prior that explains the observations best (the most probable one); of equal ones the first."""
    return min((fit(observed, prior) for prior in priors), key=lambda fitted: fitted.misfit)


def _points(seen: Sequence[Observed], prior: Prior) -> tuple[Points, tuple[float, float, float, float]]:
    """Rows, and what is usual: the last batch, cores a ps and a worker (1 where nobody knows), remote traffic."""
    ps_cpu = next((o.ps_cpu for o in reversed(seen) if _known(o.ps_cpu)), None) or 1.0
    worker_cpu = next((o.worker_cpu for o in reversed(seen) if _known(o.worker_cpu)), None) or 1.0
    rows = [
        (
            *(o.ps, o.workers, max(1, o.batch)),
            *(_known(o.ps_cpu) or ps_cpu, _known(o.worker_cpu) or worker_cpu),
            o.remote if isinstance(o, Measured) else remote(o.nodes),
        )
        for o in seen
    ]
    batch = rows[-1][2] if rows else max(1, prior.batch or 1)
    usual = (float(batch), ps_cpu, worker_cpu, rows[-1][5] if rows else 1.0)
    return Points(np.array(rows, dtype=float).reshape(-1, 6), prior.device), usual


def remote(nodes: int | None) -> float:
    """The share of its traffic that leaves a node, of a job on so many; where nobody knows, all of it."""
    return 0.0 if nodes == 1 else 1.0


def _known(cores: float | None) -> float | None:
    return cores if cores is not None and CORES[0] <= cores <= CORES[1] else None


def _fitted(
    points: Points,
    times: Array,
    form: Form,
    usual: tuple[float, float, float, float],
    believed: Array,
    doubts: Array,
    least: Array,
) -> Fit:
    basis, alike = points.columns(form), points.alike(points)
    noise = np.full(len(times), NOISE**2)
    for again in range(1 + REWEIGHTED):
        coefficients = np.maximum(_coefficients(basis / times[:, None], alike, noise, believed, doubts), least)
        errors = np.log(times) - np.log(basis @ coefficients)
        if again < REWEIGHTED:
            noise = _reweighted(errors, noise)
    pull = np.linalg.solve(alike + np.diag(noise), errors)
    leaning = _leaning(points, form, coefficients, doubts)
    factor: Array = np.linalg.cholesky(alike + leaning @ leaning.T + np.diag(noise)).astype(np.float64)
    drift = (((coefficients - believed) / doubts) ** 2).sum()
    misfit = float(errors @ pull + drift + np.linalg.slogdet(alike + np.diag(noise))[1])
    return Fit(form, usual, coefficients, doubts, points, pull, factor, misfit)


def _coefficients(relative: Array, alike: Array, noise: Array, believed: Array, doubts: Array) -> Array:
    """Least squares of relative errors that go together, drawn to what is believed; none negative."""
    white = np.linalg.solve(
        np.linalg.cholesky(alike + np.diag(noise)), np.column_stack([relative, np.ones(len(noise))])
    )
    rows = np.vstack([white[:, :-1] * doubts, np.eye(len(doubts))])
    return nnls(rows, np.concatenate([white[:, -1], believed / doubts])) * doubts


def _reweighted(errors: Array, noise: Array) -> Array:
    """What lies far off counts as noisier: its weight is 1 / (1 + (error / scale)^2)."""
    usual = LEFT_OVER + NOISE**2
    weight = 1.0 / (1.0 + errors**2 / (OUTLIER**2 * usual))
    return np.asarray(usual / weight - LEFT_OVER)


def _leaning(points: Points, form: Form, coefficients: Array, doubts: Array) -> Array:
    """How far each coefficient may move log T, as a standard deviation [sizes, terms].

    No further than by the term's absence, because no time is saved beyond a term's own. So a term that seems to be
    nothing promises nothing, and the spread says how much faster a size may be rather than how much slower.
    """
    terms = points.columns(form)
    formula = (terms @ coefficients)[:, None]
    absence = -np.log1p(-np.minimum(terms * coefficients / formula, 1.0 - SMALLEST))
    return np.asarray(np.minimum(terms * doubts / formula, absence))
