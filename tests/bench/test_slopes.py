"""What is flat, and what leaks."""

from __future__ import annotations

import random

from tests.bench import slopes


def test_noise_and_a_cache_that_fills_are_flat() -> None:
    chance = random.Random(0)
    noisy = [100 + chance.gauss(0, 5) for _ in range(60)]
    filling = [min(100.0, 40 + 6 * n) for n in range(60)]
    assert slopes.is_flat(noisy, allowance=1) and slopes.is_flat(filling, allowance=1)


def test_a_leak_is_seen_through_noise_and_one_odd_point() -> None:
    chance = random.Random(0)
    leak = [100 + n + chance.gauss(0, 5) for n in range(60)]
    leak[30] = 0.0
    assert not slopes.is_flat(leak, allowance=1)
    assert 50 < slopes.growth(leak) < 70


def test_one_descriptor_a_hand_over_leaks_and_one_in_all_does_not() -> None:
    assert not slopes.is_flat([20.0 + n for n in range(30)], allowance=4)
    assert slopes.is_flat([20.0] * 15 + [21.0] * 15, allowance=4)


def test_what_shrinks_or_was_not_measured_is_flat() -> None:
    assert slopes.is_flat([10.0, 5.0, 1.0], allowance=0) and slopes.is_flat([], allowance=0)
    assert slopes.slope([1.0]) == 0.0
