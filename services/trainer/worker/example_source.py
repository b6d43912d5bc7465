"""The examples that a worker reads next, from whichever of three forms a program has.

    files(), read(file)      the examples of files                       (`file_source.py`)
    dataset(numbers)         the examples with these numbers (a NumPy array of int64), in this order
    dataset(start, stop)     the examples start .. stop - 1

The numbers that a worker needs next are in a permuted order (`example_order.py`). From a program
that reads ranges they are read in as few calls as pay: two ranges are read as one, with the
examples between them, if reading these takes less time than another call.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from services.trainer.program import BadProgram, example_count, reads_files
from services.trainer.worker import program_data, shard_ledger
from services.trainer.worker.example_order import ExampleOrder, Numbers, range_order
from services.trainer.worker.file_source import (
    FileList,
    FileOrder,
    expected_examples,
)
from services.trainer.worker.program_data import (
    check_elements,
    locate_errors,
    program_batch,
    range_dataset,
    takes_numbers,
)
from services.trainer.worker.shard_ledger import Ledger, Run, Shard
from services.trainer.worker.watchdog import Watchdog
from shared.messages import Shuffle
from shared.text import format_count, format_some_names

READ_COUNTS, CLEARLY_LONGER, LONG_S = (32, 512, 8192), 4, 0.5
"""Numbers of examples that are read to measure the time for one example. A number is large enough
if reading it takes CLEARLY_LONGER times as long as reading one, or LONG_S. With fewer, the time of
the call itself, and other processes, hide the time of the examples.
"""
RANGE_BYTES, TENSOR_BYTES = 8 << 20, 256
"""Bytes for the examples of one range while it is read, and for a tensor besides its values."""
FEWEST_TRIES, MOST_TRIES, TRIES_S = 3, 20, 0.5
"""Each number of examples is read FEWEST_TRIES times, and up to MOST_TRIES times within TRIES_S
seconds, because a CPU limit may stop the process for most of each tenth of a second.
"""
CHECKED = 32
"""Number of examples that are read at a time to find the one with an error."""
Order = ExampleOrder | FileOrder


class ExampleSource(Protocol):
    """One form of data. Positions are those of the ledger."""

    def order(self, shuffle: Shuffle | None) -> Order:
        """Return the order of a job's examples. `shuffle` None: that of numbers or files."""

    def new_ledger(self, epochs: int) -> Ledger:
        """Return the ledger of a job in which nothing is applied yet."""

    def order_of(self, fields: tuple[int, ...]) -> Order:
        """Return the order with these fields (`order_fields`)."""

    def dataset(self, order: Any, run: Run) -> Any:
        """Return the dataset of the examples at these positions, in this order. Raise `BadProgram`
        if the program cannot give it.
        """

    def call_name(self, order: Any, run: Run) -> str:
        """Return the calls that give these examples, as text."""

    def check(self, order: Any, run: Run, dog: Watchdog) -> None:
        """Read these examples, and raise the error with its place in the program."""


def source_of(program: ModuleType) -> ExampleSource:
    if reads_files(program):
        return FileSource(program)
    return NumberSource(program) if takes_numbers(program) else RangeSource(program)


NO_SEED = -1


def order_fields(order: Order) -> tuple[int, ...]:
    """Return an order as whole numbers, for a portion."""
    return tuple([NO_SEED if field is None else field for field in order])


def _with_seed(fields: tuple[int, ...]) -> list[Any]:
    first, seed, *rest = fields
    return [first, None if seed == NO_SEED else seed, *rest]


# ---------------------------------------------------------------- files


class FileSource:
    """The examples of files. A run is one shard, of one group of files."""

    def __init__(self, program: ModuleType) -> None:
        self._program = program
        self._files = FileList(program)

    def order(self, shuffle: Shuffle | None) -> FileOrder:
        return self._files.order(shuffle)

    def order_of(self, fields: tuple[int, ...]) -> FileOrder:
        return FileOrder(*_with_seed(fields))

    def new_ledger(self, epochs: int) -> Ledger:
        expected = expected_examples(self._program)
        return shard_ledger.new_file_ledger(
            self._files.groups, epochs, self._files.digest, expected
        )

    def dataset(self, order: FileOrder, run: Run) -> Any:
        (shard,) = run
        made = self._files.group_dataset(order, shard.start, shard.stop)
        file = self._files.group_files(order, shard.start)[0]
        return check_elements(self._program, made, f"read({file!r})", self._program.read)

    def call_name(self, order: FileOrder, run: Run) -> str:
        files = self._files.group_files(order, run[0].start)
        return f"read({format_some_names(files, 'file')})"

    def check(self, order: FileOrder, run: Run, dog: Watchdog) -> None:
        for file in self._files.group_files(order, run[0].start):
            with dog.limit(f"read({file!r}), or an example of it,") as inside:
                dataset = self._files.read(file)
                try:
                    with locate_errors(dataset, self._program.read):
                        for _ in dataset:
                            inside.renew()
                except tf.errors.OpError as error:
                    told = f"{file} cannot be read: {error.message}"
                    raise type(error)(error.node_def, error.op, told) from None


