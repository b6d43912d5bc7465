"""A small convolutional net on the handwritten digits that scikit-learn ships: 1,797 real images of
8 x 8 pixels.

Four fifths are trained on, in an order shuffled once with a fixed seed; the rest is the evaluation.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

_digits = load_digits()
_order = np.random.default_rng(0).permutation(len(_digits.target))
_images = (_digits.images[_order] / 16.0).astype("float32")[..., None]
_labels = _digits.target[_order].astype("int64")
_TRAINED_ON = len(_labels) * 4 // 5


def model():
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(64, 3, activation="relu", padding="same"),
            keras.layers.Conv2D(96, 3, activation="relu", padding="same"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(96, 3, activation="relu", padding="same"),
            keras.layers.Conv2D(96, 3, activation="relu", padding="same"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return _TRAINED_ON


def dataset(start, stop):
    return tf.data.Dataset.from_tensor_slices((_images[start:stop], _labels[start:stop]))


def evaluation():
    return tf.data.Dataset.from_tensor_slices((_images[_TRAINED_ON:], _labels[_TRAINED_ON:]))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
