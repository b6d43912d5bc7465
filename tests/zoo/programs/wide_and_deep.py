"""A wide-and-deep recommender that reads texts: GENERATED visits, each with a sample weight.

What it shows: `StringLookup` and `Hashing` in the model, embeddings, dict inputs, and elements
`(inputs, label, weight)`. Two of three records come from a source with inverted labels; they have a
small weight. With equal weights the model learns the opposite of the truth.

After "Wide & Deep Learning for Recommender Systems" (Cheng et al., 2016).
"""

import keras
import numpy as np
import tensorflow as tf

TRAINED_ON, EVALUATED_ON = 12_000, 5_200
TRADES = ("baker", "driver", "farmer", "nurse", "painter", "smith", "teacher", "writer")
TOWNS, BUCKETS, WIDTH = 400, 256, 8
UNRELIABLE = 0.02  # the weight of a record of the second source

_random = np.random.default_rng(7)
_trade_taste = _random.normal(0.0, 1.2, len(TRADES))
_town_taste = _random.normal(0.0, 1.0, TOWNS)
_count = TRAINED_ON + EVALUATED_ON
_trades = _random.integers(0, len(TRADES), _count)
_towns = (TOWNS * _random.random(_count) ** 2).astype(int)
_ages = _random.uniform(18, 80, _count)
_truth = 3.0 * np.sin(_ages / 10.0) + 2.0 * _trade_taste[_trades] + 1.5 * _town_taste[_towns]
_clicked = _random.random(_count) < 1 / (1 + np.exp(-_truth))
_reliable = _random.random(_count) < 1 / 3
_reliable[TRAINED_ON:] = True
_inputs = {
    "trade": np.array(TRADES)[_trades],
    "town": np.array([f"town-{number:03}" for number in range(TOWNS)])[_towns],
    "age": ((_ages - 49) / 18).astype("float32"),
}
_labels = np.where(_reliable, _clicked, ~_clicked).astype("float32")[:, None]


def model(seed=None):
    """Return the model. `seed`: of the initial weights; None: any.

    Deep: vectors of trade and town, and the age, through two layers. Wide: one weight for each
    trade and town.
    """
    if seed is not None:
        keras.utils.set_random_seed(seed)
    layers = keras.layers
    trade = keras.Input((), dtype="string", name="trade")
    town = keras.Input((), dtype="string", name="town")
    age = keras.Input((), name="age")
    trade_row = layers.StringLookup(vocabulary=list(TRADES), num_oov_indices=1)(trade)
    town_row = layers.Hashing(BUCKETS)(town)
    vectors = [
        layers.Embedding(len(TRADES) + 1, WIDTH)(trade_row),
        layers.Embedding(BUCKETS, WIDTH)(town_row),
        layers.Reshape((1,))(age),
    ]
    hidden = layers.Concatenate()(vectors)
    for units in (32, 16):
        hidden = layers.Dense(units, activation="relu")(hidden)
    wide = [
        layers.Embedding(len(TRADES) + 1, 1)(trade_row),
        layers.Embedding(BUCKETS, 1)(town_row),
    ]
    return keras.Model(
        {"trade": trade, "town": town, "age": age},
        layers.Add()([*wide, layers.Dense(1)(hidden)]),
    )


def optimizer():
    return keras.optimizers.Adam(3e-3)


def loss(labels, outputs):
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


def examples():
    return TRAINED_ON


def dataset(numbers, *, feature=True):
    weights = np.where(_reliable[numbers], 1.0, UNRELIABLE if feature else 1.0)
    return tf.data.Dataset.from_tensor_slices((*_records(numbers), weights.astype("float32")))


def evaluation():
    return tf.data.Dataset.from_tensor_slices(_records(np.arange(TRAINED_ON, _count)))


def metrics():
    return [keras.metrics.AUC(from_logits=True, name="auc")]


def _records(numbers):
    return {name: column[numbers] for name, column in _inputs.items()}, _labels[numbers]
