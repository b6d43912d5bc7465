"""A convolutional net on scikit-learn's digits: it starts last, and improves to its end."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

_digits = load_digits()
_images = (_digits.images / 16.0).astype("float32")[..., None]
_labels = _digits.target.astype("int64")


def model() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(48, 3, activation="relu", padding="same"),
            keras.layers.Conv2D(64, 3, activation="relu", padding="same"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu", padding="same"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def optimizer() -> Any:
    return keras.optimizers.Adam(6e-5)


def loss(labels: Any, outputs: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples() -> int:
    return len(_labels)


def dataset(start: int, stop: int) -> Any:
    return tf.data.Dataset.from_tensor_slices((_images[start:stop], _labels[start:stop]))
