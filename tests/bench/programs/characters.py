# mypy: ignore-errors
# A program as people write it: without types.
"""A small transformer that predicts the next character of English text.

The text is that of Python's own help pages (`pydoc_data`). AdamW, clipping, a schedule with a
warm-up. `seed`: of the initial weights.
"""

from pydoc_data import topics

import keras
import numpy as np
import tensorflow as tf

LENGTH, WIDTH, HEADS, LAYERS = 32, 48, 4, 2
TRAINED_ON, EVALUATED_ON = 12_000, 5_120
BATCH, EPOCHS, RATE, WARM_UP = 32, 2, 4e-3, 100
STEPS = EPOCHS * -(-TRAINED_ON // BATCH)

_text = "\n".join(topics.topics[name] for name in sorted(topics.topics)).lower()
_letters = sorted({each for each in _text if each.isascii()})
_codes = np.array([_letters.index(each) for each in _text if each.isascii()], "int32")
_split = len(_codes) * 2 // 3


def _windows(codes, count):
    starts = np.random.default_rng(5).permutation(len(codes) - LENGTH)[:count]
    return codes[starts[:, None] + np.arange(LENGTH + 1)]


_rows = np.concatenate(
    [_windows(_codes[:_split], TRAINED_ON), _windows(_codes[_split:], EVALUATED_ON)]
)


class Positions(keras.layers.Layer):
    """Add a trained vector for each position of a text."""

    def build(self, shape):
        self.vectors = self.add_weight(shape=(LENGTH, WIDTH), name="vectors")

    def call(self, inputs):
        return inputs + self.vectors


def model(seed=0):
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    letters = keras.Input((LENGTH,), dtype="int32")
    x = Positions()(layers.Embedding(len(_letters), WIDTH)(letters))
    for _ in range(LAYERS):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="gelu")(y))
    return keras.Model(letters, layers.Dense(len(_letters))(layers.LayerNormalization()(x)))


def optimizer():
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, STEPS - WARM_UP, warmup_target=RATE, warmup_steps=WARM_UP
    )
    return keras.optimizers.AdamW(rate, weight_decay=1e-2, global_clipnorm=1.0)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return TRAINED_ON


def dataset(numbers):
    rows = _rows[numbers]
    return tf.data.Dataset.from_tensor_slices((rows[:, :-1], rows[:, 1:]))


def evaluation():
    return dataset(np.arange(TRAINED_ON, TRAINED_ON + EVALUATED_ON))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
