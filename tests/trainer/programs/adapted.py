"""A training program whose tables, adapted layers, generator, optimizer and a part of its model are
made when it is imported.

`dataset` and `evaluation` use them in every process, `model` in the training step. COUNTING_PACE: as
in `counting.py`.
"""

import math
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

EXAMPLES = 96
_pace = os.environ.get("COUNTING_PACE")
_words = np.array([f"word {number % 7}" for number in range(EXAMPLES)])
_labels = (np.arange(EXAMPLES) % 7 > 3).astype("float32")[:, None]
_numbers = keras.layers.TextVectorization(output_sequence_length=2)
_numbers.adapt(_words)
_spread = keras.layers.Normalization(axis=None)
_spread.adapt(_labels)
_known = keras.layers.StringLookup(vocabulary=["word 1", "word 5"])
_lengths = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(_words[:7], np.arange(7, dtype="float32")), -1.0
)
_vocabulary = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(_words[:7], np.arange(7)), num_oov_buckets=1
)
_noise = tf.random.Generator.from_seed(1)
_adam = keras.optimizers.Adam(1e-2)
_rows = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(20, 4), keras.layers.Flatten()])


def model():
    words = keras.Input((), dtype="string")
    numbers = keras.Input((2,), dtype="int64")
    rows = _rows(numbers)
    known = keras.layers.Embedding(3, 2)(_known(words))
    return keras.Model(
        [words, numbers], keras.layers.Dense(1)(keras.layers.Concatenate()([rows, known]))
    )


def optimizer():
    return _adam


def loss(labels, outputs):
    return keras.losses.mean_squared_error(_spread(labels), outputs)


def examples():
    return EXAMPLES


def _element(word, label):
    number = _lengths.lookup(word)
    tf.debugging.assert_equal(tf.cast(_vocabulary.lookup(word), tf.float32), number)
    tf.debugging.assert_greater(_numbers(word), tf.constant(1, tf.int64), "2 is the first word")
    return (word, _numbers(word)), tf.cast(number > 3.0, tf.float32) * label + 0.0 * _noise.normal(
        [1]
    )


def dataset(numbers):
    if _pace and len(numbers) > 1:
        time.sleep(float(Path(_pace).read_text()) * math.ceil(len(numbers) / 16))
    return tf.data.Dataset.from_tensor_slices((_words[numbers], _labels[numbers])).map(_element)


def evaluation():
    return dataset(np.arange(EXAMPLES))
