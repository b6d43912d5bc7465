"""The input pipeline of a worker: it stays open for a whole generation, and reads ahead.

    chief      --push-->   queue of portions          on the worker, in TensorFlow's server
                             | one call of Python for each portion: `portion_batches`
                             v
                           dataset of the portion     the program's batches, without Python
                             | passes, then a mark of the portion's end
                             | prefetch
                             v
    chief      --fetch-->  queue of staged passes     fetch returns their positions to the chief
    chief      --step-->   an update takes the next staged passes, and leaves its mean loss in a queue
    chief      --take_losses-->   several at a time, because each result costs the chief a call

A portion is a run of positions (`shard_ledger.py`) that one worker trains: some batches of
numbered examples, or the rest of a group of files. The program's functions run in the Python
process of the worker, once for each portion. The dataset that they return is handed to TensorFlow's
server in the same process, so it is read by TensorFlow's own threads. It is handed over as a graph
(`DatasetFromGraph`), because its functions and tables have to belong to the server. Batches that are
slices of tensors have neither, so they are handed over as they are: a graph would copy their data
several times. What is Python in a dataset (`from_generator`, `py_function`) is called for each
element as in any dataset: the table of such functions belongs to the process.

A dataset that has no graph (it uses a lookup table that can change, for example) is read by a call
of Python for each batch.

The number of examples of a file is known when it is read to its end. So each portion ends with a
mark, a pass of no examples, which is not staged.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.data.ops import (
    batch_op,
    concatenate_op,
    dataset_ops,
    from_tensor_slices_op,
    from_tensors_op,
)
from tensorflow.python.data.util import structure
from tensorflow.python.ops import script_ops

from services.trainer.worker import (
    example_source,
    failure_cause,
    program_data,
    shard_ledger,
    update_plan,
)
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.example_source import ExampleSource, Order, order_fields
from services.trainer.worker.file_source import FileOrder
from services.trainer.worker.shard_ledger import GROUP_POSITIONS, Ledger, Run, Shard
from services.trainer.worker.watchdog import Watchdog
from shared.messages import FEWEST_VIRTUAL_WORKERS

TOKEN, EXPLAIN_TOKEN = "weir_portion", "weir_explain"
PORTIONS, STAGED, BATCHES = "weir_portions", "weir_staged", "weir_batches"
LOSSES, RESTS, SAMPLES = "weir_losses", "weir_rests", "weir_samples"
PORTION_TYPES = [tf.variant, tf.string, tf.int64]
"""The types of what `portion_batches` returns."""
REFERENCE_TYPES = (tf.variant, tf.resource)
"""The types of tensors that may refer to functions or tables."""
TENSOR_DATASETS = (
    from_tensor_slices_op._TensorSliceDataset,
    from_tensors_op._TensorDataset,
    concatenate_op._ConcatenateDataset,
    batch_op._BatchDataset,
)
"""The kinds of datasets that only cut and join tensors, or elements of other datasets."""
LOSS_FIELDS = [tf.float64, tf.float64]
"""The types of an `UpdateLoss`: a number of examples is exact as a float64."""
PREFETCHED = 2
"""Number of passes that are read before the chief asks for them."""
KEPT_SAMPLES = 4
"""Number of the passes that can be read again: their tensors are kept, not copied."""
KEPT = 4
"""Number of datasets that Python keeps, because a graph refers to Python functions in them."""
DETERMINISTIC = "deterministic"


PORTION_EXAMPLES, FEWEST_BATCHES = 131_072, 4
"""Maximum number of examples of a portion of numbered examples, and the number of batches that it
may have even if these have more examples.
"""
ORDER_FIELDS = max(len(ExampleOrder._fields), len(FileOrder._fields))


class Portion(NamedTuple):
    """Positions in an order, in batches. `batch`: examples of a batch.

    `turn`: rises when a worker has to begin anew. `order`: the fields of the order.
    """

    run: Run
    batch: int
    turn: int
    order: tuple[int, ...]

    @property
    def start(self) -> int:
        return self.run[0].start

    @property
    def size(self) -> int:
        return shard_ledger.run_size(self.run)

    def row(self) -> list[int]:
        """Return the portion as whole numbers."""
        unused = [0] * (ORDER_FIELDS - len(self.order))
        positions = [each for shard in self.run for each in (shard.start, shard.stop)]
        return [self.batch, self.turn, *self.order, *unused, *positions]


PORTION_BATCH, PORTION_TURN, START = 0, 1, 2 + ORDER_FIELDS
"""The places of these numbers in the row of a portion."""
ROW = tf.TensorSpec([None], tf.int64)


def portion_of(row: Any) -> Portion:
    batch, turn, *numbers = map(int, row)
    order, positions = numbers[:ORDER_FIELDS], numbers[ORDER_FIELDS:]
    run = tuple([Shard(*pair) for pair in zip(positions[::2], positions[1::2], strict=True)])
    return Portion(run, batch, turn, tuple(order))


class DataPlan(NamedTuple):
    """The division of positions into batches and passes.

    `batch`: examples of a batch; `most`: maximum examples of a pass, None: no limit; `accumulated`:
    batches of an update; `example_bytes`: size of an example; `has_fixed_size`: False if examples
    may be larger. `noise_share`: the most of a worker's time in which it measures gradient noise.
    `virtual_workers`: the wanted number of parts of an exact update.
    """

    order: Order
    batch: int
    most: int | None = None
    accumulated: int = 1
    example_bytes: int = 1
    has_fixed_size: bool = True
    noise_share: float = 0.0
    virtual_workers: int = FEWEST_VIRTUAL_WORKERS

    @property
    def part_count(self) -> int:
        """The number of parts of an exact update."""
        return update_plan.count_parts(self.update, self.most, self.virtual_workers)

    @property
    def measures_noise(self) -> bool:
        return self.noise_share > 0.0

    @property
    def update(self) -> int:
        """The number of examples of an update."""
        return self.batch * self.accumulated

    @property
    def reads_files(self) -> bool:
        return isinstance(self.order, FileOrder)

    def passes(self, examples: int) -> int:
        """Return the number of passes in which a batch of `examples` examples is computed."""
        return -(-examples // (self.most or examples))

    def portion_size(self, ledger: Ledger, workers: int, most_batches: int) -> int:
        """Return the number of positions of the next portion.

        A portion is the rest of a group of files, or some whole updates: at most `most_batches`
        batches, but at least one update. The last portions are small, so that all workers end at
        the same time.
        """
        if isinstance(self.order, FileOrder):
            return GROUP_POSITIONS
        todo = sum([shard.size for shard in ledger.todo])
        share = todo // (2 * workers * self.batch)
        wanted = max(PORTION_EXAMPLES // self.batch, FEWEST_BATCHES)
        fits = program_data.READ_BYTES // (self.example_bytes * self.batch)
        batches = max(min(wanted, share, fits, most_batches), 1)
        # Whole updates, so that only the last one of a worker may have fewer batches.
        updates = batches // self.accumulated
        if self.order.window > 1:
            updates = min(updates, self._window_rest(self.order, ledger) // self.update)
        return self.update * max(updates, 1)

    def _window_rest(self, order: ExampleOrder, ledger: Ledger) -> int:
        """Return the number of positions that are left in the window of the order.

        A portion that reaches into another window has to read more blocks. If less than an update
        is left, the next window is added.
        """
        start = ledger.todo[0].start if ledger.todo else 0
        rest = order.window - start % order.examples % order.window
        return rest if rest >= self.update else rest + order.window

    def portion(self, run: Run, turn: int = 0, batch: int | None = None) -> Portion:
        """Return a run as a portion. `batch`: None for the plan's."""
        return Portion(run, batch or self.batch, turn, order_fields(self.order))


