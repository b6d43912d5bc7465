"""A model of ten million parameters, most of them in embedding tables; examples are generated."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

TABLES, ALL_ROWS, WIDTH = 4, 312_000, 32
"""Four tables are too small to be divided among ps; two are divided."""
EXAMPLES = 2_000_000


def model(tables: int = TABLES) -> Any:
    ids = keras.layers.Input((tables,), dtype="int32")
    rows = ALL_ROWS // tables
    columns = [keras.layers.Embedding(rows, WIDTH)(ids[:, n]) for n in range(tables)]
    hidden = keras.layers.Dense(128, activation="relu")(keras.layers.Concatenate()(columns))
    return keras.Model(ids, keras.layers.Dense(1)(hidden))


def optimizer() -> Any:
    return keras.optimizers.Adagrad(0.02)


def loss(labels: Any, outputs: Any) -> Any:
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


def examples() -> int:
    return EXAMPLES


def dataset(start: int, stop: int, tables: int = TABLES, exponent: float = 0.0) -> Any:
    """`exponent`: of the Zipf law that the ids follow; 0: each row is used as often as the others."""
    numbers = np.arange(start, stop, dtype=np.uint64)[:, None]
    rows = ALL_ROWS // tables
    ids = (
        numbers * np.uint64(2654435761) + np.arange(tables, dtype=np.uint64) * np.uint64(40503)
    ) % np.uint64(rows)
    if exponent:
        ids = _zipf(ids / rows, rows, exponent)
    labels = (ids.sum(axis=1, keepdims=True) % np.uint64(2)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((ids.astype("int32"), labels))


def _zipf(uniform: Any, rows: int, exponent: float) -> Any:
    """Return ids for numbers in [0, 1): the inverse of the continuous distribution on 1 .. rows."""
    power = exponent - 1.0
    ranks = (1.0 - uniform * (1.0 - rows**-power)) ** (-1.0 / power)
    return np.minimum(ranks - 1.0, rows - 1).astype("uint64")
