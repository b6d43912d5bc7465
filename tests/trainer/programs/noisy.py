"""A training program with random numbers, averages and a schedule, for tests of exact results.

COUNTING_PACE: as in `counting.py`.
"""

import math
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

EXAMPLES = 250
_inputs = np.random.default_rng(0).normal(size=(EXAMPLES, 8)).astype("float32")
_labels = np.sin(_inputs.sum(axis=1, keepdims=True))
_pace = os.environ.get("COUNTING_PACE")


def model():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(32),
            layers.BatchNormalization(momentum=0.9),
            layers.Activation("relu"),
            layers.Dropout(0.3),
            layers.Dense(16, activation="tanh"),
            layers.GaussianNoise(0.1),
            layers.Dense(1),
        ]
    )


def optimizer():
    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 20, 0.9)
    return keras.optimizers.Adam(rate, global_clipnorm=1.0, use_ema=True, ema_momentum=0.9)


def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def examples():
    return EXAMPLES


def dataset(numbers):
    if _pace and len(numbers) > 1:
        time.sleep(float(Path(_pace).read_text()) * math.ceil(len(numbers) / 16))
    return tf.data.Dataset.from_tensor_slices((_inputs[numbers], _labels[numbers]))
