"""Tests of the staleness of gradients, as it is counted on the ps and reported."""

from __future__ import annotations

import pytest
import tensorflow as tf

from services.trainer.worker import staleness
from services.trainer.worker.staleness import LARGEST, NO_GRADIENTS
from shared.messages import Staleness


def test_gradients_are_counted_by_the_updates_since_they_were_begun() -> None:
    histogram = staleness.new_histogram()
    count = tf.function(lambda step, begun: staleness.count_gradient(histogram, step, begun))
    for step, begun in [(7, 7), (9, 7), (9, 7), (5_000, 0)]:
        count(tf.constant(step, tf.int64), tf.constant(begun, tf.int64))

    counts = staleness.read_histogram(histogram)

    assert (counts[0], counts[2], counts[LARGEST], sum(counts)) == (1, 2, 1, 4)


@pytest.mark.parametrize(
    ("before", "now", "described"),
    [
        ({}, {}, None),
        ({3: 5}, {3: 5}, None),
        ({}, {0: 4}, Staleness(mean=0.0, p99=0, largest=0)),
        ({}, {1: 99, 40: 1}, Staleness(mean=1.39, p99=1, largest=40)),
        ({}, {1: 98, 40: 2}, Staleness(mean=1.78, p99=40, largest=40)),
        ({1: 50}, {1: 51, 2: 1}, Staleness(mean=1.5, p99=2, largest=2)),
    ],
)
def test_only_gradients_since_the_last_report_count(
    before: dict[int, int], now: dict[int, int], described: Staleness | None
) -> None:
    def counts(found: dict[int, int]) -> list[int]:
        return [found.get(place, 0) for place in range(len(NO_GRADIENTS))]

    assert staleness.describe(counts(before), counts(now)) == described
