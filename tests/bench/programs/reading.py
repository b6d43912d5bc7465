# mypy: ignore-errors
# A program as people write it: without types.
"""A small net on generated data, which is read in one of three forms.

`tests/bench/data.py` fills in `FORM` and `DATA`. `python reading.py FOLDER` writes the TFRecord
files. `whole` is the same data for a plain loop.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

FORM = None
DATA = None
EXAMPLES, FEATURES, CLASSES = 100_000, 64, 10
SIZES = (3_000, 9_000, 14_000, 20_000, 24_000, 30_000)
WINDOW = 1_000
_random = np.random.default_rng(0)
_inputs = _random.normal(size=(EXAMPLES, FEATURES)).astype("float32")
_labels = (_inputs @ _random.normal(size=(FEATURES, CLASSES))).argmax(1)
_FIELDS = {
    "input": tf.io.FixedLenFeature((FEATURES,), tf.float32),
    "label": tf.io.FixedLenFeature((), tf.int64),
}


def model():
    return keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.05)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return EXAMPLES


def _read(file):
    records = tf.data.TFRecordDataset(file, compression_type="GZIP")
    return records.map(_parse, num_parallel_calls=tf.data.AUTOTUNE)


def _parse(record):
    fields = tf.io.parse_single_example(record, _FIELDS)
    return fields["input"], fields["label"]


if FORM == "tfrecord":

    def files():
        return sorted(map(str, Path(DATA).glob("*.tfrecord.gz")))

    def read(file):
        return _read(file)

    def whole():
        paths = tf.data.Dataset.from_tensor_slices(files()).shuffle(len(SIZES))
        return paths.flat_map(_read).shuffle(WINDOW).repeat()

elif FORM == "range":

    def dataset(start, stop):
        return tf.data.Dataset.from_tensor_slices((_inputs[start:stop], _labels[start:stop]))

else:

    def dataset(numbers):
        return tf.data.Dataset.from_tensor_slices((_inputs[numbers], _labels[numbers]))


if FORM != "tfrecord":

    def whole():
        made = tf.data.Dataset.from_tensor_slices((_inputs, _labels))
        return made.shuffle(WINDOW).repeat()


def write_files(folder):
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    start = 0
    for number, size in enumerate(SIZES):
        with tf.io.TFRecordWriter(f"{folder}/{number}.tfrecord.gz", options) as writer:
            for at in range(start, start + size):
                writer.write(_record(at))
        start += size


def _record(number):
    features = {
        "input": tf.train.Feature(float_list=tf.train.FloatList(value=_inputs[number])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(_labels[number])])),
    }
    made = tf.train.Example(features=tf.train.Features(feature=features))
    return made.SerializeToString()


if __name__ == "__main__":
    write_files(sys.argv[1])
