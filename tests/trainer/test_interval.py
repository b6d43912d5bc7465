"""How often to save: Young's optimum of a measured cost and a failure rate that is learnt."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.interval import (
    FIRST_S,
    LEAST_S,
    MOST_S,
    PRIOR_S,
    Past,
    between_failures,
    chosen,
    failed,
    lost,
    saved,
    young,
)


def waste(interval_s: float, cost_s: float, between_s: float) -> float:
    """The share of time that is lost: to saves, and to half an interval a failure."""
    return cost_s / interval_s + interval_s / (2 * between_s)


@given(st.floats(0.01, 30), st.floats(600, 1e6), st.floats(0.2, 5))
def test_no_other_interval_loses_less_to_saves_and_failures_together(cost_s: float, m: float, other: float) -> None:
    best = young(cost_s, m)
    assert waste(best, cost_s, m) <= waste(best * other, cost_s, m) * (1 + 1e-9)


def test_until_a_save_is_measured_it_is_the_first() -> None:
    assert chosen(Past()) == FIRST_S


def test_a_dear_save_is_made_seldom_and_a_cheap_one_often() -> None:
    assert chosen(Past(cost_s=1.0)) == pytest.approx(sqrt(2 * 1.0 * PRIOR_S))
    assert chosen(Past(cost_s=4.0)) == pytest.approx(2 * chosen(Past(cost_s=1.0)))


def test_who_fails_often_saves_often_and_who_runs_long_saves_seldom() -> None:
    calm = Past(cost_s=1.0)
    assert chosen(failed(failed(calm))) < chosen(calm) < chosen(saved(calm, 7200.0, 1.0))


def test_one_failure_an_hour_is_the_guess_that_what_happens_is_weighed_against() -> None:
    assert between_failures(Past()) == PRIOR_S
    assert between_failures(Past(ran_s=PRIOR_S, failures=1)) == PRIOR_S
    assert between_failures(Past(ran_s=99 * PRIOR_S, failures=9)) == 10 * PRIOR_S


@given(st.floats(0, 1e6), st.integers(0, 1000), st.floats(0, 1e5))
def test_it_stays_within_its_bounds(ran_s: float, failures: int, cost_s: float) -> None:
    assert LEAST_S <= chosen(Past(ran_s=ran_s, failures=failures, cost_s=cost_s)) <= MOST_S


def test_the_newest_measurement_counts_half_and_a_final_save_is_none() -> None:
    past = saved(saved(Past(), 60.0, 4.0), 60.0, 2.0)
    assert past == Past(ran_s=120.0, cost_s=3.0)
    assert saved(past, 30.0, None) == Past(ran_s=150.0, cost_s=3.0)


def test_a_save_beside_training_costs_its_pause_and_what_it_slowed() -> None:
    assert lost(0.1, 2.0, did=150, speed=100) == pytest.approx(0.1 + 0.5)
    assert lost(0.1, 2.0, did=250, speed=100) == pytest.approx(0.1), "it never earns time"
    assert lost(0.1, 2.0, did=0, speed=0.0) == pytest.approx(2.1), "what is not known is not assumed"
