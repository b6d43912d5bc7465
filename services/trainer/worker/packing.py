"""Small tensors between a worker and a parameter server are sent as one, because each one that is
sent costs a message. Tensors of several types are sent as their bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

PACKED_BYTES = 64 * 2**10
"""Maximum bytes of a tensor that is sent together with others: copying a larger one costs more than
a message.
"""
PACKED_TYPES = (
    tf.float64,
    tf.float32,
    tf.float16,
    tf.bfloat16,
    tf.int64,
    tf.int32,
    tf.int16,
    tf.int8,
    tf.uint64,
    tf.uint32,
    tf.uint16,
    tf.uint8,
)
"""The types of numbers whose bytes `tf.bitcast` can take."""


def pack_gradients(gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Any]:
    """Return these gradients; small ones of variables on the same ps are sent there as one tensor,
    unless they are there already. The tensor is split on the ps.
    """
    together = defaultdict[tuple[str, tf.DType], list[int]](list)
    for place, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        is_there = (
            bool(variable.device) and gradient is not None and (gradient.device == variable.device)
        )
        if isinstance(gradient, tf.Tensor) and can_pack(gradient) and not is_there:
            together[variable.device, gradient.dtype].append(place)
    packed = list(gradients)
    for (device, _), places in together.items():
        if len(places) == 1:
            continue
        small = [gradients[place] for place in places]
        sent = join_elements(small)
        with tf.device(device):
            for place, part in zip(places, split_elements(sent, small), strict=True):
                packed[place] = part
    return packed


def can_pack(tensor: tf.Tensor | tf.Variable) -> bool:
    """Return whether a tensor may be sent together with others: it is small, and holds numbers."""
    count: int | None = tensor.shape.num_elements()  # None: not known before the step runs
    is_small = count is not None and count * tensor.dtype.size <= PACKED_BYTES
    return is_small and tensor.dtype in PACKED_TYPES


@contextmanager
def read_packed(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Return the values of Keras variables: tensors on the worker for small ones, which are read as
    one tensor for each ps, and for those that are tensors already. Large ones stay variables.

    What is traced inside uses these values. It must not assign to these variables on the ps.
    """
    found = list(variables)
    together = defaultdict[str, list[int]](list)
    for place, variable in enumerate(variables):
        value = variable.value
        if isinstance(value, tf.Tensor):
            found[place] = value
        elif isinstance(value, tf.Variable) and value.device and can_pack(value):
            together[value.device].append(place)
    for device, places in together.items():
        for place, piece in zip(places, _read_pieces(device, variables, places), strict=True):
            found[place] = piece
    kept = [(variable, variable._value) for variable in variables]
    try:
        for variable, value in zip(variables, found, strict=True):
            if value is not variable:
                variable._value = value
        yield found
    finally:
        for variable, value in kept:
            variable._value = value


def _read_pieces(device: str, variables: Sequence[Any], places: Sequence[int]) -> list[tf.Tensor]:
    """Return the values of the variables at these places, read as one tensor."""
    chosen = [variables[place].value for place in places]
    by_type = defaultdict[tf.DType, list[int]](list)
    for at, value in enumerate(chosen):
        by_type[value.dtype].append(at)
    with tf.device(device):
        read = [
            join_elements([chosen[at].read_value() for at in alike]) for alike in by_type.values()
        ]
        sent = join_bytes(read)
    received = split_bytes(tf.identity(sent), read)
    pieces: list[Any] = [None] * len(chosen)
    for alike, values in zip(by_type.values(), received, strict=True):
        split = split_elements(values, [chosen[at] for at in alike])
        for at, piece in zip(alike, split, strict=True):
            pieces[at] = piece
    return pieces


def send_to(device: str, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return these tensors on a device. Small ones that are not there are sent as one."""
    places = [
        at for at, tensor in enumerate(tensors) if tensor.device != device and can_pack(tensor)
    ]
    if len(places) < 2:
        with tf.device(device):
            return [tf.identity(tensor) for tensor in tensors]
    small = [tensors[at] for at in places]
    sent = join_bytes(small)
    with tf.device(device):
        by_place = dict(zip(places, split_bytes(tf.identity(sent), small), strict=True))
        return [
            by_place[at] if at in by_place else tf.identity(tensor)
            for at, tensor in enumerate(tensors)
        ]


def join_elements(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the elements of tensors of one type, one after the other."""
    return tf.concat([tf.reshape(each, [-1]) for each in tensors], 0)


def split_elements(joined: tf.Tensor, like: Sequence[tf.Tensor | tf.Variable]) -> list[tf.Tensor]:
    """Return the tensors whose elements were joined, which have known shapes."""
    pieces = tf.split(joined, [each.shape.num_elements() for each in like])
    return [tf.reshape(piece, each.shape) for piece, each in zip(pieces, like, strict=True)]


def join_bytes(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the bytes of tensors of numbers, one after the other."""
    return tf.concat([tf.reshape(tf.bitcast(each, tf.uint8), [-1]) for each in tensors], 0)


def split_bytes(joined: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the tensors whose bytes were joined, which have known shapes, with the same bits."""
    sizes = [each.shape.num_elements() * each.dtype.size for each in like]
    return [
        tf.bitcast(tf.reshape(piece, _shape_of_bytes(each)), each.dtype)
        for piece, each in zip(tf.split(joined, sizes), like, strict=True)
    ]


def _shape_of_bytes(tensor: tf.Tensor) -> list[int]:
    shape: list[int] = tensor.shape.as_list()
    return shape if tensor.dtype.size == 1 else [*shape, tensor.dtype.size]
