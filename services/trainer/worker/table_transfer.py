"""The rows of divided tables between the ps and files: all rows, or those that changed.

Each ps writes and reads its own rows. All rows go in blocks, so that no ps needs the memory for a
second copy of them. They are slices of whole tensors, so that any process restores them.

`RowMarks` know which rows changed. Their values are collected on the ps first, while training
stands still; so a delta takes time and memory for the changed rows only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from services.trainer.worker.sharded_table import ShardedTable, TableShard, assign_rows
from services.trainer.worker.table_layout import PARTS, TableLayout

BLOCK_BYTES = 16 * 2**20
IDS, ROWS = "weir/ids", "weir/rows"
"""The first parts of the keys of a delta's tensors; behind them the shard's place and the key of
the table or slot.
"""
PATH = tf.TensorSpec([], tf.string)
CLOCK = tf.TensorSpec([], tf.int32)


class TableGroup(NamedTuple):
    """A table and its slots. `keys`: of their tensors in a checkpoint."""

    keys: tuple[str, ...]
    tables: tuple[ShardedTable, ...]

    @property
    def shards(self) -> list[TableShard]:
        return self.tables[0].shards

    @property
    def row_bytes(self) -> int:
        return sum(each.bytes // each.shape[0] for each in self.tables)


class ChangedRows(NamedTuple):
    """The rows of a shard that a cut has collected: variables of any length on its ps."""

    ids: tf.Variable
    rows: tuple[tf.Variable, ...]


class TableChange(NamedTuple):
    """The size of a delta. A row counts with its slots as one."""

    rows: int
    bytes: int


class TableTransfer:
    """Writes and reads the rows of tables. Everything is traced at its first use."""

    def __init__(self, tables: Mapping[str, ShardedTable]) -> None:
        """`tables`: tables and slots by the keys of their tensors in a checkpoint."""
        self.groups = table_groups(tables)
        self._changed = [[_changed_rows(each, at) for at in _places(each)] for each in self.groups]
        places = sum(len(each.shards) for each in self.groups)
        overlaps = tf.TensorSpec([places, 2], tf.int32)
        self._find = _trace_lazily(self._find_changed, CLOCK)
        self._collect = _trace_lazily(self._collect_changed, CLOCK)
        self._clear = _trace_lazily(self._clear_changed)
        self._set_clock = _trace_lazily(self._assign_clocks, CLOCK)
        self._write = _trace_lazily(self._write_blocks, PATH)
        self._read = _trace_lazily(self._read_blocks, PATH)
        self._read_whole = _trace_lazily(self._read_whole_shards, PATH)
        self._apply = _trace_lazily(self._apply_changed, PATH, overlaps)
        self._clock = self._since = 1

    # ------------------------------------------------------------ changed rows

    @contextmanager
    def without_updates(self) -> Iterator[None]:
        """Let updates change no rows inside."""
        self._set_clock(0)
        try:
            yield
        finally:
            self._set_clock(self._clock)

    def collect(self, most_bytes: float = math.inf) -> TableChange | None:
        """Collect the rows that changed since those of the last `mark_saved`. Training stands
        still. Return None, with no rows collected, if a ps would hold more than `most_bytes` of
        them.
        """
        counts = self._find(self._since).numpy()
        held: Counter[str] = Counter()
        for (group, shard), count in zip(self._shards(), counts, strict=True):
            held[shard.variable.device] += int(count) * group.row_bytes
        if max(held.values()) > most_bytes:
            self._clear()
            return None
        self._clock += 1
        self._collect(self._clock)
        return TableChange(int(counts.sum()), sum(held.values()))

    def advance_clock(self) -> None:
        """Let later changes have a later mark: all rows are written as they are now."""
        self._clock += 1
        self._set_clock(self._clock)

    def mark_saved(self) -> None:
        """Count what was collected last as saved: the next delta has what changes after it."""
        self._since = self._clock

    def clear(self) -> None:
        """Release the memory of the collected rows."""
        self._clear()

    def changed_tensors(self) -> dict[str, tf.Tensor]:
        """Return the collected rows by the keys that they have in a delta, within a traced
        function.
        """
        found = {}
        for group, changed in zip(self.groups, self._changed, strict=True):
            for at, (shard, part) in enumerate(zip(group.shards, changed, strict=True)):
                with tf.device(shard.variable.device):
                    found[f"{IDS}/{at}/{group.keys[0]}"] = part.ids.read_value_no_copy()
                    for key, rows in zip(group.keys, part.rows, strict=True):
                        found[f"{ROWS}/{at}/{key}"] = rows.read_value_no_copy()
        return found

    @property
    def rows(self) -> int:
        """Return the number of rows of all tables; slots do not count."""
        return sum(int(group.tables[0].shape[0]) for group in self.groups)

    @property
    def bytes(self) -> int:
        """Return the bytes of all tables and slots."""
        return sum(each.bytes for group in self.groups for each in group.tables)

    def _shards(self) -> Iterator[tuple[TableGroup, TableShard]]:
        """Yield the shards of all tables; slots belong to their group."""
        for group in self.groups:
            for shard in group.shards:
                yield group, shard

    def _find_changed(self, since: tf.Tensor) -> tf.Tensor:
        """Collect the numbers of changed rows. Return how many each shard has."""
        counts = []
        for group, changed in zip(self.groups, self._changed, strict=True):
            for shard, part in zip(group.shards, changed, strict=True):
                with tf.device(shard.variable.device):
                    marks = shard.marks.changed_at.read_value_no_copy()
                    ids = tf.where(marks >= since)[:, 0] + shard.rows.start
                    part.ids.assign(ids, read_value=False)
                    counts.append(tf.size(ids, tf.int64))
        return tf.stack(counts)

    def _collect_changed(self, now: tf.Tensor) -> None:
        """Collect the rows whose numbers were found."""
        for group, changed in zip(self.groups, self._changed, strict=True):
            for at, (shard, part) in enumerate(zip(group.shards, changed, strict=True)):
                with tf.device(shard.variable.device):
                    local = part.ids.read_value_no_copy() - shard.rows.start
                    for table, rows in zip(group.tables, part.rows, strict=True):
                        found = tf.gather(table.shards[at].variable, local)
                        rows.assign(found, read_value=False)
        self._assign_clocks(now)

    def _clear_changed(self) -> None:
        for group, changed in zip(self.groups, self._changed, strict=True):
            for shard, part in zip(group.shards, changed, strict=True):
                with tf.device(shard.variable.device):
                    for variable in part:
                        for each in tf.nest.flatten(variable):
                            each.assign(_no_rows(each), read_value=False)

    def _assign_clocks(self, now: tf.Tensor) -> None:
        for _, shard in self._shards():
            with tf.device(shard.variable.device):
                shard.marks.clock.assign(now, read_value=False)

    # ------------------------------------------------------------ all rows

    def write_blocks(self, prefix: str) -> list[str]:
        """Write all rows as they are now. Return the prefixes of the files, to be merged."""
        self._write(tf.constant(prefix))
        return [
            f"{prefix}-{number}-{at}-{block}"
            for number, group in enumerate(self.groups)
            for at, shard in enumerate(group.shards)
            for block in range(len(_blocks(group, shard)))
        ]

    def read_blocks(self, path: str, in_blocks: bool) -> None:
        """Set all rows to those of a checkpoint or base. `in_blocks`: it was written by
        `write_blocks`; otherwise a block would read the whole tensor that it is part of.
        """
        read = self._read if in_blocks else self._read_whole
        read(tf.constant(path))

    def refill(self) -> None:
        """Give all rows their initial values again."""
        for group in self.groups:
            for each in sorted(group.tables, key=lambda table: table.number < 0):
                each.refill()  # a slot may be a copy of the table

    def _write_blocks(self, prefix: tf.Tensor) -> None:
        for number, group in enumerate(self.groups):
            for at, shard in enumerate(group.shards):
                with tf.device(shard.variable.device):
                    name = tf.strings.join([prefix, f"-{number}-{at}-"])
                    _for_each_block(group, shard, _block_writer(group, at, name))

    def _read_blocks(self, path: tf.Tensor) -> None:
        for group in self.groups:
            for at, shard in enumerate(group.shards):
                with tf.device(shard.variable.device):
                    _for_each_block(group, shard, _block_reader(group, at, path))

    def _read_whole_shards(self, path: tf.Tensor) -> None:
        for group in self.groups:
            for at, shard in enumerate(group.shards):
                with tf.device(shard.variable.device):
                    for key, table in zip(group.keys, group.tables, strict=True):
                        (rows,) = tf.raw_ops.RestoreV2(
                            prefix=path,
                            tensor_names=[key],
                            shape_and_slices=[table.slice_of(shard.rows)],
                            dtypes=[table.shards[at].variable.dtype],
                        )
                        table.shards[at].variable.assign(rows, read_value=False)

    # ------------------------------------------------------------ deltas

    def apply_delta(self, path: str, ps: int) -> None:
        """Set the rows that a delta has. `ps`: the number of ps that wrote it."""
        overlaps = [
            overlapping_shards(group.tables[0].layout, shard.rows, ps)
            for group in self.groups
            for shard in group.shards
        ]
        self._apply(tf.constant(path), tf.constant(overlaps, tf.int32))

    def rehearse_delta(self) -> None:
        """Trace and run what `apply_delta` does, with no rows: its first call takes seconds."""
        places = sum(len(each.shards) for each in self.groups)
        self._apply(tf.constant(""), tf.zeros([places, 2], tf.int32))

    def _apply_changed(self, path: tf.Tensor, overlaps: tf.Tensor) -> None:
        number = 0
        for group in self.groups:
            for at, shard in enumerate(group.shards):
                first, last = overlaps[number, 0], overlaps[number, 1]
                number += 1
                with tf.device(shard.variable.device):
                    apply = _delta_reader(group, at, path)
                    tf.while_loop(
                        lambda place, last=last: place < last,
                        apply,
                        [tf.identity(first)],
                        parallel_iterations=1,
                    )


def _trace_lazily(function: Callable[..., Any], *signature: tf.TensorSpec) -> Any:
    """Return a TensorFlow function that is traced at its first use. AutoGraph would make that take
    longer, and changes nothing.
    """
    return tf.function(function, input_signature=signature, autograph=False)


def table_groups(tables: Mapping[str, ShardedTable]) -> list[TableGroup]:
    """Return tables with their slots, in the order of `tables`."""
    found: dict[int, list[tuple[str, ShardedTable]]] = {}
    for key, table in tables.items():
        if table.shards:
            found.setdefault(id(table.shards[0].marks.changed_at), []).append((key, table))
    return [
        TableGroup(tuple(key for key, _ in each), tuple(table for _, table in each))
        for each in found.values()
    ]


def overlapping_shards(layout: TableLayout, rows: range, ps: int) -> tuple[int, int]:
    """Return the first shard that has some of these rows, and the one behind the last, if the table
    is divided among `ps` parameter servers. Those without rows do not count.
    """
    shards = [each for place in range(ps) if (each := layout.rows_of(place, ps))]
    inside = [
        at for at, each in enumerate(shards) if each.start < rows.stop and rows.start < each.stop
    ]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def _places(group: TableGroup) -> range:
    return range(len(group.shards))


def _changed_rows(group: TableGroup, at: int) -> ChangedRows:
    shard = group.shards[at]

    def empty(dtype: tf.DType, row_shape: Sequence[int]) -> tf.Variable:
        with tf.device(shard.variable.device):
            return tf.Variable(
                lambda: tf.zeros([0, *row_shape], dtype),
                shape=tf.TensorShape([None, *row_shape]),
                trainable=False,
                dtype=dtype,
            )

    rows = [empty(each.shards[at].variable.dtype, each.row_shape) for each in group.tables]
    return ChangedRows(empty(tf.int64, []), tuple(rows))


def _no_rows(variable: tf.Variable) -> tf.Tensor:
    return tf.zeros([0, *variable.shape[1:]], variable.dtype)


def _block_parts(group: TableGroup) -> int:
    """Return how many parts of a table a block has: a power of two, so that blocks of several sizes
    begin at the same rows.
    """
    table = group.tables[0]
    parts = 1
    while parts < PARTS and 2 * parts * table.bytes <= BLOCK_BYTES * table.layout.parts:
        parts *= 2
    return parts


def _blocks(group: TableGroup, shard: TableShard) -> list[range]:
    return group.tables[0].layout.blocks_of(shard.rows, _block_parts(group))


class _Block(NamedTuple):
    """A block in a loop. `first`, `stop`: rows within the shard; `slices`: as TensorFlow writes
    them, for the table and each slot.
    """

    number: tf.Tensor
    first: tf.Tensor
    stop: tf.Tensor
    slices: tf.Tensor


def _for_each_block(
    group: TableGroup, shard: TableShard, use: Callable[[_Block], list[Any]]
) -> None:
    """Run `use` for each block of a shard, one after the other, on the ps of the shard. It returns
    its operations: TensorFlow leaves out those of a loop that no output needs.
    """
    blocks = _blocks(group, shard)
    bounds = np.array([[each.start, each.stop] for each in blocks], "int32") - shard.rows.start
    texts = tf.constant([group.tables[0].slice_of(each) for each in blocks])
    limits = tf.constant(bounds, tf.int32)

    def body(number: tf.Tensor) -> tf.Tensor:
        slices = tf.fill([len(group.tables)], texts[number])
        block = _Block(number, limits[number, 0], limits[number, 1], slices)
        with tf.control_dependencies(use(block)):
            return number + 1

    tf.while_loop(
        lambda number: number < len(blocks), body, [tf.constant(0)], parallel_iterations=1
    )


def _block_writer(group: TableGroup, at: int, name: tf.Tensor) -> Callable[[_Block], list[Any]]:
    def write(block: _Block) -> list[Any]:
        rows = tf.range(block.first, block.stop)
        values = [tf.gather(table.shards[at].variable, rows) for table in group.tables]
        saved = tf.raw_ops.SaveV2(
            prefix=tf.strings.join([name, tf.strings.as_string(block.number)]),
            tensor_names=tf.constant(group.keys),
            shape_and_slices=block.slices,
            tensors=values,
        )
        return [saved]

    return write


def _block_reader(group: TableGroup, at: int, path: tf.Tensor) -> Callable[[_Block], list[Any]]:
    def read(block: _Block) -> list[Any]:
        variables = [table.shards[at].variable for table in group.tables]
        values = tf.raw_ops.RestoreV2(
            prefix=path,
            tensor_names=tf.constant(group.keys),
            shape_and_slices=block.slices,
            dtypes=[each.dtype for each in variables],
        )
        return [
            assign_rows(variable, block.first, block.stop, value)
            for variable, value in zip(variables, values, strict=True)
        ]

    return read


def _delta_reader(group: TableGroup, at: int, path: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function that sets the rows which the shard number `place` of a delta has."""
    shard = group.shards[at]

    def restore(start: str, place: tf.Tensor, key: str, dtype: tf.DType) -> tf.Tensor:
        name = tf.strings.join([f"{start}/", tf.strings.as_string(place), f"/{key}"])
        (found,) = tf.raw_ops.RestoreV2(
            prefix=path, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
        )
        return found

    def apply(place: tf.Tensor) -> tf.Tensor:
        ids = tf.ensure_shape(restore(IDS, place, group.keys[0], tf.int64), [None])
        here = tf.where((ids >= shard.rows.start) & (ids < shard.rows.stop))[:, 0]
        local = tf.gather(ids, here) - shard.rows.start
        changes = []
        for key, table in zip(group.keys, group.tables, strict=True):
            variable = table.shards[at].variable
            rows = restore(ROWS, place, key, variable.dtype)
            rows = tf.ensure_shape(rows, [None, *table.row_shape])
            changes.append(
                tf.raw_ops.ResourceScatterUpdate(
                    resource=variable.handle,
                    indices=local,
                    updates=tf.gather(rows, here),
                )
            )
        with tf.control_dependencies(changes):
            return place + 1

    return apply
