"""A model of ten million parameters, most of them in embedding tables; examples are generated."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

TABLES, ROWS, WIDTH = 4, 78_000, 32
EXAMPLES = 2_000_000


def model() -> Any:
    ids = keras.layers.Input((TABLES,), dtype="int32")
    columns = [keras.layers.Embedding(ROWS, WIDTH)(ids[:, n]) for n in range(TABLES)]
    hidden = keras.layers.Dense(128, activation="relu")(keras.layers.Concatenate()(columns))
    return keras.Model(ids, keras.layers.Dense(1)(hidden))


def optimizer() -> Any:
    return keras.optimizers.Adagrad(0.02)


def loss(labels: Any, outputs: Any) -> Any:
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


def examples() -> int:
    return EXAMPLES


def dataset(start: int, stop: int) -> Any:
    numbers = np.arange(start, stop, dtype=np.uint64)[:, None]
    ids = (
        numbers * np.uint64(2654435761) + np.arange(TABLES, dtype=np.uint64) * np.uint64(40503)
    ) % np.uint64(ROWS)
    labels = (ids.sum(axis=1, keepdims=True) % np.uint64(2)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((ids.astype("int32"), labels))
