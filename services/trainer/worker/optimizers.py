"""The program's optimizer, adapted so that it works on parameter servers as under `Model.fit`.

Loss scaling: a model with the policy `mixed_float16` gets a `LossScaleOptimizer`, as
`Model.compile` does. The step scales the loss (`training_step.py`). An update whose gradients are
not finite is skipped; its examples count as used.

Gradient accumulation: Keras decides in the graph whether a pass is the last of k, and a traced step
on parameter servers cannot hold that condition. Here the step computes the mean gradient of k
passes, and `_apply_mean` applies it as Keras does in the k-th pass. The optimizer's state is then
the same as in one process after those k passes: `_iterations` counts passes, the accumulators are
zero. With several workers each accumulates its own passes.

Averages (`use_ema`): Keras reads variable and average to the worker and writes the average back.
Two workers at once would lose one of two updates, and the model would travel three times. Here the
ps adds (1 - momentum) x (variable - average) to the average where both are: the same number, by an
atomic addition.

Messages: Keras reads the number of updates to the worker and writes it back, so that one of two
simultaneous updates is not counted. Here the ps adds one. Small gradients for one ps are sent
together.

Schedules: `ScaledSchedule` scales the result of a schedule, since no variable holds the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from services.trainer.program import NO_OVERWRITE, BadProgram
from services.trainer.worker import row_updates
from services.trainer.worker.packing import pack_gradients
from services.trainer.worker.sharded_table import ShardedTable
from services.trainer.worker.step_resources import move_to_ps

USED_AT_IMPORT = (
    "was used, or loaded with its state, when the program was imported: make a new one, and load a "
    "model with compile=False"
)
READ_OPERATIONS = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarIsInitializedOp",
        "VariableShape",
    }
)
"""Operations that use a variable and do not change it."""


class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Another schedule's rate at each step, times `share`."""

    def __init__(self, schedule: Any, share: float) -> None:
        self.schedule, self.share = schedule, share

    def __call__(self, step: Any) -> Any:
        return self.schedule(step) * self.share

    def get_config(self) -> dict[str, Any]:
        return {
            "schedule": keras.optimizers.schedules.serialize(self.schedule),
            "share": self.share,
        }


# ---------------------------------------------------------------- when it is built


def scale_for_half(optimizer: Any, model: Any) -> Any:
    """Return the optimizer, wrapped as `Model.compile` does it if the model computes in float16."""
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if model.dtype_policy.name != "mixed_float16" or scaled:
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")


def move_optimizer_to_ps(optimizer: Any, where: str, maker: object) -> None:
    """Let an optimizer that was made when the program was imported have its variables on the ps.
    Call it in the strategy's scope.

    Raise `BadProgram` if it is built already: it knows its variables by their former addresses.
    `maker`, `where`: as in `build_optimizer`.
    """
    for each in (optimizer, *optimizer_parts(optimizer)):
        if move_to_ps(each.variables) and each.built:
            raise BadProgram(f"{where} gives an optimizer that {USED_AT_IMPORT}", maker)
        each._distribution_strategy = tf.distribute.get_strategy()


def build_optimizer(
    optimizer: Any, variables: Sequence[Any], where: str = "optimizer()", maker: object = None
) -> None:
    """Build the optimizer for these variables, and adapt it.

    Raise `BadProgram` for unsupported options; `maker` is the program's function that made it, and
    `where` its place in words.
    """
    with row_updates.divided_slots():
        optimizer.build(variables)
    parts = optimizer_parts(optimizer)
    if any(part.use_ema and part.ema_overwrite_frequency for part in parts):
        raise BadProgram(f"{where} sets {NO_OVERWRITE}", maker)
    if len({part.gradient_accumulation_steps for part in parts}) > 1:
        raise BadProgram(
            f"{where} has parts with different gradient_accumulation_steps: give all the same",
            maker,
        )
    for each in (optimizer, getattr(optimizer, "inner_optimizer", optimizer), *parts):
        _count_on_ps(each._iterations)
    for part in parts:
        # One replica has nothing to add up. TensorFlow would move all gradients to one device.
        part._all_reduce_sum_gradients = list
        part._distributed_tf_update_step = partial(
            _update_with_packed_gradients, part._distributed_tf_update_step
        )
        if part.use_ema:
            part._update_model_variables_moving_average = partial(_update_averages, part)
        if part.gradient_accumulation_steps:
            part._backend_apply_gradients = partial(_apply_mean, part)
        if row_updates.tables_of(part._trainable_variables):
            row_updates.patch_table_updates(part)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        # Its steps count passes under Keras, and updates here.
        steps = optimizer.dynamic_growth_steps // accumulated_batches(optimizer)
        optimizer.dynamic_growth_steps = max(steps, 1)
        optimizer.check_finite = partial(_are_values_finite, optimizer.check_finite)


