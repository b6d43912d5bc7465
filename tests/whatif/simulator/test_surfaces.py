"""True speeds: what was measured is met, between the points nothing jumps, and beyond them nothing
gains.
"""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.whatif.simulator.surfaces import Measured, Surface
from tests.whatif.simulator.worlds import DEVICES, SPEEDS, surfaces

NET, RING = surfaces()["net"], surfaces()["ring"]
FALLING = Surface([Measured(1, 1, 64, 100.0), Measured(1, 2, 64, 120.0), Measured(1, 4, 64, 60.0)])
SIZES = st.integers(1, 64)


@pytest.mark.parametrize("size", SPEEDS)
def test_a_measured_point_has_its_speed(size: tuple[int, int]) -> None:
    assert NET.speed(*size, 64) == pytest.approx(SPEEDS[size])


def test_between_two_points_the_speed_is_a_straight_line_in_logarithms() -> None:
    surface = Surface([Measured(1, 1, 64, 100.0), Measured(1, 4, 64, 400.0)])
    assert surface.speed(1, 2, 64) == pytest.approx(200.0)
    curved = Surface([Measured(1, 2, 64, 100.0), Measured(1, 8, 64, 225.0)])
    assert curved.speed(1, 4, 64) == pytest.approx(sqrt(100.0 * 225.0))


def test_between_two_numbers_of_ps_too() -> None:
    surface = Surface([Measured(p, w, 64, float(p * w)) for p in (1, 4) for w in (1, 4)])
    assert surface.speed(2, 2, 64) == pytest.approx(4.0)


def test_what_rose_until_the_last_point_stays_flat_beyond_it() -> None:
    assert NET.speed(1, 64, 64) == pytest.approx(300.0)
    assert NET.speed(9, 4, 64) == pytest.approx(360.0)
    assert NET.speed(1, 4, 6400) == pytest.approx(300.0)


def test_what_fell_before_the_last_point_falls_on() -> None:
    assert FALLING.speed(1, 8, 64) == pytest.approx(30.0)


def test_below_the_first_point_speed_is_in_proportion() -> None:
    surface = Surface([Measured(2, 4, 64, 100.0)])
    assert surface.speed(2, 2, 64) == pytest.approx(50.0)
    assert surface.speed(1, 4, 64) == pytest.approx(50.0)
    assert surface.speed(2, 4, 16) == pytest.approx(25.0)


@given(SIZES, SIZES, st.integers(1, 4096))
def test_nothing_is_ever_faster_than_the_fastest_that_was_measured(
    ps: int, workers: int, batch: int
) -> None:
    assert 0 < NET.speed(ps, workers, batch) <= max(SPEEDS.values()) * (1 + 1e-9)
    assert 0 < FALLING.speed(ps, workers, batch) <= 120.0 * (1 + 1e-9)


def test_devices_without_ps_are_another_surface() -> None:
    assert [RING.speed(0, k, 64) for k in DEVICES] == pytest.approx(list(DEVICES.values()))
    assert RING.speed(0, 2, 64 * sqrt(2)) == pytest.approx(95.0 * sqrt(1.5))
    assert RING.speed(1, 2, 64) == 0.0 and NET.speed(0, 2, 64) == 0.0


def test_without_workers_there_is_no_speed() -> None:
    assert NET.speed(1, 0, 64) == 0.0 and Surface([]).speed(1, 1, 1) == 0.0


def test_a_point_that_was_measured_twice_counts_with_its_mean() -> None:
    assert Surface([Measured(1, 1, 64, 90.0), Measured(1, 1, 64, 160.0)]).speed(
        1, 1, 64
    ) == pytest.approx(120.0)
