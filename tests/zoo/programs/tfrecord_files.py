"""Waves of five shapes in compressed TFRecord files of different sizes: GENERATED, with noise.

What it shows: `files` and `read`. Each example of each file is trained on once per epoch, whatever
the sizes of the files. The feature off leaves only two small files, which are not enough.
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

SHAPES, POINTS = 5, 48
SIZES = (40, 1_700, 3, 600, 1_100, 250, 2_000)
EVALUATED_ON = 1_000
_GZIP = tf.io.TFRecordOptions(compression_type="GZIP")
_FIELDS = {
    "wave": tf.io.FixedLenFeature((POINTS,), tf.float32),
    "shape": tf.io.FixedLenFeature((), tf.int64),
}


def write_data(folder):
    """Write one file of each size, and one for the evaluation."""
    for number, size in enumerate(SIZES):
        _write_waves(Path(folder) / f"train-{number}.tfrecord.gz", size, number)
    _write_waves(Path(folder) / "evaluation.tfrecord.gz", EVALUATED_ON, len(SIZES))


def _write_waves(path, count, seed):
    random = np.random.default_rng(seed)
    with tf.io.TFRecordWriter(str(path), _GZIP) as writer:
        for _ in range(count):
            shape = int(random.integers(0, SHAPES))
            wave = _wave(random, shape) + random.normal(0.0, 0.3, POINTS)
            writer.write(_record(wave, shape).SerializeToString())


def _wave(random, shape):
    turns = np.linspace(0, random.uniform(2, 4), POINTS) + random.random()
    sine, saw = np.sin(2 * np.pi * turns), 2 * (turns % 1.0) - 1.0
    triangle = 2 * np.abs(saw) - 1.0
    return (sine, np.sign(sine), saw, -saw, triangle)[shape]


def _record(wave, shape):
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                "wave": tf.train.Feature(float_list=tf.train.FloatList(value=wave)),
                "shape": tf.train.Feature(int64_list=tf.train.Int64List(value=[shape])),
            }
        )
    )


def model():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((POINTS,)),
            layers.Reshape((POINTS, 1)),
            layers.Conv1D(16, 9, activation="relu"),
            layers.MaxPooling1D(2),
            layers.Conv1D(32, 7, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(32, activation="relu"),
            layers.Dense(SHAPES),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(3e-3)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def files(*, folder, feature=True):
    names = [f"{folder}/train-{number}.tfrecord.gz" for number in range(len(SIZES))]
    return names if feature else [names[0], names[2]]


def read(file):
    def parse(record):
        fields = tf.io.parse_single_example(record, _FIELDS)
        return fields["wave"], fields["shape"]

    return tf.data.TFRecordDataset(file, compression_type="GZIP").map(parse)


def evaluation(*, folder):
    return read(f"{folder}/evaluation.tfrecord.gz")


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
