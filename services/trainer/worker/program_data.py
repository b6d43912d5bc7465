"""Datasets of the program: its first examples, their structure, their batches, and their errors.

The program's own Python runs in the worker's process, from whatever source it reads, so it may use
NumPy, files or a generator. No example passes through the chief (`input_pipeline.py`).

Weir makes batches with `Dataset.batch`, or with the program's own `batched(dataset, size)`: it
pads, or makes ragged or sparse batches.

Functions given to `map` or `filter` are traced and run without Python, so their errors have an
operation's name and no line. The graph of the function knows the line of each operation, and
`locate_errors` adds it in TensorFlow's own form:

    Detected at node cond/GatherV2 defined at (most recent call last):
      File "net.py", line 5, in shift

If no operation or several have that name (a file is missing, examples differ in shape), it names
the program's function that made the dataset.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from traceback import FrameSummary, StackSummary
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import from_tensor_slices_op
from tensorflow.python.data.util import structure

from services.trainer.program import (
    BadProgram,
    argument_count,
    has_function,
    reads_files,
    signature_of,
)
from services.trainer.worker.file_source import FileList
from shared.text import format_count

SINGLE = "is it batched already? Weir makes the batches: {} must return single examples"
RANGE = "dataset(start, stop)"
NODE = re.compile(r"\{\{node ([^}]+)\}\}")
READ_BYTES = 32 << 20


def example_bytes(spec: Any) -> int:
    """Return the bytes of an example of this structure, or of one in a batch of this structure;
    dimensions that are not known count as one.
    """
    total = 0
    for leaf in tf.nest.flatten(spec):
        shape = leaf.shape if leaf.shape.rank else []
        total += math.prod([size or 1 for size in shape]) * (leaf.dtype.size or 8)
    return max(total, 1)


def has_fixed_size(spec: Any) -> bool:
    """Return whether all examples of a batch of this structure have the size `example_bytes`."""
    return all(
        isinstance(leaf, tf.TensorSpec)
        and leaf.dtype != tf.string
        and leaf.shape[1:].is_fully_defined()
        for leaf in tf.nest.flatten(spec)
    )


def takes_numbers(program: ModuleType) -> bool:
    """Return whether the program has `dataset(numbers)` in place of `dataset(start, stop)`."""
    signature = signature_of(program.dataset)
    return argument_count("dataset", signature) == 1


def read_batch(program: ModuleType, start: int, stop: int) -> list[Any]:
    """Return examples as a flat list of parts, each of them an array or a list with an entry for
    each example.
    """
    return [_rows(part) for part in tf.nest.flatten(program_batch(program, start, stop))]


def example_digest(batch: Iterable[Any], row: int) -> str:
    """Return the digest of one example: types, shapes and bytes of all its parts."""
    found = hashlib.sha256()
    for part in batch:
        value = np.asarray(part[row])
        text = repr(value) if value.dtype == object else value.tobytes().hex()
        found.update(f"{value.dtype} {value.shape} {text};".encode())
    return found.hexdigest()[:16]


def _rows(part: Any) -> Any:
    if isinstance(part, tf.RaggedTensor):
        return [row.numpy() for row in part]
    return (tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part).numpy()


def program_batch(program: ModuleType, start: int, stop: int) -> Any:
    """Return these examples, stacked, in the program's own structure.

    If the program reads files, they are counted from the beginning of the first file. Raise
    `BadProgram` if any is missing.
    """
    if reads_files(program):
        dataset, name = first_examples(program, stop).skip(start), first_call(program)
    else:
        dataset, name = range_dataset(program, start, stop), _call_name(program, start, stop)
    count = stop - start
    batch = sliced_tensors(dataset)
    if batch is not None:
        batch = tf.nest.map_structure(lambda leaf: leaf[:count], batch)
    else:
        with locate_errors(dataset, data_function(program)):
            batch = next(iter(_stack_examples(program, dataset, count)), None)
    found = 0 if batch is None else row_count(batch)
    if found != count:
        raise BadProgram(
            f"{name} gave {format_count(found, 'example')} instead of {count}"
            f"{_batched_hint(dataset, found, count)}",
            data_function(program),
        )
    return batch


def _stack_examples(program: ModuleType, dataset: Any, count: int) -> Any:
    """Return a dataset whose elements are `count` examples each, stacked.

    Examples that `batched` pads may differ in shape, so they are stacked as ragged tensors.
    """
    if has_function(program, "batched") and any(
        map(_varies, tf.nest.flatten(dataset.element_spec))
    ):
        return dataset.ragged_batch(count)
    return dataset.batch(count)


def _varies(leaf: Any) -> bool:
    return isinstance(leaf, tf.TensorSpec) and not leaf.shape.is_fully_defined()


def row_count(batch: Any) -> int:
    """Return the number of examples of a batch."""
    first = tf.nest.flatten(batch)[0]
    if isinstance(first, tf.RaggedTensor):
        return int(first.nrows())
    return int(first.dense_shape[0] if isinstance(first, tf.SparseTensor) else first.shape[0])


def _batched_hint(dataset: Any, found: int, count: int) -> str:
    """Return the remedy if the elements of a dataset are probably batches; else empty."""
    shapes = [leaf.shape for leaf in tf.nest.flatten(dataset.element_spec)]
    likely = found < count and all(shape.rank and shape[0] in (None, count) for shape in shapes)
    return f", of the shapes {_join_shapes(shapes)}: {SINGLE.format(RANGE)}" if likely else ""


# ---------------------------------------------------------------- batches


def batches(program: ModuleType, dataset: Any, size: int) -> Any:
    """Return a dataset of batches of `size` examples.

    The program's `batched` makes them, if it has that. The last batch may be smaller. Raise
    `BadProgram` if `batched` drops it.
    """
    if not has_function(program, "batched"):
        return _batch_slices(dataset, size)
    made = program.batched(dataset, size)
    if not isinstance(made, tf.data.Dataset):
        raise BadProgram(
            f"batched(dataset, size) returned {type(made)}; a tf.data.Dataset is needed",
            program.batched,
        )
    firsts = [
        leaf.shape[0] if leaf.shape.rank else 0 for leaf in tf.nest.flatten(made.element_spec)
    ]
    if any(first is not None for first in firsts):
        raise BadProgram(
            f"batched(dataset, size) has elements {made.element_spec}; batches with an open first "
            "axis are needed: leave out drop_remainder, because Weir trains every example",
            program.batched,
        )
    return made


def sliced_tensors(dataset: Any) -> Any:
    """Return the tensors that a dataset of `from_tensor_slices` cuts into elements, in the structure
    of an element; None for any other dataset.
    """
    spec = dataset.element_spec
    if type(dataset) is not from_tensor_slices_op._TensorSliceDataset:
        return None
    if not all(type(leaf) is tf.TensorSpec for leaf in tf.nest.flatten(spec)):
        return None
    return structure.from_compatible_tensor_list(batch_spec(spec), dataset._tensors)


def _batch_slices(dataset: Any, size: int) -> Any:
    """Return a dataset with the elements of `dataset.batch(size)`. Its `element_spec` may have a fixed
    first axis.

    The batches of `from_tensor_slices` are cut from its tensors. That takes a quarter of the time
    of cutting single examples and joining them.
    """
    tensors = sliced_tensors(dataset)
    if tensors is None:
        return dataset.batch(size)
    count = row_count(tensors)
    whole = count // size * size
    rest = tf.nest.map_structure(lambda leaf: leaf[whole:], tensors)
    if not whole:
        return tf.data.Dataset.from_tensors(rest) if count else dataset.batch(size)
    stacked = tf.nest.map_structure(
        lambda leaf: tf.reshape(leaf[:whole], [whole // size, size, *leaf.shape[1:]]), tensors
    )
    made = tf.data.Dataset.from_tensor_slices(stacked)
    return made if whole == count else made.concatenate(tf.data.Dataset.from_tensors(rest))


def first_batch(program: ModuleType, count: int) -> Any:
    """Return the batch of the first examples, as the model gets it."""
    dataset = first_examples(program, count)
    with locate_errors(dataset, data_function(program)):
        batch = next(iter(batches(program, dataset, count)), None)
    if batch is None:
        raise BadProgram("there is no example", data_function(program))
    return batch


def first_examples(program: ModuleType, count: int) -> Any:
    """Return the dataset of the first `count` examples.

    If the program reads files, they are those of the first files, which may be fewer.
    """
    if not reads_files(program):
        return range_dataset(program, 0, count)
    files = FileList(program)
    made = files.first_examples(count)
    name = f"read({files.names[0]!r})"
    return check_elements(program, made, name, program.read)


def first_call(program: ModuleType) -> str:
    """Return the call that reads the first examples, as text."""
    return "read() of the first file" if reads_files(program) else "dataset(0, 1)"


def data_function(program: ModuleType) -> Callable[..., Any]:
    """Return the program's function that makes its datasets."""
    made: Callable[..., Any] = program.read if reads_files(program) else program.dataset
    return made


