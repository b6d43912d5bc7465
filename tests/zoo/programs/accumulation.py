"""Gradient accumulation: eight batches of eight examples make one update.

What it shows: an update is that of a batch of 64, although only eight examples fit on a device. At
this rate and momentum, updates of single batches do not converge.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

PASSES = 8

_digits = load_digits()
_order = np.random.default_rng(0).permutation(len(_digits.target))
_images = (_digits.data[_order] / 16.0).astype("float32")
_labels = _digits.target[_order].astype("int64")
_TRAINED_ON = len(_labels) * 4 // 5


def model():
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)]
    )


def optimizer(*, feature=True):
    return keras.optimizers.SGD(
        0.3, momentum=0.9, gradient_accumulation_steps=PASSES if feature else None
    )


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return _TRAINED_ON


def dataset(start, stop):
    return tf.data.Dataset.from_tensor_slices((_images[start:stop], _labels[start:stop]))


def evaluation():
    return dataset(_TRAINED_ON, len(_labels))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
