# mypy: ignore-errors
# A program as people write it: without types.
"""A model of one weight, so that a step consists almost only of scheduling."""

import keras
import numpy as np
import tensorflow as tf

EXAMPLES = 1_000_000


def model():
    return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])


def optimizer():
    return keras.optimizers.SGD(1e-6)


def loss(labels, outputs):
    return labels - outputs


def examples():
    return EXAMPLES


def dataset(numbers):
    ones = np.ones((len(numbers), 1), "float32")
    return tf.data.Dataset.from_tensor_slices((ones, ones))
