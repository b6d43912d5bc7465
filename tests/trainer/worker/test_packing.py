"""Tests that tensors that are sent as one arrive with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.worker.packing import (
    PACKED_BYTES,
    can_pack,
    join_bytes,
    read_packed,
    send_to,
    split_bytes,
)

PS = "/job:ps/replica:0/task:0/device:CPU:0"
WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
TENSORS = {
    "float32": np.array([[1.5, -0.0], [np.nan, np.inf]], "float32"),
    "float16": np.array([1.0, 65504.0, 6e-8], "float16"),
    "int64": np.array(-(2**62) + 1, "int64"),
    "int32": np.array([[7], [-7]], "int32"),
    "uint8": np.array([0, 255, 3], "uint8"),
    "empty": np.zeros([0, 3], "float32"),
}


def test_bytes_are_joined_and_split_with_all_their_bits() -> None:
    tensors = [tf.constant(value) for value in TENSORS.values()]

    joined = join_bytes(tensors)

    assert joined.shape == sum(value.nbytes for value in TENSORS.values())
    for before, after in zip(tensors, split_bytes(joined, tensors), strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert after.numpy().tobytes() == before.numpy().tobytes()


def test_only_small_tensors_of_numbers_are_packed() -> None:
    assert can_pack(tf.zeros([PACKED_BYTES // 4]))
    assert not can_pack(tf.zeros([PACKED_BYTES // 4 + 1]))
    assert not can_pack(tf.constant([True]))
    assert not can_pack(tf.constant(["text"]))


@pytest.mark.parametrize("count", [1, 5])
def test_small_tensors_are_sent_as_one(count: int) -> None:
    def send() -> None:
        with tf.device(WORKER):
            tensors = [tf.constant(value) for value in list(TENSORS.values())[:count]]
        received = send_to(PS, tensors)
        assert all(tensor.device == PS for tensor in received)

    assert len(_sent(send)) == 1


def test_tensors_arrive_in_their_order_with_all_their_bits() -> None:
    values = [*TENSORS.values(), np.array([True, False]), np.array(["text"]), np.int8(-3)]

    @tf.function
    def send() -> list[tf.Tensor]:
        return send_to("/device:CPU:0", [tf.constant(value) for value in values])

    for value, received in zip(values, send(), strict=True):
        expected = tf.constant(value)
        assert (received.dtype, received.shape) == (expected.dtype, expected.shape)
        assert tf.io.serialize_tensor(received) == tf.io.serialize_tensor(expected)


def test_a_large_tensor_is_sent_alone_and_one_that_is_there_is_not_sent() -> None:
    def send() -> None:
        with tf.device(WORKER):
            tensors = [tf.constant(1), tf.zeros([PACKED_BYTES]), tf.constant(2.0)]
        with tf.device(PS):
            tensors.append(tf.constant(3))
        received = send_to(PS, tensors)
        assert [tensor.dtype for tensor in received] == [tensor.dtype for tensor in tensors]

    assert len(_sent(send)) == 2


def test_variables_of_several_types_are_read_as_one() -> None:
    variables = _small_variables()

    def read() -> None:
        with tf.device(WORKER), read_packed(variables) as values:
            assert all(isinstance(value, tf.Tensor) for value in values)

    assert len(_sent(read)) == 1


def test_variables_are_read_with_all_their_bits() -> None:
    variables = _small_variables()

    with read_packed(variables) as values, read_packed(variables) as again:
        assert all(one is other for one, other in zip(values, again, strict=True))
        found = [value.numpy() for value in values]

    for variable, value in zip(variables, found, strict=True):
        assert isinstance(variable.value, tf.Variable)
        assert value.tobytes() == variable.numpy().tobytes()


def _small_variables() -> list[keras.Variable]:
    return [
        keras.Variable(value, dtype=name, trainable=False)
        for name, value in TENSORS.items()
        if name != "empty"
    ]


def _sent(function: Any) -> set[tuple[str, str]]:
    """Return each tensor that a function sends to another device, and that device."""
    graph = tf.function(function).get_concrete_function().graph
    return set(_edges(graph))


def _edges(graph: Any) -> Iterator[tuple[str, str]]:
    for operation in graph.get_operations():
        for tensor in operation.inputs:
            if operation.device and tensor.device != operation.device:
                yield tensor.name, operation.device