def _are_values_finite(are_finite: Callable[[list[Any]], Any], gradients: Sequence[Any]) -> Any:
    """Return whether all gradients are finite. Keras would make a whole table of each gradient of
    rows.
    """
    values: list[Any] = []
    for each in gradients:
        values += row_updates.values_of(each)
    return are_finite(values)


def _count_on_ps(counter: Any) -> None:
    """Make `assign_add` of a Keras variable add on its ps."""
    counter.assign_add = lambda value: counter.value.assign_add(tf.cast(value, counter.dtype))


def check_own_step(optimizer: Any, where: str, maker: object) -> None:
    """Raise `BadProgram` if an optimizer that a step of the program's own calls accumulates
    gradients: such a step cannot be cut into passes.
    """
    if accumulated_batches(optimizer) > 1:
        raise BadProgram(
            f"{where} sets gradient_accumulation_steps, which a train_step of the program's own "
            "cannot have on parameter servers: leave it out, and let the job have a larger batch",
            maker,
        )


def remember_scale(optimizer: Any) -> None:
    """Let `apply` of a `LossScaleOptimizer` divide by the scale that `scale_loss` used in the same
    step: another worker may change it between.
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return
    apply = optimizer.apply
    used: dict[Any, tf.Tensor] = {}

    def scale_loss(loss: Any) -> Any:
        scale = optimizer.dynamic_scale.value.read_value()
        used[tf.compat.v1.get_default_graph()] = scale
        return loss * tf.cast(scale, loss.dtype)

    def apply_matched(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        scale = used.get(tf.compat.v1.get_default_graph())
        return apply(match_scale(optimizer, grads, scale), trainable_variables)

    optimizer.scale_loss = scale_loss
    optimizer.apply = apply_matched


@contextmanager
def record_variables(optimizers: Sequence[Any], found: list[list[Any]]) -> Iterator[None]:
    """Append the variables to which each optimizer would apply gradients, each once, and apply
    none. Trace the step in here.
    """
    for optimizer, variables in zip(optimizers, found, strict=True):
        optimizer.apply = partial(_record_apply, variables)
    try:
        yield
    finally:
        for optimizer in optimizers:
            del optimizer.apply


def _record_apply(
    variables: list[Any], grads: Sequence[Any], trainable_variables: Any = None
) -> None:
    known = {id(variable) for variable in variables}
    for variable in trainable_variables or ():
        if id(variable) not in known:
            known.add(id(variable))
            variables.append(variable)


class RecordedUpdate(NamedTuple):
    """Gradients that an optimizer was to apply to these variables. `place`: the number of
    operations in the graph at that time.
    """

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]
    place: int


@contextmanager
def record_updates(optimizers: Sequence[Any]) -> Iterator[list[RecordedUpdate]]:
    """Record what each optimizer would apply, and apply nothing. Trace a step in here."""
    found: list[RecordedUpdate] = []

    def record(optimizer: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        variables = list(trainable_variables or optimizer._trainable_variables)
        place = len(tf.compat.v1.get_default_graph().get_operations())
        found.append(RecordedUpdate(optimizer, list(grads), variables, place))

    with _replace_apply(optimizers, lambda optimizer: partial(record, optimizer)):
        yield found


@contextmanager
def _replace_apply(
    optimizers: Sequence[Any], replacement: Callable[[Any], Callable[..., None]]
) -> Iterator[None]:
    """Let each optimizer have this `apply` inside the context. `replacement`: makes it, of an
    optimizer that has its own.
    """
    kept = [(optimizer, vars(optimizer).get("apply")) for optimizer in optimizers]
    for optimizer, _ in kept:
        optimizer.apply = replacement(optimizer)
    try:
        yield
    finally:
        for optimizer, apply in kept:
            del optimizer.apply
            if apply is not None:
                optimizer.apply = apply


@contextmanager
def apply_after(
    prerequisite: Callable[[Sequence[Any]], Any], optimizers: Sequence[Any]
) -> Iterator[None]:
    """Let each optimizer change variables only after an operation, which `prerequisite` makes from
    the gradients. If that fails, nothing changes: no weight, slot, average or count. Trace a step
    in here.

    Only operations on what `apply` changes wait for it. With `tf.control_dependencies`, a worker
    would wait for an answer of the ps before it sends gradients. The number of updates is read
    without waiting, too: a schedule computes the rate from it on the worker, and the ps adds one to
    it, whatever was read.
    """
    parts = [part for optimizer in optimizers for part in optimizer_parts(optimizer)]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_checked(apply: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        check = prerequisite(grads)
        graph: Any = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        apply(grads, trainable_variables)
        counters = {id(graph.capture(part._iterations.value.handle)) for part in parts}
        for operation in _operations_on_changed(graph.get_operations()[before:], counters):
            operation._add_control_input(check)

    with _replace_apply(optimizers, lambda optimizer: partial(apply_checked, optimizer.apply)):
        yield


def _operations_on_changed(operations: Sequence[Any], counters: set[int]) -> list[Any]:
    """Return the operations that may change a variable, and those that read one that is changed
    here. `counters`: the variables of which reads are left out, by the `id` of their resources.
    """
    changing, changed = [], set[int]()
    for each in operations:
        if each.type not in READ_OPERATIONS and (used := _resources(each)):
            changing.append(each)
            changed |= used
    awaited = changed - counters
    reading = [each for each in operations if each.type in READ_OPERATIONS]
    return [*changing, *[each for each in reading if _resources(each) & awaited]]


def _resources(operation: Any) -> set[int]:
    """Return the `id` of each resource that an operation uses."""
    return {id(each) for each in operation.inputs if each.dtype == tf.resource}


def all_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers of a program: one, or those of a dict."""
    return list(optimizer.values()) if isinstance(optimizer, dict) else [optimizer]


