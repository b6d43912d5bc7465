"""From observed speeds to a performance model (`speed.py`), for one job or for many side by side.

Non-negative least squares on the relative error of T, with the prior as further rows, so that a term which no
observation tells of keeps its prior share; then again, with less weight for what lies far off (Cauchy's weights, as in
Huber & Ronchetti, Robust Statistics, 2009). Errors go together where sizes are alike, and are weighed so.

A cluster has hundreds of programs, of which few have many observations: they are fitted in one pass, in arrays [models,
observations, ...]. Where a model has fewer observations than its neighbours, what is missing counts as one that tells
of no term and goes together with none, which changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.models.evidence import Evidence, evidence
from services.allocator.models.nnls import nnls
from services.allocator.models.speed import LEFT_OVER, NOISE, SHARES, SMALLEST, Array, Fit, Form, Forms, Points, leaning
from services.allocator.policies.contract import Observed

DOUBT = 2.0
"""Standard deviation of a prior share, relative to it."""
LEVEL = 0.75
"""Which quantile of observed times, relative to the prior's, is its level. Where one term is nearly all of a step most
sizes have far less of it than the prior says; from their median the doubts would be too small for the term."""
LEAST_SHARE = 0.015
"""What is added to each share before it is doubted, so that no term is ruled out."""
OUTLIER = 4.0
"""An error of so many standard deviations halves an observation's weight."""
REWEIGHTED = 2
SHORTEST = 8
"""Models with up to so many observations are fitted side by side; so are those with up to twice as many, and so on."""
PAIRS = 1 << 18
"""Of observations, at most, in one pass: so that arrays stay small."""


class Prior(msgspec.Struct, frozen=True):
    """What is believed before anything was observed. `step_s`: one ps, one worker, `batch` samples; None: unknown.

    `batch` None: the last that was observed. `device`: samples that a worker holds at once.
    """

    shares: tuple[float, ...] = SHARES
    step_s: float | None = None
    form: Form = "synchronous"
    batch: int | None = None
    device: float = math.inf


Case = tuple[Sequence[Observed], Prior]


def fit(observed: Sequence[Observed], prior: Prior | None = None) -> Fit:
    """From any number of observations; what is not `believable` counts as not observed."""
    return fits([(observed, prior or Prior())])[0]


def closest(cases: Sequence[tuple[Sequence[Observed], Sequence[Prior]]]) -> list[Fit]:
    """Of each, by the prior that explains the observations best (the most probable one); of equal ones the first. A
    case's priors are of one batch.
    """
    told = [(evidence(observed, priors[0].batch or 1), priors) for observed, priors in cases]
    found = iter(_fits([(known, prior) for known, priors in told for prior in priors]))
    return [min(islice(found, len(priors)), key=lambda fitted: fitted.misfit) for _, priors in cases]


def fits(cases: Sequence[Case]) -> list[Fit]:
    return _fits([(evidence(observed, prior.batch or 1), prior) for observed, prior in cases])


def _fits(cases: Sequence[tuple[Evidence, Prior]]) -> list[Fit]:
    found: dict[int, Fit] = {}
    for lot in _lots([len(known.times) for known, _ in cases]):
        found.update(zip(lot, _fitted(*zip(*(cases[n] for n in lot), strict=True)), strict=True))
    return [found[n] for n in range(len(cases))]