def batch_spec(examples: Any) -> Any:
    """Return the structure of a batch of such examples: shapes with an open first axis, and
    types.
    """
    return tf.nest.map_structure(lambda each: each._batch(None), examples)


def element_spec(program: ModuleType, model: Any = None) -> Any:
    """Return the structure of one batch: shapes with an open first axis, and types. Raise
    `BadProgram` as `example_spec` does.
    """
    if has_function(program, "batched"):
        return batches(program, first_examples(program, 1), 1).element_spec
    return batch_spec(example_spec(program, model))


def example_spec(program: ModuleType, model: Any = None) -> Any:
    """Return the structure of one example: shapes and types.

    Raise `BadProgram` if the dataset is batched: every input has one axis more than the model
    takes. Keras itself drops a last axis of 1.
    """
    spec = first_examples(program, 1).element_spec
    inputs = spec[0] if isinstance(spec, tuple) else spec
    given = [leaf.shape for leaf in tf.nest.flatten(batch_spec(inputs))]
    taken = [tf.TensorShape(each.shape) for each in getattr(model, "inputs", None) or []]
    if taken and len(given) == len(taken) and all(map(_has_more, given, taken)):
        by = "read(file)" if reads_files(program) else "dataset(0, 1)"
        single = SINGLE.format("read(file)" if reads_files(program) else RANGE)
        raise BadProgram(
            f"{by} has inputs of the shapes {_join_element_shapes(given)}, "
            f"but the model takes {_join_element_shapes(taken)}: {single}",
            data_function(program),
        )
    return spec


