"""Tests of the fit of models: many models fitted together equal models fitted alone.

Non-negative least squares is compared with a search over all sets of columns, and with the
optimality (KKT) conditions.
"""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.models.fitting import (
    Array,
    Prior,
    UsableObservation,
    fit_model,
    fit_models,
    nnls,
    nnls_each,
)
from services.allocator.policies.contract import Observed

SHARES = (0.6, 0.1, 0.0, 0.3, 0.0, 0.0, 0.0, 0.1)
CORES = st.none() | st.sampled_from([0.5, 1.0, 4.0])
SEEN = st.builds(
    UsableObservation,
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([32, 64]),
    st.floats(-1.0, 1e4),
    CORES,
    CORES,
)
PRIORS = st.builds(
    Prior,
    shares=st.sampled_from([SHARES, Prior().shares]),
    step_s=st.none() | st.floats(0.01, 10.0),
    form=st.sampled_from(["synchronous", "asynchronous"]),
    batch=st.sampled_from([None, 1, 64]),
    device=st.sampled_from([16.0, float("inf")]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(SEEN, max_size=20), PRIORS), max_size=5))
def test_models_fitted_together_equal_those_fitted_alone(cases):
    for together, (seen, prior) in zip(fit_models(cases), cases, strict=True):
        alone = fit_model(seen, prior)
        assert (together.form, together.usual) == (alone.form, alone.usual)
        assert together.coefficients == pytest.approx(alone.coefficients, rel=1e-6, abs=1e-12)
        assert together.gp_weights == pytest.approx(alone.gp_weights, rel=1e-5, abs=1e-6)
        assert together.factor == pytest.approx(alone.factor, rel=1e-5, abs=1e-9)
        assert together.misfit == pytest.approx(alone.misfit, rel=1e-6, abs=1e-6)
        assert (together.speed(2, 3), together.speed_std(2, 3)) == pytest.approx(
            (alone.speed(2, 3), alone.speed_std(2, 3))
        )


def test_an_observation_equal_to_the_prediction_changes_no_coefficient():
    prior = Prior(shares=SHARES, step_s=2.0, batch=64)
    seen, unseen = fit_models([([Observed(1, 1, 64, 32.0)], prior), ([], prior)])
    assert seen.coefficients == pytest.approx(unseen.coefficients)
    assert np.abs(seen.gp_weights).max() < 1e-6


def test_nothing_to_fit_is_no_error():
    assert fit_models([]) == []


BEFORE_SCIPY = [
    [0.0, 0.361574851759, 0.339965547447, 0.243857105126],
    [0.121313975837, 0.262821127673, 0.535102104313, 0.0],
    [0.419620694616, 0.0, 0.3544411395, 0.076656669072],
    [0.399037497083, 0.095085087551, 0.167677295116, 0.334115903663],
]
"""The solutions of the project's own implementation, to 12 digits."""


def error(a: Array, b: Array, x: Array) -> float:
    return float(np.linalg.norm(a @ x - b))


def brute_force(a: Array, b: Array) -> float:
    """Return the least error of all sets of columns whose own solution is not negative."""
    columns = range(a.shape[1])
    best = float(np.linalg.norm(b))
    for chosen in map(list, chain.from_iterable(combinations(columns, n + 1) for n in columns)):
        x = np.zeros(a.shape[1])
        x[chosen] = np.linalg.lstsq(a[:, chosen], b, rcond=None)[0]
        if (x >= 0).all():
            best = min(best, error(a, b, x))
    return best


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 6))
def test_nnls_is_as_good_as_trying_every_set_of_columns(seed, rows, columns):
    chance = np.random.default_rng(seed)
    a, b = chance.normal(size=(rows, columns)), chance.normal(size=rows)
    x = nnls(a, b)
    assert (x >= 0).all()
    assert error(a, b, x) == pytest.approx(brute_force(a, b), abs=1e-7)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 8), st.booleans())
