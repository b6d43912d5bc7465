"""Tests of the model of the iteration time, and of its fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.policies.contract import Plan, TimedPlan
from services.allocator.policies.dlrover.iteration import (
    PS_CPU,
    WORKER_CPU,
    Model,
    Shape,
    fit_throughput,
    iteration_s,
    plan_grid,
    plan_throughput,
    shares_of,
    term_columns,
    usable_plans,
)

BATCH = 512
PLANTED = np.array([8e-4, 0.02, 0.005, 8e-6, 0.01])
FREE = np.full(4, math.inf)
UNSEEN = plan_grid([Plan(p, w, 2.0, 3.0) for p in (1, 3, 9) for w in (2, 7, 30)])


def some_plans(count: int, seed: int = 0) -> list[Plan]:
    chance = np.random.default_rng(seed)
    return [
        Plan(
            int(chance.integers(1, 17)),
            int(chance.integers(1, 33)),
            chance.uniform(1, 8),
            chance.uniform(1, 16),
        )
        for _ in range(count)
    ]


def timed(plans: list[Plan], model: Model, noise: float = 0.0, seed: int = 1) -> list[TimedPlan]:
    chance = np.random.default_rng(seed)
    seconds = iteration_s(plan_grid(plans), BATCH, model) * (
        1 + noise * chance.normal(size=len(plans))
    )
    return [TimedPlan(plan, BATCH, float(s)) for plan, s in zip(plans, seconds, strict=True)]


def apart(found: Model, truth: Model) -> float:
    """Return the largest relative error on plans that were not fitted."""
    return float(
        np.abs(iteration_s(UNSEEN, BATCH, found) / iteration_s(UNSEEN, BATCH, truth) - 1).max()
    )


def test_an_iteration_is_the_sum_of_its_five_terms():
    plan, shape = plan_grid([Plan(4, 8, 2.0, 5.0)]), Shape(size=10.0, bandwidth=5.0, embedding=16.0)
    expected = [100 / 5.0, 8 / (4 * 2.0), (10.0 / 4) * (8 / 5.0), 100 * 16.0 / 4, 1.0]
    assert term_columns(plan, 100, shape).tolist() == [pytest.approx(expected)]
    model = Model(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), FREE)
    seconds = float(np.dot(expected, [1, 2, 3, 4, 5]))
    assert iteration_s(plan, 100, model, shape)[0] == pytest.approx(seconds)
    assert plan_throughput(plan, 100, model, shape)[0] == pytest.approx(8 * 100 / seconds)


def test_planted_coefficients_are_recovered():
    truth = Model(PLANTED, FREE)
    exact = fit_throughput(timed(some_plans(12), truth))
    assert exact.coefficients == pytest.approx(PLANTED, rel=1e-4)
    noisy = fit_throughput(timed(some_plans(60), truth, noise=0.03))
    assert (
        noisy.coefficients[0] == pytest.approx(PLANTED[0], rel=0.1) and apart(noisy, truth) < 0.05
    )


@pytest.mark.parametrize("column, cores", [(WORKER_CPU, 4.0), (PS_CPU, 2.0)])
def test_the_number_of_usable_cores_is_fitted(column, cores):
    """Of the bounds that are tried, the fit chooses the true one."""
    heavy = np.array([8e-4, 0.2, 0.0, 0.0, 0.001])
    truth = Model(heavy, np.where(np.arange(4) == column, cores, FREE))
    shown = [
        Plan(p, w, a, b)
        for p, w in ((1, 4), (4, 8))
        for a in (1.0, 2.0, 4.0, 8.0)
        for b in (2.0, 4.0, 8.0, 16.0)
    ]
    assert fit_throughput(timed(shown, truth, noise=0.01)).bounds.tolist() == truth.bounds.tolist()
    assert (
        fit_throughput(timed(shown, Model(heavy, FREE), noise=0.01)).bounds.tolist()
        == FREE.tolist()
    )


def test_similar_jobs_supplement_a_single_observation():
    truth, other = Model(PLANTED, FREE), Model(1.1 * PLANTED, FREE)
    own = timed([Plan(1, 1, 2.0, 4.0)], truth)
    assert (
        apart(fit_throughput(own, similar=timed(some_plans(20), other)), truth)
        < 0.15
        < apart(fit_throughput(own), truth)
    )


def test_more_cores_help_only_busy_workers():
    own = timed([Plan(1, 2, 2.0, 4.0)], Model(PLANTED, FREE))
    twice = plan_grid([Plan(1, 2, 2.0, 4.0), Plan(1, 2, 2.0, 8.0)])

    def helped(busy_workers: float) -> float:
        model = fit_throughput(own, shares=shares_of(busy_workers, 0.2))
        before, after = plan_throughput(twice, BATCH, model)
        return float(after / before)

    assert helped(1.0) > 1.8 and helped(0.0) < 1.1


@given(st.floats(-1, 2), st.floats(-1, 2))
def test_the_shares_of_an_iteration_sum_to_one(workers, ps):
    shares = shares_of(workers, ps)
    assert min(shares) >= 0 and math.fsum(shares) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 16), st.integers(1, 32), st.floats(1e-6, 1e4)),
        min_size=1,
        max_size=8,
    )
)
def test_coefficients_and_iteration_times_are_positive_for_any_timings(rows):
    seen = [TimedPlan(Plan(p, w, 1.0 + p % 3, 2.0 + w % 5), BATCH, s) for p, w, s in rows]
    found = fit_throughput(seen)
    assert (found.coefficients >= 0).all() and (iteration_s(UNSEEN, BATCH, found) > 0).all()


def test_impossible_timings_are_not_used():
    plan = Plan(1, 1, 1.0, 1.0)
    wrong = [
        TimedPlan(plan, 0, 1.0),
        TimedPlan(Plan(1, 1, 0.0, 1.0), 8, 1.0),
        TimedPlan(Plan(1, 0, 1.0, 1.0), 8, 1.0),
    ]
    wrong += [TimedPlan(plan, 8, s) for s in (0.0, -1.0, math.inf, math.nan)]
    assert usable_plans([*wrong, TimedPlan(plan, 8, 1.0)]) == [TimedPlan(plan, 8, 1.0)]
