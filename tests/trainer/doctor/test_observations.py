"""Tests of the choice of the examples that are sampled, and of the detection of ordered labels.

Labels in an order that is not accidental are found; a random order, one class, and distinct numbers
are not.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.doctor.observations import (
    EDGE_EXAMPLES,
    is_ordered,
    sample_starts,
    sampled_examples,
)


def test_samples_are_at_the_beginning_middle_and_end() -> None:
    assert sample_starts(1000, 32) == (0, 484, 968)
    assert sample_starts(32, 32) == (0,)
    assert sampled_examples(484, 32) == (484, 485, 486, 487, 512, 513, 514, 515)


@given(st.integers(1, 10_000), st.integers(1, 600))
def test_samples_are_within_the_data(examples: int, batch: int) -> None:
    size = min(batch, examples)

    for start in sample_starts(examples, size):
        assert 0 <= start <= examples - size
        assert {*sampled_examples(start, size)} <= {*range(start, start + size)}
        assert 1 <= len(sampled_examples(start, size)) <= 2 * EDGE_EXAMPLES


@pytest.mark.parametrize(
    "labels",
    [
        [0] * 32 + [4] * 20 + [5] * 12 + [9] * 32,
        [9] * 32 + [4] * 32 + [0] * 32,
        [3] * 32 + [0] * 32 + [7] * 32,  # grouped by class, but the classes are not sorted
        [0.5 * n for n in range(96)],
    ],
    ids=["up", "down", "grouped", "numbers"],
)
def test_sorted_and_grouped_labels_are_ordered(labels: list[float]) -> None:
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
def test_short_or_accidental_runs_are_not_ordered(labels: list[float]) -> None:
    assert not is_ordered(labels)


@given(st.lists(st.integers(0, 9), min_size=40, max_size=40), st.randoms(use_true_random=False))
def test_shuffled_labels_are_not_ordered(labels: list[int], chance: random.Random) -> None:
    chance.shuffle(labels)
    few = len(set(labels[:36])) < 3
    assert few or labels == sorted(labels) or not is_ordered(labels)