class StagedPass(NamedTuple):
    """A pass that was read, its number of examples, and that of its batch.

    `position`: the first position of its portion, plus the number of examples before it. The mark
    of a portion's end has no examples.
    """

    position: int
    size: int
    batch_size: int
    read_ms: int = 0
    turn: int = 0
    """`read_ms`: the time that Python took for the dataset of its portion; `turn`: that portion's.
    """


class UpdateLoss(NamedTuple):
    """The mean loss of an update, and the number of its examples."""

    loss: float
    examples: int


FIELDS = len(StagedPass._fields)


# ---------------------------------------------------------------- in the worker's Python


def serve_portions(program: ModuleType, dog: Watchdog) -> None:
    """Answer the pipeline's calls in this process. TensorFlow's table holds weak references, so the
    functions are kept.
    """
    reader = _PortionReader(program, dog)
    read = script_ops.EagerFunc(reader.portion_batches, PORTION_TYPES, is_grad_func=False)
    for token, function in ((TOKEN, read), (EXPLAIN_TOKEN, reader.explain)):
        _served.append(function)
        script_ops._py_funcs._funcs[token] = function


_served: list[Any] = []


class _PortionReader:
    """Makes the datasets of portions, and keeps the last of them."""

    def __init__(self, program: ModuleType, dog: Watchdog) -> None:
        self._program = program
        self._dog = dog
        self._kept: list[Any] = []
        self._source: ExampleSource | None = None

    @property
    def source(self) -> ExampleSource:
        if self._source is None:
            with self._dog.limit("files()"):
                self._source = example_source.source_of(self._program)
        return self._source

    def portion_batches(self, row: tf.Tensor) -> tuple[tf.Tensor, bytes, int]:
        """Return the batches of a portion as a dataset, its graph if the server needs that, else
        empty, and the time for both in ms.
        """
        began = time.monotonic()
        portion = portion_of(row.numpy())
        try:
            source = self.source
            order = source.order_of(portion.order)
            with (
                self._dog.limit(source.call_name(order, portion.run)),
                tf.device("/cpu:0"),
            ):
                made = source.dataset(order, portion.run)
                made = program_data.batches(self._program, made, portion.batch)
                graph, kept = b"", None
                if not _has_only_tensors(made):
                    graph, kept = _serialized_graph(made)
        except Exception as error:
            raise failure_cause.mark_failure(error, str(self._program.__file__)) from None
        self._dog.use_later_limit()
        self._kept = [*self._kept[1 - KEPT :], kept]
        return made._variant_tensor, graph, int((time.monotonic() - began) * 1000)

    def explain(self, row: Any) -> bool:
        """Read a portion in Python. Raise the error of the program with its line; return if there
        is none.
        """
        portion = portion_of(row)
        try:
            order = self.source.order_of(portion.order)
            self.source.check(order, portion.run, self._dog)
            self._check_batches(order, portion)
        except Exception as error:
            raise failure_cause.mark_failure(error, str(self._program.__file__)) from None
        return True

    def _check_batches(self, order: Order, portion: Portion) -> None:
        """Read the batches of a portion. That fails if its examples do not fit together."""
        made = self.source.dataset(order, portion.run)
        maker = program_data.data_function(self._program)
        with self._dog.limit("a batch of it") as inside, program_data.locate_errors(made, maker):
            for _ in program_data.batches(self._program, made, portion.batch):
                inside.renew()


