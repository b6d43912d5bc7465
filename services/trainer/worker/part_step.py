"""The traced functions of an update that several workers make together (`global_batch.py`).

part     on each worker: the gradient of its part of the examples, to the store on the ps
update   on the chief: the ps add up the parts, apply the sum and count the update

What a part assigns to a variable that is not trained is stored, too, and assigned with the update.
Such values, for example the moving averages of batch normalisation, are averaged over the parts.
The states of random numbers are those that the first part leaves; each part draws other numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any, Literal, cast

import tensorflow as tf

from services.trainer.worker import (
    optimizers,
    own_step,
    row_updates,
    step_loss,
    training_step,
)
from services.trainer.worker.input_pipeline import Pipeline
from services.trainer.worker.optimizers import RecordedUpdate
from services.trainer.worker.packing import read_packed
from services.trainer.worker.part_exchange import Contribution, Part, PartExchange, part_key
from services.trainer.worker.sharded_table import ShardedTable
from services.trainer.worker.step_resources import PS
from services.trainer.worker.training_step import BuiltModel, WholeBatchNeeded

ORDER = tf.TensorSpec([None], tf.int64)
"""The fields of a `Part`, the rows last. An update has its number, and its number of examples, in
the same places.
"""
PART_FIELDS = len(Part._fields) - 1
IGNORED_READS = ("VarIsInitializedOp", "VariableShape")
SEED_STATE = "seed_generator_state"
SEED_DISTANCE = 1_000_003
"""Between the seeds of two parts; they are counted up by one with each draw."""


def part_order(part: Part) -> tf.Tensor:
    return tf.constant([*part[:PART_FIELDS], *part.rows], tf.int64)


PartKind = Literal["one pass", "passes", "rows"]
"""The ways to compute a part: from one staged pass; from the sum of several; or from passes that are
cut from what is staged.
"""


class PartStep:
    """The traced functions of a generation. Trace the part first."""

    def __init__(
        self,
        program: ModuleType,
        strategy: Any,
        built: BuiltModel,
        pipeline: Pipeline,
        exchange: PartExchange,
    ) -> None:
        self._program, self._strategy, self._built = program, strategy, built
        self._pipeline, self._exchange = pipeline, exchange
        self._updates: list[RecordedUpdate] = []
        self._kind: PartKind = "one pass"
        self._on_ps = {id(each): each.value for each in built.variables}

    # ------------------------------------------------------------ on a worker

    def trace_part(self, kind: PartKind) -> Any:
        """Return a function that computes a part of the examples that are staged next on the worker
        that runs it, stores what it contributes, and leaves the mean loss in the pipeline.

        Raise `WholeBatchNeeded`, and `BadProgram`.
        """
        if self._built.kind == "compiled":
            why = step_loss.whole_batch_reason(self._built.model)
            if why:
                raise WholeBatchNeeded(why)
        self._kind = kind
        compute = {
            "one pass": self._compute_in_one_pass,
            "passes": self._compute_by_passes,
            "rows": self._compute_by_passes,
        }[kind]

        def part(order: tf.Tensor) -> None:
            losses = self._pipeline.loss_queue()
            loss, count = self._strategy.run(compute, args=(order,))
            self._pipeline.add_loss(losses, loss, count)

        return tf.function(part, input_signature=[ORDER]).get_concrete_function()

    def _compute_in_one_pass(self, order: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = _fields(order)
        batch, count, _ = self._pipeline.take()
        with record_states(self._built, part.number) as states:
            loss, self._updates = self._loss_and_updates(batch)
        self._store(part, states, tf.cast(count / part.examples, tf.float32))
        training_step.check_resources(self._program, self._built)
        return loss, count

    def _loss_and_updates(self, batch: Any) -> tuple[tf.Tensor, list[RecordedUpdate]]:
        """Return the mean loss, and what the optimizers are to apply."""
        program, built = self._program, self._built
        if own_step.is_own_step(built.kind):
            step = own_step.bound_step(
                program, built.kind, built.model, built.optimizer, built.metrics
            )
            with optimizers.record_updates(optimizers.all_optimizers(built.optimizer)) as updates:
                loss = step(batch)
            _check_sequence(updates, self._on_ps)
            return loss, updates
        scale = optimizers.loss_scale(built.optimizer)
        loss, gradients = training_step.loss_and_gradients(program, built, batch, scale)
        return loss, [self._update_of(gradients)]

    def _update_of(self, gradients: list[Any]) -> RecordedUpdate:
        return RecordedUpdate(self._built.optimizer, gradients, self._built.trainable_variables, 0)

    def _compute_by_passes(self, order: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Assignments of a pass to variables that are not trained take effect at once."""
        part, built = _fields(order), self._built
        take: Any = lambda _: self._pipeline.take()  # noqa: E731
        if self._kind == "rows":
            take = self._pipeline.row_cutter(part.rows)
        loss, count, gradients = training_step.sum_passes(
            self._program,
            built,
            take,
            tf.cast(part.passes, tf.int32),
            lambda examples, _: examples / part.examples,
            optimizers.loss_scale(built.optimizer),
        )
        self._updates = [self._update_of(gradients)]
        self._store(part, [], tf.ones(()))
        training_step.check_resources(self._program, built)
        return loss * tf.cast(part.examples / count, loss.dtype), count

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _store(self, part: Part, states: list[Contribution], share: tf.Tensor) -> None:
        contributions = []
        for update in self._updates:
            for variable, gradient in zip(update.variables, update.gradients, strict=True):
                contributions += _contributions(variable, gradient)
        counters = self._built.counters
        begun = Contribution(counters.step, counters.updates(), "first")
        key = part_key(part.update, part.number)
        self._exchange.store(key, [*contributions, *states, begun], share)

    # ------------------------------------------------------------ on the ps

    def trace_update(self, parts: int) -> Any:
        """Return a function that applies an update of this many stored parts, and counts it."""

        def update(order: tf.Tensor) -> None:
            with _on_ps(self._built):
                self._strategy.run(self._apply, args=(order, parts))

        return tf.function(update, input_signature=[ORDER]).get_concrete_function()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _apply(self, order: tf.Tensor, parts: int) -> None:
        """Apply an update. A replica has a thread, and so its own context for devices."""
        with _on_ps(self._built):
            part = _fields(order)
            combined = self._exchange.take(part.update, parts)
            left = iter(combined)
            updates = [
                update._replace(gradients=_take_gradients(update, left)) for update in self._updates
            ]
            states = list(left)
            begun = states.pop()
            training_step.apply_updates(self._built, updates, part.examples, begun)
            self._exchange.assign_states(len(combined) - 1 - len(states), states)

    def trace_clear(self) -> Any:
        """Return a function that drops all stored parts."""
        return tf.function(self._exchange.clear, input_signature=[]).get_concrete_function()


