"""Tests of the forecast of a task's memory, and of the limit that follows from it."""

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
    """Return (examples, GiB) for every 1,000 examples. `rise`: GiB per 1,000 examples."""
    chance = np.random.default_rng(3)
    return [(1000.0 * i, (start + rise * i) * (1 + noise * chance.normal())) for i in range(count)]


def test_growing_memory_is_predicted():
    assert forecast_use(readings(4.0, 0.1), ahead=10_000) == pytest.approx(4.0 + 0.1 * (19 + 10))
    assert forecast_use(readings(4.0, 0.1, noise=0.02), ahead=10_000) == pytest.approx(
        6.9, rel=0.08
    )


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_noisy_flat_memory_predicts_no_growth(noise):
    flat = readings(4.0, 0.0, noise=noise)
    assert forecast_use(flat, ahead=1e6) == max(gib for _, gib in flat)


def test_falling_memory_is_not_extrapolated():
    assert forecast_use(readings(8.0, -0.1), ahead=10_000) == 8.0


def test_too_few_readings_give_no_trend():
    assert forecast_use([(0.0, 1.0), (1.0, 2.0)], ahead=100) == 2.0
    assert forecast_use([], ahead=100) is None
    assert forecast_use([(0.0, math.nan), (math.inf, 1.0), (1.0, 0.0)], ahead=100) is None


def test_growth_is_predicted_before_the_limit():
    """Memory is measured every 1,000 examples, and the limit is adapted every 4,000."""
    grows = readings(4.0, 0.1, count=80)
    limit = limit_for(4.0)
    for seen in range(1, len(grows) + 1):
        assert grows[seen - 1][1] < limit
        if seen % 4 == 0:
            limit = limit_due(limit, forecast_use(grows[:seen], ahead=8000), may_shrink=True)


def test_a_suitable_limit_is_kept():
    right = limit_for(10.0)
    assert right >= 10.0 * MARGIN and limit_due(right, 10.0, may_shrink=True) == right
    assert limit_due(right, 9.5, may_shrink=True) == right
    assert limit_due(right, right, may_shrink=False) == limit_for(right) > right


def test_an_excessive_limit_is_lowered_if_allowed():
    much = 2 * WIDE * limit_for(10.0)
    assert limit_due(much, 10.0, may_shrink=True) == limit_for(10.0)
    assert limit_due(much, 10.0, may_shrink=False) == much


def test_without_measurements_the_limit_is_kept():
    assert limit_due(7.0, None, may_shrink=True) == 7.0


@given(st.floats(0.01, 500), st.floats(0.01, 500), st.booleans())
def test_a_limit_is_above_the_need_and_converges(limit, need, may_shrink):
    due = limit_due(limit, need, may_shrink)
    assert due > need and (due == limit or due <= need * MARGIN + STEP_GIB)
    assert limit_due(due, need, may_shrink) == due