# ---------------------------------------------------------------- numbers


class _NumberedSource:
    """The common part of both forms of `dataset`."""

    def __init__(self, program: ModuleType) -> None:
        self._program = program

    def new_ledger(self, epochs: int) -> Ledger:
        return shard_ledger.new_ledger(example_count(self._program), epochs)

    def order_of(self, fields: tuple[int, ...]) -> ExampleOrder:
        return ExampleOrder(*_with_seed(fields[: len(ExampleOrder._fields)]))

    def check(self, order: ExampleOrder, run: Run, dog: Watchdog) -> None:
        numbers = run_numbers(order, run)
        for first in range(0, len(numbers), CHECKED):
            chosen = numbers[first : first + CHECKED]
            named = format_some_names([str(number) for number in chosen], "example")
            with dog.limit(f"dataset() for the examples {named}"):
                self._read(chosen)

    def _read(self, numbers: Any) -> None:
        raise NotImplementedError


class NumberSource(_NumberedSource):
    def order(self, shuffle: Shuffle | None) -> ExampleOrder:
        examples = example_count(self._program)
        if shuffle is None or not shuffle.on:
            return ExampleOrder(examples)
        return ExampleOrder(examples, shuffle.seed)

    def dataset(self, order: ExampleOrder, run: Run) -> Any:
        numbers = run_numbers(order, run)
        return _with_length(self._dataset(numbers), len(numbers))

    def call_name(self, order: ExampleOrder, run: Run) -> str:
        return "dataset(numbers)"

    def _dataset(self, numbers: Any) -> Any:
        made = self._program.dataset(numbers)
        return check_elements(self._program, made, "dataset(numbers)", self._program.dataset)

    def _read(self, numbers: Any) -> None:
        made = self._dataset(numbers)
        with locate_errors(made, self._program.dataset):
            found = sum(1 for _ in made)
        if found != len(numbers):
            raise BadProgram(
                f"dataset(numbers) gave {format_count(found, 'example')} for {len(numbers)} numbers",
                self._program.dataset,
            )


class RangeSource(_NumberedSource):
    def __init__(self, program: ModuleType) -> None:
        super().__init__(program)
        self._costs: RangeCosts | None = None

    def order(self, shuffle: Shuffle | None) -> ExampleOrder:
        examples = example_count(self._program)
        if shuffle is None or not shuffle.on:
            return ExampleOrder(examples)
        each = program_data.example_bytes(range_dataset(self._program, 0, 1).element_spec)
        return range_order(examples, shuffle.seed, each)

    def dataset(self, order: ExampleOrder, run: Run) -> Any:
        if order.seed is None:
            return functools.reduce(
                lambda made, more: made.concatenate(more),
                [self._shard_dataset(order, shard) for shard in run],
            )
        numbers = run_numbers(order, run)
        if self._costs is None:
            self._costs = measure_costs(self._program, order.examples)
        ranges = covering_ranges(np.sort(numbers), self._costs.gap, self._costs.longest)
        chosen = _read_chosen(self._program, numbers, ranges)
        made = tf.data.Dataset.from_tensor_slices(chosen)
        return _restore_structure(made, self._costs.spec)

    def _shard_dataset(self, order: ExampleOrder, shard: Shard) -> Any:
        """Return the dataset of a shard, whose examples are in the order of their numbers."""
        first = shard.start % order.examples
        return _with_length(range_dataset(self._program, first, first + shard.size), shard.size)

    def call_name(self, order: ExampleOrder, run: Run) -> str:
        if order.seed is not None:
            count = shard_ledger.run_size(run)
            return f"dataset(start, stop), called for {count} shuffled examples,"
        first = run[0].start % order.examples
        return f"dataset({first}, {first + run[0].size})"

    def _read(self, numbers: Any) -> None:
        for start, stop in covering_ranges(np.sort(numbers), 0, CHECKED):
            program_batch(self._program, start, stop)


def run_numbers(order: ExampleOrder, run: Run) -> Numbers:
    """Return the example numbers at the positions of a run."""
    return np.concatenate([order.numbers(shard.start, shard.stop) for shard in run])


class RangeCosts(NamedTuple):
    """The costs of a program that reads ranges.

    `gap`: number of examples that can be read in the time of another call of `dataset(start,
    stop)`; `longest`: number of examples that fit in memory at a time; `spec`: the structure of an
    example.

    Only the way of reading depends on them, never the examples or their order.
    """

    gap: int
    longest: int
    spec: Any


