"""A net with two outputs: the digit that an image shows, and the amount of ink.

What it shows: a model that the program compiles, with a loss and a weight for each output, labels
that are a dict, and metrics for each output. Without the first loss, only the ink is learned.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

_digits = load_digits()
_order = np.random.default_rng(0).permutation(len(_digits.target))
_images = (_digits.data[_order] / 16.0).astype("float32")
_labels = {
    "digit": _digits.target[_order].astype("int64"),
    "ink": _images.mean(axis=1, keepdims=True),
}
_TRAINED_ON = len(_images) * 4 // 5


def model(*, feature=True):
    layers = keras.layers
    image = keras.Input((64,))
    hidden = layers.Dense(64, activation="relu")(image)
    net = keras.Model(
        image,
        {
            "digit": layers.Dense(10, name="digit")(hidden),
            "ink": layers.Dense(1, name="ink")(hidden),
        },
    )
    net.compile(
        optimizer=optimizer(),
        loss={
            "digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "ink": keras.losses.MeanSquaredError(),
        },
        loss_weights={"digit": 1.0 if feature else 0.0, "ink": 5.0},
    )
    return net


def optimizer():
    return keras.optimizers.Adam(2e-3)


def examples():
    return _TRAINED_ON


def dataset(numbers):
    labels = {name: values[numbers] for name, values in _labels.items()}
    return tf.data.Dataset.from_tensor_slices((_images[numbers], labels))


def evaluation():
    return dataset(np.arange(_TRAINED_ON, len(_images)))


def metrics():
    return {
        "digit": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        "ink": [keras.metrics.MeanAbsoluteError(name="error")],
    }
