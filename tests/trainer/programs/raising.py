"""A training program that fails during training, on the worker."""

import keras
import tensorflow as tf


def model():
    return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(1e-3)


def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def examples():
    return 64


def dataset(start, stop):
    if start >= 32:
        raise LookupError("the second half of the library has burnt down")
    return tf.data.Dataset.from_tensor_slices(
        (tf.ones((stop - start, 1)), tf.ones((stop - start, 1)))
    )
