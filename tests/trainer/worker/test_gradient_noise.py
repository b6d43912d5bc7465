"""Tests of comparing gradients on a worker: the noise scale is that of all examples, and nothing
changes by it. `programs/noise.py` does the training.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.worker.gradient_noise import changing_operations, square_norm
from tests.trainer.script import run_script

PROGRAMS = ("line", "convnet", "half-precision", "wide-and-deep")


@pytest.mark.long
def test_the_noise_scale_is_that_of_the_gradients_of_all_examples() -> None:
    """One process trains and measures all programs, because it takes minutes."""
    told = run_script("noise.py")

    for name in PROGRAMS:
        assert told[name]["measured"] == pytest.approx(told[name]["offline"], rel=0.3), name
    assert told["changed"]["measured"]
    assert told["changed"]["by measuring"] == []
    trained = " ".join(told["changed"]["by training"])
    assert all(part in trained for part in ("seed_generator", "moving_mean", "momentum"))


def test_values_of_equal_rows_are_added_up_before_they_are_squared() -> None:
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [3.0]]), tf.constant([4, 0, 4]))
    dense = tf.constant([3.0, 4.0], tf.float16)

    assert float(square_norm([rows, None, dense])) == pytest.approx(16 + 4 + 25)


def test_the_square_of_a_gradient_of_rows_is_that_of_the_dense_gradient() -> None:
    table = tf.Variable(np.random.default_rng(0).normal(size=(20, 3)).astype("float32"))
    numbers = tf.constant([3, 1, 3, 3, 19])
    with tf.GradientTape() as tape:
        looked_up = tf.gather(table, numbers)
        total = tf.reduce_sum(looked_up * tf.cast(numbers, tf.float32)[:, None])
    gradient = tape.gradient(total, table)
    assert isinstance(gradient, tf.IndexedSlices)

    square = float(square_norm([gradient]))
    assert square == pytest.approx(float(tf.reduce_sum(tf.convert_to_tensor(gradient) ** 2)))


def graph_of(function: Any) -> Any:
    return tf.function(function, input_signature=[tf.TensorSpec([2], tf.float32)])


class Counting(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, inputs: Any) -> Any:
        self.count.value.assign_add(1.0)
        return inputs


def in_a_loop(inputs: tf.Tensor) -> tf.Tensor:
    _, result = tf.while_loop(
        lambda at, _: at < 3, lambda at, kept: (at + 1, COUNTING(kept)), (0, inputs)
    )
    return result


COUNTING = Counting()
COUNTING.build((2,))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda inputs: inputs * COUNTING.count.value, set()),
        (COUNTING, {"AssignAddVariableOp"}),
        (in_a_loop, {"AssignAddVariableOp"}),
        (lambda inputs: tf.py_function(np.sum, [inputs], tf.float32), {"EagerPyFunc"}),
        (lambda inputs: tf.numpy_function(np.sum, [inputs], tf.float32), {"PyFunc"}),
        (lambda inputs: inputs + GENERATOR.normal([2]), {"RngReadAndSkip"}),
    ],
)
def test_operations_that_may_change_something_are_found(function: Any, found: set[str]) -> None:
    graph = graph_of(function).get_concrete_function().graph

    assert changing_operations(graph) == found


GENERATOR = tf.random.Generator.from_seed(1)
