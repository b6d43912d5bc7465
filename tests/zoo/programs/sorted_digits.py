"""Handwritten digits sorted by class, like an exported table: scikit-learn's 1,797 images.

What it shows: examples are numbered, and training reads them in another order than that of storage.
Without shuffling, the net knows only the last class of an epoch.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

_digits = load_digits()
_mixed = np.random.default_rng(0).permutation(len(_digits.target))
_TRAINED_ON = len(_mixed) * 4 // 5
_evaluated = _mixed[_TRAINED_ON:]
_trained = _mixed[:_TRAINED_ON]
_trained = _trained[np.argsort(_digits.target[_trained], kind="stable")]


def model():
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return _TRAINED_ON


def dataset(numbers):
    return _images(_trained[numbers])


def evaluation():
    return _images(_evaluated)


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def _images(rows):
    images = (_digits.data[rows] / 16.0).astype("float32")
    return tf.data.Dataset.from_tensor_slices((images, _digits.target[rows].astype("int64")))