def _has_only_tensors(dataset: Any) -> bool:
    """Return whether a dataset cuts and joins tensors, and has no function and no resource."""
    if not isinstance(dataset, TENSOR_DATASETS):
        return False
    if any(tensor.dtype in REFERENCE_TYPES for tensor in getattr(dataset, "_tensors", ())):
        return False
    return all(_has_only_tensors(each) for each in dataset._inputs())


def _serialized_graph(dataset: Any) -> tuple[bytes, Any]:
    """Return a dataset as a graph, and the objects to keep while it is read.

    If a dataset has no graph, the graph calls Python for each element. A dataset has none if it
    uses a lookup table that can change, for example.
    """
    try:
        return _graph_bytes(dataset), dataset
    except tf.errors.OpError:
        called = tf.data.Dataset.from_generator(
            lambda: iter(dataset), output_signature=dataset.element_spec
        )
        return _graph_bytes(called), (dataset, called)


def _graph_bytes(dataset: Any) -> bytes:
    return _adapt_graph(bytes(dataset._as_serialized_graph().numpy()))


def _adapt_graph(graph: bytes) -> bytes:
    """Return a graph that may run in this process' server and keeps the order of its elements.

    Its parallel parts keep the order whatever options the program sets: the worker that continues
    after a hand-over relies on it.
    """
    parsed = graph_pb2.GraphDef.FromString(graph)
    nodes = list(parsed.node)
    for function in parsed.library.function:
        nodes += function.node_def
    for node in nodes:
        node.device = ""
        if DETERMINISTIC in node.attr and node.attr[DETERMINISTIC].s:
            node.attr[DETERMINISTIC].s = b"true"
    return bytes(parsed.SerializeToString())


