"""The input pipeline of a worker: it stays open for a whole generation, and reads ahead.

    chief      --push-->   queue of leases            on the worker, in TensorFlow's server
                             | one call of Python for each lease: `lease_graph`
                             v
                           dataset of the lease       the program's examples, without Python
                             | batch
                             | prefetch
                             v
    chief      --fetch-->  queue of staged batches    fetch tells the chief their positions
    chief      --step-->   an update takes the next staged batches

A lease is a range of positions (`shard_ledger.py`) that one worker trains, a thousand examples or
some batches. The program's `dataset` runs in the Python process of the worker, once for each lease,
with plain integers or a NumPy array. The dataset that it returns is handed to TensorFlow's server
in the same process as a graph (`DatasetFromGraph`), so it is read by TensorFlow's own threads. What
is Python in it (`from_generator`, `py_function`) is called for each element as in any dataset: the
table of such functions belongs to the process.

A dataset that has no graph (it uses a lookup table that can change, for example) is read in Python,
one lease ahead.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.util import structure
from tensorflow.python.ops import script_ops

from services.trainer.worker import failure_cause, program_data
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.shard_ledger import Ledger, Shard
from services.trainer.worker.watchdog import Watchdog
from shared.text import format_some_names

TOKEN, EXPLAIN_TOKEN = "weir_lease", "weir_explain"
LEASES, STAGED, BATCHES = "weir_leases", "weir_staged", "weir_batches"
PREFETCHED = 2
"""Batches that are read before the chief asks for them."""
KEPT = 4
"""Datasets that Python keeps, because a graph names functions of Python that they hold."""
CHECKED = 32
"""Examples that are read at a time to find the one with an error."""
DEVICE = b"/job:"
UNKNOWN_SEED = -1


LEASED_EXAMPLES = 1024
FEWEST_BATCHES, MOST_BATCHES = 4, 64
"""Batches of a lease: about `LEASED_EXAMPLES`, within these bounds."""


class Lease(NamedTuple):
    """Positions start .. stop - 1 in an order. `turn`: rises when a worker has to begin anew."""

    start: int
    stop: int
    examples: int
    seed: int
    block: int
    turn: int = 0

    @property
    def order(self) -> ExampleOrder:
        seed = None if self.seed == UNKNOWN_SEED else self.seed
        return ExampleOrder(self.examples, seed, self.block)


class DataPlan(NamedTuple):
    """The division of positions into batches. `batch`: examples of one; `most`: examples of a pass, None: no
    limit; `accumulated`: batches of an update; `example_bytes`: size of one example.
    """

    order: ExampleOrder
    batch: int
    most: int | None = None
    accumulated: int = 1
    example_bytes: int = 1

    def passes(self, batch: Shard) -> int:
        return -(-batch.size // (self.most or batch.size))

    def lease_batches(self, ledger: Ledger, workers: int) -> int:
        """Return the number of batches of the next lease. The last ones are small, so that all
        workers end at the same time.
        """
        todo = sum([shard.size for shard in ledger.todo])
        share = todo // (2 * workers * self.batch)
        wanted = max(LEASED_EXAMPLES // self.batch, FEWEST_BATCHES)
        fits = program_data.READ_BYTES // (self.example_bytes * self.batch)
        return max(min(wanted, share, fits, MOST_BATCHES), 1)

    def lease(self, shard: Shard, turn: int = 0) -> Lease:
        seed = UNKNOWN_SEED if self.order.seed is None else self.order.seed
        return Lease(shard.start, shard.stop, self.order.examples, seed, self.order.block, turn)

    def cut(self, shard: Shard) -> list[Shard]:
        """Return the batches of a lease."""
        starts = range(shard.start, shard.stop, self.batch)
        return [Shard(start, min(start + self.batch, shard.stop)) for start in starts]


ROW = tf.TensorSpec([len(Lease._fields)], tf.int64)


class StagedPass(NamedTuple):
    """A pass that waits on a worker: its first position, the number of its examples, and of those
    of its batch.
    """

    position: int
    size: int
    batch_size: int
    read_ms: int = 0
    turn: int = 0
    """`read_ms`: the time that Python took for the dataset of its lease; `turn`: that lease's."""


FIELDS = len(StagedPass._fields)
TURN = StagedPass._fields.index("turn")


# ---------------------------------------------------------------- in the worker's Python


def serve_leases(program: ModuleType, dog: Watchdog) -> None:
    """Answer the pipeline's calls in this process. TensorFlow's table holds weak references, so the
    functions are kept.
    """
    reader = _LeaseReader(program, dog)
    for token, function in ((TOKEN, reader.lease_graph), (EXPLAIN_TOKEN, reader.explain)):
        _served.append(function)
        script_ops._py_funcs._funcs[token] = function


