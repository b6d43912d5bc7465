"""A wide-and-deep recommender with embeddings. Its click data is GENERATED, not recorded from
anybody.

Who sees what, and whether it is clicked, follows a hidden logistic model: every example is a pure
function of its number and a fixed seed, so `dataset(start, stop)` can begin anywhere, on any
worker, and says the same thing each time. About 1.2 million parameters, nearly all of them in
embeddings: the parameter servers hold much and compute little.

After "Wide & Deep Learning for Recommender Systems" (Cheng et al., 2016).
"""

import keras
import numpy as np
import tensorflow as tf

USERS, ITEMS, CATEGORIES, HOURS, CONTEXT = 40_000, 30_000, 200, 24, 3
TRAINED_ON, EVALUATED_ON = 1_000_000, 20_000
WIDTH = 16  # of an embedding
SIZES = {"user": USERS, "item": ITEMS, "category": CATEGORIES, "hour": HOURS}
SKEW = 3.0  # few users and items make most of the traffic: id = size * uniform ** SKEW
CLICK_BIAS = -1.5  # about one impression in four is clicked


# ---------------------------------------------------------------- the data


def _uniform(numbers, stream):
    """A number in [0, 1) for each integer: splitmix64 of (stream, number). `stream` keeps
    independent draws apart.
    """
    with np.errstate(over="ignore"):
        x = np.asarray(numbers, np.uint64) + np.uint64(stream) * np.uint64(0xD1B54A32D192ED03)
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def _spread(numbers, stream):
    """As `_uniform`, but with mean 0 and variance 1."""
    return (_uniform(numbers, stream) - 0.5) * 12**0.5


def _skewed(numbers, stream, size):
    return (size * _uniform(numbers, stream) ** SKEW).astype(np.int32)


def _features(numbers):
    item = _skewed(numbers, 2, ITEMS)
    return {
        "user": _skewed(numbers, 1, USERS),
        "item": item,
        "category": (CATEGORIES * _uniform(item, 11)).astype(np.int32),
        "hour": (HOURS * _uniform(numbers, 3)).astype(np.int32),
        "context": np.stack([_spread(numbers, 4 + i) for i in range(CONTEXT)], axis=1).astype(
            np.float32
        ),
    }


def _logit(x):
    """The hidden model: popularity, an evening peak, a taste (of four kinds) for categories, and
    the context.
    """
    taste = np.asarray(4 * _uniform(x["user"], 12), np.uint64)
    affinity = _spread(np.asarray(x["category"], np.uint64) * np.uint64(4) + taste, 13)
    popularity = (
        0.7 * _spread(x["item"], 14)
        + 0.5 * _spread(x["user"], 15)
        + 0.4 * _spread(x["category"], 16)
    )
    evening = 0.5 * np.cos((x["hour"] - 20) * 2 * np.pi / HOURS)
    return (
        CLICK_BIAS
        + popularity
        + evening
        + 0.9 * affinity
        + x["context"] @ np.array([0.6, -0.4, 0.2])
    )


def _between(start, stop):
    numbers = np.arange(start, stop)
    inputs = _features(numbers)
    clicked = _uniform(numbers, 10) < 1 / (1 + np.exp(-_logit(inputs)))
    return tf.data.Dataset.from_tensor_slices((inputs, clicked.astype(np.float32)[:, None]))


# ---------------------------------------------------------------- what Weir asks for


def model():
    """Deep: an embedding per id and the context, through two layers. Wide: one weight per id, added
    up.
    """
    ids = {name: keras.Input((), dtype="int32", name=name) for name in SIZES}
    context = keras.Input((CONTEXT,), name="context")
    hidden = keras.layers.Concatenate()([*(_embedded(ids, name, WIDTH) for name in SIZES), context])
    for units in (64, 32):
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    wide = [_embedded(ids, name, 1) for name in SIZES]
    return keras.Model(
        {**ids, "context": context}, keras.layers.Add()([*wide, keras.layers.Dense(1)(hidden)])
    )


def _embedded(ids, name, width):
    return keras.layers.Embedding(SIZES[name], width, name=f"{name}_{width}")(ids[name])


def optimizer():
    return keras.optimizers.Adagrad(0.05)  # touches only the rows of the ids that it meets


def loss(labels, outputs):
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


def examples():
    return TRAINED_ON


def dataset(start, stop):
    return _between(start, stop)


def evaluation():
    return _between(TRAINED_ON, TRAINED_ON + EVALUATED_ON)


def metrics():
    return [keras.metrics.AUC(from_logits=True, name="auc")]
