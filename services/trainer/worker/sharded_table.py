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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

from services.trainer.program import BadProgram
from services.trainer.worker.table_layout import TableLayout

shard_place: ContextVar[int | None] = ContextVar("shard_place", default=None)
"""The ps on which a shard is created; None: the variable is no shard."""
FillPart = Callable[[int, Sequence[int], Any], Any]
"""Returns the initial values of a part: of its number, shape and type."""


class TableShard(NamedTuple):
    """The rows of a table on one ps."""

    rows: range
    variable: tf.Variable


class ShardedTable(keras.Variable):  # type: ignore[misc]
    """A table with rows in shards. `shards` is empty while only its size is wanted: all rows are
    then zero.
    """

    def __init__(
        self, make_shards: Callable[[ShardedTable], list[TableShard]], **kwargs: Any
    ) -> None:
        """`make_shards`: makes the shards of this table; `kwargs`: of a Keras variable."""
        self._make_shards = make_shards
        self.shards: list[TableShard] = []
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
        if len(self.shards) == 1:
            return tf.gather(self.shards[0].variable, ids)
        routed = self.route(ids)
        places = self.route(tf.range(tf.size(ids)), ids)
        rows = [
            tf.gather(shard.variable, here - shard.rows.start)
            for shard, here in zip(self.shards, routed, strict=True)
        ]
        return tf.dynamic_stitch(places, rows)

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
        for shard in self.shards:
            shard.variable.assign(value[shard.rows.start : shard.rows.stop])
        return value

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        raise self._not_whole()

    def __array__(self, dtype: Any = None) -> Any:
        raise self._not_whole()

    def numpy(self) -> Any:
        raise self._not_whole()

    def _not_whole(self) -> BadProgram:
        return BadProgram(
            f"{self.path} is a table that is divided among parameter servers, and is used as a whole: "
            "look rows up with tf.gather(table, ids)"
        )

    # ------------------------------------------------------------ checkpoints

    def _serialize_to_tensors(self) -> dict[str, Any]:
        slices = {self.slice_of(shard): _save_spec(shard.variable) for shard in self.shards}
        return {"VARIABLE_VALUE": slices}

    def _restore_from_tensors(self, restored_tensors: Any) -> None:
        raise NotImplementedError("the rows of a table are restored by RestoreV2 on their ps")

    def assign_slice(self, part: str, rows: tf.Tensor) -> None:
        """Set the rows of the shard with this `slice_of`."""
        shard = next(each for each in self.shards if self.slice_of(each) == part)
        shard.variable.assign(rows, read_value=False)

    def slice_of(self, shard: TableShard) -> str:
        """Return a shard's rows as TensorFlow writes a slice: "1000 8 250,250:-"."""
        whole = " ".join(map(str, self._shape))
        rest = "".join([":-" for _ in self.row_shape])
        return f"{whole} {shard.rows.start},{len(shard.rows)}{rest}"


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


def new_shards(table: ShardedTable, fill_part: FillPart, ps: int) -> list[TableShard]:
    """Return shards on `ps` parameter servers with their initial values, which are created there."""
    layout, shards = table.layout, []
    for place in range(ps):
        rows = layout.rows_of(place, ps)
        if not rows:
            continue
        with _on_ps(place):
            variable = _new_variable(table, len(rows))
        with tf.device(variable.device):
            for part in layout.parts_of(place, ps):
                first, stop = layout.first_row(part), layout.first_row(part + 1)
                values = fill_part(part, [stop - first, *table.row_shape], table._dtype)
                _assign_rows(variable, first - rows.start, values)
        shards.append(TableShard(rows, variable))
    return shards


def shards_like(table: ShardedTable, other: ShardedTable, value: Any = None) -> list[TableShard]:
    """Return shards beside those of another table. `value`: of all elements; None: a copy."""
    shards = []
    for place, shard in enumerate(other.shards):
        with _on_ps(_ps_of(shard, place)):
            variable = _new_variable(table, len(shard.rows))
        with tf.device(variable.device):
            if value is None:
                variable.assign(tf.cast(shard.variable, variable.dtype))
            elif value:
                variable.assign(tf.fill(variable.shape, tf.cast(value, variable.dtype)))
        shards.append(TableShard(shard.rows, variable))
    return shards


def _new_variable(table: ShardedTable, rows: int) -> tf.Variable:
    shape = [rows, *table.row_shape]
    return tf.Variable(
        lambda: tf.zeros(shape, table._dtype), trainable=False, name=table.name, dtype=table._dtype
    )


def _assign_rows(variable: tf.Variable, first: int, values: Any) -> None:
    """Set rows in place. `variable[first:stop].assign` reads the variable, which would copy it."""
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle,
        begin=[first],
        end=[first + values.shape[0]],
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
