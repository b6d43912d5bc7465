"""Half precision: scikit-learn's digits with `mixed_float16` and a scaled loss.

What it shows: the loss is multiplied before gradients are computed, and gradients are divided
before they are applied. The loss is as small as that of one pixel of a large picture: without
scaling, its gradients are too small for 16 bits, and nothing is learned.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

PIXELS = 10_000_000

keras.config.set_dtype_policy("mixed_float16")
_digits = load_digits()
_order = np.random.default_rng(0).permutation(len(_digits.target))
_images = (_digits.data[_order] / 16.0).astype("float32")
_labels = _digits.target[_order].astype("int64")
_TRAINED_ON = len(_labels) * 4 // 5


def model():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((64,)),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
            layers.Activation("linear", dtype="float32"),
        ]
    )


def optimizer(*, feature=True):
    adam = keras.optimizers.Adam(3e-3, epsilon=1e-12)
    if feature:
        return keras.optimizers.LossScaleOptimizer(adam)
    return keras.optimizers.LossScaleOptimizer(adam, initial_scale=1.0, dynamic_growth_steps=10**9)


def loss(labels, outputs):
    nats = keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    return nats / PIXELS


def examples():
    return _TRAINED_ON


def dataset(start, stop):
    return tf.data.Dataset.from_tensor_slices((_images[start:stop], _labels[start:stop]))


def evaluation():
    return dataset(_TRAINED_ON, len(_labels))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