def measure_costs(program: ModuleType, examples: int) -> RangeCosts:
    """Read some examples, and return the costs. `examples`: of an epoch."""
    spec = range_dataset(program, 0, 1).element_spec
    each = program_data.example_bytes(spec) + TENSOR_BYTES * len(tf.nest.flatten(spec))
    longest = max(RANGE_BYTES // each, 1)
    gap = _examples_for_a_call(program, min(examples, longest))
    return RangeCosts(gap, longest, spec)


def _examples_for_a_call(program: ModuleType, most: int) -> int:
    """Return the number of additional examples that a call can read in the time of another call.

    `most`: maximum number of examples that are read to measure this.
    """
    for count in [count for count in READ_COUNTS if count < most] + [most]:
        one_s, all_s = _seconds_to_read(program, (1, count))
        if all_s > min(CLEARLY_LONGER * one_s, LONG_S):
            break
    more_s = max(all_s - one_s, one_s / CLEARLY_LONGER)
    return int(one_s * count / more_s)


def _seconds_to_read(program: ModuleType, counts: tuple[int, ...]) -> list[float]:
    """Return the shortest time in s to read each of these numbers of examples.

    They are measured in turn, because other processes may use the cores.
    """
    shortest_s = [math.inf] * len(counts)
    started_s = time.monotonic()
    for tried in range(MOST_TRIES):
        if tried >= FEWEST_TRIES and time.monotonic() - started_s > TRIES_S:
            break
        for place, count in enumerate(counts):
            began_s = time.monotonic()
            program_batch(program, 0, count)
            shortest_s[place] = min(shortest_s[place], time.monotonic() - began_s)
    return shortest_s


def _with_length(dataset: Any, length: int) -> Any:
    """Return the dataset; reading it fails if it does not have `length` elements, unless TensorFlow
    knows that it has.
    """
    if int(dataset.cardinality()) == length:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(length))


def covering_ranges(ordered: Any, gap: int, longest: int) -> list[tuple[int, int]]:
    """Return ranges (start, stop) that contain these ordered numbers; ranges with at most `gap`
    examples between them are one, and ranges of more than `longest` examples are cut.
    """
    breaks = np.flatnonzero(np.diff(ordered) > gap + 1)
    starts = ordered[np.concatenate([[0], breaks + 1])]
    stops = ordered[np.concatenate([breaks, [len(ordered) - 1]])] + 1
    return [
        (first, min(first + longest, int(stop)))
        for start, stop in zip(starts, stops, strict=True)
        for first in range(int(start), int(stop), longest)
    ]


def _read_chosen(program: ModuleType, numbers: Any, ranges: list[tuple[int, int]]) -> Any:
    """Return the examples with these numbers, stacked, from ranges that contain them.

    The other examples of a range are dropped before the next range is read.
    """
    ordered, parts = np.sort(numbers), []
    for start, stop in ranges:
        wanted = ordered[slice(*np.searchsorted(ordered, [start, stop]))]
        if len(wanted):
            read = program_batch(program, start, stop)
            rows = wanted - start
            parts.append(
                tf.nest.map_structure(lambda leaf, rows=rows: _take_rows([leaf], rows), read)
            )
    places = np.searchsorted(ordered, numbers)
    return tf.nest.map_structure(lambda *each: _take_rows(list(each), places), *parts)


def _take_rows(parts: Sequence[Any], rows: Any) -> Any:
    """Return these rows of the parts, one after the other."""
    if len(parts) == 1 and len(rows) == parts[0].shape[0] and np.all(np.diff(rows) == 1):
        return parts[0]  # they are all rows in their order
    if isinstance(parts[0], tf.SparseTensor):
        return _take_sparse_rows(tf.sparse.concat(0, list(parts)), rows)
    return tf.gather(tf.concat(parts, 0), rows)


def _take_sparse_rows(whole: Any, rows: Any) -> Any:
    """Return rows of a sparse tensor, by way of ragged ones: `tf.gather` takes no sparse one."""

    def ragged(values: Any) -> Any:
        return tf.RaggedTensor.from_value_rowids(values, whole.indices[:, 0], whole.dense_shape[0])

    values, places = (
        tf.gather(ragged(each), rows) for each in (whole.values, whole.indices[:, 1:])
    )
    row_numbers = tf.cast(values.value_rowids(), tf.int64)[:, None]
    indices = tf.concat([row_numbers, places.values], 1)
    shape = tf.concat([[len(rows)], whole.dense_shape[1:]], 0)
    return tf.SparseTensor(indices, values.values, shape)


def _restore_structure(dataset: Any, spec: Any) -> Any:
    """Return the dataset with elements of this structure. Examples of several shapes were stacked
    as ragged tensors, whose slices are dense again.
    """
    if dataset.element_spec == spec:
        return dataset
    is_tuple = isinstance(spec, tuple)

    def dense(part: Any, wanted: Any) -> Any:
        is_slice = isinstance(part, tf.RaggedTensor) and isinstance(wanted, tf.TensorSpec)
        return part.to_tensor() if is_slice else part

    def restore(*parts: Any) -> Any:
        return tf.nest.map_structure(dense, parts if is_tuple else parts[0], spec)

    return dataset.map(restore)
