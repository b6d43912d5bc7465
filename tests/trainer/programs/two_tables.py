"""Stock Keras with two tables that are large enough to be divided. GENERATED data."""

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, WORDS, PLACES, WIDTH = 512, 70_001, 140_003, 64
_random = np.random.default_rng(0)
_words = (WORDS * _random.random((EXAMPLES, 5)) ** 3).astype("int32")
_places = (PLACES * _random.random(EXAMPLES) ** 3).astype("int32")
_clicked = ((_words.sum(1) + _places) % 3 == 0).astype("float32")[:, None]


def model():
    layers = keras.layers
    words, place = keras.Input((5,), dtype="int32"), keras.Input((), dtype="int32")
    vectors = layers.Embedding(WORDS, WIDTH, mask_zero=True, embeddings_regularizer="l2")
    mean = layers.GlobalAveragePooling1D()(vectors(words))
    there = layers.Embedding(PLACES, WIDTH // 2, embeddings_initializer="glorot_normal")(place)
    return keras.Model([words, place], layers.Dense(1)(layers.Concatenate()([mean, there])))


def optimizer():
    return keras.optimizers.AdamW(1e-2, global_clipnorm=1.0)


def loss(labels, outputs):
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


def examples():
    return EXAMPLES


def dataset(numbers):
    return tf.data.Dataset.from_tensor_slices(
        ((_words[numbers], _places[numbers]), _clicked[numbers])
    )


def evaluation():
    return dataset(np.arange(EXAMPLES))


def metrics():
    return [keras.metrics.AUC(from_logits=True, name="auc")]
