"""A training program of which one part hangs or fails, if the file `hang` names it.

`import` and the name of a function hang there. `gil` is a regular expression that never ends and
lets no other thread run. `step` is an endless loop inside TensorFlow. `raise` is an error in
`evaluation`.
"""

import os
import re
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

_where = Path(os.environ["COUNTING_PACE"]).with_name("hang")


def _asked(name):
    return _where.exists() and _where.read_text() == name


def _reach(name):
    while _asked(name):
        time.sleep(0.05)


_reach("import")


def model():
    _reach("model")
    return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(1e-3)


def loss(labels, outputs):
    missed = keras.losses.mean_squared_error(labels, outputs)
    if not _asked("step") or tf.executing_eagerly():
        return missed
    (missed,) = tf.while_loop(lambda _: True, lambda m: (m + 1.0,), (missed,))
    return missed


def examples():
    return 64


def dataset(start, stop):
    if start >= 32:
        _reach("dataset")
    if _asked("gil"):
        re.match(r"(a+)+$", "a" * 64 + "b")
    ones = np.ones((stop - start, 1), "float32")
    return tf.data.Dataset.from_tensor_slices((ones, ones))


def evaluation():
    def pairs():
        yield [1.0], [1.0]
        _reach("evaluation")
        if _asked("raise"):
            raise LookupError("the exam papers are lost")

    shape = tf.TensorSpec([1])
    return tf.data.Dataset.from_generator(pairs, output_signature=(shape, shape))
