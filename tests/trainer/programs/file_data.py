"""Files of many kinds with the examples of `counting.py`, and programs that read them.

`CASES` has the functions of a program for each kind. A file has the numbers of its examples, from
which their features follow. Files differ in length, and one is empty.
"""

import csv
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.trainer.programs import counting

EDGES = (0, 3, 40, 40, 41, 120, 200, 250)
"""File n has the examples EDGES[n] .. EDGES[n + 1] - 1."""
FOLDER = Path(tempfile.mkdtemp())
VEIL = 0x5A  # of `veiled_filesystem.cc`


def example(number):
    """Return the example with this number, in a graph."""
    number = tf.cast(tf.ensure_shape(number, []), tf.int64)
    row = tf.ensure_shape(tf.gather(counting._inputs, number), [4])
    return (number, row), tf.reduce_sum(row, keepdims=True)


def write_text(path, numbers):
    Path(path).write_text("".join(f"{number}\n" for number in numbers))


def read_text(path):
    return tf.data.TextLineDataset(path).map(lambda line: tf.strings.to_number(line, tf.int64))


def write_csv(path, numbers):
    with Path(path).open("w", newline="") as file:
        csv.writer(file).writerows([("name", "number"), *[("x, y", n) for n in numbers]])


def read_csv(path):
    rows = tf.data.experimental.CsvDataset(path, [tf.string, tf.int64], header=True)
    return rows.map(lambda _, number: number)


def write_records(compression):
    def write(path, numbers):
        with tf.io.TFRecordWriter(path, compression) as writer:
            for number in numbers:
                value = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
                record = tf.train.Example(features=tf.train.Features(feature={"number": value}))
                writer.write(record.SerializeToString())

    return write


def read_records(compression):
    spec = {"number": tf.io.FixedLenFeature([], tf.int64)}

    def read(path):
        records = tf.data.TFRecordDataset(path, compression)
        return records.map(lambda record: tf.io.parse_single_example(record, spec)["number"])

    return read


def write_numpy(path, numbers):
    with tf.io.gfile.GFile(path, "wb") as file:
        np.save(file, np.asarray(numbers, np.int64))


def read_numpy(path):
    with tf.io.gfile.GFile(path, "rb") as file:
        return tf.data.Dataset.from_tensor_slices(np.load(file))


def read_generator(path):
    def elements():
        yield from Path(path).read_text().split()

    made = tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([], tf.string))
    return made.map(lambda line: tf.strings.to_number(line, tf.int64))


def read_interleaved(path):
    """Return the numbers of a file that two readers read in turn."""
    lines = tf.data.Dataset.range(2).interleave(
        lambda part: tf.data.TextLineDataset(path).shard(2, part),
        cycle_length=2,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    numbers = lines.map(
        lambda line: tf.strings.to_number(line, tf.int64), num_parallel_calls=tf.data.AUTOTUNE
    )
    return numbers.cache().prefetch(tf.data.AUTOTUNE)


KINDS = {
    "text": (write_text, read_text),
    "csv": (write_csv, read_csv),
    "tfrecord": (write_records(""), read_records("")),
    "compressed tfrecord": (write_records("GZIP"), read_records("GZIP")),
    "numpy": (write_numpy, read_numpy),
    "python generator": (write_text, read_generator),
    "interleave, cache, map": (write_text, read_interleaved),
}


def program_of(kind, root):
    """Write files of this kind below `root`. Return the functions of a program that reads them."""
    write, read = KINDS[kind]
    paths = []
    for number, (start, stop) in enumerate(pairwise(EDGES)):
        paths.append(f"{root}/{kind.replace(' ', '-')}-{number}")
        write(paths[-1], range(start, stop))
    return {"files": lambda: paths, "read": lambda path: read(path).map(example)}


def sized(number):
    """Return the example with this number, with one to four features."""
    (number, row), label = example(number)
    return (number, row[: 1 + number % 4]), label


def sparse(number):
    (number, row), label = example(number)
    return (number, tf.sparse.from_dense(row)), label


def train_step(models, optimizers, batch):
    """Train on batches whose features are padded, ragged or sparse."""
    (numbers, rows), labels = batch
    if isinstance(rows, tf.SparseTensor):
        rows = tf.sparse.to_dense(rows)
    if isinstance(rows, tf.RaggedTensor):
        rows = rows.to_tensor()
    rows = tf.pad(rows, [[0, 0], [0, 4 - tf.shape(rows)[1]]])
    with tf.GradientTape() as tape:
        outputs = models([numbers, tf.ensure_shape(rows, [None, 4])], training=True)
        loss = tf.reduce_mean(tf.square(outputs - labels))
    gradients = tape.gradient(loss, models.trainable_variables)
    optimizers.apply_gradients(zip(gradients, models.trainable_variables, strict=True))
    return {"loss": loss}


BATCHED = {
    "padded": (sized, lambda dataset, size: dataset.padded_batch(size)),
    "ragged": (sized, lambda dataset, size: dataset.ragged_batch(size)),
    "sparse": (sparse, None),
}


def batched_cases():
    """Return the functions of programs with batches of these kinds: of files, numbers, ranges."""
    found = {}
    whole = program_of("text", FOLDER)
    for name, (make, batched) in BATCHED.items():
        own = {"train_step": train_step, **({"batched": batched} if batched else {})}
        found[f"{name} of files"] = {
            "files": whole["files"],
            "read": lambda path, make=make: read_text(path).map(make),
            **own,
        }
        found[f"{name} of numbers"] = {
            "examples": counting.examples,
            "dataset": lambda numbers, make=make: tf.data.Dataset.from_tensor_slices(numbers).map(
                make
            ),
            **own,
        }
        found[f"{name} of ranges"] = {
            "examples": counting.examples,
            "dataset": lambda start, stop, make=make: tf.data.Dataset.range(start, stop).map(make),
            **own,
        }
    return found


def veiled_program():
    """Register a file system of our own, and return a program whose files are on it."""
    library = str(FOLDER / "veiled_filesystem.so")
    source = str(Path(__file__).with_name("veiled_filesystem.cc"))
    flags = ["-std=c++17", "-shared", "-fPIC", *tf.sysconfig.get_compile_flags()]
    command = ["g++", *flags, source, "-o", library, *tf.sysconfig.get_link_flags()]
    subprocess.run(command, check=True)
    tf.experimental.register_filesystem_plugin(library)
    functions = program_of("compressed tfrecord", tempfile.mkdtemp())
    paths = functions["files"]()
    for path in map(Path, paths):
        path.write_bytes(bytes(byte ^ VEIL for byte in path.read_bytes()))
    return {**functions, "files": lambda: [f"veiled://{path}" for path in paths]}


CASES = {kind: program_of(kind, FOLDER) for kind in KINDS}
CASES["another file system"] = program_of("numpy", "ram://examples")
