"""What a second of each job's work is worth."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.weir import pricing

SIZES = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=12)


def prices(sizes: list[float], elasticity: float, weight: float = 1.0) -> list[float]:
    found = pricing.prices(np.array(sizes), elasticity, np.full(len(sizes), weight))
    return [float(price) for price in found]


def test_a_job_alone_has_price_one():
    assert prices([7.0], 0.5) == [1.0]


@given(SIZES, st.floats(-1.0, 2.0))
def test_the_shorter_job_is_never_the_cheaper(sizes, elasticity):
    found = prices(sizes, elasticity)
    ordered = [found[n] for n in sorted(range(len(sizes)), key=lambda n: -sizes[n])]
    assert ordered == sorted(ordered)


def test_work_that_does_not_spread_is_priced_alike():
    assert max(prices([100.0, 10.0, 1.0], 0.0)) < 1.2


@given(SIZES)
def test_half_a_weight_is_as_good_as_half_a_price_where_ranks_stay(sizes):
    assert prices(sizes, 0.5, 2.0) == pytest.approx([2 * p for p in prices(sizes, 0.5)])


def flow_time(sizes, shares_of, p, cores):
    """Total completion time when cores are shared anew at each end, by event."""
    left, now, total = dict(enumerate(sizes)), 0.0, 0.0
    while left:
        speed = {
            n: (s * cores) ** p
            for n, s in zip(left, shares_of(list(left.values()), p), strict=True)
        }
        step = min(left[n] / speed[n] for n in left if speed[n] > 0)
        now += step
        left = {n: x - speed[n] * step for n, x in left.items()}
        done = [n for n, x in left.items() if x <= 1e-9 * sizes[n]]
        total += now * len(done)
        for n in done:
            left.pop(n)
    return total


def by_price(sizes, p):
    """Where price x marginal speed-up is equal: share proportional to price^(1/(1-p))."""
    parts = [x ** (1.0 / (1.0 - p)) for x in prices(sizes, p)]
    return [x / sum(parts) for x in parts]


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_the_prices_tell_the_total_time_and_no_ordering_of_shares_does_better(p):
    sizes, cores = [9.0, 5.0, 2.0, 1.0], 16.0
    best = flow_time(sizes, by_price, p, cores)
    assert best == pytest.approx(
        sum(x * price for x, price in zip(sizes, prices(sizes, p), strict=True)) / cores**p
    )
    for order in permutations(range(4)):

        def shuffled(left, p, order=order):
            shares = by_price(left, p)
            chosen = [n for n in order if n < len(left)]
            return [shares[n] for n in chosen]

        assert best <= flow_time(sizes, shuffled, p, cores) * (1 + 1e-9)