def test_nnls_meets_the_kkt_conditions(seed, rows, columns, alike):
    """The error does not change along a used column, and rises along every other one."""
    chance = np.random.default_rng(seed)
    a = chance.uniform(size=(rows, columns))
    if alike:  # linearly dependent columns
        a = (
            a
            @ chance.uniform(size=(columns, columns // 2 + 1))
            @ chance.uniform(size=(columns // 2 + 1, columns))
        )
    b = chance.uniform(-0.2, 1.0, size=rows)
    x = nnls(a, b)
    slope = a.T @ (a @ x - b) / np.linalg.norm(a, axis=0)
    assert (x >= 0).all()
    assert slope.min() >= -1e-9 * np.linalg.norm(b)
    assert slope[x > 0] == pytest.approx(0.0, abs=1e-9 * np.linalg.norm(b))


def test_nnls_equals_recorded_solutions():
    """The problems are like those of a performance model, and their solutions are unique.

    They have a row for each speed, and one for each term of the prior.
    """
    chance = np.random.default_rng(21)
    speeds = chance.uniform(0.0, 2.0, size=(4, 5, 4))
    a = np.concatenate([speeds, np.broadcast_to(0.1 * np.eye(4), (4, 4, 4))], axis=1)
    b = np.concatenate([np.ones((4, 5)), chance.uniform(0.0, 0.1, size=(4, 4))], axis=1)
    assert nnls(a, b) == pytest.approx(np.array(BEFORE_SCIPY), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.floats(0.0, 100.0), min_size=1, max_size=7))
def test_planted_solutions_are_recovered_in_any_units(seed, planted):
    chance = np.random.default_rng(seed)
    x, units = np.array(planted), 10.0 ** chance.integers(-100, 100, size=len(planted))
    a = chance.uniform(0.1, 1.0, size=(20, len(x)))
    assert nnls(a * units, a @ x) * units == pytest.approx(x, abs=1e-6 * max(1.0, x.max()))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(6, 9), st.integers(1, 6))
def test_a_batch_of_problems_equals_single_solutions(seed, problems, rows, columns):
    chance = np.random.default_rng(seed)
    a, b = chance.normal(size=(problems, rows, columns)), chance.normal(size=(problems, rows))
    alone = np.array([nnls(one, goal) for one, goal in zip(a, b, strict=True)])
    assert nnls(a, b) == pytest.approx(alone, abs=1e-9)


def test_numbers_with_overflowing_squares_are_solved():
    a, b = np.array([[1e200, 0.0], [0.0, 1e-200]]), np.array([2e180, 3e180])
    assert nnls(a[:, :1], b).tolist() == pytest.approx([2e-20])
    assert nnls(a * 1e-100, b * 1e-180).tolist() == pytest.approx([2e-100, 3e300])


def test_a_non_finite_problem_has_no_solution_and_others_do():
    a = np.broadcast_to(np.eye(2), (3, 2, 2)).copy()
    b = np.ones((3, 2))
    a[0, 0, 0] = np.nan
    b[1, 1] = np.nan
    x = nnls(a, b)
    assert np.isnan(x[:2]).all() and x[2].tolist() == [1.0, 1.0]


def test_equal_columns_share_and_an_empty_column_gets_zero():
    a = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
    x = nnls(a, np.array([3.0, 6.0]))
    assert x[0] + x[1] == pytest.approx(3.0) and x[2] == 0.0


def test_all_coefficients_are_zero_if_every_column_is_harmful():
    assert nnls(np.array([[1.0, 2.0], [1.0, 1.0]]), np.array([-1.0, -2.0])).tolist() == [0.0, 0.0]


def test_an_empty_problem_has_an_empty_solution():
    assert nnls(np.zeros((0, 3)), np.zeros(0)).tolist() == [0.0, 0.0, 0.0]
    assert nnls(np.zeros((2, 0)), np.ones(2)).tolist() == []


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 6)
)
def test_problems_of_different_heights_equal_single_solutions(seed, heights, columns):
    chance = np.random.default_rng(seed)
    systems = [(chance.normal(size=(rows, columns)), chance.normal(size=rows)) for rows in heights]
    for (a, b), x in zip(systems, nnls_each(systems), strict=True):
        assert (x >= 0).all()
        assert error(a, b, x) == pytest.approx(error(a, b, nnls(a, b)), abs=1e-7)
