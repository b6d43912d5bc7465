"""Examples on the worker: the program's own Python runs in the worker's process, whatever it reads
from.

The chief traces one step that asks for positions start .. stop - 1 by an operation that calls back
into the Python of whoever executes it. TensorFlow finds the callback by a token in a table of the
process, so each worker enters its own function under the token that the chief traced. So `dataset`
may use NumPy, files or a generator, with plain integers, and no example passes through the chief.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import script_ops

from services.trainer import cause
from services.trainer.program import BadProgram
from services.trainer.sought import sought
from services.trainer.watchdog import Watchdog
from shared.text import format_count

TOKEN = "weir_feed"
SINGLE = "is it batched already? Weir makes the batches, so that dataset(start, stop) is to give single examples"
_kept: list[Any] = []


def serve(program: ModuleType, dog: Watchdog) -> None:
    """Answer the step's calls in this process. TensorFlow's table holds weak references, so we keep
    one.
    """

    def batch(start: Any, stop: Any) -> list[Any]:
        with dog.limited(f"dataset({int(start)}, {int(stop)})"):
            try:
                arrays = read(program, int(start), int(stop))
            except Exception as error:
                raise cause.marked(error, str(program.__file__)) from None
        dog.relax()
        return arrays

    _kept.append(batch)
    script_ops._py_funcs._funcs[TOKEN] = batch


def read(program: ModuleType, start: int, stop: int) -> list[Any]:
    """One batch as a flat list of arrays, each with the batch as its first axis."""
    return [tensor.numpy() for tensor in tf.nest.flatten(first(program, start, stop))]


def first(program: ModuleType, start: int, stop: int) -> Any:
    """The batch of these examples, in the program's own structure; raises `BadProgram` where any
    are missing.
    """
    dataset, count = _given(program, start, stop), stop - start
    with sought(dataset, program.dataset):
        batch = next(iter(dataset.batch(count)), None)
    found = 0 if batch is None else len(tf.nest.flatten(batch)[0])
    if found != count:
        raise BadProgram(
            f"dataset({start}, {stop}) gave {format_count(found, 'example')} instead of {count}"
            f"{_batched(dataset, found, count)}",
            program.dataset,
        )
    return batch


def _batched(dataset: Any, found: int, count: int) -> str:
    """What to do, where so few elements can only be batches."""
    shapes = [leaf.shape for leaf in tf.nest.flatten(dataset.element_spec)]
    likely = found < count and all(shape.rank and shape[0] in (None, count) for shape in shapes)
    return f", of the shapes {_told(shapes)}: {SINGLE}" if likely else ""


def element_spec(program: ModuleType, model: Any = None) -> Any:
    """The structure of one batch: shapes with an open first axis, and types. Raises `BadProgram`
    where it is batched.

    That is: every one of the inputs has an axis more than the model says that it takes; but Keras
    itself drops a last axis of 1.
    """
    spec = _given(program, 0, 1).batch(1).element_spec
    given = [leaf.shape for leaf in tf.nest.flatten(spec[0])]
    taken = [tf.TensorShape(each.shape) for each in getattr(model, "inputs", None) or []]
    if taken and len(given) == len(taken) and all(map(_has_more, given, taken)):
        raise BadProgram(
            f"dataset(0, 1) has inputs of the shapes {_told(s[1:] for s in given)}, but the model takes "
            f"{_told(s[1:] for s in taken)}: {SINGLE}",
            program.dataset,
        )
    return spec


def _has_more(given: Any, taken: Any) -> bool:
    """Whether there is exactly one axis too many."""
    if given.rank is None or taken.rank is None or given.rank != taken.rank + 1:
        return False
    return not given[:-1].is_compatible_with(taken) or given[-1] != 1


def _told(shapes: Iterable[Any]) -> str:
    return ", ".join(str(shape) for shape in shapes)


def _given(program: ModuleType, start: int, stop: int) -> Any:
    return pairs(program.dataset(start, stop), f"dataset({start}, {stop})", program.dataset)


def pairs(made: Any, by: str, maker: object = None) -> Any:
    """What a program has made, if it is a dataset of pairs; raises `BadProgram` that names who made
    it.
    """
    if not isinstance(made, tf.data.Dataset):
        raise BadProgram(f"{by} returned {type(made)}; a tf.data.Dataset is needed", maker)
    if not isinstance(made.element_spec, tuple) or len(made.element_spec) != 2:
        raise BadProgram(
            f"{by} has elements {made.element_spec}; pairs (inputs, label) are needed", maker
        )
    return made


def batch_of(spec: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
    """Inside a traced step: the batch, in the program's own structure."""
    leaves = tf.nest.flatten(spec)
    values = tf.raw_ops.PyFunc(
        input=[start, stop], token=TOKEN, Tout=[leaf.dtype for leaf in leaves]
    )
    for value, leaf in zip(values, leaves, strict=True):
        value.set_shape([None, *leaf.shape[1:]])
    return tf.nest.pack_sequence_as(spec, values)
