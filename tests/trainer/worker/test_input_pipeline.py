"""Tests of the input pipeline of real workers with every form of data."""

from __future__ import annotations

import math
import shutil
from typing import Any

import pytest
import tensorflow as tf

from services.trainer.worker.input_pipeline import _rows
from tests.trainer.script import run_script

EXAMPLES, EPOCHS, BATCH, ACCUMULATED = 250, 2, 16, 3
CASES = (
    "shuffled range",
    "shuffled numbers",
    "passes",
    "calls that fail for a moment",
    "generator",
    "table",
    "compressed tfrecord",
    "python generator",
    "padded of ranges",
)
TOGETHER = (
    "shuffled range, together",
    "passes, together",
    "compressed tfrecord, together",
    "ragged of numbers, together",
    "passes of files, together",
)
IN_TURN = ("sparse of files, together",)
"""A step of the program's own is not cut at the ends of files."""
MORE_CASES = (
    *TOGETHER,
    *IN_TURN,
    "range",
    "numbers",
    "text",
    "csv",
    "tfrecord",
    "numpy",
    "interleave, cache, map",
    "another file system",
    "files in order",
    "passes of files",
    "padded of files",
    "padded of numbers",
    "ragged of files",
    "ragged of numbers",
    "ragged of ranges",
    "sparse of files",
    "sparse of numbers",
    "sparse of ranges",
)
if shutil.which("g++"):  # it is a plugin of TensorFlow, which the test compiles
    MORE_CASES += ("a registered file system",)


@pytest.fixture(scope="module")
def told() -> Any:
    return run_script("pipelines.py", *CASES)


@pytest.mark.parametrize("case", CASES)
def test_every_example_is_applied_once_per_epoch(told: Any, case: str) -> None:
    assert told[case]["counts"] == [EPOCHS]
    assert told[case]["applied"] == EPOCHS * EXAMPLES


@pytest.mark.long
def test_every_example_is_applied_once_per_epoch_with_every_other_form_of_data() -> None:
    told = run_script("pipelines.py", *MORE_CASES)
    assert set(told) == set(MORE_CASES)
    for case, found in told.items():
        assert (found["counts"], found["applied"]) == ([EPOCHS], EPOCHS * EXAMPLES), case
    for case in TOGETHER:
        update = BATCH * ACCUMULATED if "passes" in case else BATCH
        assert told[case]["steps"] == EPOCHS * math.ceil(EXAMPLES / update), case


@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_rows_are_cut_from_every_kind_of_batch(kind: str) -> None:
    dense = tf.reshape(tf.range(12), [4, 3])
    batch = {
        "dense": lambda: dense,
        "ragged": lambda: tf.RaggedTensor.from_tensor(dense),
        "sparse": lambda: tf.sparse.from_dense(dense + 1),
    }[kind]()
    spec = tf.TensorSpec([None, 3]) if kind == "dense" else tf.type_spec_from_value(batch)

    found = _rows(batch, spec, tf.constant(1, tf.int64), tf.constant(3, tf.int64))

    if kind == "sparse":
        found = tf.sparse.to_dense(found) - 1
    whole = found.to_tensor() if kind == "ragged" else found
    assert whole.numpy().tolist() == [[3, 4, 5], [6, 7, 8]]
