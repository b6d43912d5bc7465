"""An embedding table whose rows are divided among parameter servers.

`ShardedTable` stands for the whole table: one Keras variable, with one TensorFlow variable for the
rows on each ps, a shard. So a model has the variables, and a checkpoint has the keys, that they
have in one process. In a checkpoint the shards are slices of one tensor: any process can restore it
whole, and any number of ps can restore their rows.

A lookup removes duplicate ids, asks each ps for the rows that it has, and puts them together. The
gradient is `tf.IndexedSlices` with one value for each row that was looked up. `row_updates.py`
applies it.

The table is never in one place, so it cannot be used as a tensor: look rows up with
`tf.gather(table, ids)`, or with `keras.layers.Embedding`.

`value` is no rows, but a scalar that stands for the table where TensorFlow wants a variable: the
gradient tape watches it, and optimizers find slots by it. It is not a number, so that a use of it
shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

from services.trainer.program import BadProgram
from services.trainer.worker.ps_memory import MARK_BYTES
from services.trainer.worker.table_layout import TableLayout, slice_text

_whole_uses: ContextVar[set[int] | None] = ContextVar("whole_uses", default=None)
shard_place: ContextVar[int | None] = ContextVar("shard_place", default=None)
"""The ps on which a shard is created; None: the variable is no shard."""
COPIED_BYTES = 16 * 2**20
"""The largest block of rows that is copied at once."""
FillPart = Callable[[tf.Tensor, tf.Tensor, tf.DType], tf.Tensor]
"""Returns the initial values of a part from its number, shape and type, in a traced function."""


class RowMarks(NamedTuple):
    """When each row of a shard was changed last, on its ps. A table and its slots share them.

    `clock`: an int32 that the checkpoint writer advances; 0: updates change nothing, because a
    generation rehearses. `changed_at`: int32 [rows], the clock at the last change.
    """

    clock: tf.Variable
    changed_at: tf.Variable

    def record(self, ids: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mark rows of the shard as changed. Return the numbers and gradients of those to change:
        all of them, or none in a rehearsal.
        """
        now = self.clock.read_value()
        count = tf.size(ids) * tf.cast(now > 0, tf.int32)
        ids, values = ids[:count], values[:count]
        self.changed_at.scatter_update(tf.IndexedSlices(tf.fill([count], now), ids))
        return ids, values

    def record_all(self) -> None:
        now = self.clock.read_value()
        self.changed_at.assign(tf.fill(self.changed_at.shape, now), read_value=False)


class TableShard(NamedTuple):
    """The rows of a table on one ps."""

    rows: range
    variable: tf.Variable
    marks: RowMarks