def _lots(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Which models are fitted side by side: those with about as many observations."""
    alike: dict[int, list[int]] = {}
    for n, length in enumerate(lengths):
        alike.setdefault(max(SHORTEST, 1 << (length - 1).bit_length()), []).append(n)
    for length, together in alike.items():
        each = max(1, PAIRS // length**2)
        yield from (together[at : at + each] for at in range(0, len(together), each))


class Stack(NamedTuple):
    """Models side by side. `there` [models, observations] is false where one is missing; per term [models, terms] what
    its coefficient is believed to be, how much that is doubted, and the least it may be.
    """

    points: Points
    form: Forms
    times: Array
    there: NDArray[np.bool_]
    believed: Array
    doubts: Array
    least: Array


def _stacked(known: Sequence[Evidence], priors: Sequence[Prior]) -> Stack:
    most = max(1, *(len(told.times) for told in known))
    rows, times = np.ones((len(known), most, 6)), np.ones((len(known), most))
    for n, told in enumerate(known):
        rows[n, : len(told.times)], times[n, : len(told.times)] = told.rows, told.times
    there = np.arange(most) < np.array([len(told.times) for told in known])[:, None]
    form, device = np.array([prior.form for prior in priors]), np.array([prior.device for prior in priors])
    points, one = Points(rows, device), _of_one(known, priors, form, device)
    shares = np.array([prior.shares for prior in priors])
    expected = ((points.columns(form) / one[:, None]) @ shares[..., None])[..., 0]
    unit = _levels(times / expected, known, priors)[:, None] / one
    return Stack(points, form, times, there, unit * shares, unit * DOUBT * (shares + LEAST_SHARE), unit * SMALLEST)


def _of_one(known: Sequence[Evidence], priors: Sequence[Prior], form: Forms, device: Array) -> Array:
    """Columns of one ps and one worker on the first batch [models, terms]; the share of being apart is beside it."""
    first = [float(prior.batch or told.usual[0]) for told, prior in zip(known, priors, strict=True)]
    rows = [[(1.0, 1.0, batch, *told.usual[1:3], 1.0)] for told, batch in zip(known, first, strict=True)]
    one = Points(np.array(rows), device).columns(form)[:, 0]
    one[:, -1] = 1.0
    return one


def _levels(slower: Array, known: Sequence[Evidence], priors: Sequence[Prior]) -> Array:
    """Seconds of a step of one ps and one worker, for each model."""
    found = []
    for told, prior, ratios in zip(known, priors, np.log(slower).tolist(), strict=True):
        count = len(told.times)
        found.append(math.exp(_quantile(ratios[:count], LEVEL)) if count else (prior.step_s or 1.0))
    return np.array(found)


def _quantile(numbers: Sequence[float], share: float) -> float:
    """Between its neighbours, linearly."""
    ordered, at = sorted(numbers), share * (len(numbers) - 1)
    low = math.floor(at)
    return ordered[low] + (ordered[math.ceil(at)] - ordered[low]) * (at - low)


def _fitted(known: Sequence[Evidence], priors: Sequence[Prior]) -> Iterator[Fit]:
    stack = _stacked(known, priors)
    basis, there = stack.points.columns(stack.form), stack.there
    alike = np.where(there[:, :, None] & there[:, None, :], stack.points.alike(stack.points), 0.0)
    free, errors = stack.believed / stack.doubts, np.zeros(there.shape)
    for _ in range(1 + REWEIGHTED):
        spread = alike + np.eye(there.shape[1]) * np.where(there, _noise(errors), 1.0)[..., None]
        free = _coefficients(stack, basis, spread, free)
        coefficients = np.maximum(free * stack.doubts, stack.least)
        errors = np.where(there, np.log(stack.times) - np.log((basis @ coefficients[..., None])[..., 0]), 0.0)
    pull = np.linalg.solve(spread, errors[..., None])[..., 0]
    lean = np.where(there[..., None], leaning(basis, coefficients, stack.doubts), 0.0)
    factor = np.linalg.cholesky(spread + lean @ np.swapaxes(lean, 1, 2))
    drift = (((coefficients - stack.believed) / stack.doubts) ** 2).sum(axis=1)
    misfit = (errors * pull).sum(axis=1) + drift + np.linalg.slogdet(spread)[1]
    return map(_alone, known, priors, coefficients, stack.doubts, pull, factor, misfit.tolist())


def _alone(
    told: Evidence, prior: Prior, coefficients: Array, doubts: Array, pull: Array, factor: Array, misfit: float
) -> Fit:
    """One model of a stack, without what was missing."""
    count = len(told.times)
    seen = (Points(told.rows, prior.device), pull[:count], factor[:count, :count])
    return Fit(prior.form, told.usual, coefficients, doubts, *seen, misfit)


def _coefficients(stack: Stack, basis: Array, spread: Array, guess: Array) -> Array:
    """In doubts: least squares of relative errors that go together, drawn to what is believed; none negative."""
    terms = stack.doubts.shape[1]
    relative = np.where(stack.there[..., None], basis / stack.times[..., None] * stack.doubts[:, None], 0.0)
    goals = stack.there.astype(float)[..., None]
    white = np.linalg.solve(np.linalg.cholesky(spread), np.concatenate([relative, goals], axis=2))
    prior = np.broadcast_to(np.eye(terms), (len(basis), terms, terms))
    rows = np.concatenate([white[..., :-1], prior], axis=1)
    return nnls(rows, np.concatenate([white[..., -1], stack.believed / stack.doubts], axis=1), guess)


def _noise(errors: Array) -> Array:
    """Variance of each observation. What lies far off counts as noisier: its weight is 1 / (1 + (error / scale)^2)."""
    usual = LEFT_OVER + NOISE**2
    return np.asarray(usual * (1.0 + errors**2 / (OUTLIER**2 * usual)) - LEFT_OVER)
