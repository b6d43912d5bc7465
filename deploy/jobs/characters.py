"""A text classifier: it reads what a character is called, and says of which kind the character is.

"CYRILLIC SMALL LETTER ZHE" is a small letter, "COMBINING ACUTE ACCENT" a mark, "INDIAN RUPEE SIGN"
a currency's. The data is real, and comes with Python itself: names and general categories of the
Unicode Character Database. Names that are nothing but a number or a sound ("CJK UNIFIED
IDEOGRAPH-4E00", "HANGUL SYLLABLE GA") are left out.

Texts differ in length, so `batched` pads those of a batch to the longest one. Number 0 is padding,
which the model masks.
"""

import unicodedata
import zlib

import keras
import numpy as np
import tensorflow as tf

LAST = 0x1FFFF  # of the code points that are looked at
BUCKETS = 4096  # a word is a number below it; 0 is no word
KINDS = (
    "Lu",
    "Ll",
    "Lm",
    "Lo",
    "Mn",
    "Mc",
    "Nd",
    "Nl",
    "No",
    "Pd",
    "Ps",
    "Pe",
    "Po",
    "Sm",
    "Sc",
    "Sk",
    "So",
)
EVALUATED = 10  # one name in so many is not trained on


def _names():
    """Each character's name and the number of its kind."""
    for code in range(LAST):
        name, kind = unicodedata.name(chr(code), ""), unicodedata.category(chr(code))
        if (
            name
            and kind in KINDS
            and not name.endswith(f"-{code:X}")
            and not name.startswith("HANGUL SYLLABLE")
        ):
            yield name, KINDS.index(kind)


def _numbers(text):
    """The words as numbers. Not by `hash`, which gives another number in every process."""
    words = text.replace("-", " ").split()
    return [1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in words]


_texts, _kinds = zip(*_names(), strict=True)
_order = np.random.default_rng(0).permutation(len(_kinds))
_inputs = [_numbers(_texts[number]) for number in _order]
_labels = np.array(_kinds, "int64")[_order]
_TRAINED_ON = len(_labels) - len(_labels) // EVALUATED


def model():
    """A vector a word; their mean says which words there are, and the last word's what kind of
    thing it is.
    """
    words = keras.Input((None,), dtype="int32")
    vectors = keras.layers.Embedding(BUCKETS, 32, mask_zero=True)(words)
    mean = keras.layers.GlobalAveragePooling1D()(vectors)
    hidden = keras.layers.Dense(64, activation="relu")(mean)
    return keras.Model(words, keras.layers.Dense(len(KINDS))(hidden))


def optimizer():
    return keras.optimizers.Adam(2e-3)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return _TRAINED_ON


def dataset(numbers):
    words = tf.ragged.constant([_inputs[number] for number in numbers], tf.int32)
    return tf.data.Dataset.from_tensor_slices((words, _labels[numbers]))


def batched(dataset, size):
    return dataset.ragged_batch(size).map(lambda words, kinds: (words.to_tensor(), kinds))


def evaluation():
    return dataset(np.arange(_TRAINED_ON, len(_labels)))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