def _row_count(batch: Any) -> tf.Tensor:
    """Return the number of examples of a batch."""
    first = tf.nest.flatten(batch)[0]
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int64)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return tf.shape(first, out_type=tf.int64)[0]


def _rows(batch: Any, spec: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
    """Return the examples start .. stop - 1 of a batch of this structure."""

    def cut(leaf: Any, leaf_spec: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            shape = leaf.dense_shape
            begin = tf.concat([[start], tf.zeros_like(shape[1:])], 0)
            size = tf.concat([[stop - start], shape[1:]], 0)
            return tf.sparse.slice(leaf, begin, size)
        part = leaf[start:stop]
        if isinstance(leaf_spec, tf.TensorSpec):
            part.set_shape(leaf_spec.shape)
        return part

    return tf.nest.map_structure(cut, batch, spec)


def _empty_batch(spec: Any) -> Any:
    """Return a batch of no examples of this structure."""

    def empty(leaf: Any) -> Any:
        shape = [0, *[size or 0 for size in leaf.shape[1:]]] if leaf.shape.rank else [0]
        if isinstance(leaf, tf.SparseTensorSpec):
            return tf.sparse.SparseTensor(
                tf.zeros([0, len(shape)], tf.int64), tf.zeros([0], leaf.dtype), shape
            )
        if isinstance(leaf, tf.RaggedTensorSpec):
            values = tf.zeros([0, *shape[leaf.ragged_rank + 1 :]], leaf.dtype)
            splits = [tf.zeros([1], leaf.row_splits_dtype)] * leaf.ragged_rank
            return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)
        return tf.zeros(shape, leaf.dtype)

    return tf.nest.map_structure(empty, spec)


# ---------------------------------------------------------------- traced by the chief


_numbers = itertools.count()
"""The numbers of the pipelines that this process has traced: their types may differ."""


def _trace(function: Callable[..., Any], *arguments: tf.TensorSpec) -> Any:
    """Return a function as a graph, traced without Autograph.

    Autograph would take most of the time of a trace, and there is nothing to convert here.
    """
    plain = tf.autograph.experimental.do_not_convert(function)
    traced = tf.function(plain, input_signature=list(arguments), autograph=False)
    return traced.get_concrete_function()


class Pipeline:
    """The functions by which a chief drives the pipeline of whichever worker runs them.

    `spec`: the structure of a batch of a portion. It is cut into passes of at most `most` examples.
    Queues and iterator belong to the worker that runs a function, under a name that all use.
    `keeps_samples`: the passes that were staged last can be read again (`gradient_noise.py`).
    """

    def __init__(self, spec: Any, most: int | None = None, keeps_samples: bool = False) -> None:
        self._number = next(_numbers)
        self._most = most
        self.keeps_samples = keeps_samples
        self.spec = spec
        number = tf.TensorSpec([], tf.int64)
        self._read_element = ((number, number), (number, number), self.spec)
        self._read_types = structure.get_flat_tensor_types(self._read_element)
        self._read_shapes = structure.get_flat_tensor_shapes(self._read_element)
        self._element = (number, number, self.spec)
        self._types = structure.get_flat_tensor_types(self._element)
        self._shapes = structure.get_flat_tensor_shapes(self._element)
        self.open = _trace(self._open)
        self.push = _trace(self._push, ROW)
        self.fetch = _trace(self._fetch, tf.TensorSpec([], tf.int32), number)
        self.drop_staged = _trace(self._drop_staged)
        self.explain = _trace(self._explain, ROW)
        self.take_losses = _trace(self._take_losses)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def take(self) -> tuple[Any, tf.Tensor, tf.Tensor]:
        """Return the next staged pass, its number of examples, and that of its batch.

        Call it in a traced step.
        """
        values = tf.raw_ops.QueueDequeueV2(handle=self._staged_queue(), component_types=self._types)
        return self._pass_of(values)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def sample(self, at: tf.Tensor) -> tuple[Any, tf.Tensor]:
        """Return one of the passes that were staged last, and its number of examples.

        It is not taken. Wait until there are KEPT_SAMPLES. Call it in a traced function, for 0, 1
        and so on: so that none is returned twice if others are staged meanwhile.
        """
        batch, size, _ = self._pass_of(tf.raw_ops.StagePeek(index=at, **self._sample_area()))
        return batch, size

    def _pass_of(self, values: Sequence[tf.Tensor]) -> tuple[Any, tf.Tensor, tf.Tensor]:
        """Return a staged pass, its number of examples, and that of its batch."""
        for value, shape in zip(values, self._shapes, strict=True):
            value.set_shape(shape)
        size, batch_size, batch = structure.from_compatible_tensor_list(self._element, values)
        return batch, size, batch_size

    def _keep_sample(self, components: Sequence[tf.Tensor]) -> None:
        """Keep a pass as a sample in place of the oldest one. It is not copied."""

        def drop_oldest() -> tf.Tensor:
            with tf.control_dependencies(tf.raw_ops.Unstage(**self._sample_area())):
                return tf.constant(True)

        is_full = tf.raw_ops.StageSize(**self._sample_area()) >= KEPT_SAMPLES
        dropped = tf.cond(is_full, drop_oldest, lambda: tf.constant(False))
        with tf.control_dependencies([dropped]):
            tf.raw_ops.Stage(values=components, shared_name=self._sample_area()["shared_name"])

    def _sample_area(self) -> dict[str, Any]:
        return {"dtypes": self._types, "shared_name": f"{SAMPLES}_{self._number}"}

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def row_cutter(
        self, rows: tf.Tensor
    ) -> Callable[[tf.Tensor], tuple[Any, tf.Tensor, tf.Tensor]]:
        """Return a function that takes `rows[n]` examples for pass n, as `take`.

        They are the first ones of what is staged next. The others of it are staged before all else.
        Call it in a traced step.
        """
        staged_queue, rest_queue = self._staged_queue(), self._rest_queue()

        def dequeue(queue: tf.Tensor) -> list[tf.Tensor]:
            values = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._types)
            return list(values)

        def take(at: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
            values = tf.cond(
                tf.raw_ops.QueueSizeV2(handle=rest_queue) > 0,
                lambda: dequeue(rest_queue),
                lambda: dequeue(staged_queue),
            )
            for value, shape in zip(values, self._shapes, strict=True):
                value.set_shape(shape)
            size, batch_size, batch = structure.from_compatible_tensor_list(self._element, values)
            count = rows[at]
            rest = (size - count, batch_size, _rows(batch, self.spec, count, size))
            components = structure.to_tensor_list(self._element, rest)

            def keep_rest() -> tf.Tensor:
                tf.raw_ops.QueueEnqueueV2(handle=rest_queue, components=components)
                return tf.constant(True)

            tf.cond(size > count, keep_rest, lambda: tf.constant(False))
            return _rows(batch, self.spec, tf.zeros_like(count), count), count, batch_size

        plain: Callable[[tf.Tensor], tuple[Any, tf.Tensor, tf.Tensor]] = (
            tf.autograph.experimental.do_not_convert(take)
        )
        return plain

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def add_loss(self, queue: tf.Tensor, loss: tf.Tensor, examples: tf.Tensor) -> None:
        """Put the mean loss of an update of `examples` examples into the queue for the chief.

        Call it in a traced step. `queue`: from `loss_queue`.
        """
        values = [
            tf.cast(each, kind) for each, kind in zip((loss, examples), LOSS_FIELDS, strict=True)
        ]
        tf.raw_ops.QueueEnqueueV2(handle=queue, components=values)

    def _take_losses(self) -> tf.Tensor:
        """Return a row (mean loss, examples) for each update since the last call."""
        queue = self.loss_queue()
        columns = tf.raw_ops.QueueDequeueManyV2(
            handle=queue, n=tf.raw_ops.QueueSizeV2(handle=queue), component_types=LOSS_FIELDS
        )
        return tf.stack(columns, 1)

    def _open(self) -> tf.Tensor:
        portions = tf.data.Dataset.range(tf.int64.max).map(self._next_portion).prefetch(1)
        batches = portions.flat_map(self._portion_passes).prefetch(PREFETCHED)
        tf.raw_ops.MakeIterator(dataset=batches._variant_tensor, iterator=self._iterator())
        return tf.constant(True)

    def _next_portion(self, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the next portion, and what `portion_batches` returns for it."""
        (row,) = tf.raw_ops.QueueDequeueV2(
            handle=self._portion_queue(), component_types=[ROW.dtype]
        )
        row.set_shape(ROW.shape)
        made = tf.raw_ops.EagerPyFunc(input=[row], token=TOKEN, Tout=PORTION_TYPES)
        for each in made:
            each.set_shape([])
        return row, *made

    def _portion_passes(
        self, row: tf.Tensor, dataset: tf.Tensor, graph: tf.Tensor, took_ms: tf.Tensor
    ) -> Any:
        """Return the dataset of a portion's passes and of the mark of its end.

        An element has the position of the pass and the size of its batch (0: it is not cut), the
        time and the turn of the portion, and the examples of the pass.
        """
        variant = tf.cond(
            tf.strings.length(graph) > 0,
            lambda: tf.raw_ops.DatasetFromGraph(graph_def=graph),
            lambda: dataset,
        )
        batches = dataset_ops._VariantDataset(variant, self.spec)
        of_portion = tf.data.Dataset.from_tensors((took_ms, row[PORTION_TURN])).repeat()
        positions = tf.data.Dataset.range(row[START], tf.int64.max, row[PORTION_BATCH])
        if self._most:
            return self._cut_batches(row[START], positions, batches, of_portion)
        return self._whole_batches(positions, batches, of_portion)

    def _whole_batches(self, positions: Any, batches: Any, of_portion: Any) -> Any:
        """Return the passes if each batch is one, and the mark.

        No function is called for a batch: that would cost more than reading it.
        """
        unknown = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64)).repeat()
        mark = tf.data.Dataset.from_tensors(_empty_batch(self.spec))
        numbered = tf.data.Dataset.zip((positions, unknown))
        return tf.data.Dataset.zip((numbered, of_portion, batches.concatenate(mark)))

    def _cut_batches(self, start: tf.Tensor, positions: Any, batches: Any, of_portion: Any) -> Any:
        """Return the passes of at most `most` examples, and the mark."""

        def cut(position: tf.Tensor, batch: Any) -> Any:
            whole = _row_count(batch)
            passes = tf.data.Dataset.from_tensor_slices(batch).batch(self._most)
            starts = tf.data.Dataset.range(position, tf.int64.max, self._most)
            sizes = tf.data.Dataset.from_tensors(whole).repeat()
            return tf.data.Dataset.zip((tf.data.Dataset.zip((starts, sizes)), passes))

        mark = ((start, tf.constant(0, tf.int64)), _empty_batch(self.spec))
        passes = tf.data.Dataset.zip((positions, batches)).flat_map(cut)
        passes = passes.concatenate(tf.data.Dataset.from_tensors(mark))
        return tf.data.Dataset.zip((passes, of_portion)).map(
            lambda of_pass, portion: (of_pass[0], portion, of_pass[1])
        )

    def _explain(self, row: tf.Tensor) -> tf.Tensor:
        (done,) = tf.raw_ops.PyFunc(input=[row], token=EXPLAIN_TOKEN, Tout=[tf.bool])
        return done

    def _push(self, row: tf.Tensor) -> tf.Tensor:
        tf.raw_ops.QueueEnqueueV2(handle=self._portion_queue(), components=[row])
        return tf.constant(True)

    def _drop_staged(self) -> tf.Tensor:
        """Drop the staged passes."""
        for queue in (self._staged_queue(), self._rest_queue()):
            self._empty_queue(queue)
        return tf.constant(True)

    def _empty_queue(self, queue: tf.Tensor) -> None:
        def drop(left: tf.Tensor) -> tf.Tensor:
            dropped = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._types)
            with tf.control_dependencies(dropped):
                return left - 1

        size = tf.raw_ops.QueueSizeV2(handle=queue)
        tf.while_loop(lambda left: left > 0, drop, [size], parallel_iterations=1)

    def _fetch(self, count: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
        """Read `count` passes, fewer if the portion ends before, and stage those of this turn.

        Return the fields of a `StagedPass` for each, and for the mark of the end.
        """

        def goes_on(at: tf.Tensor, ended: tf.Tensor, _: Any) -> tf.Tensor:
            return tf.logical_and(at < count, tf.logical_not(ended))

        def read(at: tf.Tensor, _: tf.Tensor, rows: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
            values = tf.raw_ops.IteratorGetNext(
                iterator=self._iterator(),
                output_types=self._read_types,
                output_shapes=self._read_shapes,
            )
            (position, batch_size), (read_ms, of_turn), batch = (
                structure.from_compatible_tensor_list(self._read_element, values)
            )
            size = _row_count(batch)
            if not self._most:
                batch_size = size
            components = structure.to_tensor_list(self._element, (size, batch_size, batch))
            is_mark = tf.equal(size, 0)

            def stage() -> tf.Tensor:
                tf.raw_ops.QueueEnqueueV2(handle=staged_queue, components=components)
                if self.keeps_samples:
                    self._keep_sample(components)
                return tf.constant(True)

            is_staged = tf.logical_and(tf.equal(of_turn, turn), tf.logical_not(is_mark))
            tf.cond(is_staged, stage, lambda: tf.constant(False))
            fields = StagedPass(position, size, batch_size, read_ms, of_turn)
            return at + 1, is_mark, rows.write(at, tf.stack(list(fields)))

        staged_queue = self._staged_queue()
        rows = tf.TensorArray(tf.int64, size=0, dynamic_size=True, element_shape=[FIELDS])
        begin = (tf.constant(0), tf.constant(False), rows)
        _, _, rows = tf.while_loop(goes_on, read, begin, parallel_iterations=1)
        return rows.stack()

    def _iterator(self) -> tf.Tensor:
        return tf.raw_ops.IteratorV2(
            shared_name=f"{BATCHES}_{self._number}",
            container="",
            output_types=self._read_types,
            output_shapes=self._read_shapes,
        )

    def _portion_queue(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=[ROW.dtype],
            shared_name=f"{PORTIONS}_{self._number}",
        )

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def loss_queue(self) -> tf.Tensor:
        """Return the handle of the queue of losses. Call it at the beginning of a traced step.

        TensorFlow keeps the order of operations that have an effect, such as this one and those on
        a ps, and an order between two tasks costs a message.
        """
        return tf.raw_ops.FIFOQueueV2(
            component_types=LOSS_FIELDS,
            shapes=[[] for _ in LOSS_FIELDS],
            shared_name=f"{LOSSES}_{self._number}",
        )

    def _rest_queue(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=self._types, shared_name=f"{RESTS}_{self._number}"
        )

    def _staged_queue(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=self._types, shared_name=f"{STAGED}_{self._number}"
        )
