"""Like `noisy.py`, with two divided tables. Common rows are used several times in a batch."""

import math
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES = 250, 6
ROWS, WIDTH = 4096, 1024
_chance = np.random.default_rng(0)
_ids = _chance.zipf(1.2, size=(EXAMPLES, FEATURES)).clip(max=ROWS).astype("int32") - 1
_labels = np.sin(_ids.sum(axis=1, keepdims=True)).astype("float32")
_pace = os.environ.get("COUNTING_PACE")


def model():
    layers = keras.layers
    ids = keras.Input((FEATURES,), dtype="int32")
    words = layers.Embedding(ROWS, WIDTH)(ids)
    weights = layers.Embedding(ROWS, WIDTH, embeddings_regularizer="l2")(ids[:, :1])
    hidden = layers.GlobalAveragePooling1D()(layers.Concatenate(axis=1)([words, weights]))
    hidden = layers.Dropout(0.3)(layers.Dense(16, activation="tanh")(hidden))
    return keras.Model(ids, layers.Dense(1)(hidden))


def optimizer():
    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 20, 0.9)
    return keras.optimizers.Adam(rate, global_clipnorm=1.0)


def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def examples():
    return EXAMPLES


def dataset(numbers):
    if _pace and len(numbers) > 1:
        time.sleep(float(Path(_pace).read_text()) * math.ceil(len(numbers) / 16))
    return tf.data.Dataset.from_tensor_slices((_ids[numbers], _labels[numbers]))
