"""A classifier of the 569 breast cancer records of scikit-learn.

With smoothed labels, its loss is flat after seconds.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_breast_cancer

HIDDEN = 768
_records = load_breast_cancer()
_order = np.random.default_rng(0).permutation(len(_records.target))
_features = _records.data[_order]
_features = ((_features - _features.mean(axis=0)) / _features.std(axis=0)).astype("float32")
_labels = _records.target[_order].astype("float32")[:, None]


def model() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((_features.shape[1],)),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(1),
        ]
    )


def optimizer() -> Any:
    return keras.optimizers.SGD(0.1)


def loss(labels: Any, outputs: Any) -> Any:
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True, label_smoothing=0.1)


def examples() -> int:
    return len(_labels)


def dataset(start: int, stop: int) -> Any:
    return tf.data.Dataset.from_tensor_slices((_features[start:stop], _labels[start:stop]))