def optimizer_parts(optimizer: Any) -> list[Any]:
    """Return the optimizers that update variables: those of a dict, and those that a
    `LossScaleOptimizer` or `MultiOptimizer` wraps.
    """
    parts: list[Any] = []
    for each in all_optimizers(optimizer):
        inner = getattr(each, "inner_optimizer", each)
        parts += getattr(inner, "optimizers", [inner])
    return parts


def finalize_weights(optimizer: Any) -> None:
    """Finish as `Model.fit` does: with `use_ema` the averages become the weights."""
    for each in all_optimizers(optimizer):
        each.finalize_variable_values(each._trainable_variables)


def accumulated_batches(optimizer: Any) -> int:
    """Return the number of batches in one update."""
    return int(optimizer_parts(optimizer)[0].gradient_accumulation_steps or 1)


# ---------------------------------------------------------------- within the traced step


def loss_scale(optimizer: Any) -> tf.Tensor | None:
    """Return the factor by which the optimizer wants the loss scaled; None for no scaling."""
    one = tf.ones(())
    scale = optimizer.scale_loss(one)
    return None if scale is one else tf.convert_to_tensor(scale)


def match_scale(optimizer: Any, gradients: Sequence[Any], scale: tf.Tensor | None) -> list[Any]:
    """Return gradients of a loss times `scale` as those of a loss times the optimizer's current
    scale.

    `LossScaleOptimizer` divides by the current one, and another worker may have changed it since
    `scale` was read.
    """
    if scale is None or not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return list(gradients)
    computed: list[tf.Tensor] = []
    for gradient in gradients:
        if gradient is not None:
            computed += row_updates.values_of(gradient)
    with tf.control_dependencies(computed):
        ratio = optimizer.dynamic_scale.value.read_value() / scale
    return [multiply_gradient(each, ratio) for each in gradients]


