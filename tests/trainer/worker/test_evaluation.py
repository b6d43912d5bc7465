"""Evaluation: what is measured, and what cannot be told."""

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
    """One whose model doubles its input, and whose loss is given."""
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
