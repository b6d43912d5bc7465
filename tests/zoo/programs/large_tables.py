"""A wide-and-deep recommender with large tables: GENERATED visits of readers to articles.

What it shows: two embedding tables that are divided among parameter servers (16 MiB each), rows by
`Hashing` and `HashedCrossing`, and Adagrad. Whether a reader likes an article depends on the pair
of the reader's trade and the article's topic, which only the crossed column knows.

After "Wide & Deep Learning for Recommender Systems" (Cheng et al., 2016).
"""

import keras
import numpy as np
import tensorflow as tf

TRAINED_ON, EVALUATED_ON = 12_000, 5_200
TRADES, TOPICS, READERS = 30, 30, 600
BUCKETS, WIDTH = 2**19, 8

_random = np.random.default_rng(11)
_pair_taste = _random.normal(0.0, 2.0, (TRADES, TOPICS))
_reader_taste = _random.normal(0.0, 0.7, READERS)
_count = TRAINED_ON + EVALUATED_ON
_readers = (READERS * _random.random(_count) ** 2).astype(int)
_trades = _readers % TRADES
_topics = _random.integers(0, TOPICS, _count)
_truth = _pair_taste[_trades, _topics] + _reader_taste[_readers]
_clicked = _random.random(_count) < 1 / (1 + np.exp(-_truth))
_inputs = {
    "reader": np.array([f"reader-{number:03}" for number in range(READERS)])[_readers],
    "trade": np.array([f"trade-{number:02}" for number in range(TRADES)])[_trades],
    "topic": np.array([f"topic-{number:02}" for number in range(TOPICS)])[_topics],
}
_labels = _clicked.astype("float32")[:, None]


def model(seed=None, *, feature=True):
    """Return the model. `seed`: of the initial weights; None: any. `feature`: with the pairs.

    Deep: vectors of the reader and of the pair, through a layer. Wide: one weight for each pair.
    """
    if seed is not None:
        keras.utils.set_random_seed(seed)
    layers = keras.layers
    inputs = {name: keras.Input((1,), dtype="string", name=name) for name in _inputs}
    reader_row = layers.Hashing(BUCKETS)(inputs["reader"])
    columns = (inputs["trade"], inputs["topic"])
    crossed = columns if feature else (inputs["reader"], inputs["reader"])
    pair_row = layers.HashedCrossing(BUCKETS)(crossed)
    vectors = [
        layers.Flatten()(layers.Embedding(BUCKETS, WIDTH)(reader_row)),
        layers.Flatten()(layers.Embedding(BUCKETS, WIDTH)(pair_row)),
    ]
    hidden = layers.Dense(16, activation="relu")(layers.Concatenate()(vectors))
    wide = layers.Flatten()(layers.Embedding(BUCKETS, 1)(pair_row))
    return keras.Model(inputs, layers.Add()([wide, layers.Dense(1)(hidden)]))


def optimizer():
    return keras.optimizers.Adagrad(0.1)


def loss(labels, outputs):
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


def examples():
    return TRAINED_ON


def dataset(numbers):
    return tf.data.Dataset.from_tensor_slices(_records(numbers))


def evaluation():
    return tf.data.Dataset.from_tensor_slices(_records(np.arange(TRAINED_ON, _count)))


def metrics():
    return [keras.metrics.AUC(from_logits=True, name="auc")]


def _records(numbers):
    return {name: column[numbers, None] for name, column in _inputs.items()}, _labels[numbers]
