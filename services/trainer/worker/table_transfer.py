"""The rows of divided tables between the ps and files: all rows, or those that changed.

Each ps writes and reads its own rows. All rows go in blocks, so that no ps needs the memory for a
second copy of them. They are slices of whole tensors, so that any process restores them.

`RowMarks` know which rows changed. Their values are collected on the ps first, while training
stands still; so a delta takes time and memory for the changed rows only. While training continues
they are written in blocks, with the rests of a `WritePace` between them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from services.trainer.worker.sharded_table import ShardedTable, TableShard, assign_rows
from services.trainer.worker.table_layout import TableLayout
from services.trainer.worker.write_pace import WritePace

BLOCK_BYTES = 16 * 2**20
LEAST_PACED_BYTES = 16 * 2**20
"""Of changed rows on one ps. Fewer are written at once, in less than 0.1 s."""
PACED_BLOCK_BYTES = 2 * 2**20
"""Of changed rows on one ps, which it writes without a rest."""
MOST_PACED_BLOCKS = 32
"""Of a delta on one ps. A block is a file, so larger deltas have larger blocks."""
COUNTED_ROWS = 2**20
"""Marks that are compared at once. Counting takes 9 bytes for each of them, on the ps."""
IDS, ROWS = "weir/ids", "weir/rows"
"""The first parts of the keys of a delta's tensors; behind them the shard's place and the key of
the table or slot.
"""
ID_BYTES = 8
PATH = tf.TensorSpec([], tf.string)
CLOCK = tf.TensorSpec([], tf.int32)
NUMBER = tf.TensorSpec([], tf.int64)


class TableGroup(NamedTuple):
    """A table and its slots. `keys`: of their tensors in a checkpoint."""

    keys: tuple[str, ...]
    tables: tuple[ShardedTable, ...]

    @property
    def row_bytes(self) -> int:
        return sum(each.bytes // each.shape[0] for each in self.tables)


class GroupShard(NamedTuple):
    """The rows of a table and its slots that one ps holds. `number`: of the group; `at`: of the
    shard in it.
    """

    number: int
    group: TableGroup
    at: int

    @property
    def shard(self) -> TableShard:
        """Return the shard of the table, which has the marks."""
        return self.group.tables[0].shards[self.at]

    @property
    def rows(self) -> range:
        return self.shard.rows

    @property
    def device(self) -> str:
        return str(self.shard.variable.device)

    @property
    def variables(self) -> list[tf.Variable]:
        """Return the rows of the table and of each slot."""
        return [table.shards[self.at].variable for table in self.group.tables]

    @property
    def blocks(self) -> list[range]:
        return self.group.tables[0].layout.blocks_of(self.rows, _block_parts(self.group))


class ChangedRows(NamedTuple):
    """The rows of a shard that a cut has collected: variables of any length on its ps. `ids`: int64
    [changed], numbers in the whole table, ascending; `rows`: [changed, ...] of the table and of each
    slot.
    """

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
        self._shards = [
            GroupShard(number, group, at)
            for number, group in enumerate(self.groups)
            for at in range(len(group.tables[0].shards))
        ]
        self._changed = [_changed_rows(each) for each in self._shards]
        self._by_device: dict[str, list[tuple[GroupShard, ChangedRows]]] = {}
        for each, changed in zip(self._shards, self._changed, strict=True):
            self._by_device.setdefault(each.device, []).append((each, changed))
        overlaps = tf.TensorSpec([len(self._shards), 2], tf.int32)
        self._count = _trace_lazily(self._count_changed, CLOCK)
        self._collect = _trace_lazily(self._collect_changed, CLOCK, CLOCK)
        self._clear = _trace_lazily(self._clear_changed)
        self._set_clock = _trace_lazily(self._assign_clocks, CLOCK)
        self._write = _trace_lazily(self._write_blocks, PATH)
        self._write_changed = _trace_lazily(self._write_changed_block, PATH, NUMBER, NUMBER)
        self._read = _trace_lazily(self._read_blocks, PATH)
        self._read_whole = _trace_lazily(self._read_whole_shards, PATH)
        self._apply = _trace_lazily(self._apply_changed, PATH, overlaps)
        self._clock = self._since = 1
        self._collected_bytes = 0
        """The changed rows on the ps that has most of them, at the last `collect`."""

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
        counts = self._count(self._since).numpy()
        held: Counter[str] = Counter()
        for each, count in zip(self._shards, counts, strict=True):
            held[each.device] += int(count) * (ID_BYTES + each.group.row_bytes)
        if max(held.values()) > most_bytes:
            return None
        self._clock += 1
        self._collected_bytes = max(held.values())
        self._collect(self._since, self._clock)
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

    def write_changed(self, prefix: str, pace: WritePace | None = None) -> list[str]:
        """Write the collected rows. Return the prefixes of the files, to be merged. `pace`: rests
        between blocks; without it, a ps writes all its rows in one block.
        """
        blocks = self._paced_blocks() if pace is not None else 1
        for number in range(blocks):
            began_s = time.monotonic()
            self._write_changed(tf.constant(prefix), number, blocks)
            if pace is not None:
                pace.rest(time.monotonic() - began_s, blocks - number - 1)
        return [
            f"{prefix}-{ps}-{number}"
            for ps in range(len(self._by_device))
            for number in range(blocks)
        ]

    def _paced_blocks(self) -> int:
        """Return how many blocks each ps writes."""
        if self._collected_bytes <= LEAST_PACED_BYTES:
            return 1
        return min(math.ceil(self._collected_bytes / PACED_BLOCK_BYTES), MOST_PACED_BLOCKS)

    @property
    def rows(self) -> int:
        """Return the number of rows of all tables; slots do not count."""
        return sum(int(group.tables[0].shape[0]) for group in self.groups)

    @property
    def bytes(self) -> int:
        """Return the bytes of all tables and slots."""
        return sum(each.bytes for group in self.groups for each in group.tables)

    def _count_changed(self, since: tf.Tensor) -> tf.Tensor:
        """Return how many rows of each shard have changed: int64 [shards]."""
        counts = []
        for each in self._shards:
            with tf.device(each.device):
                marks = each.shard.marks.changed_at.read_value_no_copy()
                counts.append(_count_marks(marks, since))
        return tf.stack(counts)

    def _collect_changed(self, since: tf.Tensor, now: tf.Tensor) -> None:
        """Copy the rows that have changed since a clock, and let later changes have the mark `now`."""
        for each, changed in zip(self._shards, self._changed, strict=True):
            with tf.device(each.device):
                marks = each.shard.marks.changed_at.read_value_no_copy()
                local = tf.where(marks >= since)[:, 0]
                changed.ids.assign(local + each.rows.start, read_value=False)
                for variable, rows in zip(each.variables, changed.rows, strict=True):
                    rows.assign(tf.gather(variable, local), read_value=False)
        self._assign_clocks(now)

    def _write_changed_block(
        self, prefix: tf.Tensor, number: tf.Tensor, blocks: tf.Tensor
    ) -> tf.Tensor:
        """Write one of so many blocks on each ps. Return its number: TensorFlow leaves out
        operations that no output needs.
        """
        written = []
        for ps, (device, shards) in enumerate(self._by_device.items()):
            with tf.device(device):
                tensors: list[_WrittenRows] = []
                for shard, changed in shards:
                    tensors += _block_of_changed_rows(shard, changed, number, blocks)
                saved = tf.raw_ops.SaveV2(
                    prefix=tf.strings.join([prefix, f"-{ps}-", tf.strings.as_string(number)]),
                    tensor_names=tf.stack([each.name for each in tensors]),
                    shape_and_slices=tf.stack([each.slice for each in tensors]),
                    tensors=[each.rows for each in tensors],
                )
                with tf.control_dependencies([saved]):
                    written.append(tf.identity(number))
        return tf.stack(written)

    def _clear_changed(self) -> None:
        for each, changed in zip(self._shards, self._changed, strict=True):
            with tf.device(each.device):
                for variable in (changed.ids, *changed.rows):
                    variable.assign(_no_rows(variable), read_value=False)

    def _assign_clocks(self, now: tf.Tensor) -> None:
        for each in self._shards:
            with tf.device(each.device):
                each.shard.marks.clock.assign(now, read_value=False)

    # ------------------------------------------------------------ all rows

    def write_blocks(self, prefix: str) -> list[str]:
        """Write all rows as they are now. Return the prefixes of the files, to be merged."""
        self._write(tf.constant(prefix))
        return [
            f"{prefix}-{each.number}-{each.at}-{block}"
            for each in self._shards
            for block in range(len(each.blocks))
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
        for each in self._shards:
            with tf.device(each.device):
                name = tf.strings.join([prefix, f"-{each.number}-{each.at}-"])
                _for_each_block(each, _block_writer(each, name))

    def _read_blocks(self, path: tf.Tensor) -> None:
        for each in self._shards:
            with tf.device(each.device):
                _for_each_block(each, _block_reader(each, path))

    def _read_whole_shards(self, path: tf.Tensor) -> None:
        for each in self._shards:
            slices = [each.group.tables[0].slice_of(each.rows)]
            with tf.device(each.device):
                for key, variable in zip(each.group.keys, each.variables, strict=True):
                    (rows,) = tf.raw_ops.RestoreV2(
                        prefix=path,
                        tensor_names=[key],
                        shape_and_slices=slices,
                        dtypes=[variable.dtype],
                    )
                    variable.assign(rows, read_value=False)

    # ------------------------------------------------------------ deltas

    def apply_delta(self, path: str, ps: int, parts: int) -> None:
        """Set the rows that a delta has. `ps`, `parts`: of the tables when it was written."""
        overlaps = []
        for each in self._shards:
            written = TableLayout(each.group.tables[0].layout.rows, parts)
            overlaps.append(overlapping_shards(written, each.rows, ps))
        self._apply(tf.constant(path), tf.constant(overlaps, tf.int32))

    def rehearse_delta(self) -> None:
        """Trace and run what `apply_delta` does, with no rows: its first call takes seconds."""
        self._apply(tf.constant(""), tf.zeros([len(self._shards), 2], tf.int32))

    def _apply_changed(self, path: tf.Tensor, overlaps: tf.Tensor) -> None:
        for each, bounds in zip(self._shards, tf.unstack(overlaps), strict=True):
            with tf.device(each.device):
                first, last = bounds[0], bounds[1]
                tf.while_loop(
                    lambda written_shard, last=last: written_shard < last,
                    _delta_reader(each, path),
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


def _changed_rows(shard: GroupShard) -> ChangedRows:
    def empty(dtype: tf.DType, row_shape: Sequence[int]) -> tf.Variable:
        with tf.device(shard.device):
            return tf.Variable(
                lambda: tf.zeros([0, *row_shape], dtype),
                shape=tf.TensorShape([None, *row_shape]),
                trainable=False,
                dtype=dtype,
            )

    rows = [empty(each.dtype, each.shape[1:]) for each in shard.variables]
    return ChangedRows(empty(tf.int64, []), tuple(rows))


def _count_marks(marks: tf.Tensor, since: tf.Tensor) -> tf.Tensor:
    """Return how many marks of a shard, int32 [rows], are not before a clock: int64."""

    def add_block(first: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        changed = marks[first : first + COUNTED_ROWS] >= since
        return first + COUNTED_ROWS, count + tf.math.count_nonzero(changed)

    start = [tf.constant(0), tf.constant(0, tf.int64)]
    rows = int(marks.shape[0])
    _, count = tf.while_loop(lambda first, _: first < rows, add_block, start, parallel_iterations=1)
    return count


class _WrittenRows(NamedTuple):
    """A tensor in a file: all values, or a slice of them."""

    name: tf.Tensor
    slice: tf.Tensor
    rows: tf.Tensor


def _block_of_changed_rows(
    shard: GroupShard, changed: ChangedRows, number: tf.Tensor, blocks: tf.Tensor
) -> list[_WrittenRows]:
    """Return one of so many blocks of the changed rows of a shard: their ids, and the rows of the
    table and each slot.

    A block may have no rows, if there are fewer rows than blocks. TensorFlow has no empty slice, so
    the block is a tensor with a name that no reader knows. If a shard has no rows, its first block
    is all of it.
    """
    total = tf.shape(changed.ids.read_value_no_copy(), tf.int64)[0]
    first, stop = number * total // blocks, (number + 1) * total // blocks
    has_rows = first < stop
    is_known = has_rows | (tf.equal(total, 0) & tf.equal(number, 0))
    unknown = tf.strings.join(["/no rows/", tf.strings.as_string(number)])
    keys = shard.group.keys
    names = [f"{IDS}/{shard.at}/{keys[0]}", *[f"{ROWS}/{shard.at}/{key}" for key in keys]]
    return [
        _WrittenRows(
            tf.strings.join([name, tf.where(is_known, "", unknown)]),
            tf.where(has_rows, _slice_in_graph(total, variable.shape[1:], first, stop), ""),
            variable.read_value_no_copy()[first:stop],
        )
        for name, variable in zip(names, (changed.ids, *changed.rows), strict=True)
    ]


def _slice_in_graph(
    total: tf.Tensor, row_shape: Sequence[int], first: tf.Tensor, stop: tf.Tensor
) -> tf.Tensor:
    """Return what `slice_text` does, for rows that are not known when it is traced."""
    sizes = "".join(f" {size}" for size in row_shape)
    rest = ":-" * len(row_shape)
    text = tf.strings.as_string
    return tf.strings.join([text(total), f"{sizes} ", text(first), ",", text(stop - first), rest])


def _no_rows(variable: tf.Variable) -> tf.Tensor:
    return tf.zeros([0, *variable.shape[1:]], variable.dtype)


def _block_parts(group: TableGroup) -> int:
    """Return how many parts of a table a block has: a power of two, so that blocks of several sizes
    begin at the same rows.
    """
    table = group.tables[0]
    total, parts = table.layout.parts, 1
    while parts < total and 2 * parts * table.bytes <= BLOCK_BYTES * total:
        parts *= 2
    return parts


class _Block(NamedTuple):
    """A block in a loop. `first`, `stop`: rows within the shard; `slices`: as TensorFlow writes
    them, for the table and each slot.
    """

    number: tf.Tensor
    first: tf.Tensor
    stop: tf.Tensor
    slices: tf.Tensor


def _for_each_block(shard: GroupShard, use: Callable[[_Block], list[Any]]) -> None:
    """Run `use` for each block of a shard, one after the other, on the ps of the shard. It returns
    its operations: TensorFlow leaves out those of a loop that no output needs.
    """
    blocks, tables = shard.blocks, shard.group.tables
    bounds = np.array([[each.start, each.stop] for each in blocks], "int32") - shard.rows.start
    texts = tf.constant([tables[0].slice_of(each) for each in blocks])
    limits = tf.constant(bounds, tf.int32)

    def body(number: tf.Tensor) -> tf.Tensor:
        slices = tf.fill([len(tables)], texts[number])
        block = _Block(number, limits[number, 0], limits[number, 1], slices)
        with tf.control_dependencies(use(block)):
            return number + 1

    tf.while_loop(
        lambda number: number < len(blocks), body, [tf.constant(0)], parallel_iterations=1
    )


def _block_writer(shard: GroupShard, name: tf.Tensor) -> Callable[[_Block], list[Any]]:
    def write(block: _Block) -> list[Any]:
        rows = tf.range(block.first, block.stop)
        values = [tf.gather(each, rows) for each in shard.variables]
        saved = tf.raw_ops.SaveV2(
            prefix=tf.strings.join([name, tf.strings.as_string(block.number)]),
            tensor_names=tf.constant(shard.group.keys),
            shape_and_slices=block.slices,
            tensors=values,
        )
        return [saved]

    return write


def _block_reader(shard: GroupShard, path: tf.Tensor) -> Callable[[_Block], list[Any]]:
    def read(block: _Block) -> list[Any]:
        variables = shard.variables
        values = tf.raw_ops.RestoreV2(
            prefix=path,
            tensor_names=tf.constant(shard.group.keys),
            shape_and_slices=block.slices,
            dtypes=[each.dtype for each in variables],
        )
        return [
            assign_rows(variable, block.first, block.stop, value)
            for variable, value in zip(variables, values, strict=True)
        ]

    return read


def _delta_reader(shard: GroupShard, path: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function that sets the rows which a delta has from one shard of its writer."""
    keys, own_rows = shard.group.keys, shard.rows

    def restore(start: str, written_shard: tf.Tensor, key: str, dtype: tf.DType) -> tf.Tensor:
        name = tf.strings.join([f"{start}/", tf.strings.as_string(written_shard), f"/{key}"])
        (found,) = tf.raw_ops.RestoreV2(
            prefix=path, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
        )
        return found

    def apply(written_shard: tf.Tensor) -> tf.Tensor:
        ids = tf.ensure_shape(restore(IDS, written_shard, keys[0], tf.int64), [None])
        # Ids ascend, so the wanted ones are a slice. `tf.gather` would copy the rows.
        ends = tf.constant([own_rows.start, own_rows.stop], tf.int64)
        wanted = tf.unstack(tf.searchsorted(ids, ends))
        local = ids[wanted[0] : wanted[1]] - own_rows.start
        changes = []
        for key, variable in zip(keys, shard.variables, strict=True):
            rows = restore(ROWS, written_shard, key, variable.dtype)
            rows = tf.ensure_shape(rows, [None, *variable.shape[1:]])
            changes.append(
                tf.raw_ops.ResourceScatterUpdate(
                    resource=variable.handle,
                    indices=local,
                    updates=rows[wanted[0] : wanted[1]],
                )
            )
        with tf.control_dependencies(changes):
            return written_shard + 1

    return apply
