"""Tests of examples on the worker: what a program may return, and the errors for anything else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker import program_data


def program(made: Any) -> Any:
    return SimpleNamespace(dataset=lambda start, stop: made)


def pairs(count: int) -> Any:
    return tf.data.Dataset.from_tensor_slices((np.ones((count, 3)), np.ones(count)))


def test_a_batch_is_a_flat_list_of_arrays() -> None:
    assert [array.shape for array in program_data.read_batch(program(pairs(4)), 0, 4)] == [
        (4, 3),
        (4,),
    ]


def test_missing_examples_are_counted() -> None:
    with pytest.raises(BadProgram, match=r"dataset\(8, 12\) gave 3 examples instead of 4$"):
        program_data.read_batch(program(pairs(3)), 8, 12)


@pytest.mark.parametrize("made", [None, [1, 2], np.ones(3)])
def test_a_value_that_is_no_dataset_is_an_error(made: Any) -> None:
    with pytest.raises(
        BadProgram, match=r"dataset\(0, 1\) returned .*; a tf.data.Dataset is needed"
    ):
        program_data.element_spec(program(made))


def test_a_dataset_without_labels_is_refused() -> None:
    asked = program(tf.data.Dataset.range(3))
    asked.loss = lambda labels, outputs: outputs

    with pytest.raises(BadProgram, match=r"pairs \(inputs, label\) are needed"):
        program_data.element_spec(asked)


def test_elements_may_have_weights_and_any_structure_without_a_loss() -> None:
    whole = tf.data.Dataset.from_tensor_slices({"a": np.ones(3)})
    weighted = tf.data.Dataset.from_tensor_slices((np.ones((3, 1)), np.ones(3), np.ones(3)))
    with_loss = program(weighted)
    with_loss.loss = lambda labels, outputs: outputs

    assert list(program_data.element_spec(program(whole))) == ["a"]
    assert len(program_data.element_spec(with_loss)) == 3


def test_a_batched_dataset_is_detected_by_the_models_input() -> None:
    model = SimpleNamespace(inputs=[tf.TensorSpec([None, 3])])

    program_data.element_spec(program(pairs(4)), model)
    with pytest.raises(
        BadProgram, match=r"of the shapes \(None, 3\), but the model takes \(3,\): is it batched"
    ):
        program_data.element_spec(program(pairs(4).batch(2)), model)


def test_a_last_axis_of_one_is_accepted() -> None:
    single = tf.data.Dataset.from_tensor_slices((np.ones((4, 3, 1)), np.ones(4)))

    program_data.element_spec(program(single), SimpleNamespace(inputs=[tf.TensorSpec([None, 3])]))
    with pytest.raises(BadProgram, match="is it batched already"):
        program_data.element_spec(
            program(single), SimpleNamespace(inputs=[tf.TensorSpec([None, 1])])
        )


def test_few_examples_of_a_large_shape_are_taken_for_batches() -> None:
    with pytest.raises(
        BadProgram,
        match=r"gave 1 example instead of 4, of the shapes \(None, 3\), \(None,\): is it",
    ):
        program_data.read_batch(program(pairs(4).batch(32)), 8, 12)


def values(batch: Any) -> list[Any]:
    """Return the types and values of all parts of a batch."""
    return [(leaf.dtype, leaf.shape, leaf.numpy().tolist()) for leaf in tf.nest.flatten(batch)]


@pytest.mark.parametrize("count", [0, 1, 3, 8, 11])
def test_batches_of_slices_are_those_of_batch(count: int) -> None:
    numbers = np.arange(count)
    inputs = {
        "row": numbers[:, None] * np.ones(3, "float32"),
        "name": numbers.astype(str),
        "empty": np.ones((count, 0)),
    }
    dataset = tf.data.Dataset.from_tensor_slices((inputs, numbers))

    made = program_data.batches(program(dataset), dataset, 4)

    assert program_data.sliced_tensors(dataset) is not None
    assert [values(each) for each in made] == [values(each) for each in dataset.batch(4)]


def test_ragged_slices_are_batched_by_tensorflow() -> None:
    rows = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6]])
    dataset = tf.data.Dataset.from_tensor_slices((rows, np.arange(4)))

    assert program_data.sliced_tensors(dataset) is None
    made = [rows.to_list() for rows, _ in program_data.batches(program(dataset), dataset, 3)]
    assert made == [[[1], [2, 3], []], [[4, 5, 6]]]


def test_only_the_asked_number_of_slices_is_read() -> None:
    assert program_data.read_batch(program(pairs(5)), 0, 2)[1].tolist() == [1, 1]
