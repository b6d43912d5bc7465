"""Where in a program that was written which failed inside a dataset. Edge, as it asks TensorFlow.

What `map` or `filter` are given is traced, and runs where no Python is: its error has an
operation's name and no line. The graph of the function knows the line of each of its operations, so
it is told as TensorFlow tells it of a step:

    Detected at node cond/GatherV2 defined at (most recent call last):
      File "net.py", line 5, in shift

Where no operation is so called, or several are (a file is not there, examples differ in shape), it
is the program's function that has made the dataset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import FrameSummary, StackSummary
from typing import Any

import tensorflow as tf

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
