"""A training program whose applied gradients count how often each example is applied.

A step takes long now and then, so that other workers make several updates meanwhile. The counts are
weights whose gradient is -1 for each example, with a learning rate of 1. COUNTING_PACE: as in
`counting.py`.
"""

import math
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

EXAMPLES = 250
SLOW_SHARE, SLOW_PRODUCTS = 0.2, 2_000
_inputs = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype("float32")
_pace = os.environ.get("COUNTING_PACE")


@tf.custom_gradient
def count_gradients(counts, numbers, features):
    def gradients(upstream):
        ones = -tf.ones_like(numbers, counts.dtype)
        return tf.math.unsorted_segment_sum(ones, numbers, EXAMPLES), None, upstream

    return tf.identity(features), gradients


def slow(features):
    """Return zero after many products of matrices."""
    matrix = tf.eye(64) * (1.0 + 0.0 * tf.reduce_sum(features))
    _, product = tf.while_loop(
        lambda at, _: at < SLOW_PRODUCTS,
        lambda at, made: (at + 1, made @ matrix),
        (0, matrix),
    )
    return 0.0 * tf.reduce_sum(product)


class Counting(keras.layers.Layer):
    def build(self, shapes):
        self.counts = self.add_weight(shape=(EXAMPLES,), initializer="zeros", name="counts")

    def call(self, inputs, training=False):
        numbers, features = inputs
        if training:
            is_slow = tf.random.uniform([]) < SLOW_SHARE
            features += tf.stop_gradient(tf.cond(is_slow, lambda: slow(features), lambda: 0.0))
        return count_gradients(tf.convert_to_tensor(self.counts), numbers, features)


def model():
    numbers = keras.layers.Input((), dtype="int64")
    features = keras.layers.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh")(Counting()([numbers, features]))
    return keras.Model([numbers, features], keras.layers.Dense(1)(hidden))


def optimizer():
    return keras.optimizers.SGD(1.0)


def loss(labels, outputs):
    return 1e-3 * keras.losses.mean_squared_error(labels, outputs)


def examples():
    return EXAMPLES


def dataset(numbers):
    if _pace and len(numbers) > 1:
        time.sleep(float(Path(_pace).read_text()) * math.ceil(len(numbers) / 16))
    features = _inputs[numbers]
    labels = features.sum(axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices(((numbers, features), labels))
