"""A recommender with embedding tables that are larger than any one ps: a vector for each of seven
million listeners, tracks and so on.

The tables have 1.7 GiB, and Adagrad keeps as much beside them. A ps has 1.6 GiB. So there are eight
ps, and each holds an eighth of every table. Weir divides large tables by itself
(`services/trainer/README.md`).

The data is GENERATED: each example is a function of its number and a fixed seed. So the files of
the days do not exist. Their names say which examples they have.
"""

import keras
import numpy as np
import tensorflow as tf

WIDTH = 64  # of a vector
ROWS = 1_190_000
TABLES = ("listener", "track", "artist", "album", "list", "place")
DAYS, A_DAY = 20, 5_000
TRAINED_ON, EVALUATED_ON = DAYS * A_DAY, 10_000
SKEW = 6.0  # few listeners and tracks make most of the traffic: rank = ROWS * uniform ** SKEW
STRIDE = 735_467  # from the id of a rank to that of the next, so that all ps have busy rows


# ---------------------------------------------------------------- the data


def _uniform(numbers, stream):
    """Return a number in [0, 1) for each integer: splitmix64 of (stream, number). Another `stream`
    gives independent numbers.
    """
    with np.errstate(over="ignore"):
        x = np.asarray(numbers, np.uint64) + np.uint64(stream) * np.uint64(0xD1B54A32D192ED03)
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def _ids(numbers):
    ids = {}
    for at, name in enumerate(TABLES):
        rank = (ROWS * _uniform(numbers, 1 + at) ** SKEW).astype("int64")
        ids[name] = (rank * STRIDE % ROWS).astype("int32")
    return ids


def _between(start, stop):
    """Return the plays with these numbers. Each id has a hidden liking. Their sum decides how
    probable it is that the track is played to its end.
    """
    numbers = np.arange(start, stop)
    ids = _ids(numbers)
    liking = sum(2.0 * _uniform(ids[name], 11 + at) - 1.0 for at, name in enumerate(TABLES))
    played = _uniform(numbers, 10) < 1 / (1 + np.exp(-3.0 * liking))
    return tf.data.Dataset.from_tensor_slices((ids, played.astype("float32")[:, None]))


# ---------------------------------------------------------------- what Weir asks for


def model():
    """Look up a vector for each id. The products of the listener's vector with the others say what
    fits together; the vectors themselves say what is popular.
    """
    ids = {name: keras.Input((), dtype="int32", name=name) for name in TABLES}
    vectors = []
    for seed, name in enumerate(TABLES):
        spread_around_0 = keras.initializers.RandomUniform(-0.25, 0.25, seed)
        vectors.append(keras.layers.Embedding(ROWS, WIDTH, spread_around_0)(ids[name]))
    pairs = [keras.layers.Multiply()([vectors[0], other]) for other in vectors[1:]]
    features = keras.layers.Concatenate()([*vectors, *pairs])
    return keras.Model(ids, keras.layers.Dense(1)(features))


def optimizer():
    return keras.optimizers.Adagrad(0.1)


def loss(labels, outputs):
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


def files():
    """Return one file for each day. Yours: `sorted(tf.io.gfile.glob("gs://bucket/day-*"))`."""
    return [f"day-{day:02}" for day in range(DAYS)]


def read(file):
    """Return the plays of a day. With your files: `tf.data.TFRecordDataset(file).map(parse)`."""
    day = int(file.removeprefix("day-"))
    return _between(day * A_DAY, (day + 1) * A_DAY)


def evaluation():
    return _between(TRAINED_ON, TRAINED_ON + EVALUATED_ON)


def metrics():
    return [keras.metrics.AUC(from_logits=True, name="auc")]
