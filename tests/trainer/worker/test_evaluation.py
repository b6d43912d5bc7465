"""Tests of evaluation: which metrics are measured, and which are left out or refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker import evaluation
from services.trainer.worker.watchdog import Watchdog

DOG = Watchdog("net.py", 60.0, 60.0)


def program_test_evaluate(loss: float) -> Any:
    """Return a program whose model doubles its input, and whose loss is `loss`."""
    weights = keras.layers.Dense(
        1, use_bias=False, kernel_initializer=keras.initializers.Constant(2.0)
    )
    return SimpleNamespace(
        model=lambda: keras.Sequential([keras.layers.Input((1,)), weights]),
        loss=lambda labels, outputs: tf.constant([loss]),
        metrics=lambda: [keras.metrics.MeanAbsoluteError(name="miss")],
        evaluation=lambda: tf.data.Dataset.from_tensor_slices(
            (np.ones((300, 1)), np.ones((300, 1)))
        ),
    )


def test_an_evaluation_has_the_mean_loss_and_the_metrics() -> None:
    asked = program_test_evaluate(loss=0.5)

    assert evaluation.evaluation_metrics(asked, asked.model(), DOG) == {"loss": 0.5, "miss": 1.0}


def test_nan_metrics_are_left_out() -> None:
    asked = program_test_evaluate(loss=float("nan"))

    assert evaluation.evaluation_metrics(asked, asked.model(), DOG) == {"miss": 1.0}


def test_a_program_without_an_evaluation_has_no_metrics() -> None:
    assert evaluation.evaluation_metrics(SimpleNamespace(), None, DOG) == {}  # type: ignore[arg-type]


def test_an_evaluation_that_is_no_dataset_is_named() -> None:
    asked = program_test_evaluate(loss=0.5)
    asked.evaluation = lambda: [1, 2]

    with pytest.raises(
        BadProgram, match=r"evaluation\(\) returned .*; a tf.data.Dataset is needed"
    ):
        evaluation.evaluation_metrics(asked, asked.model(), DOG)


def two_outputs(**functions: Any) -> Any:
    """Return a program whose model has its input as `same`, and twice that as `twice`."""
    inputs = keras.Input((1,))
    twice = keras.layers.Rescaling(2.0)(inputs)
    ones = np.ones((3, 1), "float32")
    parts = {"same": ones, "twice": np.array([[2.0], [2.0], [5.0]], "float32")}
    return SimpleNamespace(
        model=lambda: keras.Model(inputs, {"same": inputs, "twice": twice}),
        loss=lambda labels, outputs: tf.abs(labels["twice"] - outputs["twice"]),
        evaluation=lambda: tf.data.Dataset.from_tensor_slices(
            (ones, parts, np.array([1.0, 1.0, 2.0]))
        ),
        **functions,
    )


def measured(asked: Any) -> dict[str, float]:
    return evaluation.evaluation_metrics(asked, asked.model(), DOG)


def test_each_output_has_metrics_of_its_own_with_weights() -> None:
    metrics = {
        "same": keras.metrics.MeanAbsoluteError(name="miss"),
        "twice": [keras.metrics.MeanAbsoluteError(name="miss")],
    }
    found = measured(two_outputs(metrics=lambda: metrics))

    assert found == {"loss": 2.0, "same_miss": 0.0, "twice_miss": 1.5}, "3, weight 2 of 4"


def test_an_output_that_does_not_exist_is_named_with_those_that_do() -> None:
    asked = two_outputs(metrics=lambda: {"other": [keras.metrics.MeanAbsoluteError()]})

    with pytest.raises(BadProgram, match=r"names the output 'other', .* known are same, twice"):
        measured(asked)


@pytest.mark.parametrize("made", ["accuracy", ["accuracy"], {"same": ["accuracy"]}])
def test_a_name_is_no_metric(made: Any) -> None:
    with pytest.raises(BadProgram, match=r"metrics\(\) returned .* is needed"):
        measured(two_outputs(metrics=lambda: made))


def test_vectors_and_dicts_become_numbers_with_names() -> None:
    results = {"f1": np.array([0.5, np.nan, 1.0]), "by": {"class": 2.0}, "one": np.float32(3.0)}

    assert evaluation.finite_numbers(results) == {
        "f1[0]": 0.5,
        "f1[2]": 1.0,
        "by/class": 2.0,
        "one": 3.0,
    }


def test_several_models_are_measured_by_the_outputs_of_the_program() -> None:
    single = program_test_evaluate(loss=0.5)
    asked = SimpleNamespace(
        model=lambda: {"net": single.model(), "other": single.model()},
        train_step=lambda models, optimizers, batch: {},
        evaluation=single.evaluation,
        metrics=single.metrics,
    )

    with pytest.raises(BadProgram, match=r"write outputs\(models, inputs\)"):
        measured(asked)
    asked.outputs = lambda models, inputs: models["net"](inputs)
    assert measured(asked) == {"miss": 1.0}


def test_a_mean_over_a_batch_counts_as_often_as_the_batch_has_examples() -> None:
    """300 examples are a batch of 256 and one of 44."""
    asked = program_test_evaluate(loss=0.0)
    asked.loss = lambda labels, outputs: tf.cast(len(labels), tf.float32)

    assert measured(asked)["loss"] == pytest.approx((256 * 256 + 44 * 44) / 300)
