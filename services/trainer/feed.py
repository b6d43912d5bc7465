"""Examples on the worker: the program's own Python runs in the worker's process, whatever it reads from.

The chief traces one step that asks for positions start .. stop - 1 by an operation that calls back into the Python of
whoever executes it. TensorFlow finds the callback by a token in a table of the process, so each worker enters its own
function under the token that the chief traced. So `dataset` may use NumPy, files or a generator, with plain integers,
and no example passes through the chief.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import script_ops

from services.trainer.program import BadProgram
from services.trainer.watchdog import Watchdog

TOKEN = "weir_feed"
_kept: list[Any] = []


def serve(program: ModuleType, dog: Watchdog) -> None:
    """Answer the step's calls in this process. TensorFlow's table holds weak references, so we keep one."""

    def batch(start: Any, stop: Any) -> list[Any]:
        with dog.limited(f"dataset({int(start)}, {int(stop)})"):
            arrays = read(program, int(start), int(stop))
        dog.relax()
        return arrays

    _kept.append(batch)
    script_ops._py_funcs._funcs[TOKEN] = batch


def read(program: ModuleType, start: int, stop: int) -> list[Any]:
    """One batch as a flat list of arrays, each with the batch as its first axis. Raises where examples are missing."""
    dataset = pairs(program.dataset(start, stop), f"dataset({start}, {stop})").batch(stop - start)
    arrays = [tensor.numpy() for tensor in tf.nest.flatten(next(iter(dataset)))]
    if len(arrays[0]) != stop - start:
        raise ValueError(f"dataset({start}, {stop}) gave {len(arrays[0])} examples instead of {stop - start}")
    return arrays


def element_spec(program: ModuleType) -> Any:
    """The structure of one batch: shapes with an open first axis, and types."""
    return pairs(program.dataset(0, 1), "dataset(0, 1)").batch(1).element_spec


def pairs(made: Any, by: str) -> Any:
    """What a program has made, if it is a dataset of pairs; raises `BadProgram` that names who made it."""
    if not isinstance(made, tf.data.Dataset):
        raise BadProgram(f"{by} returned {type(made)}; a tf.data.Dataset is needed")
    if not isinstance(made.element_spec, tuple) or len(made.element_spec) != 2:
        raise BadProgram(f"{by} has elements {made.element_spec}; pairs (inputs, label) are needed")
    return made


def batch_of(spec: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
    """Inside a traced step: the batch, in the program's own structure."""
    leaves = tf.nest.flatten(spec)
    values = tf.raw_ops.PyFunc(input=[start, stop], token=TOKEN, Tout=[leaf.dtype for leaf in leaves])
    for value, leaf in zip(values, leaves, strict=True):
        value.set_shape([None, *leaf.shape[1:]])
    return tf.nest.pack_sequence_as(spec, values)