def _join_element_shapes(batch_shapes: Iterable[Any]) -> str:
    return _join_shapes(shape[1:] for shape in batch_shapes)


def _has_more(given: Any, taken: Any) -> bool:
    """Return whether there is exactly one axis too many."""
    if given.rank is None or taken.rank is None or given.rank != taken.rank + 1:
        return False
    return not given[:-1].is_compatible_with(taken) or given[-1] != 1


def _join_shapes(shapes: Iterable[Any]) -> str:
    return ", ".join(map(str, shapes))


def range_dataset(program: ModuleType, start: int, stop: int) -> Any:
    """Return the program's dataset of the examples start .. stop - 1."""
    arguments = [np.arange(start, stop)] if takes_numbers(program) else [start, stop]
    made = program.dataset(*arguments)
    return check_elements(program, made, _call_name(program, start, stop), program.dataset)


def _call_name(program: ModuleType, start: int, stop: int) -> str:
    if takes_numbers(program):
        return f"dataset(numbers), for {start} .. {stop - 1},"
    return f"dataset({start}, {stop})"


def check_elements(program: ModuleType, made: Any, by: str, maker: object = None) -> Any:
    """Return the program's dataset if its elements are `(inputs, label)` or `(inputs, label,
    weight)`, or anything if `loss` does not get them; else raise `BadProgram` with its function.
    """
    if not isinstance(made, tf.data.Dataset):
        raise BadProgram(f"{by} returned {type(made)}; a tf.data.Dataset is needed", maker)
    spec = made.element_spec
    is_free = has_function(program, "train_step") or not has_function(program, "loss")
    if is_free or (isinstance(spec, tuple) and len(spec) in (2, 3)):
        return made
    raise BadProgram(
        f"{by} has elements {spec}; pairs (inputs, label) are needed, or (inputs, label, weight)",
        maker,
    )


@contextmanager
def locate_errors(dataset: Any, maker: Callable[..., Any]) -> Iterator[None]:
    """Add the place in the program to errors while this dataset is read; `maker` made the
    dataset.
    """
    try:
        yield
    except tf.errors.OpError as error:
        told = f"{_definition_text(dataset, maker, error.message)}\n{error.message}"
        raise type(error)(error.node_def, error.op, told).with_traceback(
            error.__traceback__
        ) from None


def _definition_text(dataset: Any, maker: Callable[..., Any], says: str) -> str:
    named = NODE.search(says)
    stacks = _operation_stacks(dataset, named[1]) if named else []
    what, frames = "an example", _function_start(maker)
    if named and len(stacks) == 1:
        what, frames = f"node {named[1]}", stacks[0]
    stack = "".join(StackSummary.from_list(frames).format())
    return f"Detected at {what} defined at (most recent call last):\n{stack}"


def _function_start(maker: Callable[..., Any]) -> list[FrameSummary]:
    """Return the first line of a function as a frame."""
    code = getattr(maker, "__code__", None)
    return [FrameSummary(code.co_filename, code.co_firstlineno, code.co_name)] if code else []


def _operation_stacks(dataset: Any, name: str) -> list[list[FrameSummary]]:
    """Return the places where operations of this name were made, each once."""
    stacks = {}
    for graph in _dataset_graphs(dataset):
        for operation in graph.get_operations():
            if operation.name != name:
                continue
            frames = operation.traceback
            places = tuple((f.filename, f.lineno) for f in frames)
            stacks[places] = [
                FrameSummary(f.filename, f.lineno, f.name, line=f.line) for f in frames
            ]
    return list(stacks.values())


def _dataset_graphs(dataset: Any) -> Iterator[Any]:
    """Yield the graphs of a dataset's functions, and of the functions inside them."""
    for made in getattr(dataset, "_functions", list)():
        yield from _nested_graphs(made.function.graph)
    for each in getattr(dataset, "_inputs", list)():
        yield from _dataset_graphs(each)


def _nested_graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for made in getattr(graph, "_functions", {}).values():
        yield from _nested_graphs(made.graph)
