"""Updates of divided tables: an optimizer changes the rows of a gradient and their slots, where they
are.

The optimizer's own `update_step` computes the update, so that every Keras optimizer works with its
own hyper-parameters. It is given the rows of a table on one ps as if they were a whole variable
(`_Rows`), and their slots likewise. What it assigns is then scattered to these rows.

Rows without a gradient stay as they are, with their slots. In this, optimizers differ from their
dense form, in which a gradient of zero also has an effect (TensorFlow calls ours "lazy"):

    SGD without momentum, Adagrad   none: the result is the same
    SGD with momentum, RMSprop,     slots decay, and weights move by their momentum, only in updates
    Adam, Adamax, Nadam, Ftrl,      that have a gradient for the row
    Adadelta, Lion
    weight decay (AdamW)            rows decay only in updates that have a gradient for them
    averages (`use_ema`)            the average of a row moves only with the row; it begins with the
                                    row's initial value
    clipping                        the same: norms count each row once
    regularizers                    `table_division.py`

Optimizers that are not in `BY_ELEMENT` may combine elements of different rows, as Lamb and Adafactor
do. Tables that they train stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker.sharded_table import (
    ShardedTable,
    TableShard,
    copy_rows,
    shards_like,
)

_KINDS = tf.keras.optimizers
BY_ELEMENT = (
    _KINDS.SGD,
    _KINDS.Adagrad,
    _KINDS.RMSprop,
    _KINDS.Adam,
    _KINDS.AdamW,
    _KINDS.Nadam,
    _KINDS.Adamax,
    _KINDS.Ftrl,
    _KINDS.Adadelta,
    _KINDS.Lion,
)
"""The optimizers whose `update_step` computes each element from the same element of the slots."""
ACCUMULATOR, AVERAGE = "gradient_accumulator", "average"
"""The names that Keras gives to these variables of an optimizer."""
AVERAGES = "_model_variables_moving_average"
"""The attribute of an optimizer that has its averages."""


@contextmanager
def divided_slots() -> Iterator[None]:
    """Let optimizers that are built inside divide the slots of tables as these are divided."""
    kind: Any = next(
        each for each in _KINDS.Optimizer.__mro__ if "add_variable_from_reference" in vars(each)
    )
    add_variable = kind.add_variable_from_reference

    def add_slot(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return _add_slot(optimizer, partial(add_variable, optimizer), *args, **kwargs)

    kind.add_variable_from_reference = add_slot
    try:
        yield
    finally:
        kind.add_variable_from_reference = add_variable


def patch_table_updates(optimizer: Any) -> None:
    """Let a built optimizer update the rows of tables. Its other variables are as before.

    Raise `BadProgram` if it is not one of `BY_ELEMENT`, or divides gradients by a
    `loss_scale_factor`: Keras cannot divide a gradient of rows.
    """
    tables = tables_of(optimizer._trainable_variables)
    if optimizer.loss_scale_factor is not None:
        raise BadProgram(
            f"optimizer() sets loss_scale_factor, with which Keras cannot train {tables[0].path}, a "
            "table that is divided among parameter servers: use keras.optimizers.LossScaleOptimizer"
        )
    if not updates_by_element(optimizer):
        names = ", ".join([kind.__name__ for kind in BY_ELEMENT])
        raise BadProgram(
            f"{type(optimizer).__name__} cannot train {tables[0].path}, a table that is divided among "
            f"parameter servers, because it may combine rows: use one of {names}"
        )
    optimizer._backend_update_step = partial(
        _update_variables, optimizer, optimizer._backend_update_step
    )
    optimizer._apply_weight_decay = partial(_decay_others, optimizer._apply_weight_decay)
    optimizer._clip_gradients = partial(_clip_values, optimizer._clip_gradients)
    optimizer._backend_apply_gradients = partial(
        _apply_summed_rows, optimizer._backend_apply_gradients
    )
    optimizer._overwrite_model_variables_with_average_value = partial(
        _overwrite_with_averages,
        optimizer,
        optimizer._overwrite_model_variables_with_average_value,
    )


def updates_by_element(optimizer: Any) -> bool:
    """Return whether an optimizer computes each element from the same element of the slots."""
    return type(optimizer).update_step in [kind.update_step for kind in BY_ELEMENT]


def _apply_summed_rows(
    apply: Callable[..., None], gradients: Sequence[Any], variables: Sequence[Any]
) -> None:
    """Apply gradients that have each row of a table once, so that clipping counts it once."""
    summed = [
        with_each_row_once(gradient) if isinstance(variable, ShardedTable) else gradient
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
    apply(summed, variables)


def _clip_values(clip: Callable[[list[Any]], list[Any]], gradients: Sequence[Any]) -> list[Any]:
    """Clip gradients of rows by their values: Keras would make whole tables of them."""
    values = [each.values if isinstance(each, SummedRows) else each for each in gradients]
    found: list[Any] = []
    for each, before, after in zip(gradients, values, clip(values), strict=True):
        if after is before:
            found.append(each)
        elif isinstance(each, SummedRows):
            found.append(SummedRows(after, each.indices, each.dense_shape))
        else:
            found.append(after)
    return found


def _decay_others(decay: Callable[[list[Any]], None], variables: Sequence[Any]) -> None:
    """Apply weight decay to all but tables."""
    decay([each for each in variables if not isinstance(each, ShardedTable)])


def _update_variables(
    optimizer: Any,
    update: Callable[..., None],
    gradients: Sequence[Any],
    variables: Sequence[Any],
    learning_rate: Any,
) -> None:
    pairs = list(zip(gradients, variables, strict=True))
    others = [pair for pair in pairs if not isinstance(pair[1], ShardedTable)]
    update([gradient for gradient, _ in others], [each for _, each in others], learning_rate)
    for gradient, variable in pairs:
        if isinstance(variable, ShardedTable):
            update_rows(optimizer, variable, gradient, learning_rate)


def _overwrite_with_averages(
    optimizer: Any, overwrite: Callable[[list[Any]], None], variables: Sequence[Any]
) -> None:
    """Let averages become the weights (`use_ema`)."""
    averages = optimizer._model_variables_moving_average
    others: list[Any] = []
    kept: list[Any] = []
    for variable, average in zip(variables, averages, strict=True):
        if not isinstance(variable, ShardedTable):
            others.append(variable)
            kept.append(average)
            continue
        for shard, mean in zip(variable.shards, average.shards, strict=True):
            copy_rows(mean.variable, shard.variable)
    object.__setattr__(optimizer, AVERAGES, kept)
    try:
        overwrite(others)
    finally:
        object.__setattr__(optimizer, AVERAGES, averages)


def _add_slot(
    optimizer: Any,
    add_variable: Callable[..., Any],
    reference_variable: Any,
    name: str | None = None,
    initializer: Any = "zeros",
) -> Any:
    if not isinstance(reference_variable, ShardedTable):
        return add_variable(reference_variable, name=name, initializer=initializer)
    if name == ACCUMULATOR:  # gradients are summed in the step, and accumulators stay zero
        stand_in = optimizer.add_variable((), name=f"{reference_variable.name}_{name}")
        stand_in.is_stand_in = True
        return stand_in
    value = None if name == AVERAGE else initial_value(initializer)
    slot = ShardedTable(
        lambda made: shards_like(made, reference_variable, value),
        shape=reference_variable.shape,
        dtype=reference_variable.dtype,
        trainable=False,
        name=f"{reference_variable.path.replace('/', '_')}_{name or 'var'}",
    )
    optimizer._track_variable(slot)
    return slot


def initial_value(initializer: Any) -> float:
    """Return the value of all elements of a slot. Raise `BadProgram` if they differ."""
    made = tf.keras.initializers.get(initializer)((2,), "float32")
    first, second = map(float, made)
    if first != second:
        raise BadProgram("the optimizer draws initial values of slots: a divided table has none")
    return first


def slot_count(optimizer: Any) -> int:
    """Return how many variables of a table's shape an optimizer keeps for it; 0 if it cannot be
    copied to try that.
    """
    variable = tf.Variable(tf.zeros([2, 3]))
    try:
        tried = type(optimizer).from_config(optimizer.get_config())
        tried.gradient_accumulation_steps = None  # the rows of tables are accumulated elsewhere
        tried.build([variable])
    except Exception:  # the program's own class, or a schedule without a configuration
        return 0
    return sum(each.shape == variable.shape for each in tried.variables)


def tables_of(variables: Sequence[Any]) -> list[ShardedTable]:
    return [each for each in variables if isinstance(each, ShardedTable)]


def update_rows(optimizer: Any, table: ShardedTable, gradient: Any, learning_rate: Any) -> None:
    """Apply a gradient to the rows that it has."""
    if not isinstance(gradient, tf.IndexedSlices):
        raise BadProgram(
            f"the gradient of {table.path} is not sparse, and the table is divided among parameter "
            "servers: look rows up outside of tf.while_loop, and do not make the gradient dense"
        )
    slots = _slots_of(optimizer, table)
    gradients = _gradients_of_shards(table, gradient)
    for at, (shard, rows) in enumerate(zip(table.shards, gradients, strict=True)):
        with tf.device(shard.variable.device):
            local, values = shard.marks.record(rows.indices, rows.values)
            _update_shard(
                optimizer,
                table,
                slots,
                at,
                tf.IndexedSlices(values, local),
                learning_rate,
            )


class SummedRows(tf.IndexedSlices):  # type: ignore[misc]
    """A gradient of rows that has each row once."""


class RowsOnPs(SummedRows):
    """A gradient of rows whose parts are where the rows are. `shards`: the part of each shard, with
    row numbers within the shard. `values` and `indices` are on one ps, in order of the rows, if
    they are used at all: by clipping, and by `LossScaleOptimizer`, which divides them.
    """

    shards: Sequence[tf.IndexedSlices] = ()


def _gradients_of_shards(
    table: ShardedTable, gradient: tf.IndexedSlices
) -> Sequence[tf.IndexedSlices]:
    """Return the parts of a gradient for each shard, with each row once."""
    if isinstance(gradient, RowsOnPs):
        return gradient.shards
    return rows_of_shards(table, with_each_row_once(gradient))


def rows_of_shards(table: ShardedTable, gradient: tf.IndexedSlices) -> list[tf.IndexedSlices]:
    """Return the part of a gradient for each shard, with row numbers within the shard."""
    ids = table.route(gradient.indices)
    values = table.route(gradient.values, gradient.indices)
    return [
        tf.IndexedSlices(rows, here - shard.rows.start)
        for shard, here, rows in zip(table.shards, ids, values, strict=True)
    ]


def join_shards(table: ShardedTable, shards: Sequence[tf.IndexedSlices]) -> RowsOnPs:
    """Return the gradient of a table from the parts for each shard, each on its ps. Equal rows are
    added there.
    """
    summed = []
    for shard, rows in zip(table.shards, shards, strict=True):
        with tf.device(shard.variable.device):
            summed.append(sum_rows(rows))
    values, ids = [], []
    with tf.device(table.value.device):
        # In order of the rows: the bits of a norm must not depend on the number of ps.
        for shard, rows in zip(table.shards, summed, strict=True):
            order = tf.argsort(rows.indices)
            values.append(tf.gather(rows.values, order))
            ids.append(tf.gather(rows.indices, order) + shard.rows.start)
        shape = tf.constant(list(table.shape), tf.int64)
        found = RowsOnPs(tf.concat(values, 0), tf.concat(ids, 0), shape)
    found.shards = summed
    return found


def values_of(gradient: Any) -> list[tf.Tensor]:
    """Return the tensors with the values of a gradient, each on its ps if it is one of rows."""
    if isinstance(gradient, RowsOnPs):
        return [rows.values for rows in gradient.shards]
    return [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient]


def with_each_row_once(gradient: Any) -> Any:
    """Return a gradient with the values of equal rows added up, if it is one of rows."""
    is_summed = isinstance(gradient, SummedRows) or not isinstance(gradient, tf.IndexedSlices)
    return gradient if is_summed else sum_rows(gradient)


def sum_rows(gradient: tf.IndexedSlices) -> SummedRows:
    """Return a gradient of rows with the values of equal rows added up."""
    ids, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(ids))
    return SummedRows(values, ids, gradient.dense_shape)


class _Rows:
    """Some rows of a shard, as a variable that `update_step` changes.

    `store` adds what was added, as the dense form does: updates of several workers that change a
    row at the same moment all count.
    """

    def __init__(self, table: ShardedTable, shard: TableShard, rows: tf.Tensor) -> None:
        self._shard, self._at = shard, rows
        self._changes: list[tuple[Callable[..., Any], tf.Tensor]] = []
        self.value = tf.gather(shard.variable, rows)
        self.path, self.name = table.path, table.name
        self.dtype, self.shape = self.value.dtype, self.value.shape
        self._unique_id = table.value._unique_id

    def assign(self, value: Any) -> None:
        self.value = tf.cast(value, self.dtype)
        self._changes = [(self._shard.variable.scatter_update, self.value)]

    def assign_add(self, value: Any) -> None:
        added = tf.cast(value, self.dtype)
        self.value += added
        self._changes.append((self._shard.variable.scatter_add, added))

    def assign_sub(self, value: Any) -> None:
        taken = tf.cast(value, self.dtype)
        self.value -= taken
        self._changes.append((self._shard.variable.scatter_sub, taken))

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.value, dtype=dtype, name=name)

    def __mul__(self, factor: Any) -> tf.Tensor:
        return self.value * factor

    __rmul__ = __mul__

    def store(self) -> None:
        for change, values in self._changes:
            change(tf.IndexedSlices(values, self._at))


def _update_shard(
    optimizer: Any,
    table: ShardedTable,
    slots: dict[str, ShardedTable],
    at: int,
    gradient: tf.IndexedSlices,
    learning_rate: Any,
) -> None:
    """Update the rows of one shard. `gradient`: with row numbers within the shard, each once."""
    with tf.control_dependencies([gradient.values]):  # rows are read as late as possible
        rows = _Rows(table, table.shards[at], gradient.indices)
        used = {
            name: _Rows(slot, slot.shards[at], gradient.indices) for name, slot in slots.items()
        }
    average = used.pop(AVERAGES, None)
    before = rows.value
    if optimizer.weight_decay and optimizer._use_weight_decay(table):
        rate = tf.cast(learning_rate, rows.dtype)
        rows.assign_sub(rows * tf.cast(optimizer.weight_decay, rows.dtype) * rate)
    with _slots_replaced(optimizer, table, used):
        optimizer.update_step(tf.cast(gradient.values, rows.dtype), rows, learning_rate)
    if average is not None:
        _move_average(optimizer, average, before, rows.value)
        average.store()
    for each in (rows, *used.values()):
        each.store()


def _move_average(optimizer: Any, average: _Rows, before: tf.Tensor, after: tf.Tensor) -> None:
    """Move the average of rows as Keras does in the batches of one update: towards the rows before
    it in all batches but the last, then towards those after it.
    """
    earlier = (optimizer.gradient_accumulation_steps or 1) - 1
    if earlier:
        weight = tf.cast(1.0 - optimizer.ema_momentum**earlier, average.dtype)
        average.assign_add(weight * (before - average.value))
    weight = tf.cast(1.0 - optimizer.ema_momentum, average.dtype)
    average.assign_add(weight * (after - average.value))


def _slots_of(optimizer: Any, table: ShardedTable) -> dict[str, ShardedTable]:
    """Return the slots of a table, by the name of the optimizer's list that has them."""
    at = optimizer._get_variable_index(table)
    count = len(optimizer._trainable_variables)
    found = {}
    for name, slots in vars(optimizer).items():
        if name == "_trainable_variables" or not isinstance(slots, list) or len(slots) != count:
            continue
        if isinstance(slots[at], ShardedTable):
            found[name] = slots[at]
    return found


@contextmanager
def _slots_replaced(optimizer: Any, table: ShardedTable, used: dict[str, _Rows]) -> Iterator[None]:
    """Let the optimizer find these rows where it has the slots of a table."""
    at = optimizer._get_variable_index(table)
    kept = {name: vars(optimizer)[name] for name in used}
    for name, rows in used.items():
        replaced = [*kept[name]]
        replaced[at] = rows
        object.__setattr__(optimizer, name, replaced)
    try:
        yield
    finally:
        for name, slots in kept.items():
            object.__setattr__(optimizer, name, slots)
