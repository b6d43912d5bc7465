"""How much memory a task will need soon."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.models.memory_forecast import (
    MARGIN,
    STEP_GIB,
    WIDE,
    forecast_use,
    limit_due,
    limit_for,
)


def readings(
    start: float, rise: float, count: int = 20, noise: float = 0.0
) -> list[tuple[float, float]]:
    """(examples, GiB) every thousand examples; `rise`: GiB a thousand."""
    chance = np.random.default_rng(3)
    return [(1000.0 * i, (start + rise * i) * (1 + noise * chance.normal())) for i in range(count)]


def test_memory_that_grows_is_foreseen():
    assert forecast_use(readings(4.0, 0.1), ahead=10_000) == pytest.approx(4.0 + 0.1 * (19 + 10))
    assert forecast_use(readings(4.0, 0.1, noise=0.02), ahead=10_000) == pytest.approx(
        6.9, rel=0.08
    )


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_flat_memory_raises_no_alarm_however_noisy(noise):
    flat = readings(4.0, 0.0, noise=noise)
    assert forecast_use(flat, ahead=1e6) == max(gib for _, gib in flat)


def test_memory_that_falls_is_not_expected_to_fall_on():
    assert forecast_use(readings(8.0, -0.1), ahead=10_000) == 8.0


def test_two_readings_make_no_trend_and_none_no_answer():
    assert forecast_use([(0.0, 1.0), (1.0, 2.0)], ahead=100) == 2.0
    assert forecast_use([], ahead=100) is None
    assert forecast_use([(0.0, math.nan), (math.inf, 1.0), (1.0, 0.0)], ahead=100) is None


def test_growth_is_caught_before_the_limit():
    """A reading every thousand examples, a look at the limit every four of them: it is never
    reached.
    """
    grows = readings(4.0, 0.1, count=80)
    limit = limit_for(4.0)
    for seen in range(1, len(grows) + 1):
        assert grows[seen - 1][1] < limit
        if seen % 4 == 0:
            limit = limit_due(limit, forecast_use(grows[:seen], ahead=8000), may_shrink=True)


def test_a_limit_is_kept_while_it_is_about_right():
    right = limit_for(10.0)
    assert right >= 10.0 * MARGIN and limit_due(right, 10.0, may_shrink=True) == right
    assert limit_due(right, 9.5, may_shrink=True) == right
    assert limit_due(right, right, may_shrink=False) == limit_for(right) > right


def test_memory_is_taken_back_where_there_is_far_too_much_and_it_may_be():
    much = 2 * WIDE * limit_for(10.0)
    assert limit_due(much, 10.0, may_shrink=True) == limit_for(10.0)
    assert limit_due(much, 10.0, may_shrink=False) == much


def test_where_nothing_was_measured_the_limit_stays():
    assert limit_due(7.0, None, may_shrink=True) == 7.0


@given(st.floats(0.01, 500), st.floats(0.01, 500), st.booleans())
def test_a_limit_is_above_the_need_and_comes_to_rest(limit, need, may_shrink):
    due = limit_due(limit, need, may_shrink)
    assert due > need and (due == limit or due <= need * MARGIN + STEP_GIB)
    assert limit_due(due, need, may_shrink) == due
