"""A variational auto-encoder of scikit-learn's digits: slow, like FlowCon's first job."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

PIXELS, HIDDEN, CODE = 64, 768, 8
_images = (load_digits().data / 16.0).astype("float32")


class Sampled(keras.layers.Layer):  # type: ignore[misc]
    """Draw a code from the distribution with this mean and spread."""

    def call(self, inputs: Any) -> Any:
        mean, spread = tf.split(inputs, 2, axis=-1)
        return mean + tf.exp(spread / 2) * tf.random.normal(tf.shape(mean))


def model() -> Any:
    pixels = keras.layers.Input((PIXELS,))
    hidden = keras.layers.Dense(HIDDEN, activation="relu")(pixels)
    hidden = keras.layers.Dense(HIDDEN, activation="relu")(hidden)
    code = keras.layers.Dense(2 * CODE)(hidden)
    back = keras.layers.Dense(HIDDEN, activation="relu")(Sampled()(code))
    back = keras.layers.Dense(HIDDEN, activation="relu")(back)
    drawn = keras.layers.Dense(PIXELS)(back)
    return keras.Model(pixels, keras.layers.Concatenate()([drawn, code]))


def optimizer() -> Any:
    return keras.optimizers.Adam(1e-4)


def loss(labels: Any, outputs: Any) -> Any:
    """Return the negative evidence lower bound by example.

    It is the reconstruction error plus the divergence of the codes from the normal distribution.
    """
    drawn, mean, spread = tf.split(outputs, [PIXELS, CODE, CODE], axis=-1)
    lost = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=drawn)
    far = (tf.exp(spread) + mean**2 - 1.0 - spread) / 2
    return tf.reduce_sum(lost, axis=-1) + tf.reduce_sum(far, axis=-1)


def examples() -> int:
    return len(_images)


def dataset(start: int, stop: int) -> Any:
    return tf.data.Dataset.from_tensor_slices((_images[start:stop], _images[start:stop]))
