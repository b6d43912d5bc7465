"""A table in which each example has a row: an update adds exactly 1 to the first element of it.

COUNTING_PACE is a file with the time in s that a worker waits for each 16 examples that it reads.
"""

import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, BATCH = 256, 16
ROWS, WIDTH = 4096, 1024
_pace = os.environ.get("COUNTING_PACE")


class FirstElement(keras.layers.Layer):
    def call(self, rows):
        return rows[:, :1]


def model():
    numbers = keras.Input((), dtype="int32")
    rows = keras.layers.Embedding(ROWS, WIDTH, embeddings_initializer="zeros")(numbers)
    return keras.Model(numbers, FirstElement()(rows))


def optimizer():
    return keras.optimizers.SGD(float(BATCH))


def loss(labels, outputs):
    return -outputs


def examples():
    return EXAMPLES


def dataset(numbers):
    if _pace and len(numbers) > 1:
        time.sleep(float(Path(_pace).read_text()) * len(numbers) / BATCH)
    rows = (np.asarray(numbers) * 13 % ROWS).astype("int32")
    return tf.data.Dataset.from_tensor_slices((rows, np.zeros(len(rows), "float32")))
