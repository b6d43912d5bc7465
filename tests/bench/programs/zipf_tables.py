"""Two embedding tables of any size, and ids by a Zipf law with exponent 1.1. GENERATED data.

`whole`: the tables are read as a whole, as Keras does it: a subclass with a `call` of its own is
not divided.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

TABLES, WIDTH, FEATURES = 2, 64, 8
"""FEATURES: ids of each table in an example."""
EXAMPLES, EXPONENT = 50_000_000, 1.1
OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad}


class WholeEmbedding(keras.layers.Embedding):  # type: ignore[misc]
    def call(self, inputs: Any) -> Any:
        return super().call(inputs)


def model(rows: int, whole: bool = False) -> Any:
    layers = keras.layers
    kind = WholeEmbedding if whole else layers.Embedding
    ids = [keras.Input((FEATURES,), dtype="int32") for _ in range(TABLES)]
    means = [layers.GlobalAveragePooling1D()(kind(rows, WIDTH)(each)) for each in ids]
    hidden = layers.Dense(32, activation="relu")(layers.Concatenate()(means))
    return keras.Model(ids, layers.Dense(1)(hidden))


def optimizer(kind: str = "sgd") -> Any:
    return OPTIMIZERS[kind](0.05)


def loss(labels: Any, outputs: Any) -> Any:
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


def examples(count: int = EXAMPLES) -> int:
    return count


def dataset(start: int, stop: int, rows: int) -> Any:
    numbers = np.arange(start, stop, dtype=np.uint64)
    ids = [_zipf(numbers, table, rows) for table in range(TABLES)]
    labels = (sum(each.sum(axis=1) for each in ids) % 2).astype("float32")[:, None]
    return tf.data.Dataset.from_tensor_slices((tuple(ids), labels))


def _zipf(numbers: Any, table: int, rows: int) -> Any:
    """Return ids [numbers, FEATURES]: the inverse of the continuous distribution on 1 .. rows."""
    uniform = _uniform(numbers[:, None] * np.uint64(FEATURES) + _places(), table)
    power = EXPONENT - 1.0
    ranks = (1.0 - uniform * (1.0 - rows**-power)) ** (-1.0 / power)
    return np.minimum(ranks - 1.0, rows - 1).astype("int32")


def _places() -> Any:
    return np.arange(FEATURES, dtype=np.uint64)[None, :]


def _uniform(numbers: Any, stream: int) -> Any:
    """Return a number in [0, 1) for each integer (splitmix64)."""
    with np.errstate(over="ignore"):
        x = numbers + np.uint64(stream + 1) * np.uint64(0xD1B54A32D192ED03)
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