_served: list[Callable[[Any], Any]] = []


class _LeaseReader:
    """Makes the datasets of leases, and keeps the last of them."""

    def __init__(self, program: ModuleType, dog: Watchdog) -> None:
        self._program = program
        self._dog = dog
        self._kept: list[Any] = []
        self._costs = program_data.ReadCosts()

    def lease_graph(self, row: Any) -> tuple[bytes, Any]:
        """Return the dataset of a lease as a serialized graph, and how long that took (ms)."""
        began = time.monotonic()
        lease = Lease(*map(int, row))
        with self._dog.limit(program_data.lease_name(self._program, lease.order, *lease[:2])):
            try:
                with tf.device("/cpu:0"):
                    made = program_data.lease_dataset(
                        self._program, lease.order, lease.start, lease.stop, self._costs
                    )
                    graph = _serialized_graph(made)
            except Exception as error:
                raise failure_cause.mark_failure(error, str(self._program.__file__)) from None
        self._dog.use_later_limit()
        self._kept = [*self._kept[1 - KEPT :], made]
        took_ms = np.int64((time.monotonic() - began) * 1000)
        return _without_devices(graph), took_ms

    def explain(self, row: Any) -> bool:
        """Raise the error that reading a lease makes."""
        check_lease(self._program, Lease(*map(int, row)), self._dog)
        return True


def _serialized_graph(dataset: Any) -> bytes:
    """Return a dataset as a graph. One without a graph is read here, and becomes one of constants:
    for example, one that uses a lookup table that can change.
    """
    try:
        return bytes(dataset._as_serialized_graph().numpy())
    except tf.errors.OpError:
        examples = next(iter(dataset.batch(sys.maxsize)))
        constants = tf.data.Dataset.from_tensor_slices(examples)
        return bytes(constants._as_serialized_graph().numpy())


def _without_devices(graph: bytes) -> bytes:
    """Return a graph whose operations may run in the server of this process."""
    if DEVICE not in graph:
        return graph
    parsed = graph_pb2.GraphDef.FromString(graph)
    nodes = list(parsed.node)
    for function in parsed.library.function:
        nodes += function.node_def
    for node in nodes:
        node.device = ""
    return bytes(parsed.SerializeToString())


def _row_count(batch: Any) -> tf.Tensor:
    """Return the number of examples of a batch."""
    first = tf.nest.flatten(batch)[0]
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int64)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return tf.shape(first, out_type=tf.int64)[0]


def check_lease(program: ModuleType, lease: Lease, dog: Watchdog) -> None:
    """Read a lease in Python, and raise the error of the program with its line; return if there is
    none.
    """
    numbers = lease.order.numbers(lease.start, lease.stop)
    for first in range(0, len(numbers), CHECKED):
        chosen = numbers[first : first + CHECKED]
        with dog.limit(f"dataset() for the examples {_describe_numbers(chosen)}"):
            try:
                program_data.read_examples(program, chosen)
            except Exception as error:
                raise failure_cause.mark_failure(error, str(program.__file__)) from None


def _describe_numbers(numbers: Any) -> str:
    return format_some_names([str(number) for number in numbers], "example")


# ---------------------------------------------------------------- traced by the chief


_numbers = itertools.count()
"""Of the pipelines that this process has traced: their types may differ."""


