"""Tests of the forms of a training step: how a program trains, and what is refused.

A refusal says what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker import own_step, program_data, step_loss, training_step
from services.trainer.worker.input_pipeline import Pipeline


def net() -> Any:
    return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])


def dataset(start: int, stop: int) -> tf.data.Dataset:
    ones = tf.ones((stop - start, 1))
    return tf.data.Dataset.from_tensor_slices((ones, ones))


def weighted(start: int, stop: int) -> tf.data.Dataset:
    ones = tf.ones((stop - start, 1))
    return tf.data.Dataset.from_tensor_slices((ones, ones, ones[:, 0]))


def squared(labels: Any, outputs: Any) -> Any:
    return keras.losses.mean_squared_error(labels, outputs)


def own(models: Any, optimizers: Any, batch: Any) -> dict[str, Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(squared(batch[1], models(batch[0])))
    found = models.trainable_variables
    optimizers.apply_gradients(zip(tape.gradient(loss, found), found, strict=True))
    return {"loss": loss}


def program(**functions: Any) -> Any:
    whole = {"__file__": __file__, "model": net, "optimizer": keras.optimizers.SGD}
    return SimpleNamespace(**{**whole, "dataset": dataset, **functions})


def built(asked: Any) -> training_step.BuiltModel:
    return training_step.build_model(asked, tf.distribute.get_strategy(), 1)


def traced(asked: Any) -> Any:
    strategy = tf.distribute.get_strategy()
    pipeline = Pipeline(program_data.element_spec(asked))
    made = training_step.trace_step(asked, strategy, built(asked), pipeline)
    return made.get_concrete_function()


def compiled(**fields: Any) -> Callable[[], Any]:
    def model() -> Any:
        made = net()
        made.compile(**{"optimizer": "sgd", "loss": "mse", **fields})
        return made

    return model


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def own_model() -> Any:
    made = OwnStep([keras.layers.Input((1,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


@pytest.mark.parametrize(
    ("functions", "kind"),
    [
        ({"loss": squared}, "loss"),
        ({"loss": squared, "model": compiled()}, "loss"),
        ({"model": compiled()}, "compiled"),
        ({"model": own_model}, "model"),
        ({"loss": squared, "train_step": own}, "program"),
    ],
)
def test_a_program_trains_by_its_own_step_or_its_loss_or_its_model(
    functions: dict[str, Any], kind: str
) -> None:
    assert own_step.training_kind(program(**functions), functions.get("model", net)()) == kind


@pytest.mark.parametrize(
    ("functions", "why"),
    [
        ({}, r"there is no loss\(\), and model\(\) is not compiled: write loss"),
        (
            {"loss": squared, "model": lambda: {"a": net(), "b": net()}},
            r"model\(\) returned several models: write train_step\(models, optimizers, batch\)",
        ),
        (
            {"loss": squared, "optimizer": lambda: {"a": keras.optimizers.SGD()}},
            r"optimizer\(\) returned several optimizers: write train_step.* or return a keras",
        ),
        ({"model": compiled(run_eagerly=True)}, r"run_eagerly=True, .*: leave it out"),
        (
            {"train_step": own, "model": lambda: {"a b": net()}},
            r"model\(\) returned a dict with 'a b'; names of letters",
        ),
        ({"train_step": own, "optimizer": dict}, r"optimizer\(\) returned a dict with no name"),
        (
            {"train_step": own, "model": lambda: {"a": keras.Sequential([keras.layers.Dense(1)])}},
            r"model\(\)\['a'\] has no inputs yet: give it a keras.Input",
        ),
        (
            {
                "train_step": own,
                "optimizer": lambda: keras.optimizers.SGD(gradient_accumulation_steps=2),
            },
            r"optimizer\(\) sets gradient_accumulation_steps, .*: leave it out",
        ),
        (
            {
                "model": compiled(
                    optimizer=keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=3)
                )
            },
            r"model.compile\(\) in model\(\) sets ema_overwrite_frequency",
        ),
        (
            {"train_step": lambda models, optimizers, batch: None},
            r"train_step\(\) returned .*NoneType.*; a dict of numbers is needed",
        ),
        (
            {"train_step": lambda models, optimizers, batch: {"loss": batch[0]}},
            r"train_step\(\) returned 'loss' of the shape \(None, 1\); one number is needed",
        ),
    ],
)
def test_what_cannot_train_is_refused_when_it_is_built(functions: dict[str, Any], why: str) -> None:
    with pytest.raises(BadProgram, match=why):
        built(program(**functions))


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (
            lambda labels, outputs: tf.reduce_mean(squared(labels, outputs)),
            r"loss\(\) returns one number for a batch whose examples have weights: return the loss",
        ),
        (
            lambda labels, outputs: tf.tile(labels - outputs, [1, 3]),
            r"loss\(\) returns the shape \(None, 3\) and the weights have \(None,\): return",
        ),
    ],
)
def test_weights_that_do_not_fit_the_loss_are_refused(loss: Any, why: str) -> None:
    with pytest.raises(BadProgram, match=why):
        traced(program(loss=loss, dataset=weighted))


@pytest.mark.parametrize(
    ("functions", "why"),
    [
        ({"train_step": own}, "a train_step of the program's own makes a whole update"),
        ({"model": own_model}, "a train_step of the program's own makes a whole update"),
        (
            {"model": compiled(loss=keras.losses.MeanSquaredError(reduction="sum"))},
            r"model\(\) is compiled with the reduction 'sum', .*leave device_batch_max out",
        ),
    ],
)
def test_a_step_that_needs_a_whole_batch_is_not_cut(functions: dict[str, Any], why: str) -> None:
    asked = program(**functions)
    made = built(asked)

    training_step.check_passes(asked, made, is_cut=False)
    with pytest.raises(BadProgram, match=why):
        training_step.check_passes(asked, made, is_cut=True)


def test_an_optimizer_has_slots_only_for_what_it_trains() -> None:
    def train_step(models: Any, optimizers: Any, batch: Any) -> dict[str, Any]:
        return {"first": own(models["a"], optimizers["a"], batch)["loss"]}

    made = built(
        program(
            train_step=train_step,
            model=lambda: {"a": net(), "b": net()},
            optimizer=lambda: {"a": keras.optimizers.Adam(), "unused": keras.optimizers.Adam()},
        )
    )

    assert [len(each._trainable_variables) for each in made.optimizer.values()] == [2, 0]
    assert made.profile.variables == 4


def test_metrics_in_a_step_begin_anew_with_each_batch() -> None:
    metric = keras.metrics.Mean()
    metric.update_state([5.0])
    metric.reset_state()

    @tf.function
    def step(value: tf.Tensor) -> tf.Tensor:
        with step_loss.traced_batch(metric.variables):
            metric.update_state(value)
            return metric.result()

    assert [float(step(tf.constant(value))) for value in (4.0, 8.0)] == [4.0, 8.0]
    assert float(metric.result()) == 0.0
