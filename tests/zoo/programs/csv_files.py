"""Prices of flats from CSV files, read by `tf.data`: GENERATED, with columns of unlike scales.

What it shows: text files with a header, one column of words, and a `Normalization` layer that
`model` adapts to the first file. Without it, the column with the largest scale dominates the
others.
"""

import csv
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

SIZES = (900, 2_500, 300, 1_300)
EVALUATED_ON = 1_000
HEATING = ("coal", "electric", "gas", "wood")
COLUMNS = ("metres", "built", "income", "distance", "heating", "price")
_NUMBERS = 4


def write_data(folder):
    """Write one file of each size, and one for the evaluation."""
    for number, size in enumerate(SIZES):
        _write_rows(Path(folder) / f"train-{number}.csv", size, number)
    _write_rows(Path(folder) / "evaluation.csv", EVALUATED_ON, len(SIZES))


def _write_rows(path, count, seed):
    random = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for _ in range(count):
            rows.writerow(_row(random))


def _row(random):
    metres, built = random.uniform(20, 150), random.integers(1900, 2025)
    income, distance = random.uniform(1e4, 2e5), random.uniform(0, 1)
    heating = int(random.integers(0, len(HEATING)))
    price = 0.012 * (metres - 85) * (1.5 - distance) + 0.008 * (built - 1962)
    price += 1e-5 * (income - 105_000) * distance + 0.5 * (heating - 1.5)
    noisy = price + random.normal(0, 0.1)
    return [
        f"{metres:.1f}",
        built,
        f"{income:.0f}",
        f"{distance:.3f}",
        HEATING[heating],
        f"{noisy:.4f}",
    ]


def model(*, folder, feature=True):
    layers = keras.layers
    numbers = keras.Input((_NUMBERS,), name="numbers")
    heating = keras.Input((), dtype="string", name="heating")
    scaled = numbers
    if feature:
        normalization = layers.Normalization()
        rows = read(files(folder=folder)[0])
        normalization.adapt(np.stack([row[0]["numbers"].numpy() for row in rows]))
        scaled = normalization(numbers)
    kind = layers.StringLookup(vocabulary=list(HEATING), output_mode="one_hot")(heating)
    hidden = layers.Concatenate()([scaled, kind])
    for _ in range(2):
        hidden = layers.Dense(32, activation="relu")(hidden)
    return keras.Model({"numbers": numbers, "heating": heating}, layers.Dense(1)(hidden))


def optimizer():
    return keras.optimizers.Adam(3e-3)


def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def files(*, folder):
    return [f"{folder}/train-{number}.csv" for number in range(len(SIZES))]


def read(file):
    def parse(line):
        *numbers, heating, price = tf.io.decode_csv(line, [0.0] * _NUMBERS + ["", 0.0])
        return {"numbers": tf.stack(numbers), "heating": heating}, price[None]

    return tf.data.TextLineDataset(file).skip(1).map(parse)


def evaluation(*, folder):
    return read(f"{folder}/evaluation.csv")


def metrics():
    return [keras.metrics.MeanAbsoluteError(name="error")]
