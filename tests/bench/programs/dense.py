"""Square dense layers of four million parameters each, and no table. GENERATED data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

WIDTH, INPUTS = 2000, 16
LAYER = WIDTH * WIDTH
EXAMPLES = 1_000_000


def model(layers: int) -> Any:
    inputs = keras.Input((INPUTS,))
    hidden = keras.layers.Dense(WIDTH, activation="relu")(inputs)
    for _ in range(layers):
        hidden = keras.layers.Dense(WIDTH, activation="relu")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def optimizer() -> Any:
    return keras.optimizers.SGD(1e-4)


def loss(labels: Any, outputs: Any) -> Any:
    return keras.losses.mean_squared_error(labels, outputs)


def examples() -> int:
    return EXAMPLES


def dataset(start: int, stop: int) -> Any:
    numbers = np.arange(start, stop)[:, None] * (np.arange(INPUTS) + 1)
    inputs = np.sin(numbers).astype("float32")
    return tf.data.Dataset.from_tensor_slices((inputs, inputs.sum(axis=1, keepdims=True)))
