"""Labels in an order that is no accident are found; a random order, one class, and distinct numbers
are not.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.label_order import is_ordered


@pytest.mark.parametrize(
    "labels",
    [
        [0] * 32 + [4] * 20 + [5] * 12 + [9] * 32,
        [9] * 32 + [4] * 32 + [0] * 32,
        [3] * 32 + [0] * 32 + [7] * 32,  # class after class, in no order of the classes
        [0.5 * n for n in range(96)],
    ],
    ids=["up", "down", "grouped", "numbers"],
)
def test_sorted_and_grouped_labels_are_found(labels: list[float]) -> None:
    assert is_ordered(labels)


@pytest.mark.parametrize(
    "labels",
    [
        [0] * 96,
        [0] * 95 + [1],  # a rare class that happens to be the last
        [0, 1, 1],
        [0, 1] * 48,
        [0] * 32 + [1] * 32 + [0] * 32,
        random.Random(3).sample(range(1000), 96),
    ],
    ids=["one-class", "rare", "few", "in-turn", "back", "distinct"],
)
def test_what_may_be_an_accident_is_not(labels: list[float]) -> None:
    assert not is_ordered(labels)


@given(st.lists(st.integers(0, 9), min_size=40, max_size=40), st.randoms(use_true_random=False))
def test_a_shuffled_order_is_not_taken_for_one(labels: list[int], chance: random.Random) -> None:
    chance.shuffle(labels)
    few = len(set(labels[:36])) < 3
    assert few or labels == sorted(labels) or not is_ordered(labels)
