"""Predict which visitors return to a shop: a classifier on pseudonyms.

The shop may not train on names. So a name becomes a pseudonym, by a keyed hash whose key (the salt)
is in a Secret: without the salt nobody can find the pseudonym of a name, and with another salt the
pseudonyms are others. The variable VISITS_SALT_FILE names the file with the salt.

The visits are generated: each of 400 customers has a share of visits after which he comes back.
"""

import hashlib
import hmac
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

CUSTOMERS, VISITS, TRAINED_ON = 400, 40_000, 32_000
PSEUDONYMS = 4_096  # so many that two customers seldom share one


def _salt():
    """On a machine without the Secret, as when `weir doctor` tries the program, any salt will do."""
    file = os.environ.get("VISITS_SALT_FILE")
    return Path(file).read_bytes() if file and Path(file).exists() else b"only to try the program"


def _pseudonym(name):
    digest = hmac.digest(_salt(), name.encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") % PSEUDONYMS


_random = np.random.default_rng(0)  # a fixed seed: the same visits on every worker
_shares = _random.beta(0.4, 0.4, CUSTOMERS)
_customers = _random.integers(CUSTOMERS, size=VISITS)
_pseudonyms = np.array([_pseudonym(f"customer {number}") for number in range(CUSTOMERS)])
_inputs = _pseudonyms[_customers][:, None].astype("int32")
_returns = (_random.random(VISITS) < _shares[_customers]).astype("float32")[:, None]


def model():
    return keras.Sequential(
        [
            keras.layers.Input((1,), dtype="int32"),
            keras.layers.Embedding(PSEUDONYMS, 8),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(0.01)


def loss(labels, outputs):
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


def examples():
    return TRAINED_ON


def dataset(start, stop):
    return tf.data.Dataset.from_tensor_slices((_inputs[start:stop], _returns[start:stop]))


def evaluation():
    return tf.data.Dataset.from_tensor_slices((_inputs[TRAINED_ON:], _returns[TRAINED_ON:]))


def metrics():
    """0.5 is the accuracy of a guess."""
    return [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]
