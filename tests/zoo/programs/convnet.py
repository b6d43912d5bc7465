"""A convolutional net of ten layers on scikit-learn's digits, with batch normalisation and dropout.

What it shows: statistics of batches are collected in training and used in the evaluation, where
dropout is off. Without normalisation, a net of this depth does not learn at this rate. The rate
falls to zero, so that the result depends little on the last batches.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

DEPTH, CHANNELS, STEPS = 9, 16, 540

_digits = load_digits()
_order = np.random.default_rng(0).permutation(len(_digits.target))
_images = (_digits.images[_order] / 16.0).astype("float32")[..., None]
_labels = _digits.target[_order].astype("int64")
_TRAINED_ON = len(_labels) * 4 // 5


def model(*, feature=True):
    layers = keras.layers
    net = keras.Sequential([layers.Input((8, 8, 1))])
    for _ in range(DEPTH):
        net.add(layers.Conv2D(CHANNELS, 3, padding="same", use_bias=not feature))
        if feature:
            net.add(layers.BatchNormalization(momentum=0.9))
        net.add(layers.Activation("relu"))
    net.add(layers.GlobalAveragePooling2D())
    if feature:
        net.add(layers.Dropout(0.1))
    net.add(layers.Dense(10))
    return net


def optimizer():
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, STEPS))


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return _TRAINED_ON


def dataset(start, stop):
    return tf.data.Dataset.from_tensor_slices((_images[start:stop], _labels[start:stop]))


def evaluation():
    return dataset(_TRAINED_ON, len(_labels))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
