"""Tests that numbered examples are read from few ranges that fit in memory, in the right order."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.example_source import RangeSource, covering_ranges
from services.trainer.worker.shard_ledger import Shard

EXAMPLES = 9_000


@given(st.sets(st.integers(0, 500), min_size=1), st.integers(0, 100), st.integers(1, 600))
def test_ranges_hold_all_numbers_and_fit_in_memory(
    chosen: set[int], gap: int, longest: int
) -> None:
    ranges = covering_ranges(np.array(sorted(chosen)), gap, longest)
    held = [number for start, stop in ranges for number in range(start, stop)]

    assert chosen <= set(held) and len(held) == len(set(held))
    assert all(stop - start <= longest for start, stop in ranges)
    if longest > 500:
        assert all(later[0] - earlier[1] > gap for earlier, later in pairwise(ranges))


def test_a_program_that_reads_quickly_is_called_seldom() -> None:
    calls: list[tuple[int, int]] = []

    def dataset(start: int, stop: int) -> tf.data.Dataset:
        calls.append((start, stop))
        numbers = np.arange(start, stop)
        return tf.data.Dataset.from_tensor_slices((numbers, -numbers))

    program = ModuleType("ranges")
    program.__file__ = "ranges.py"
    program.dataset = dataset  # type: ignore[attr-defined]
    program.loss = lambda labels, outputs: outputs  # type: ignore[attr-defined]
    source, order = RangeSource(program), ExampleOrder(EXAMPLES, 3, 2)
    source.dataset(order, (Shard(0, 2_000),))
    calls.clear()

    made = source.dataset(order, (Shard(2_000, 4_000), Shard(4_100, 6_000)))

    found = [(int(number), int(label)) for number, label in made]
    expected = [*order.numbers(2_000, 4_000), *order.numbers(4_100, 6_000)]
    assert found == [(number, -number) for number in expected]
    assert len(calls) < 50, "each block of two would be a call"
