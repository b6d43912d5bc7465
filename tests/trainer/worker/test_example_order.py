"""Tests of the order of examples: a permutation for each epoch, the same after any history."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.worker import shard_ledger
from services.trainer.worker.example_order import ExampleOrder, permute, range_order
from services.trainer.worker.shard_ledger import Ledger

SEEDS = st.integers(0, 2**53)


@given(
    st.integers(1, 5_000),
    SEEDS,
    st.integers(0, 10**9),
    st.sampled_from([(1, 1), (2, 1024), (24, 384), (100, 3200), (1, 32)]),
)
def test_every_epoch_is_a_permutation(
    count: int, seed: int, epoch: int, shape: tuple[int, int]
) -> None:
    order = ExampleOrder(count, seed, *shape)
    numbers = order.numbers(epoch * count, (epoch + 1) * count)
    assert sorted(numbers.tolist()) == list(range(count))


@given(st.integers(1, 100_000), st.integers(0, 2**64 - 1), st.data())
def test_a_place_is_computed_alone(count: int, key: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=20)), np.int64)
    together = permute(places, count, key)
    assert together.tolist() == [
        int(permute(places[n : n + 1], count, key)[0]) for n in range(len(places))
    ]
    assert ((together >= 0) & (together < count)).all()


def test_two_epochs_of_ten_thousand_numbers_are_not_correlated() -> None:
    for by_range in (False, True):
        for seed in range(20):
            order = range_order(10_000, seed, 20_000) if by_range else ExampleOrder(10_000, seed)
            ranks = [np.argsort(order.numbers(e * 10_000, (e + 1) * 10_000)) for e in range(3)]
            found = np.corrcoef(np.array([*ranks, np.arange(10_000)]))
            assert np.abs(found[~np.eye(4, dtype=bool)]).max() < 0.05, order


def test_the_order_is_that_of_this_version_for_ever() -> None:
    """A job continues under a later version in the middle of an epoch."""
    assert ExampleOrder(10, 7).numbers(20, 30).tolist() == [4, 8, 5, 9, 2, 0, 3, 6, 7, 1]
    assert range_order(100_000, 0, 264).numbers(0, 2).tolist() == [34231, 98927]
    assert range_order(200_000, 0, 600).numbers(0, 2).tolist() == [45057, 66697]


@pytest.mark.parametrize("examples", [20_000, 100_000, 2_000_000])
@pytest.mark.parametrize("example_bytes", [30, 6_000, 150_000, 40_000_000])
def test_a_batch_has_examples_of_many_blocks(examples: int, example_bytes: int) -> None:
    """Neighbouring examples often have the same class."""
    order = range_order(examples, 1, example_bytes)
    for start in range(0, 8_192, 32):
        numbers = order.numbers(start, start + 32)
        assert len(set(numbers // order.block)) >= 12, start


@pytest.mark.parametrize(
    ("example_bytes", "window"), [(1, 131_072), (600, 55_904), (150_000, 192), (10**8, 32)]
)
def test_a_window_has_as_many_examples_as_fit_in_memory(example_bytes: int, window: int) -> None:
    order = range_order(1_000_000, 1, example_bytes)
    assert order.window == window
    blocks = np.unique(order.numbers(window, 2 * window) // order.block)
    assert len(blocks) == 32, "each block is needed as a whole"


@pytest.mark.parametrize(
    ("examples", "example_bytes", "block", "window"),
    [(10_000, 12_000, 2, 2_784), (4_000, 20_000, 1, 1_664), (4_000, 4, 1, 1)],
)
def test_few_examples_have_short_blocks_and_the_same_windows(
    examples: int, example_bytes: int, block: int, window: int
) -> None:
    assert range_order(examples, 1, example_bytes) == (examples, 1, block, window)


@pytest.mark.parametrize(("examples", "block"), [(1, 1), (97, 1), (1_000, 1), (3_000, 7)])
def test_the_order_is_the_same_over_random_histories(examples: int, block: int) -> None:
    """A history has batches of changing sizes, lost workers and restored checkpoints."""
    order = ExampleOrder(examples, 3, block)
    expected = np.concatenate([order.numbers(e * examples, (e + 1) * examples) for e in range(3)])
    for seed in range(20):
        assert (trained(order, 3, random.Random(seed)) == expected).all()


def trained(order: ExampleOrder, epochs: int, chance: random.Random) -> np.ndarray:
    """Return the number that was applied at each position, in a random history."""
    ledger = shard_ledger.new_ledger(order.examples, epochs)
    applied = np.full(ledger.total, -1, np.int64)
    saved: tuple[Ledger, np.ndarray] = (ledger, applied.copy())
    while not ledger.finished:
        ledger, shard = shard_ledger.take_shard(ledger, chance.randint(1, 200))
        what = chance.random()
        if what < 0.05:
            ledger, applied = saved[0], saved[1].copy()
        elif shard is not None and what < 0.2:
            ledger = shard_ledger.return_shard(ledger, shard)
        elif shard is not None:
            assert (applied[shard.start : shard.stop] == -1).all()
            applied[shard.start : shard.stop] = order.numbers(shard.start, shard.stop)
            ledger = shard_ledger.mark_applied(ledger, shard)
        if chance.random() < 0.1:
            saved = shard_ledger.settle_ledger(ledger), applied.copy()
    return applied


def test_without_a_seed_the_order_is_that_of_the_numbers() -> None:
    assert ExampleOrder(10).numbers(14, 18).tolist() == [4, 5, 6, 7]
