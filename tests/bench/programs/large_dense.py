"""Two square dense layers, 100 million parameters, with Adam. GENERATED data.

Reading a call's examples takes READ_S, so a job of this program leaves its cores idle most of the
time: another generation then prepares on idle cores.
"""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

WIDTH, INPUTS, READ_S = 10_000, 4, 8.0


def model() -> Any:
    layers = [keras.layers.Dense(WIDTH), keras.layers.Dense(WIDTH), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((INPUTS,)), *layers])


def optimizer() -> Any:
    return keras.optimizers.Adam(1e-4)


def loss(labels: Any, outputs: Any) -> Any:
    return keras.losses.mean_squared_error(labels, outputs)


def examples() -> int:
    return 4096


def dataset(numbers: Any) -> Any:
    time.sleep(READ_S)
    inputs = np.ones((len(numbers), INPUTS), "float32")
    return tf.data.Dataset.from_tensor_slices((inputs, inputs[:, :1]))


def whole() -> Any:
    return dataset(np.arange(examples())).repeat()
