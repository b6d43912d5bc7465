"""What is looked at in a program's examples, variables and step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer import inspecting

EXAMPLES = 100


def test_type_and_shape_are_of_the_digest_too() -> None:
    same = [np.zeros((1, 4), "int8"), np.zeros((1, 2, 2), "int8"), np.zeros((1, 1), "int32"), np.zeros((1, 2), "int16")]

    assert len({inspecting.digest([part], 0) for part in same}) == 4


class Looked(keras.layers.Layer):
    """Rows of a table, which are looked up where it lies."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(50, 4), name="table")

    def call(self, ids: Any) -> Any:
        return tf.gather(self.table.value, ids)


def traced(layer: Any) -> tuple[Any, Any]:
    ids = keras.Input((3,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int32)])
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(batch, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return step.get_concrete_function(), model


def test_a_table_that_is_read_whole_is_told_from_one_whose_rows_are_looked_up() -> None:
    """If the first ever fails, Keras has learnt it: then the advice, and `Rows` in the example, may go."""
    function, model = traced(keras.layers.Embedding(50, 4))

    assert inspecting.read_whole(function, model) == [model.variables[0].path]
    assert inspecting.read_whole(*traced(Looked())) == []


def test_a_variable_without_a_gradient_is_noted_and_the_others_are_applied() -> None:
    used, idle = keras.Variable(1.0, name="used"), keras.Variable(1.0, name="idle")
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build([used, idle])
    names = inspecting.noting_unlearnt(optimizer)

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply_gradients(iter([(tf.constant(1.0), used), (None, idle)]))

    assert names == [idle.path] and float(used.value) == 0.5


def test_a_loss_that_compares_each_with_each_is_noticed() -> None:
    """Labels of shape (n,) and outputs of (n, 1) are broadcast to (n, n), and nobody says a word."""
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])

    def program(loss: Callable[[Any, Any], Any], examples: int = EXAMPLES) -> Any:
        def dataset(start: int, stop: int) -> Any:
            return tf.data.Dataset.from_tensor_slices(
                (np.ones((stop - start, 2), "float32"), np.ones(stop - start, "float32"))
            )

        return SimpleNamespace(loss=loss, examples=lambda: examples, dataset=dataset)

    def squared(labels: Any, outputs: Any) -> Any:
        return (labels - outputs) ** 2

    assert inspecting.compared(program(squared), model) == ("(5,)", "(5, 1)", "(5, 5)")
    assert inspecting.compared(program(keras.losses.mean_squared_error), model) == ()
    assert inspecting.compared(program(lambda *both: tf.reduce_mean(squared(*both))), model) == ()
    assert inspecting.compared(program(squared, examples=4), model) == (), "too few to tell"
