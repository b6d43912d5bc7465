"""Tests of the choice of the next run, and of the power of a paired test."""

from __future__ import annotations

import math

import pytest

from tests.bench.paired import describe, half_width, least_certain, power, power_of


def test_the_interval_of_three_differences_has_the_quantile_of_two_degrees_of_freedom() -> None:
    """t(0.975, 2) = 4.303."""
    assert half_width([0.0, 1.0, 2.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert half_width([0.5]) == math.inf


def test_power_grows_with_the_number_of_pairs() -> None:
    assert power(0.5, 1, 0.5) == 0.0
    assert power(0.5, 2, 0.5) < power(0.5, 5, 0.5) < power(0.5, 20, 0.5)
    assert power(0.5, 34, 0.25) == pytest.approx(0.80, abs=0.02)  # Cohen 1988: d = 0.5, n = 34
    assert power_of([0.1, 0.1], 0.5) == 1.0
    assert power_of([0.1, 0.1 + 1e-12], 0.5) == 1.0  # equal but for rounding
    assert power_of([0.0, 0.001], 0.5) == pytest.approx(1.0, abs=0.001)
    assert power_of([0.1], 0.5) == 0.0
    assert power(0.02, 2, 0.5) == pytest.approx(0.994, abs=0.001)  # the lower tail is almost 0


def test_the_least_certain_difference_is_measured_next() -> None:
    found = {"a": [0.0, 0.1], "b": [0.0, 3.0], "c": [0.0, 1.0]}
    assert least_certain(found, 0.5, 0.8, most=9) == "b"
    assert least_certain({**found, "b": [0.0, 3.0] * 5}, 0.5, 0.8, most=9) == "c"
    assert least_certain({"a": [0.0, 0.001]}, 0.5, 0.8, most=9) is None
    assert least_certain(found, 0.5, 0.8, most=2) is None


def test_a_single_difference_has_no_standard_deviation() -> None:
    assert describe([0.25]) == "+0.25 points, standard deviation -, n = 1"
    assert describe([0.0, 1.0]) == "+0.50 points, standard deviation 0.71, n = 2"
