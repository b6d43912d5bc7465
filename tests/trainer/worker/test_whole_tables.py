"""Tests of large tables that stay whole, because the program uses them as a whole."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.worker import table_division
from services.trainer.worker.training_step import model_without_rows

ROWS, WIDTH = 50, 4


class Program(ModuleType):
    """A program with two tables, whose training is given."""

    def __init__(self, **functions: Any) -> None:
        super().__init__("program")
        vars(self).update(model=two_tables, optimizer=keras.optimizers.Adagrad, dataset=dataset)
        vars(self).update(functions)


def examples() -> int:
    return 8


def dataset(numbers: Any) -> Any:
    ids = np.asarray(numbers) % ROWS
    return tf.data.Dataset.from_tensor_slices((ids.astype("int32"), ids.astype("float32")))


def two_tables() -> Any:
    ids = keras.Input((), dtype="int32")
    found = [keras.layers.Embedding(ROWS, WIDTH, name=name)(ids) for name in ("first", "second")]
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Add()(found)))


class Tied(keras.Model):  # type: ignore[misc]
    """The first table is also the kernel of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Embedding(ROWS, WIDTH)
        self.second = keras.layers.Embedding(ROWS, WIDTH)

    def call(self, ids: Any) -> Any:
        found = self.first(ids) + self.second(ids)
        return tf.matmul(found, self.first.embeddings, transpose_b=True)


def loss(labels: Any, outputs: Any) -> Any:
    return keras.losses.mean_squared_error(labels[:, None], outputs)


def step_with(penalty: Callable[[Any], Any]) -> Callable[..., dict[str, Any]]:
    """Return a train_step that adds a penalty on its model to the loss."""

    def train_step(model: Any, optimizer: Any, batch: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(batch[1], model(batch[0])))
            value += penalty(model)
        found = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        return {"loss": value}

    return train_step


def norm_of_first(model: Any) -> Any:
    return tf.norm(tf.convert_to_tensor(model.get_layer("first").embeddings))


def no_penalty(model: Any) -> Any:
    return 0.0


@pytest.fixture(autouse=True)
def divide_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_division, "DIVIDED_BYTES", ROWS * WIDTH * 4)


@pytest.mark.parametrize(
    ("functions", "whole"),
    [
        ({"loss": loss}, set()),
        ({"loss": loss, "model": Tied}, {0}),
        ({"train_step": step_with(no_penalty)}, set()),
        ({"train_step": step_with(norm_of_first)}, {0}),
        ({"loss": loss, "optimizer": keras.optimizers.Lamb}, {0, 1}),
    ],
    ids=["lookups", "tied", "step", "step-with-norm", "lamb"],
)
def test_a_table_that_is_used_as_a_whole_stays_whole(
    functions: dict[str, Any], whole: set[int]
) -> None:
    program = Program(examples=examples, **functions)
    assert model_without_rows(program, [])[1] == whole