def multiply_gradient(gradient: Any, factor: tf.Tensor) -> Any:
    """Return the gradient times a number; None stays None, rows of a table stay rows."""
    if gradient is None:
        return None
    factor = tf.cast(factor, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _update_with_packed_gradients(
    update: Callable[..., None],
    distribution: Any,
    gradients_and_variables: Sequence[tuple[Any, tf.Variable]],
    learning_rate: Any,
) -> None:
    """Let Keras' `update` apply the gradients, packed. There are none if all variables are tables."""
    if not gradients_and_variables:
        return
    gradients, variables = zip(*gradients_and_variables, strict=True)
    packed = pack_gradients(gradients, variables)
    update(distribution, list(zip(packed, variables, strict=True)), learning_rate)


def _apply_mean(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Apply the mean gradient of k passes, as Keras does in pass k.

    This counts the k - 1 passes before it; `apply` counts the last one.
    """
    passes = optimizer.gradient_accumulation_steps
    updates = tf.identity(optimizer.iterations)  # read before others count theirs
    optimizer._iterations.assign_add(passes - 1)
    weights = optimizer._trainable_variables
    if optimizer.use_ema:
        _update_averages(optimizer, weights, passes - 1, updates)
    summed = [row_updates.with_each_row_once(each) for each in gradients]
    clipped = optimizer._clip_gradients(summed)
    optimizer._apply_weight_decay(variables)
    optimizer._backend_update_step(clipped, variables, optimizer.learning_rate)
    if optimizer.use_ema:
        _update_averages(optimizer, weights, updates=updates)


def _update_averages(
    optimizer: Any, variables: Sequence[Any], times: int = 1, updates: tf.Tensor | None = None
) -> None:
    """Move each average `times` times towards its variable; before the first update it becomes the
    variable. `updates`: those before this one; None: what the optimizer has counted.
    """
    done = optimizer.iterations if updates is None else updates
    started = tf.cast(tf.not_equal(done, 0), tf.float32)
    weight = 1.0 - started * optimizer.ema_momentum**times
    averages = optimizer._model_variables_moving_average
    pairs = [
        (variable.value, average.value)
        for variable, average in zip(variables, averages, strict=True)
        if average is not None and not isinstance(variable, ShardedTable)
    ]

    def update_all(strategy: Any, weight: tf.Tensor) -> None:
        for variable, average in pairs:
            strategy.extended.update(average, _move_towards(variable), args=(weight,), group=False)

    tf.__internal__.distribute.interim.maybe_merge_call(
        update_all, optimizer._distribution_strategy, weight
    )


def _move_towards(variable: tf.Variable) -> Callable[[tf.Variable, tf.Tensor], Any]:
    """Return a function that moves an average towards this variable.

    With a weight of 1 it assigns the variable: two workers may make the first update at the same
    time.
    """

    def move(average: tf.Variable, weight: tf.Tensor) -> tf.Tensor:
        def go_all_the_way() -> tf.Tensor:
            average.assign(variable.read_value())
            return tf.constant(True)

        def go_a_part() -> tf.Tensor:
            step = tf.cast(weight, average.dtype) * (variable.read_value() - average.read_value())
            average.assign_add(step)
            return tf.constant(True)

        return tf.cond(weight < 1.0, go_a_part, go_all_the_way)

    return move


# ---------------------------------------------------------------- learning rates


def program_rates(optimizer: Any) -> list[float | None]:
    """Return the rate that the program chose for each part; None where it is a schedule."""
    parts = optimizer_parts(optimizer)
    return [float(part.learning_rate) if holds_rate(part) else None for part in parts]


def holds_rate(optimizer: Any) -> bool:
    """Return whether the optimizer keeps its learning rate in a variable."""
    return isinstance(optimizer._learning_rate, keras.Variable)


def scale_schedules(optimizer: Any, share: float) -> None:
    """Let every schedule give `share` of its rate. Call it once, before the step is traced."""
    for part in optimizer_parts(optimizer):
        if share != 1.0 and not holds_rate(part):
            part.learning_rate = _scaled_rate(part._learning_rate, share)


def _scaled_rate(rate: Any, share: float) -> Any:
    """Return a schedule of the step, or a function without arguments, that gives `share` of
    `rate`.
    """
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return ScaledSchedule(rate, share)
    return lambda: rate() * share


def set_rates(optimizer: Any, rates: Sequence[float | None], share: float) -> float | None:
    """Set `share` of the program's rates where a variable holds them; return the first of these, if
    there is one.
    """
    chosen = None
    for part, rate in zip(optimizer_parts(optimizer), rates, strict=True):
        if rate is not None:
            part.learning_rate = rate * share
            chosen = float(part.learning_rate) if chosen is None else chosen
    return chosen
