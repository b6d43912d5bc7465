"""From observed speeds to a performance model (`speed.py`), for one job or for many side by side.

Non-negative least squares on the relative error of T, with the prior as further rows, so that a
term which no observation tells of keeps its prior share; then again, with less weight for what lies
far off (Cauchy's weights, as in Huber & Ronchetti, Robust Statistics, 2009). Errors go together
where sizes are alike, and are weighed so.

A cluster has hundreds of programs, of which few have many observations: they are fitted in one
pass, in arrays [models, observations, ...]. Where a model has fewer observations than its
neighbours, what is missing counts as one that tells of no term and goes together with none, which
changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.models.evidence import Evidence, evidence
from services.allocator.models.nnls import nnls
from services.allocator.models.speed import (
    LEFT_OVER,
    NOISE,
    SHARES,
    SMALLEST,
    Array,
    Fit,
    FitArrays,
    Form,
    Forms,
    Points,
    leaning,
)
from services.allocator.policies.contract import Observed

DOUBT = 2.0
"""Standard deviation of a prior share, relative to it."""
LEVEL = 0.75
"""Which quantile of observed times, relative to the prior's, is its level. Where one term is nearly
all of a step most sizes have far less of it than the prior says; from their median the doubts would
be too small for the term.
"""
LEAST_SHARE = 0.015
"""What is added to each share before it is doubted, so that no term is ruled out."""
OUTLIER = 4.0
"""An error of so many standard deviations halves an observation's weight."""
REWEIGHTED = 2
SHORTEST = 8
"""Models with up to so many observations are fitted side by side; so are those with up to twice as
many, and so on.
"""
PAIRS = 1 << 18
"""Of observations, at most, in one pass: so that arrays stay small."""


