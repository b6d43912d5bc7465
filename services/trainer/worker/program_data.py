"""Examples from the program, for training, on the worker.

The program's own Python runs in the worker's process, from whatever source it reads. The chief
traces a step that requests positions start .. stop - 1 through an operation that calls back into
the Python of the process that executes it. TensorFlow finds the callback by a token in a table of
the process, so each worker registers its own function under the token that the chief traced. So
`dataset` may use NumPy, files or a generator, with plain integers, and no example passes through
the chief.

Functions given to `map` or `filter` are traced and run without Python, so their errors have an
operation's name and no line. The graph of the function knows the line of each operation, and
`locate_errors` adds it in TensorFlow's own form:

    Detected at node cond/GatherV2 defined at (most recent call last):
      File "net.py", line 5, in shift

If no operation or several have that name (a file is missing, examples differ in shape), it names
the program's function that made the dataset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from traceback import FrameSummary, StackSummary
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import script_ops

from services.trainer.program import BadProgram, has_function
from services.trainer.worker import failure_cause
from services.trainer.worker.watchdog import Watchdog
from shared.text import format_count

TOKEN = "weir_feed"
SINGLE = (
    "is it batched already? Weir makes the batches: dataset(start, stop) must return single"
    " examples"
)
_served: list[Any] = []
NODE = re.compile(r"\{\{node ([^}]+)\}\}")


def serve_batches(program: ModuleType, dog: Watchdog) -> None:
    """Answer the step's calls in this process. TensorFlow's table holds weak references, so keep
    one.
    """

    def batch(start: Any, stop: Any) -> list[Any]:
        with dog.limit(f"dataset({int(start)}, {int(stop)})"):
            try:
                arrays = read_batch(program, int(start), int(stop))
            except Exception as error:
                raise failure_cause.mark_failure(error, str(program.__file__)) from None
        dog.use_later_limit()
        return arrays

    _served.append(batch)
    script_ops._py_funcs._funcs[TOKEN] = batch


def read_batch(program: ModuleType, start: int, stop: int) -> list[Any]:
    """Return one batch as a flat list of arrays, each with the batch as its first axis."""
    return [tensor.numpy() for tensor in tf.nest.flatten(program_batch(program, start, stop))]


def program_batch(program: ModuleType, start: int, stop: int) -> Any:
    """Return the batch of these examples in the program's own structure. Raise `BadProgram` if any
    is missing.
    """
    dataset, count = _program_dataset(program, start, stop), stop - start
    with locate_errors(dataset, program.dataset):
        batch = next(iter(dataset.batch(count)), None)
    found = 0 if batch is None else len(tf.nest.flatten(batch)[0])
    if found != count:
        raise BadProgram(
            f"dataset({start}, {stop}) gave {format_count(found, 'example')} instead of {count}"
            f"{_batched_hint(dataset, found, count)}",
            program.dataset,
        )
    return batch


def _batched_hint(dataset: Any, found: int, count: int) -> str:
    """Return the remedy if so few elements can only be batches."""
    shapes = [leaf.shape for leaf in tf.nest.flatten(dataset.element_spec)]
    likely = found < count and all(shape.rank and shape[0] in (None, count) for shape in shapes)
    return f", of the shapes {_join_shapes(shapes)}: {SINGLE}" if likely else ""


def element_spec(program: ModuleType, model: Any = None) -> Any:
    """Return the structure of one batch: shapes with an open first axis, and types.

    Raise `BadProgram` if the dataset is batched: every input has one axis more than the model
    takes. Keras itself drops a last axis of 1.
    """
    spec = _program_dataset(program, 0, 1).batch(1).element_spec
    inputs = spec[0] if isinstance(spec, tuple) else spec
    given = [leaf.shape for leaf in tf.nest.flatten(inputs)]
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


def _program_dataset(program: ModuleType, start: int, stop: int) -> Any:
    made = program.dataset(start, stop)
    return check_elements(program, made, f"dataset({start}, {stop})", program.dataset)


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


def traced_batch(spec: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
    """Return the batch in the program's own structure, inside a traced step."""
    leaves = tf.nest.flatten(spec)
    values = tf.raw_ops.PyFunc(
        input=[start, stop], token=TOKEN, Tout=[leaf.dtype for leaf in leaves]
    )
    for value, leaf in zip(values, leaves, strict=True):
        value.set_shape([None, *leaf.shape[1:]])
    return tf.nest.pack_sequence_as(spec, values)


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
