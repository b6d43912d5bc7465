"""A training program that learns so slowly that its gradients, and their noise, stay as they are.

With the weights 0 the gradient of an example x is -2 y x, and y is the sum of x. Over all examples,
the noise scale is 10.3.
"""

import keras
import numpy as np
import tensorflow as tf

EXAMPLES = 4000
_inputs = np.random.default_rng(0).normal(size=(EXAMPLES, 8)).astype("float32")
_labels = _inputs.sum(axis=1, keepdims=True)


def model():
    layers = keras.layers
    return keras.Sequential([layers.Input((8,)), layers.Dense(1, kernel_initializer="zeros")])


def optimizer():
    return keras.optimizers.SGD(1e-9)


def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def examples():
    return EXAMPLES


def dataset(numbers):
    return tf.data.Dataset.from_tensor_slices((_inputs[numbers], _labels[numbers]))
