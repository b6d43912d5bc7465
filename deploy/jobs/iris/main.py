"""The kind of an iris from the size of its leaves: a program of several files, which reads files.

All of this folder is uploaded, so its data is found beside it. Larger data lies on a volume or in a
store: `files` returns its paths. `table.py` is imported from this folder. The arguments of the
functions are the `params:` of `iris.yaml`.
"""

from pathlib import Path

import keras
from table import read_rows

_FOLDER = Path(__file__).parent


def model(width=16, dropout=0.0):
    return keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(3),
        ]
    )


def optimizer(learning_rate=0.01):
    return keras.optimizers.Adam(learning_rate)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def files():
    return sorted(map(str, _FOLDER.glob("train-*.csv")))


def read(file):
    return read_rows(file)


def evaluation():
    return read_rows(str(_FOLDER / "evaluation.csv"))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
