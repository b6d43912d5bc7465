"""A tabular regression: how far a patient's diabetes has gone one year on, from ten measurements at
its beginning.

442 real patients, from the table that scikit-learn ships (Efron, Hastie, Johnstone and Tibshirani,
"Least Angle Regression", 2004). Four fifths are trained on, in an order shuffled once with a fixed
seed; the rest is the evaluation.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_diabetes

_table = load_diabetes(scaled=False)
_order = np.random.default_rng(0).permutation(len(_table.target))
_TRAINED_ON = len(_order) * 4 // 5
_columns, _targets = _table.data[_order], _table.target[_order]
_seen = slice(
    0, _TRAINED_ON
)  # mean and spread are those of what is trained on: the rest must not be known


def _scaled(values):
    return ((values - values[_seen].mean(axis=0)) / values[_seen].std(axis=0)).astype("float32")


_inputs, _labels = _scaled(_columns), _scaled(_targets)[:, None]


def model():
    return keras.Sequential(
        [
            keras.layers.Input((_inputs.shape[1],)),
            keras.layers.Dense(
                32, activation="relu", kernel_regularizer=keras.regularizers.L2(0.03)
            ),
            keras.layers.Dense(
                16, activation="relu", kernel_regularizer=keras.regularizers.L2(0.03)
            ),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(1e-3)


def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def examples():
    return _TRAINED_ON


def dataset(start, stop):
    return tf.data.Dataset.from_tensor_slices((_inputs[start:stop], _labels[start:stop]))


def evaluation():
    return tf.data.Dataset.from_tensor_slices((_inputs[_TRAINED_ON:], _labels[_TRAINED_ON:]))


def metrics():
    """The share of the variance that is explained, and the mean error in units of the spread of
    what is trained on.
    """
    return [keras.metrics.R2Score(name="r2"), keras.metrics.MeanAbsoluteError(name="error")]
