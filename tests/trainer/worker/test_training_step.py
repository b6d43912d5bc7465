"""Tests of building a model: what a program may return, and the errors for anything else.

A traced update is counted after the update of every weight, with any optimizer. `test_training`
tests how a program trains.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker import program_data, training_step
from services.trainer.worker.input_pipeline import Pipeline
from services.trainer.worker.part_step import record_states
from services.trainer.worker.ps_memory import PS_GIB, PsTooSmall


def program(**functions: Any) -> Any:
    whole = {
        "model": lambda: keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)]),
        "optimizer": lambda: keras.optimizers.SGD(),
        "loss": keras.losses.mean_squared_error,
    }
    return SimpleNamespace(**{**whole, **functions})


def rows_model() -> Any:
    """Return a model with a table of 24.4 MiB."""
    ids = keras.Input((), dtype="int32")
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Embedding(100_000, 64)(ids)))


def test_a_model_that_a_ps_cannot_hold_is_not_built() -> None:
    """With the slots of Adagrad, each of two ps has 24.4 MiB of the table."""
    made = program(model=rows_model, optimizer=lambda: keras.optimizers.Adagrad(0.1))
    with pytest.raises(PsTooSmall, match=r"the fullest of 2 ps needs 0\.32 GiB"):
        training_step.build_model(
            made, tf.distribute.get_strategy(), 2, ps_gib=(PS_GIB + 0.02, PS_GIB + 1)
        )


def test_a_model_with_a_large_embedding_that_is_returned_twice_is_refused() -> None:
    made = program(model=cache(rows_model), optimizer=lambda: keras.optimizers.Adagrad(0.1))
    with pytest.raises(BadProgram, match=r"uses the large embedding .* make its layer in model"):
        training_step.build_model(made, tf.distribute.get_strategy(), 2)


@pytest.mark.parametrize("made", [None, "a model", keras.layers.Dense(1)])
def test_a_value_that_is_no_model_is_an_error(made: Any) -> None:
    with pytest.raises(BadProgram, match=r"model\(\) returned .*; a keras Model is needed"):
        training_step.build_model(program(model=lambda: made), tf.distribute.get_strategy(), 1)


def test_a_value_that_is_no_optimizer_is_an_error() -> None:
    with pytest.raises(BadProgram, match=r"optimizer\(\) returned .*; a keras Optimizer is needed"):
        training_step.build_model(
            program(optimizer=lambda: "adam"), tf.distribute.get_strategy(), 1
        )


READS = ("ReadVariableOp", "VarIsInitializedOp", "VariableShape")


def program_test_step(optimizer: Callable[[], Any]) -> Any:
    def dataset(start: int, stop: int) -> tf.data.Dataset:
        examples = [[float(n)] for n in range(start, stop)]
        return tf.data.Dataset.from_tensor_slices((examples, examples))

    return SimpleNamespace(
        model=lambda: keras.Sequential(
            [
                keras.layers.Input((1,)),
                keras.layers.Dense(2, activation="relu"),
                keras.layers.Dense(1),
            ]
        ),
        optimizer=optimizer,
        loss=lambda labels, outputs: tf.reduce_mean(tf.square(labels - outputs)),
        dataset=dataset,
    )


def writes(graph: Any, handle: Any) -> set[Any]:
    """Return the operations of a graph that may change a variable."""
    captured = next(inner for outer, inner in graph.captures if outer is handle)
    return {op for op in captured.consumers() if op.type not in READS}


def preceding(op: Any) -> set[Any]:
    """Return the operations that TensorFlow runs before this one, by data or control edges."""
    found, open_ends = set[Any](), [op]
    while open_ends:
        here = open_ends.pop()
        before = {*(tensor.op for tensor in here.inputs), *here.control_inputs}
        open_ends += before - found
        found |= before
    return found


@pytest.mark.parametrize(
    "optimizer", [keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.Adagrad]
)
def test_an_update_is_counted_after_every_weight_is_updated(
    optimizer: Callable[[], Any],
) -> None:
    """Operations without an edge between them run in any order: failed updates could be counted."""
    strategy = tf.distribute.get_strategy()
    made = program_test_step(optimizer)
    built = training_step.build_model(made, strategy, 1)
    pipeline = Pipeline(program_data.element_spec(made, built.model))
    graph = training_step.trace_step(made, strategy, built, pipeline).get_concrete_function().graph

    counts = writes(graph, built.counters.applied.handle) | writes(
        graph, built.counters.step.handle
    )
    assert len(counts) == 2
    for count in counts:
        before = preceding(count)
        for weight in built.model.trainable_variables:
            assert writes(graph, weight.value.handle) & before, (
                f"counted before {weight.path} is updated"
            )


class Raw(keras.layers.Layer):
    """Reads its weight through its resource, which a copy of the value does not have."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs: Any) -> Any:
        handle = self.scale.value.handle
        return inputs * tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)


class RawState(Raw):
    """A layer that uses the resource of a state."""

    def build(self, _shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones", trainable=False, name="scale")


@pytest.mark.parametrize(
    ("layer", "tried"),
    [
        (None, ["weights and states"]),
        (RawState, ["weights and states", "weights"]),
        (Raw, ["weights and states", "weights", "none"]),
    ],
)
def test_variables_are_read_packed_unless_a_layer_uses_their_resource(
    layer: type[keras.layers.Layer] | None, tried: list[str]
) -> None:
    made = program_test_step(lambda: keras.optimizers.SGD())
    parts = [keras.layers.Input((1,)), keras.layers.Dense(1), keras.layers.BatchNormalization()]
    made.model = lambda: keras.Sequential([*parts, layer()] if layer else parts)
    built = training_step.build_model(made, tf.distribute.get_strategy(), 1)
    found: list[str] = []

    def trace(model: training_step.BuiltModel) -> Any:
        found.append(model.packed_reads)
        batch = (tf.ones([2, 1]), tf.ones([2, 1]))

        def step() -> None:
            with record_states(model, tf.constant(0, tf.int64)):
                training_step.loss_and_gradients(made, model, batch, None)

        return tf.function(step).get_concrete_function()

    training_step.trace_with_packed_reads(built._replace(packed_reads="weights and states"), trace)

    assert found == tried
    assert all(isinstance(variable.value, tf.Variable) for variable in built.variables)
