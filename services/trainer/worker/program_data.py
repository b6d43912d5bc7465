"""Examples from the program, for training, on the worker.

The program's own Python runs in the worker's process, from whatever source it reads, so `dataset`
may use NumPy, files or a generator. No example passes through the chief (`input_pipeline.py`).

    dataset(numbers)         the examples with these numbers (a NumPy array of int64), in this order
    dataset(start, stop)     the examples start .. stop - 1

The numbers that a worker needs next are in a permuted order (`example_order.py`). From a program
that reads ranges they are read in as few calls as pay: two ranges are read as one, with the
examples between them, if reading these takes less time than another call.

Functions given to `map` or `filter` are traced and run without Python, so their errors have an
operation's name and no line. The graph of the function knows the line of each operation, and
`locate_errors` adds it in TensorFlow's own form:

    Detected at node cond/GatherV2 defined at (most recent call last):
      File "net.py", line 5, in shift

If no operation or several have that name (a file is missing, examples differ in shape), it names
the program's function that made the dataset.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from traceback import FrameSummary, StackSummary
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from services.trainer import program_params
from services.trainer.program import BadProgram, has_function
from services.trainer.worker.example_order import ExampleOrder, block_size
from shared.messages import Shuffle
from shared.text import format_count

SINGLE = (
    "is it batched already? Weir makes the batches: dataset(start, stop) must return single"
    " examples"
)
NODE = re.compile(r"\{\{node ([^}]+)\}\}")
FEW = 32  # examples: enough to show how long each takes
SHORTEST_S = 1e-5
READ_BYTES = 32 << 20
TRIED = 2


class ReadCosts:
    """The number of examples that a program reads in the time of another call of `dataset(start, stop)`.

    Only the way of reading depends on it, never the examples or their order.
    """

    def __init__(self) -> None:
        self._gap: int | None = None
        self._most = 1

    def widest_gap(self, program: ModuleType, order: ExampleOrder, wanted: int) -> int:
        """Return that number, so limited that the examples between `wanted` ones fit in memory."""
        if self._gap is None:
            few = min(FEW, order.examples)
            one_s = min([_seconds_to_read(program, 1) for _ in range(TRIED)])
            few_s = min([_seconds_to_read(program, few) for _ in range(TRIED)])
            each_s = max(few_s - one_s, SHORTEST_S) / few
            self._gap = int(one_s / each_s)
            self._most = READ_BYTES // example_bytes(range_dataset(program, 0, 1).element_spec)
        return min(self._gap, self._most // wanted)


def _seconds_to_read(program: ModuleType, count: int) -> float:
    began = time.monotonic()
    program_batch(program, 0, count)
    return time.monotonic() - began


def example_bytes(spec: Any) -> int:
    """Return the bytes of an example of this structure; dimensions that are not known count as
    one.
    """
    total = 0
    for leaf in tf.nest.flatten(spec):
        shape = leaf.shape if leaf.shape.rank else []
        total += math.prod([size or 1 for size in shape]) * (leaf.dtype.size or 8)
    return max(total, 1)


def takes_numbers(program: ModuleType) -> bool:
    """Return whether the program has `dataset(numbers)`; otherwise it has `dataset(start, stop)`."""
    signature = program_params.signature_of(program.dataset)
    return program_params.argument_count("dataset", signature) == 1


def example_order(program: ModuleType, examples: int, shuffle: Shuffle | None) -> ExampleOrder:
    """Return the order of a job's examples. `shuffle` absent: the order of the numbers."""
    if shuffle is None or not shuffle.on:
        return ExampleOrder(examples)
    block = 1 if takes_numbers(program) else block_size(examples)
    return ExampleOrder(examples, shuffle.seed, block)


def lease_dataset(
    program: ModuleType, order: ExampleOrder, start: int, stop: int, costs: ReadCosts
) -> Any:
    """Return the dataset of the examples at these positions, in this order.

    Raise `BadProgram` if the program gives fewer or more.
    """
    numbers = order.numbers(start, stop)
    if takes_numbers(program):
        made = check_elements(
            program, program.dataset(numbers), "dataset(numbers)", program.dataset
        )
        return _with_length(made, len(numbers))
    if order.seed is None:
        first = int(numbers[0])
        return _with_length(range_dataset(program, first, first + len(numbers)), len(numbers))
    ranges = _covering_ranges(np.sort(numbers), costs.widest_gap(program, order, len(numbers)))
    return tf.data.Dataset.from_tensor_slices(_read_chosen(program, numbers, ranges))


