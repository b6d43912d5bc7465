"""A training program that counts on a ps how often each example is applied.

The step that computes the gradient also counts. COUNTING_PACE is a file with the time in s that a
worker waits for each 16 examples that it reads; a test may change it.
"""

import math
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

EXAMPLES = 250
_inputs = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype("float32")
_pace = os.environ.get("COUNTING_PACE")


class Counting(keras.layers.Layer):
    """Returns the features, and counts each example that it is trained on."""

    def build(self, shapes):
        self.counts = self.add_weight(
            shape=(EXAMPLES,), dtype="int64", initializer="zeros", trainable=False, name="counts"
        )

    def call(self, inputs, training=False):
        numbers, features = inputs
        if training:
            ones = tf.ones_like(numbers)
            tf.raw_ops.ResourceScatterAdd(
                resource=self.counts.value.handle, indices=numbers, updates=ones
            )
        return features


def model():
    numbers = keras.layers.Input((), dtype="int64")
    features = keras.layers.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh")(Counting()([numbers, features]))
    return keras.Model([numbers, features], keras.layers.Dense(1)(hidden))


def optimizer():
    return keras.optimizers.Adam(1e-3)


def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def examples():
    return EXAMPLES


def dataset(numbers):
    if _pace and len(numbers) > 1:
        time.sleep(float(Path(_pace).read_text()) * math.ceil(len(numbers) / 16))
    features = _inputs[numbers]
    labels = features.sum(axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices(((numbers, features), labels))
