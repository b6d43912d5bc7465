"""Tests of the store in which the parts of an update wait until all of them are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from services.trainer.worker.packing import PACKED_BYTES
from services.trainer.worker.part_exchange import Contribution, PartExchange, part_key

ALONE = PACKED_BYTES // 4 + 1
"""The number of elements of a tensor that is stored alone."""


def large(value: float) -> dict[str, list[float]]:
    return {"embedding": [value] * ALONE, "buffer": [value] * ALONE}


GRADIENTS = [
    {
        "kernel": [[1.0, 2.0]],
        "bias": [4.0],
        "average": [10.0],
        "seed": [7, 8],
        "half": [2.0],
        **large(2.0),
    },
    {
        "kernel": [[5.0, 6.0]],
        "bias": [8.0],
        "average": [20.0],
        "seed": [0, 0],
        "half": [6.0],
        **large(6.0),
    },
]
TYPES = {
    "kernel": "float32",
    "bias": "float32",
    "average": "float32",
    "seed": "int64",
    "half": "float16",
    "embedding": "float32",
    "buffer": "float32",
}
NOT_ADDED = ("average", "seed", "buffer")
"""The update takes the first part's value of these. Others of the same type are added."""
SHARES = (0.25, 0.75)


class Store:
    """A store for variables on the CPU. Contributions have no device, as in a traced part."""

    def __init__(self, with_rows: bool = False) -> None:
        self.exchange = PartExchange()
        self.with_rows = with_rows
        with tf.device("/device:CPU:0"):
            self.variables = {
                name: tf.Variable(tf.zeros_like(tf.constant(value, TYPES[name])))
                for name, value in GRADIENTS[0].items()
            }
            self.table = tf.Variable(tf.zeros([9, 2]))
        self.store = tf.function(self._store)
        self.take = tf.function(lambda update: self.exchange.take(update, parts=2))

    def _store(self, key: tf.Tensor, share: tf.Tensor, values: dict[str, Any]) -> None:
        contributions = [
            Contribution(variable, values[name], "first" if name in NOT_ADDED else "sum")
            for name, variable in self.variables.items()
        ]
        rows = tf.IndexedSlices(values["rows"], values["indices"]) if self.with_rows else None
        contributions.insert(2, Contribution(self.table, rows))
        self.exchange.store(key, contributions, share)

    def store_part(self, update: int, number: int, rows: Any = (), indices: Any = ()) -> None:
        values = {name: tf.constant(each, TYPES[name]) for name, each in GRADIENTS[number].items()}
        values["rows"] = tf.reshape(tf.constant(rows, tf.float32), [-1, 2])
        values["indices"] = tf.constant(indices, tf.int64)
        key = part_key(tf.constant(update, tf.int64), number)
        self.store(key, tf.constant(SHARES[number]), values)

    def take_update(self, update: int) -> list[Any]:
        return list(self.take(tf.constant(update, tf.int64)))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_parts_are_added_by_their_shares_or_the_first_is_taken(order: tuple[int, int]) -> None:
    store = Store()
    for number in order:
        store.store_part(5, number)

    kernel, bias, rows, average, seed, half, embedding, buffer = store.take_update(5)

    np.testing.assert_allclose(kernel, [[4.0, 5.0]])
    np.testing.assert_allclose(bias, [7.0])
    assert rows is None
    np.testing.assert_array_equal(average, [10.0])
    np.testing.assert_array_equal(seed, [7, 8])
    np.testing.assert_allclose(half, np.array([5.0], "float16"))
    assert (seed.dtype, half.dtype) == (tf.int64, tf.float16)
    np.testing.assert_allclose(embedding, [5.0] * ALONE)
    np.testing.assert_array_equal(buffer, [2.0] * ALONE)


def test_the_rows_of_all_parts_are_kept_times_the_share() -> None:
    store = Store(with_rows=True)
    store.store_part(5, 1, rows=[[4.0, 8.0]], indices=[3])
    store.store_part(5, 0, rows=[[4.0, 8.0], [1.0, 0.0]], indices=[3, 0])

    rows = store.take_update(5)[2]

    np.testing.assert_array_equal(rows.indices, [3, 0, 3])
    np.testing.assert_allclose(rows.values, [[1.0, 2.0], [0.25, 0.0], [3.0, 6.0]])
    np.testing.assert_array_equal(rows.dense_shape, [9, 2])


def test_each_update_takes_its_own_parts() -> None:
    store = Store(with_rows=True)
    for update in (5, 6):
        for number in (0, 1):
            store.store_part(update, number, rows=[[update, 0.0]], indices=[update])

    later, earlier = store.take_update(6)[2], store.take_update(5)[2]

    np.testing.assert_array_equal(later.indices, [6, 6])
    np.testing.assert_array_equal(earlier.indices, [5, 5])


def test_dropped_parts_do_not_reach_an_update_with_the_same_number() -> None:
    store = Store(with_rows=True)
    store.store_part(5, 0, rows=[[1.0, 1.0]], indices=[1])
    tf.function(store.exchange.clear)()

    for number in (0, 1):
        store.store_part(5, number, rows=[[2.0, 2.0]], indices=[2])

    np.testing.assert_array_equal(store.take_update(5)[2].indices, [2, 2])
