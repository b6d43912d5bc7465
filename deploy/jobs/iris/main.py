"""The kind of an iris from the size of its leaves: a program of several files, with parameters.

All of this folder is uploaded. `table.py` is imported from it, and reads `iris.csv` beside it. The
arguments of the functions are the `params:` of `iris.yaml`.
"""

import keras
import tensorflow as tf
from table import read_table

_inputs, _kinds = read_table("iris.csv")
_TRAINED_ON = 120


def model(width=16, dropout=0.0):
    return keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(3),
        ]
    )


def optimizer(learning_rate=0.01):
    return keras.optimizers.Adam(learning_rate)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return _TRAINED_ON


def dataset(start, stop):
    return tf.data.Dataset.from_tensor_slices((_inputs[start:stop], _kinds[start:stop]))


def evaluation():
    return tf.data.Dataset.from_tensor_slices((_inputs[_TRAINED_ON:], _kinds[_TRAINED_ON:]))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