class Pipeline:
    """The functions by which a chief drives the pipeline of whichever worker runs them.

    `examples`: the structure of one element of a lease's dataset. It becomes batches of `batch`
    examples, and these passes of at most `most`. Queues and iterator belong to the worker that runs
    a function, under a name that all use.
    """

    def __init__(self, examples: Any, batch: int, most: int | None) -> None:
        self._number = next(_numbers)
        self._examples = examples
        self._batch = batch
        self._most = most or batch
        self.spec = program_data.batch_spec(examples)
        number = tf.TensorSpec([], tf.int64)
        self._element = (number, number, number, number, number, self.spec)
        self._types = structure.get_flat_tensor_types(self._element)
        self._shapes = structure.get_flat_tensor_shapes(self._element)
        signature = [tf.TensorSpec([None, ROW.shape[0]], tf.int64)]
        self.open = tf.function(self._open, input_signature=[]).get_concrete_function()
        self.push = tf.function(self._push, input_signature=signature).get_concrete_function()
        self.fetch = tf.function(
            self._fetch, input_signature=[tf.TensorSpec([], tf.int32)]
        ).get_concrete_function()
        self.explain = tf.function(self._explain, input_signature=[ROW]).get_concrete_function()

    def take(self, turn: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
        """Return the next staged batch of this turn, its number of examples, and that of the batch
        that it is a pass of. For a traced step. What was staged in earlier turns is dropped.
        """
        first = self._dequeue()
        values = tf.while_loop(
            lambda *values: values[TURN] != turn,
            lambda *_: self._dequeue(),
            first,
            shape_invariants=self._shapes,
            parallel_iterations=1,
        )
        self._set_shapes(values)
        element = structure.from_compatible_tensor_list(self._element, list(values))
        _, count, batch_count, _, _, batch = element
        return batch, count, batch_count

    def _dequeue(self) -> list[tf.Tensor]:
        values = tf.raw_ops.QueueDequeueV2(handle=self._staged_queue(), component_types=self._types)
        self._set_shapes(values)
        return list(values)

    def _set_shapes(self, values: Sequence[tf.Tensor]) -> None:
        for value, shape in zip(values, self._shapes, strict=True):
            value.set_shape(shape)

    def _open(self) -> tf.Tensor:
        leases = tf.data.Dataset.range(tf.int64.max).map(self._next_lease)
        batches = leases.flat_map(self._lease_passes).prefetch(PREFETCHED)
        tf.raw_ops.MakeIterator(dataset=batches._variant_tensor, iterator=self._iterator())
        return tf.constant(True)

    def _next_lease(self, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the next lease, its dataset as a graph, and how long that took."""
        (row,) = tf.raw_ops.QueueDequeueV2(handle=self._lease_queue(), component_types=[ROW.dtype])
        row.set_shape(ROW.shape)
        graph, took_ms = tf.raw_ops.PyFunc(input=[row], token=TOKEN, Tout=[tf.string, tf.int64])
        graph.set_shape([])
        took_ms.set_shape([])
        return row, graph, took_ms

    def _lease_passes(self, row: tf.Tensor, graph: tf.Tensor, took_ms: tf.Tensor) -> Any:
        """Return the dataset of a lease's passes: the fields of `StagedPass`, and the examples."""
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        batches = dataset_ops._VariantDataset(variant, self._examples).batch(self._batch)
        is_tuple = isinstance(batches.element_spec, tuple)

        def cut(*parts: Any) -> Any:
            batch = parts if is_tuple else parts[0]
            whole = _row_count(batch)
            passes = tf.data.Dataset.from_tensor_slices(batch).batch(self._most)
            return passes.map(lambda *part: (whole, part if is_tuple else part[0]))

        def count_rows(*parts: Any) -> Any:
            batch = parts if is_tuple else parts[0]
            return _row_count(batch), batch

        passes = batches.flat_map(cut) if self._most < self._batch else batches.map(count_rows)

        def with_position(position: tf.Tensor, element: Any) -> tuple[Any, Any]:
            batch_count, batch = element
            count = _row_count(batch)
            return position + count, (position, count, batch_count, took_ms, row[-1], batch)

        return passes.scan(row[0], with_position)

    def _explain(self, row: tf.Tensor) -> tf.Tensor:
        (done,) = tf.raw_ops.PyFunc(input=[row], token=EXPLAIN_TOKEN, Tout=[tf.bool])
        return done

    def _push(self, rows: tf.Tensor) -> tf.Tensor:
        tf.raw_ops.QueueEnqueueManyV2(handle=self._lease_queue(), components=[rows])
        return tf.constant(True)

    def _fetch(self, count: tf.Tensor) -> tf.Tensor:
        """Stage so many passes; return the fields of a `StagedPass` for each."""

        def stage(at: tf.Tensor, rows: Any) -> tuple[tf.Tensor, Any]:
            values = tf.raw_ops.IteratorGetNext(
                iterator=self._iterator(), output_types=self._types, output_shapes=self._shapes
            )
            tf.raw_ops.QueueEnqueueV2(handle=self._staged_queue(), components=values)
            return at + 1, rows.write(at, tf.stack(values[:FIELDS]))

        rows = tf.TensorArray(tf.int64, size=count, element_shape=[FIELDS])
        begin = (tf.constant(0), rows)
        _, rows = tf.while_loop(lambda at, _: at < count, stage, begin, parallel_iterations=1)
        return rows.stack()

    def _iterator(self) -> tf.Tensor:
        return tf.raw_ops.IteratorV2(
            shared_name=f"{BATCHES}_{self._number}",
            container="",
            output_types=self._types,
            output_shapes=self._shapes,
        )

    def _lease_queue(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=[ROW.dtype],
            shapes=[ROW.shape],
            shared_name=f"{LEASES}_{self._number}",
        )

    def _staged_queue(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=self._types, shared_name=f"{STAGED}_{self._number}"
        )