def _is_of_rows(variable: Any, gradient: Any) -> bool:
    """Return whether a gradient is stored in parts, one on the ps of each shard of a table."""
    return isinstance(variable, ShardedTable) and isinstance(gradient, tf.IndexedSlices)


def _contributions(variable: Any, gradient: Any) -> list[Contribution]:
    """Return the contributions of a gradient: one, or one for each shard of a table."""
    if not _is_of_rows(variable, gradient):
        return [Contribution(variable.value, gradient)]
    shards = row_updates.rows_of_shards(variable, gradient)
    return [
        Contribution(shard.variable, rows)
        for shard, rows in zip(variable.shards, shards, strict=True)
    ]


def _take_gradients(update: RecordedUpdate, combined: Iterator[Any]) -> list[Any]:
    """Return the gradients of an update. `combined`: the combined values of all contributions."""
    found: list[Any] = []
    for variable, gradient in zip(update.variables, update.gradients, strict=True):
        if _is_of_rows(variable, gradient):
            shards = list(itertools.islice(combined, len(variable.shards)))
            found.append(row_updates.join_shards(variable, shards))
        else:
            found.append(next(combined))
    return found


def _fields(order: tf.Tensor) -> Part:
    update, number, passes, examples = tf.unstack(order[:PART_FIELDS], PART_FIELDS)
    return Part(update, number, passes, examples, order[PART_FIELDS:])


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _check_sequence(updates: Sequence[RecordedUpdate], on_ps: Mapping[int, tf.Variable]) -> None:
    """Raise `WholeBatchNeeded` if the step that is traced uses a variable after its update, or
    assigns to it. `on_ps`: the variables on the ps, by the identity of Keras's.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    places = {op: place for place, op in enumerate(graph.get_operations())}
    updated: set[int] = set()
    for update in updates:
        for variable in update.variables:
            users = graph.capture(on_ps[id(variable)].handle).consumers()
            late = [
                op for op in users if places[op] >= update.place and op.type not in IGNORED_READS
            ]
            is_assigned = variable._value is not on_ps[id(variable)]
            if late or is_assigned or id(variable) in updated:
                raise WholeBatchNeeded(
                    f"train_step uses or updates {variable.path} after its update"
                )
            updated.add(id(variable))


@contextmanager
def record_states(built: BuiltModel, number: tf.Tensor) -> Iterator[list[Contribution]]:
    """Add what is assigned to variables that are not trained to the list that this returns, at the
    end, and assign nothing. `number`: of the part. A step of the program's own may assign
    to any variable. Variables that are read packed are tensors inside.
    """
    states = _recorded_variables(built)
    on_ps = [variable._value for variable in states]
    contributions: list[Contribution] = []
    for variable in states:
        variable._direct_assign = partial(_set_value, variable)
    packed = built.packed_reads == "weights and states"
    try:
        with read_packed(_variables_to_read(built) if packed else []):
            for variable in states:
                if variable.name == SEED_STATE:
                    variable._value = _seed_of_part(variable._value, number)
            before = [variable._value for variable in states]
            yield contributions
            for variable, value, earlier in zip(states, on_ps, before, strict=True):
                if variable._value is not earlier:
                    contributions.append(_state_contribution(variable, value))
    finally:
        for variable, value in zip(states, on_ps, strict=True):
            variable._value = value
            del variable._direct_assign


def _recorded_variables(built: BuiltModel) -> list[Any]:
    """Return each variable once whose assignment is recorded: those that are not trained, or all if
    the step is the program's own; and the state of random numbers. Metrics are left out.
    """
    if own_step.is_own_step(built.kind):
        states = list(built.variables)
    else:
        states = [each for model in built.models for each in model.non_trainable_variables]
    if built.random is not None:
        states.append(built.random)
    by_id = {id(variable): variable for variable in states}
    for metric in built.metrics:
        by_id.pop(id(metric), None)
    return list(by_id.values())


def _variables_to_read(built: BuiltModel) -> list[Any]:
    """Return the variables that a part reads packed: states, and the weights that it trains.

    A step of the program's own keeps its weights: its tape has to watch them, and it may read them
    after an update. So does a frozen layer, for a tape of the program.
    """
    trained = built.trainable_variables
    kept = {id(metric) for metric in built.metrics}
    if own_step.is_own_step(built.kind):
        trained = []
        for optimizer in optimizers.optimizer_parts(built.optimizer):
            kept.update(map(id, optimizer._trainable_variables))
    states = [variable for variable in built.variables if not variable.value.trainable]
    by_id = {id(variable): variable for variable in (*states, *trained)}
    return [variable for key, variable in by_id.items() if key not in kept]


def _state_contribution(variable: Any, on_ps: tf.Variable) -> Contribution:
    """Return the contribution of a part to a variable that the part has assigned."""
    assigned = variable._value
    if assigned.graph is not tf.compat.v1.get_default_graph():
        raise WholeBatchNeeded(f"{variable.path} is assigned in a loop or a condition")
    return Contribution(on_ps, assigned, "sum" if assigned.dtype.is_floating else "first")


def _set_value(variable: Any, value: Any) -> None:
    variable._value = tf.cast(value, variable._value.dtype)


def _seed_of_part(state: Any, number: tf.Tensor) -> tf.Tensor:
    """Return the state of random numbers, of two whole numbers, for a part."""
    distance = tf.stack([number * SEED_DISTANCE, tf.zeros_like(number)])
    return tf.convert_to_tensor(state) + tf.cast(distance, state.dtype)


def _on_ps(built: BuiltModel) -> AbstractContextManager[Any]:
    """Return a context in which operations on values of a ps run there.

    An optimizer computes norms of gradients, for example, without saying where.
    """
    devices = {variable.value.device for variable in built.variables}
    devices.add(built.counters.applied.device)
    if len(devices) == 1:
        return cast(AbstractContextManager[Any], tf.device(devices.pop()))
    if not any(PS in device for device in devices):
        return nullcontext()
    graph: Any = tf.compat.v1.get_default_graph()
    return cast(AbstractContextManager[Any], graph.device(_ps_of_inputs))


def _ps_of_inputs(operation: Any) -> str:
    """Return the device of an operation, or else the ps of its inputs; empty if they come from
    several or from none.
    """
    if PS in operation.device:
        return str(operation.device)
    devices = {tensor.device for tensor in operation.inputs if PS in tensor.device}
    return str(devices.pop()) if len(devices) == 1 else str(operation.device)