def lease_name(program: ModuleType, order: ExampleOrder, start: int, stop: int) -> str:
    """Return the call that gives a lease, as text."""
    if takes_numbers(program):
        return "dataset(numbers)"
    numbers = order.numbers(start, stop)
    if order.seed is None:
        return f"dataset({numbers[0]}, {numbers[-1] + 1})"
    return f"dataset(), called for {len(numbers)} numbers from {min(numbers)} to {max(numbers)},"


def _with_length(dataset: Any, length: int) -> Any:
    """Return the dataset with an error if it has more or fewer elements."""
    return dataset.apply(tf.data.experimental.assert_cardinality(length))


def _covering_ranges(ordered: Any, gap: int) -> list[tuple[int, int]]:
    """Return ranges (start, stop) that contain these ordered numbers; ranges with at most `gap`
    examples between them are one.
    """
    breaks = np.flatnonzero(np.diff(ordered) > gap + 1)
    starts = ordered[np.concatenate([[0], breaks + 1])]
    stops = ordered[np.concatenate([breaks, [len(ordered) - 1]])] + 1
    return [(int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]


def _read_chosen(program: ModuleType, numbers: Any, ranges: list[tuple[int, int]]) -> Any:
    """Return the examples with these numbers, stacked, from ranges that contain them."""
    parts = [program_batch(program, *each) for each in ranges]
    held = np.concatenate([np.arange(*each) for each in ranges])
    rows = np.searchsorted(held, numbers)
    return tf.nest.map_structure(lambda *each: tf.gather(tf.concat(each, 0), rows), *parts)


def read_examples(program: ModuleType, numbers: Any) -> None:
    """Read the examples with these numbers, and raise the error with its place in the program."""
    if not takes_numbers(program):
        for start, stop in _covering_ranges(np.sort(numbers), 0):
            program_batch(program, start, stop)
        return
    made = check_elements(program, program.dataset(numbers), "dataset(numbers)", program.dataset)
    with locate_errors(made, program.dataset):
        found = sum(1 for _ in made)
    if found != len(numbers):
        raise BadProgram(
            f"dataset(numbers) gave {format_count(found, 'example')} for {len(numbers)} numbers",
            program.dataset,
        )


def read_batch(program: ModuleType, start: int, stop: int) -> list[Any]:
    """Return one batch as a flat list of arrays, each with the batch as its first axis."""
    return [tensor.numpy() for tensor in tf.nest.flatten(program_batch(program, start, stop))]


def program_batch(program: ModuleType, start: int, stop: int) -> Any:
    """Return the batch of these examples in the program's own structure. Raise `BadProgram` if any
    is missing.
    """
    dataset, count = range_dataset(program, start, stop), stop - start
    with locate_errors(dataset, program.dataset):
        batch = next(iter(dataset.batch(count)), None)
    found = 0 if batch is None else len(tf.nest.flatten(batch)[0])
    if found != count:
        raise BadProgram(
            f"{_call_name(program, start, stop)} gave {format_count(found, 'example')} instead of {count}"
            f"{_batched_hint(dataset, found, count)}",
            program.dataset,
        )
    return batch


def _batched_hint(dataset: Any, found: int, count: int) -> str:
    """Return the remedy if so few elements can only be batches."""
    shapes = [leaf.shape for leaf in tf.nest.flatten(dataset.element_spec)]
    likely = found < count and all(shape.rank and shape[0] in (None, count) for shape in shapes)
    return f", of the shapes {_join_shapes(shapes)}: {SINGLE}" if likely else ""


def batch_spec(examples: Any) -> Any:
    """Return the structure of a batch of such examples: shapes with an open first axis, and
    types.
    """
    return tf.nest.map_structure(lambda each: each._batch(None), examples)


def element_spec(program: ModuleType, model: Any = None) -> Any:
    """Return the structure of one batch: shapes with an open first axis, and types. Raise
    `BadProgram` as `example_spec` does.
    """
    return batch_spec(example_spec(program, model))


def example_spec(program: ModuleType, model: Any = None) -> Any:
    """Return the structure of one example: shapes and types.

    Raise `BadProgram` if the dataset is batched: every input has one axis more than the model
    takes. Keras itself drops a last axis of 1.
    """
    spec = range_dataset(program, 0, 1).element_spec
    inputs = spec[0] if isinstance(spec, tuple) else spec
    given = [leaf.shape for leaf in tf.nest.flatten(batch_spec(inputs))]
    taken = [tf.TensorShape(each.shape) for each in getattr(model, "inputs", None) or []]
    if taken and len(given) == len(taken) and all(map(_has_more, given, taken)):
        raise BadProgram(
            f"dataset(0, 1) has inputs of the shapes {_join_element_shapes(given)}, "
            f"but the model takes {_join_element_shapes(taken)}: {SINGLE}",
            program.dataset,
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
