"""Examples on the worker: the program's own Python runs in the worker's process, whatever it reads
from.

The chief traces one step that asks for positions start .. stop - 1 by an operation that calls back
into the Python of whoever executes it. TensorFlow finds the callback by a token in a table of the
process, so each worker enters its own function under the token that the chief traced. So `dataset`
may use NumPy, files or a generator, with plain integers, and no example passes through the chief.

Where in a program that was written which failed inside a dataset. Edge, as it asks TensorFlow.

What `map` or `filter` are given is traced, and runs where no Python is: its error has an
operation's name and no line. The graph of the function knows the line of each of its operations, so
it is told as TensorFlow tells it of a step:

    Detected at node cond/GatherV2 defined at (most recent call last):
      File "net.py", line 5, in shift

Where no operation is so called, or several are (a file is not there, examples differ in shape), it
is the program's function that has made the dataset.

How good the model is on examples that it was not trained on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from traceback import FrameSummary, StackSummary
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import script_ops

from services.trainer.program import BadProgram, has
from services.trainer.worker import failure_cause
from services.trainer.worker.watchdog import Watchdog
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
                raise failure_cause.marked(error, str(program.__file__)) from None
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


NODE = re.compile(r"\{\{node ([^}]+)\}\}")


@contextmanager
def sought(dataset: Any, maker: Callable[..., Any]) -> Iterator[None]:
    """What fails while this dataset is read, says where it was written; `maker` has made the
    dataset.
    """
    try:
        yield
    except tf.errors.OpError as error:
        told = f"{_defined(dataset, maker, error.message)}\n{error.message}"
        raise type(error)(error.node_def, error.op, told).with_traceback(
            error.__traceback__
        ) from None


def _defined(dataset: Any, maker: Callable[..., Any], says: str) -> str:
    named = NODE.search(says)
    stacks = _stacks(dataset, named[1]) if named else []
    what, frames = (
        (f"node {named[1]}", stacks[0])
        if named and len(stacks) == 1
        else ("an example", _head(maker))
    )
    return f"Detected at {what} defined at (most recent call last):\n{''.join(StackSummary.from_list(frames).format())}"


def _head(maker: Callable[..., Any]) -> list[FrameSummary]:
    """Where a function begins."""
    code = getattr(maker, "__code__", None)
    return [FrameSummary(code.co_filename, code.co_firstlineno, code.co_name)] if code else []


def _stacks(dataset: Any, name: str) -> list[list[FrameSummary]]:
    """From where the operations of this name were made; each place once."""
    same = (op for graph in _graphs(dataset) for op in graph.get_operations() if op.name == name)
    made = [
        [FrameSummary(f.filename, f.lineno, f.name, line=f.line) for f in op.traceback]
        for op in same
    ]
    return list({tuple((f.filename, f.lineno) for f in stack): stack for stack in made}.values())


def _graphs(dataset: Any) -> Iterator[Any]:
    """Of the functions that a dataset was given, and of those in them."""
    for made in getattr(dataset, "_functions", list)():
        yield from _nested(made.function.graph)
    for each in getattr(dataset, "_inputs", list)():
        yield from _graphs(each)


def _nested(graph: Any) -> Iterator[Any]:
    yield graph
    for made in getattr(graph, "_functions", {}).values():
        yield from _nested(made.graph)


BATCH = 256
TRIED = 2  # examples, so that there is a batch of them


def metrics(program: ModuleType, trained: Any, dog: Watchdog) -> dict[str, float]:
    """The program's metrics and mean loss over its `evaluation()`; empty where it has none.

    The weights are copied to a plain model here, so that evaluating asks the ps once, not once a
    batch. What is no finite number is left out: JSON has none, and the loss of a model that
    diverged says no more.
    """
    return _measured(program, trained, dog) if has(program, "evaluation") else {}


def tried(program: ModuleType, dog: Watchdog) -> None:
    """Evaluate a few examples with fresh weights: what cannot be evaluated is to fail before hours
    of training.
    """
    if has(program, "evaluation"):
        _measured(program, None, dog, TRIED)


def _measured(program: ModuleType, trained: Any, dog: Watchdog, most: int = -1) -> dict[str, float]:
    """`trained`: the model whose weights are to be used; None: fresh ones. `most`: so many
    examples; -1: all.
    """
    with dog.limited("model()"):
        model = program.model()
    with dog.limited("metrics()"):
        chosen = program.metrics() if has(program, "metrics") else []
    mean = tf.keras.metrics.Mean(name="loss")
    for number, (inputs, labels) in enumerate(_batches(program, dog, most)):
        outputs = model(inputs, training=False)
        if number == 0 and trained is not None:
            model.set_weights(trained.get_weights())
            outputs = model(inputs, training=False)
        mean.update_state(program.loss(labels, outputs))
        for metric in chosen:
            metric.update_state(labels, outputs)
    found = {metric.name: float(metric.result()) for metric in (mean, *chosen)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _batches(program: ModuleType, dog: Watchdog, most: int) -> Iterator[Any]:
    """Batches of the program's; each, and what is made of it, has the limit's time."""
    with dog.limited("evaluation(), or a batch of it,") as inside:
        dataset = pairs(program.evaluation(), "evaluation()", program.evaluation)
        with sought(dataset, program.evaluation):
            for batch in dataset.take(most).batch(BATCH):
                inside.renew()
                yield batch
