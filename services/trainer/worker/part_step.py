"""The traced functions of an update that several workers make together (`global_batch.py`).

part     on each worker: the gradient of its part of the examples, to the store on the ps
update   on the chief: the ps add up the parts, apply the sum and count the update

What a part assigns to a variable that is not trained is stored, too, and assigned with the update.
Such values, for example the moving averages of batch normalisation, are averaged over the parts.
The states of random numbers are those that the first part leaves; each part draws other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any, cast

import tensorflow as tf

from services.trainer.worker import optimizers, training_step
from services.trainer.worker.input_pipeline import Pipeline
from services.trainer.worker.part_exchange import Contribution, Part, PartExchange, part_key
from services.trainer.worker.step_resources import PS
from services.trainer.worker.training_step import BuiltModel

ORDER = tf.TensorSpec([4], tf.int64)
"""The fields of a `Part`. An update has its number and its number of examples in the same places."""
SEED_STATE = "seed_generator_state"
SEED_DISTANCE = 1_000_003
"""Between the seeds of two parts; they are counted up by one with each draw."""


def part_order(part: Part) -> tf.Tensor:
    return tf.constant(list(part), tf.int64)


def trace_part(
    program: ModuleType,
    strategy: Any,
    built: BuiltModel,
    pipeline: Pipeline,
    exchange: PartExchange,
    several: bool,
) -> Any:
    """Return a function that computes a part of the examples that are staged next on the worker
    that runs it, stores what it contributes, and leaves the mean loss in the pipeline.

    `several`: a part may have more than one pass.
    """
    compute = _part_by_passes if several else _part_in_one_pass

    def part(order: tf.Tensor) -> None:
        losses = pipeline.loss_queue()
        loss, count = strategy.run(compute, args=(program, built, pipeline, exchange, order))
        pipeline.add_loss(losses, loss, count)

    return tf.function(part, input_signature=[ORDER])


def _fields(order: tf.Tensor) -> Part:
    return Part(*tf.unstack(order))


def _part_in_one_pass(
    program: ModuleType,
    built: BuiltModel,
    pipeline: Pipeline,
    exchange: PartExchange,
    order: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    part = _fields(order)
    batch, count, _ = pipeline.take()
    scale = optimizers.loss_scale(built.optimizer)
    with _record_states(built, part.slot) as states:
        loss, gradients = training_step.loss_and_gradients(program, built, batch, scale)
    contributions = [*_gradient_contributions(built, gradients), *states]
    exchange.store(part_key(part.update, part.slot), contributions, count / part.examples)
    training_step.check_resources(program, built)
    return loss, count


def _part_by_passes(
    program: ModuleType,
    built: BuiltModel,
    pipeline: Pipeline,
    exchange: PartExchange,
    order: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """What a pass assigns to variables that are not trained is assigned at once."""
    part = _fields(order)
    scale = optimizers.loss_scale(built.optimizer)

    def share(count: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        return count / part.examples

    passes = tf.cast(part.passes, tf.int32)
    loss, count, gradients = training_step.sum_passes(
        program, built, pipeline, passes, share, scale
    )
    exchange.store(
        part_key(part.update, part.slot), _gradient_contributions(built, gradients), tf.ones(())
    )
    training_step.check_resources(program, built)
    return loss * tf.cast(part.examples / count, loss.dtype), count


def _gradient_contributions(built: BuiltModel, gradients: Sequence[Any]) -> list[Contribution]:
    weights = built.trainable_variables
    return [
        Contribution(weight.value, gradient)
        for weight, gradient in zip(weights, gradients, strict=True)
    ]


@contextmanager
def _record_states(built: BuiltModel, slot: tf.Tensor) -> Iterator[list[Contribution]]:
    """Add what is assigned to variables that are not trained to the list that this returns, at the
    end, and assign nothing. `slot`: the number of the part.
    """
    metrics = {id(variable) for variable in built.metrics}
    states = [each for model in built.models for each in model.non_trainable_variables]
    if built.random is not None:
        states.append(built.random)
    states = [each for each in states if id(each) not in metrics]
    kept = [(variable, variable._value) for variable in states]
    for variable, value in kept:
        variable._direct_assign = partial(_set_value, variable)
        if variable.name == SEED_STATE:
            variable._value = _seed_of_part(value, slot)
    contributions: list[Contribution] = []
    read = {id(variable): variable._value for variable in states}
    try:
        yield contributions
        for variable, value in kept:
            assigned = variable._value
            if assigned is not read[id(variable)]:
                combine: Any = "sum" if assigned.dtype.is_floating else "first"
                contributions.append(Contribution(value, assigned, combine))
    finally:
        for variable, value in kept:
            variable._value = value
            del variable._direct_assign


def _set_value(variable: Any, value: Any) -> None:
    variable._value = tf.cast(value, variable._value.dtype)


def _seed_of_part(state: tf.Variable, slot: tf.Tensor) -> tf.Tensor:
    """Return the state of random numbers, of two whole numbers, for a part."""
    distance = tf.stack([slot * SEED_DISTANCE, tf.zeros_like(slot)])
    return state.read_value() + tf.cast(distance, state.dtype)


def trace_update(strategy: Any, built: BuiltModel, exchange: PartExchange, parts: int) -> Any:
    """Return a function that applies an update of this many stored parts."""

    def update(order: tf.Tensor) -> None:
        with _on_ps(built):
            strategy.run(_apply_parts, args=(built, exchange, order, parts))

    return tf.function(update, input_signature=[ORDER])


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _apply_parts(built: BuiltModel, exchange: PartExchange, order: tf.Tensor, parts: int) -> None:
    part = _fields(order)
    combined = exchange.take(part.update, parts)
    weights = built.trainable_variables
    training_step.apply_gradients(built, combined[: len(weights)], None, part.examples)
    exchange.assign_states(combined, len(weights))


def _on_ps(built: BuiltModel) -> AbstractContextManager[Any]:
    """Return a context in which operations on values of a ps run there.

    An optimizer computes norms of gradients, for example, without saying where.
    """
    devices = {variable.value.device for variable in built.variables}
    devices.add(built.counters.applied.device)
    if len(devices) == 1:
        return tf.device(devices.pop())
    if not any(PS in device for device in devices):
        return nullcontext()
    graph: Any = tf.compat.v1.get_default_graph()
    return cast(AbstractContextManager[Any], graph.device(_ps_of_inputs))


def _ps_of_inputs(operation: Any) -> str:
    """Return the ps of an operation's inputs; empty if they come from several or from none."""
    devices = {tensor.device for tensor in operation.inputs if PS in tensor.device}
    return str(devices.pop()) if len(devices) == 1 else ""
