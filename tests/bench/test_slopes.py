"""Tests of the slope: which series are flat, and which show a leak."""

from __future__ import annotations

import random

from tests.bench import slopes


def test_noise_and_a_filling_cache_have_no_slope() -> None:
    chance = random.Random(0)
    noisy = [100 + chance.gauss(0, 5) for _ in range(60)]
    filling = [min(100.0, 40 + 6 * n) for n in range(60)]
    assert slopes.is_flat(noisy, allowance=1) and slopes.is_flat(filling, allowance=1)


def test_a_leak_is_detected_despite_noise_and_an_outlier() -> None:
    chance = random.Random(0)
    leak = [100 + n + chance.gauss(0, 5) for n in range(60)]
    leak[30] = 0.0
    assert not slopes.is_flat(leak, allowance=1)
    assert 50 < slopes.growth(leak) < 70


def test_one_descriptor_per_hand_over_is_a_leak_and_one_in_total_is_not() -> None:
    assert not slopes.is_flat([20.0 + n for n in range(30)], allowance=4)
    assert slopes.is_flat([20.0] * 15 + [21.0] * 15, allowance=4)


def test_a_shrinking_or_unmeasured_series_has_no_slope() -> None:
    assert slopes.is_flat([10.0, 5.0, 1.0], allowance=0) and slopes.is_flat([], allowance=0)
    assert slopes.slope([1.0]) == 0.0