class ShardedTable(keras.Variable):  # type: ignore[misc]
    """A table with rows in shards. `shards` is empty while only its size is wanted: all rows are
    then zero. `refill` gives all rows their initial values again. `number`: of the table among the
    large ones of `model()`, in the order in which these are made.
    """

    def __init__(
        self, make_shards: Callable[[ShardedTable], list[TableShard]], **kwargs: Any
    ) -> None:
        """`make_shards`: makes the shards of this table; `kwargs`: of a Keras variable."""
        self._make_shards = make_shards
        self.shards: list[TableShard] = []
        self.refill: Callable[[], None] = _fill_nothing
        self.number = -1
        super().__init__("zeros", **kwargs)

    def _initialize_with_initializer(self, initializer: Any) -> None:
        self._initialize(lambda: tf.constant(float("nan"), self._dtype))
        self.shards = self._make_shards(self)

    @property
    def layout(self) -> TableLayout:
        return TableLayout(self._shape[0])

    @property
    def row_shape(self) -> tuple[int, ...]:
        return tuple(self._shape[1:])

    @property
    def bytes(self) -> int:
        size: int = tf.as_dtype(self._dtype).size
        return int(np.prod(self._shape)) * size

    @property
    def mark_bytes(self) -> int:
        return int(self._shape[0]) * MARK_BYTES

    # ------------------------------------------------------------ lookup

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Return the rows with these numbers. `tf.gather` calls this."""
        ids = tf.convert_to_tensor(indices)
        unique, places = tf.unique(tf.reshape(tf.cast(ids, tf.int64), [-1]))
        return self.spread(self.unique_rows(unique), places, ids)

    def spread(self, rows: tf.Tensor, places: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Return the row of each id, in the shape of `ids`. `places`: of the rows."""
        shape = tf.concat([tf.shape(ids), self.row_shape], 0)
        found = tf.reshape(tf.gather(rows, places), shape)
        return self._maybe_autocast(tf.ensure_shape(found, [*ids.shape, *self.row_shape]))

    def unique_rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the rows with these different numbers, int64 [ids]: [ids, ...]. They have a
        gradient.
        """

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def look_up(_anchor: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], Any]]:
            def gradient(upstream: Any) -> tf.IndexedSlices:
                values = upstream
                if isinstance(upstream, tf.IndexedSlices):
                    values = tf.math.unsorted_segment_sum(
                        upstream.values, upstream.indices, tf.size(ids)
                    )
                return tf.IndexedSlices(values, ids, tf.constant(self._shape, tf.int64))

            return self.read_rows(ids), gradient

        return look_up(tf.convert_to_tensor(self._value))

    def read_rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the rows with these numbers, int64 [ids], as they are now: [ids, ...]."""
        if not self.shards:
            return tf.zeros([tf.size(ids), *self.row_shape], self._dtype)
        with tf.control_dependencies([self._check_ids(ids)]):
            ids = tf.identity(ids)
        if len(self.shards) == 1:
            return tf.gather(self.shards[0].variable, ids)
        routed = self.route(ids)
        places = self.route(tf.range(tf.size(ids)), ids)
        rows = [
            tf.gather(shard.variable, here - shard.rows.start)
            for shard, here in zip(self.shards, routed, strict=True)
        ]
        return tf.dynamic_stitch(places, rows)

    def _check_ids(self, ids: tf.Tensor) -> tf.Operation:
        """Return an operation that fails if an id is no row. The message names the table."""
        rows = self._shape[0]
        wrong = tf.boolean_mask(ids, (ids < 0) | (ids >= rows))
        what = f"ids must be from 0 to {rows - 1}, the rows of {self.path}, and these are not:"
        return tf.debugging.Assert(tf.equal(tf.size(wrong), 0), [what, wrong], summarize=5)

    def route(self, values: tf.Tensor, ids: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Return the values that belong to each shard. `ids`: the rows of the values; None: the
        values are row numbers.
        """
        ids = values if ids is None else ids
        starts = tf.constant([shard.rows.start for shard in self.shards], tf.int64)
        shard_of = tf.searchsorted(starts, ids, side="right") - 1
        parts: list[tf.Tensor] = tf.dynamic_partition(values, shard_of, len(self.shards))
        return parts

    # ------------------------------------------------------------ the whole table

    def assign(self, value: Any) -> Any:
        """Set all rows: `Embedding(weights=...)`, and `set_weights` of a layer."""
        value = np.asarray(value)
        if tuple(value.shape) != tuple(self._shape):
            raise ValueError(f"{self.path} has shape {self._shape}, the value {value.shape}")
        self.refill = partial(self._assign_shards, value)
        self.refill()
        return value

    def _assign_shards(self, value: Any) -> None:
        for shard in self.shards:
            shard.variable.assign(value[shard.rows.start : shard.rows.stop])
            shard.marks.record_all()

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        raise self.whole_use_error()

    def __array__(self, dtype: Any = None) -> Any:
        raise self.whole_use_error()

    def numpy(self) -> Any:
        raise self.whole_use_error()

    def whole_use_error(self) -> BadProgram:
        """Return the error of a use as a whole, and record the use."""
        uses = _whole_uses.get()
        if uses is not None:
            uses.add(self.number)
        return BadProgram(
            f"{self.path} is a table that is divided among parameter servers, and is used as a whole: "
            "look rows up with tf.gather(table, ids)"
        )

    # ------------------------------------------------------------ checkpoints

    def _serialize_to_tensors(self) -> dict[str, Any]:
        slices = {self.slice_of(shard.rows): _save_spec(shard.variable) for shard in self.shards}
        return {"VARIABLE_VALUE": slices}

    def _restore_from_tensors(self, restored_tensors: Any) -> None:
        raise NotImplementedError("`table_checkpoint.py` restores the rows of tables")

    def slice_of(self, rows: range) -> str:
        """Return rows as TensorFlow writes a slice: "1000 8 250,250:-"."""
        return slice_text(self._shape, rows)


@contextmanager
def record_whole_uses() -> Iterator[set[int]]:
    """Yield a set to which each table that is used as a whole inside adds its number, before it
    raises.
    """
    uses: set[int] = set()
    token = _whole_uses.set(uses)
    try:
        yield uses
    finally:
        _whole_uses.reset(token)


def _save_spec(variable: tf.Variable) -> saveable_object.SaveSpec:
    return saveable_object.SaveSpec(
        variable.read_value, "", variable.name, variable.dtype, variable.device
    )


# ---------------------------------------------------------------- making shards


def ps_variables(variable: Any) -> list[tf.Variable]:
    """Return the TensorFlow variables of a Keras variable: one, or those of a table."""
    if isinstance(variable, ShardedTable):
        return [shard.variable for shard in variable.shards]
    return [variable.value]


def no_shards(table: ShardedTable, fill_part: FillPart) -> list[TableShard]:
    """Return no shards: only the size of the table is wanted."""
    return []


def new_shards(
    table: ShardedTable, fill_part: FillPart, ps: int, fill: bool = True
) -> list[TableShard]:
    """Return shards on `ps` parameter servers with their initial values, which are created there.
    `fill` false: with zeros.
    """
    layout, shards = table.layout, []
    for place in range(ps):
        rows = layout.rows_of(place, ps)
        if not rows:
            continue
        with _on_ps(place):
            variable = _new_variable(table, len(rows))
            shards.append(TableShard(rows, variable, _new_marks(table, len(rows))))
    table.refill = partial(_fill_parts, layout, shards, fill_part)
    if fill:
        table.refill()
    return shards


def _fill_nothing() -> None:
    pass


def _new_marks(table: ShardedTable, rows: int) -> RowMarks:
    def variable(name: str, value: int, shape: list[int]) -> tf.Variable:
        return tf.Variable(
            lambda: tf.fill(shape, tf.constant(value, tf.int32)),
            trainable=False,
            name=f"{table.name}_{name}",
            dtype=tf.int32,
        )

    return RowMarks(variable("clock", 1, []), variable("changed_at", 0, [rows]))


def _fill_parts(layout: TableLayout, shards: list[TableShard], fill_part: FillPart) -> None:
    """Give all rows their initial values, which are created on their ps, part by part."""
    tf.function(partial(_fill_shards, layout, shards, fill_part), autograph=False)()


def _fill_shards(layout: TableLayout, shards: list[TableShard], fill_part: FillPart) -> None:
    for shard in shards:
        with tf.device(shard.variable.device):
            _fill_shard(layout, shard, fill_part)


def _fill_shard(layout: TableLayout, shard: TableShard, fill_part: FillPart) -> None:
    variable = shard.variable
    bounds = [layout.first_row(part) for part in range(layout.parts + 1)]
    starts = tf.constant(bounds, tf.int32)

    def body(part: tf.Tensor) -> tf.Tensor:
        first, stop = starts[part], starts[part + 1]
        shape = tf.concat([[stop - first], variable.shape[1:]], 0)
        values = fill_part(part, shape, variable.dtype)
        begin = shard.rows.start
        with tf.control_dependencies([assign_rows(variable, first - begin, stop - begin, values)]):
            return part + 1

    first_part, stop_part = bounds.index(shard.rows.start), bounds.index(shard.rows.stop)
    tf.while_loop(
        lambda part: part < stop_part, body, [tf.constant(first_part)], parallel_iterations=1
    )


def shards_like(table: ShardedTable, other: ShardedTable, value: Any = None) -> list[TableShard]:
    """Return shards beside those of another table. `value`: of all elements; None: a copy."""
    shards = []
    for place, shard in enumerate(other.shards):
        with _on_ps(_ps_of(shard, place)):
            variable = _new_variable(table, len(shard.rows), value or 0.0)
        shards.append(TableShard(shard.rows, variable, shard.marks))
    table.refill = partial(_fill_like, shards, other, value)
    if value is None:
        table.refill()
    return shards


def _fill_like(shards: list[TableShard], other: ShardedTable, value: Any) -> None:
    for shard, source in zip(shards, other.shards, strict=True):
        if value is None:
            copy_rows(source.variable, shard.variable)
        else:
            fill_rows(shard.variable, value)


def _new_variable(table: ShardedTable, rows: int, value: float = 0.0) -> tf.Variable:
    """Return rows of which all elements have this value."""
    shape = [rows, *table.row_shape]
    return tf.Variable(
        lambda: tf.fill(shape, tf.cast(value, table._dtype)),
        trainable=False,
        name=table.name,
        dtype=table._dtype,
    )


def copy_rows(source: tf.Variable, target: tf.Variable) -> None:
    """Set all rows of a shard to those of another one on the same ps, block by block: a ps may lack
    the memory for a second copy of a shard.
    """
    with tf.device(target.device):
        for block in _blocks_of_shard(target):
            rows = tf.gather(source, tf.range(block.start, block.stop))
            assign_rows(target, block.start, block.stop, tf.cast(rows, target.dtype))


def fill_rows(shard: tf.Variable, value: float) -> None:
    """Set all elements of a shard to a value, block by block, as `copy_rows` does."""
    with tf.device(shard.device):
        for block in _blocks_of_shard(shard):
            rows = tf.fill([len(block), *shard.shape[1:]], tf.cast(value, shard.dtype))
            assign_rows(shard, block.start, block.stop, rows)


def _blocks_of_shard(shard: tf.Variable) -> Iterator[range]:
    """Yield the row numbers of each block of a shard, which has at most `COPIED_BYTES`."""
    count, *row_shape = shard.shape
    row_bytes = shard.dtype.size * math.prod(row_shape)
    step = max(COPIED_BYTES // row_bytes, 1)
    for first in range(0, count, step):
        yield range(first, min(first + step, count))


def assign_rows(variable: tf.Variable, first: Any, stop: Any, values: Any) -> Any:
    """Set rows `first` to `stop` in place, and return the operation.

    `variable[first:stop].assign` reads the variable, which would copy it.
    """
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle,
        begin=[first],
        end=[stop],
        strides=[1],
        value=values,
    )


def _ps_of(shard: TableShard, place: int) -> int:
    task: int | None = tf.DeviceSpec.from_string(shard.variable.device).task
    return place if task is None else task


@contextmanager
def _on_ps(place: int) -> Iterator[None]:
    token = shard_place.set(place)
    try:
        yield
    finally:
        shard_place.reset(token)