class Prior(msgspec.Struct, frozen=True):
    """What is believed before anything was observed. `step_s`: one ps, one worker, `batch` samples;
    None: unknown.

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
    """Of each, by the prior that explains the observations best (the most probable one); of equal
    ones the first. A case's priors are of one batch.
    """
    pairs = []
    for observed, priors in cases:
        known = evidence(observed, priors[0].batch or 1)
        pairs += [(known, prior) for prior in priors]
    fitted = _fits(pairs)
    found = []
    start = 0
    for _, priors in cases:
        end = start + len(priors)
        found.append(min(fitted[start:end], key=_misfit_of))
        start = end
    return found


def _misfit_of(fitted: Fit) -> float:
    return fitted.misfit


def fits(cases: Sequence[Case]) -> list[Fit]:
    return _fits([(evidence(observed, prior.batch or 1), prior) for observed, prior in cases])


def _fits(cases: Sequence[tuple[Evidence, Prior]]) -> list[Fit]:
    """Return the model of each case, in their order."""
    found: dict[int, Fit] = {}
    for lot in _lots([len(known.times) for known, _ in cases]):
        known = [cases[at][0] for at in lot]
        priors = [cases[at][1] for at in lot]
        found.update(zip(lot, _fit_lot(known, priors), strict=True))
    return [found[at] for at in range(len(cases))]


def _lots(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield which models are fitted side by side: those with about as many observations."""
    alike: dict[int, list[int]] = {}
    for at, length in enumerate(lengths):
        power = 1 << (length - 1).bit_length()
        alike.setdefault(max(SHORTEST, power), []).append(at)
    for length, together in alike.items():
        each = max(1, PAIRS // length**2)
        for start in range(0, len(together), each):
            yield together[start : start + each]


class Stack(NamedTuple):
    """Models side by side. `there` [models, observations] is false where one is missing; per term
    [models, terms] what its coefficient is believed to be, how much that is doubted, and the least
    it may be.
    """

    points: Points
    form: Forms
    times: Array
    there: NDArray[np.bool_]
    believed: Array
    doubts: Array
    least: Array


def _stacked(known: Sequence[Evidence], priors: Sequence[Prior]) -> Stack:
    counts = np.array([len(told.times) for told in known])
    most = max(1, int(counts.max()))
    # Sizes [models, observations, 6] and times [models, observations]; ones where one is missing.
    rows = np.ones((len(known), most, 6))
    times = np.ones((len(known), most))
    for at, told in enumerate(known):
        count = len(told.times)
        rows[at, :count] = told.rows
        times[at, :count] = told.times
    there = np.arange(most) < counts[:, None]
    form = np.array([prior.form for prior in priors])
    device = np.array([prior.device for prior in priors])
    points = Points(rows, device)
    # The level of each model: so many times the shares of its prior are its times.
    one = _of_one(known, priors, form, device)
    shares = np.array([prior.shares for prior in priors])
    columns = points.columns(form) / one[:, None]
    expected = (columns @ shares[..., None])[..., 0]
    unit = _levels(times / expected, known, priors)[:, None] / one
    return Stack(
        points=points,
        form=form,
        times=times,
        there=there,
        believed=unit * shares,
        doubts=unit * DOUBT * (shares + LEAST_SHARE),
        least=unit * SMALLEST,
    )


def _of_one(
    known: Sequence[Evidence], priors: Sequence[Prior], form: Forms, device: Array
) -> Array:
    """Columns of one ps and one worker on the first batch [models, terms]; the share of being apart
    is beside it.
    """
    rows = []
    for told, prior in zip(known, priors, strict=True):
        usual_batch, ps_cpu, worker_cpu, _ = told.usual
        batch = float(prior.batch or usual_batch)
        rows.append([(1.0, 1.0, batch, ps_cpu, worker_cpu, 1.0)])
    one = Points(np.array(rows), device).columns(form)[:, 0]
    one[:, -1] = 1.0
    return one


def _levels(slower: Array, known: Sequence[Evidence], priors: Sequence[Prior]) -> Array:
    """Seconds of a step of one ps and one worker, for each model."""
    found = []
    for told, prior, ratios in zip(known, priors, np.log(slower).tolist(), strict=True):
        count = len(told.times)
        if count:
            found.append(math.exp(_quantile(ratios[:count], LEVEL)))
        else:
            found.append(prior.step_s or 1.0)
    return np.array(found)


def _quantile(numbers: Sequence[float], share: float) -> float:
    """Between its neighbours, linearly."""
    ordered = sorted(numbers)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = math.ceil(at)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _fit_lot(known: Sequence[Evidence], priors: Sequence[Prior]) -> list[Fit]:
    stack = _stacked(known, priors)
    there = stack.there
    basis = stack.points.columns(stack.form)
    # How errors go together [models, observations, observations]; a missing one with none.
    pairs = there[:, :, None] & there[:, None, :]
    alike = np.where(pairs, stack.points.alike(stack.points), 0.0)
    diagonal = np.eye(there.shape[1])
    errors = np.zeros(there.shape)
    for _ in range(1 + REWEIGHTED):
        noise = np.where(there, _noise(errors), 1.0)
        spread = alike + diagonal * noise[..., None]
        free = _coefficients(stack, basis, spread)
        coefficients = np.maximum(free * stack.doubts, stack.least)
        foreseen = (basis @ coefficients[..., None])[..., 0]
        errors = np.where(there, np.log(stack.times) - np.log(foreseen), 0.0)
    pull = np.asarray(np.linalg.solve(spread, errors[..., None])[..., 0])
    # The covariance of what was observed, with that of the coefficients in it.
    lean = np.where(there[..., None], leaning(basis, coefficients, stack.doubts), 0.0)
    factor = np.linalg.cholesky(spread + lean @ np.swapaxes(lean, 1, 2))
    # How improbable the observations are by each model [models].
    drift = (((coefficients - stack.believed) / stack.doubts) ** 2).sum(axis=1)
    misfit = (errors * pull).sum(axis=1) + drift + np.linalg.slogdet(spread)[1]
    found = []
    for at, (told, prior) in enumerate(zip(known, priors, strict=True)):
        count = len(told.times)
        arrays = FitArrays(
            device=np.array([prior.device]),
            coefficients=coefficients[at],
            doubts=stack.doubts[at],
            rows=told.rows,
            pull=pull[at, :count],
            factor=factor[at, :count, :count],
        )
        found.append(Fit.pack(prior.form, told.usual, float(misfit[at]), arrays))
    return found


def _coefficients(stack: Stack, basis: Array, spread: Array) -> Array:
    """In doubts: least squares of relative errors that go together, drawn to what is believed; none
    negative.
    """
    terms = stack.doubts.shape[1]
    relative = basis / stack.times[..., None] * stack.doubts[:, None]
    relative = np.where(stack.there[..., None], relative, 0.0)
    goals = stack.there.astype(float)[..., None]
    # Errors that go together, made independent of each other.
    equations = np.concatenate([relative, goals], axis=2)
    white = np.linalg.solve(np.linalg.cholesky(spread), equations)
    # Below them the prior: a row for each term.
    prior = np.broadcast_to(np.eye(terms), (len(basis), terms, terms))
    rows = np.concatenate([white[..., :-1], prior], axis=1)
    wanted = np.concatenate([white[..., -1], stack.believed / stack.doubts], axis=1)
    return nnls(rows, wanted)


def _noise(errors: Array) -> Array:
    """Variance of each observation. What lies far off counts as noisier: its weight is 1 / (1 +
    (error / scale)^2).
    """
    usual = LEFT_OVER + NOISE**2
    return np.asarray(usual * (1.0 + errors**2 / (OUTLIER**2 * usual)) - LEFT_OVER)
