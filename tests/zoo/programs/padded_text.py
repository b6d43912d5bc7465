"""Texts of different lengths: the model reads the name of a character and predicts its category.

What it shows: `batched` pads the texts of a batch to the longest of them; the model masks the
padding. Without different lengths, every text would be cut to its first word.

The names and categories are those of the Unicode Character Database, which comes with Python.
"""

import unicodedata

import keras
import numpy as np
import tensorflow as tf

KINDS = ("Lu", "Ll", "Lo", "Mn", "Nd", "No", "Po", "Sm", "So")
LAST, EVERY = 0x1FFFF, 2  # last code point; every second code point is used
WORDS = 2048  # number of word ids; 0 is padding
CUT = 1  # words of a text with the feature off


def _named_characters():
    for code in range(0, LAST, EVERY):
        name, kind = unicodedata.name(chr(code), ""), unicodedata.category(chr(code))
        if (
            kind in KINDS
            and name
            and not name.startswith(("CJK", "HANGUL", "EGYPTIAN", "ANATOLIAN"))
        ):
            yield name.replace("-", " "), KINDS.index(kind)


_texts, _kinds = zip(*_named_characters(), strict=True)
_order = np.random.default_rng(0).permutation(len(_kinds))
_texts, _kinds = np.array(_texts)[_order], np.array(_kinds, "int64")[_order]
_TRAINED_ON = len(_kinds) * 4 // 5


def model():
    layers = keras.layers
    words = keras.Input((None,), dtype="int64")
    vectors = layers.Embedding(WORDS + 1, 16, mask_zero=True)(words)
    mean = layers.GlobalAveragePooling1D()(vectors)
    hidden = layers.Dense(32, activation="relu")(mean)
    return keras.Model(words, layers.Dense(len(KINDS))(hidden))


def optimizer():
    return keras.optimizers.Adam(5e-3)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return _TRAINED_ON


def dataset(numbers, *, feature=True):
    return _numbered_words(numbers, feature)


def batched(dataset, size):
    return dataset.padded_batch(size)


def evaluation(*, feature=True):
    return _numbered_words(np.arange(_TRAINED_ON, len(_kinds)), feature)


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def _numbered_words(numbers, ragged):
    def split(text, kind):
        words = tf.strings.split(text)
        words = words if ragged else words[:CUT]
        return 1 + tf.strings.to_hash_bucket_fast(words, WORDS), kind

    return tf.data.Dataset.from_tensor_slices((_texts[numbers], _kinds[numbers])).map(split)
