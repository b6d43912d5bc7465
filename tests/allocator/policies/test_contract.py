"""Tests of the weight of a priority: it is positive, and rises with the priority."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.contract import priority_weight

PRIORITIES = st.integers(-(2**31), 2**31 - 1)


@given(PRIORITIES, PRIORITIES)
def test_priority_weights_are_increasing_and_positive(one: int, other: int) -> None:
    low, high = sorted((one, other))

    assert (
        0 < priority_weight(low) <= priority_weight(high) < math.inf
        and 1 / priority_weight(low) < math.inf
    )
    assert low == high or priority_weight(low) < priority_weight(high)


def test_each_small_priority_step_doubles_the_weight() -> None:
    assert [priority_weight(priority) for priority in (-16, -2, 0, 1, 16)] == [
        2.0**-16,
        0.25,
        1.0,
        2.0,
        2.0**16,
    ]


def test_large_priorities_are_proportional() -> None:
    assert (
        priority_weight(17) == 2 * priority_weight(16)
        and priority_weight(-17) == priority_weight(-16) / 2
    )
    assert 1.99 < priority_weight(2_000_000) / priority_weight(1_000_000) < 2.01
