"""Examples on the worker: what a program may return, and what is said of anything else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from services.trainer import feed
from services.trainer.program import BadProgram


def program(made: Any) -> Any:
    return SimpleNamespace(dataset=lambda start, stop: made)


def pairs(count: int) -> Any:
    return tf.data.Dataset.from_tensor_slices((np.ones((count, 3)), np.ones(count)))


def test_a_batch_is_a_flat_list_of_arrays() -> None:
    assert [array.shape for array in feed.read(program(pairs(4)), 0, 4)] == [(4, 3), (4,)]


def test_examples_that_are_missing_are_counted() -> None:
    with pytest.raises(BadProgram, match=r"dataset\(8, 12\) gave 3 examples instead of 4$"):
        feed.read(program(pairs(3)), 8, 12)


@pytest.mark.parametrize("made", [None, [1, 2], np.ones(3)])
def test_what_is_no_dataset_is_named(made: Any) -> None:
    with pytest.raises(
        BadProgram, match=r"dataset\(0, 1\) returned .*; a tf.data.Dataset is needed"
    ):
        feed.element_spec(program(made))


def test_a_dataset_without_labels_is_refused() -> None:
    with pytest.raises(BadProgram, match=r"pairs \(inputs, label\) are needed"):
        feed.element_spec(program(tf.data.Dataset.range(3)))


def test_a_batch_where_an_example_should_be_is_noticed_by_what_the_model_takes() -> None:
    model = SimpleNamespace(inputs=[tf.TensorSpec([None, 3])])

    feed.element_spec(program(pairs(4)), model)
    with pytest.raises(
        BadProgram, match=r"of the shapes \(None, 3\), but the model takes \(3,\): is it batched"
    ):
        feed.element_spec(program(pairs(4).batch(2)), model)


def test_a_last_axis_of_one_is_let_be_because_keras_drops_it() -> None:
    single = tf.data.Dataset.from_tensor_slices((np.ones((4, 3, 1)), np.ones(4)))

    feed.element_spec(program(single), SimpleNamespace(inputs=[tf.TensorSpec([None, 3])]))
    with pytest.raises(BadProgram, match="is it batched already"):
        feed.element_spec(program(single), SimpleNamespace(inputs=[tf.TensorSpec([None, 1])]))


def test_so_few_examples_of_so_large_a_shape_are_taken_for_batches() -> None:
    with pytest.raises(
        BadProgram,
        match=r"gave 1 example instead of 4, of the shapes \(None, 3\), \(None,\): is it",
    ):
        feed.read(program(pairs(4).batch(32)), 8, 12)
