"""A small transformer that sorts: it reads twelve letters and writes them in alphabetical order.

What it shows: AdamW, a schedule with a warm-up, `global_clipnorm`, and averages of the weights
(`use_ema`), which are usual for transformers. Without them it does not learn at this rate.
"""

import keras
import numpy as np
import tensorflow as tf

LENGTH, LETTERS, WIDTH, HEADS, LAYERS = 12, 16, 32, 2, 2
TRAINED_ON, EVALUATED_ON = 4_096, 1_024
STEPS, WARM_UP, RATE = 768, 150, 3e-2

_random = np.random.default_rng(3)
_texts = _random.integers(0, LETTERS, (TRAINED_ON + EVALUATED_ON, LENGTH)).astype("int32")
_sorted = np.sort(_texts, axis=1)


class Positions(keras.layers.Layer):
    """Add a trained vector for each position of a text."""

    def build(self, shape):
        self.vectors = self.add_weight(shape=(LENGTH, WIDTH), name="vectors")

    def call(self, inputs):
        return inputs + self.vectors


def model():
    layers = keras.layers
    letters = keras.Input((LENGTH,), dtype="int32")
    x = Positions()(layers.Embedding(LETTERS, WIDTH)(letters))
    for _ in range(LAYERS):
        attended = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x)
        x = layers.LayerNormalization()(x + attended)
        changed = layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="relu")(x))
        x = layers.LayerNormalization()(x + changed)
    return keras.Model(letters, layers.Dense(LETTERS)(x))


def optimizer(*, feature=True):
    if not feature:
        return keras.optimizers.AdamW(RATE)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, STEPS - WARM_UP, warmup_target=RATE, warmup_steps=WARM_UP
    )
    return keras.optimizers.AdamW(
        rate, weight_decay=1e-4, global_clipnorm=1.0, use_ema=True, ema_momentum=0.98
    )


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return TRAINED_ON


def dataset(start, stop):
    return tf.data.Dataset.from_tensor_slices((_texts[start:stop], _sorted[start:stop]))


def evaluation():
    return dataset(TRAINED_ON, TRAINED_ON + EVALUATED_ON)


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
