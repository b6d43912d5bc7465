"""Small tensors between a worker and a parameter server are sent as one, because each one that is
sent costs a message.
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


def pack_gradients(gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Any]:
    """Return these gradients; small ones of variables on the same ps are sent there as one tensor,
    unless they are there already. The tensor is split on the ps.
    """
    together = defaultdict[tuple[str, tf.DType], list[int]](list)
    for place, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        is_there = (
            bool(variable.device) and gradient is not None and (gradient.device == variable.device)
        )
        if isinstance(gradient, tf.Tensor) and is_small(gradient) and not is_there:
            together[variable.device, gradient.dtype].append(place)
    packed = list(gradients)
    for (device, _), places in together.items():
        if len(places) == 1:
            continue
        sent = tf.concat([tf.reshape(gradients[place], [-1]) for place in places], 0)
        with tf.device(device):
            sizes = [gradients[place].shape.num_elements() for place in places]
            for place, part in zip(places, tf.split(sent, sizes), strict=True):
                packed[place] = tf.reshape(part, gradients[place].shape)
    return packed


def is_small(gradient: tf.Tensor) -> bool:
    """Return whether a tensor is sent together with others."""
    count: int | None = gradient.shape.num_elements()  # None: not known before the step runs
    return count is not None and count * gradient.dtype.size <= PACKED_BYTES


@contextmanager
def read_packed(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Return Keras variables, of which the small ones have been read as one tensor for each ps.

    These are tensors on the worker, and what is traced inside uses them. It must not assign to these
    variables on the ps.
    """
    found = list(variables)
    together = defaultdict[tuple[str, tf.DType], list[int]](list)
    for place, variable in enumerate(variables):
        value = variable.value
        if isinstance(value, tf.Variable) and value.device and is_small(value):
            together[value.device, value.dtype].append(place)
    for (device, _), places in together.items():
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
    with tf.device(device):
        read = [tf.reshape(value.read_value(), [-1]) for value in chosen]
        sent = tf.concat(read, 0)
    received = tf.split(tf.identity(sent), [value.shape.num_elements() for value in chosen])
    return [tf.reshape(piece, value.shape) for piece, value in zip(received, chosen, strict=True)]
