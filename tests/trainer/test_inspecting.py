"""What is looked at in a program's examples, variables and step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer import inspecting

EXAMPLES = 100


def test_type_and_shape_are_of_the_digest_too() -> None:
    same = [
        np.zeros((1, 4), "int8"),
        np.zeros((1, 2, 2), "int8"),
        np.zeros((1, 1), "int32"),
        np.zeros((1, 2), "int16"),
    ]

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
    """If the first ever fails, Keras has learnt it: then the advice, and `Rows` in the example, may
    go.
    """
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


def squared(labels: Any, outputs: Any) -> Any:
    return (labels - outputs) ** 2


LABELS, OUTPUTS = tf.range(8.0) / 4, tf.range(8.0)[:, None]


def test_a_loss_that_compares_each_with_each_is_noticed() -> None:
    """Labels of shape (n,) and outputs of (n, 1) are broadcast to (n, n), and nobody says a
    word.
    """
    assert inspecting.compared(squared, LABELS, OUTPUTS, 8) == (8, 8)
    assert inspecting.compared(squared, LABELS[:, None], OUTPUTS, 8) == ()
    assert inspecting.compared(keras.losses.mean_squared_error, LABELS, OUTPUTS, 8) == ()
    assert inspecting.compared(squared, tf.zeros((8, 8)), tf.zeros((8, 8)), 8) == (), (
        "they are so themselves"
    )


def test_the_mean_of_such_a_loss_is_noticed_and_no_other_mean_is() -> None:
    def mean(labels: Any, outputs: Any) -> Any:
        return tf.reduce_mean(squared(labels, outputs))

    assert inspecting.mixed(mean, LABELS, OUTPUTS) and inspecting.mixed(
        mean, LABELS[:, None], OUTPUTS[:, 0]
    )
    assert not inspecting.mixed(mean, LABELS[:, None], OUTPUTS)
    assert not inspecting.mixed(
        lambda labels, outputs: mean(labels, outputs[:, 0]), LABELS, OUTPUTS
    )
    assert not inspecting.mixed(keras.losses.mean_squared_error, LABELS, OUTPUTS)
    assert not inspecting.mixed(
        lambda labels, outputs: mean(labels[:, None], outputs), LABELS, OUTPUTS
    )


def test_the_span_of_an_output_is_told_where_it_is_one() -> None:
    assert inspecting.span(OUTPUTS) == (0.0, 7.0)
    assert inspecting.span([OUTPUTS, OUTPUTS]) is None and inspecting.span(OUTPUTS / 0.0) is None
