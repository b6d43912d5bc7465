"""The model on its parameter servers, and one update of it: examples in, gradients out.

The model is built twice: once plainly to learn its sizes, once in place. Slots of the optimizer lie
on the ps of their variable, so that applying a gradient never crosses the network. Each update is
counted on the ps that applies it. Several models are placed as one: all their variables, largest
first. `own_step.py` says how a program trains, `step_loss.py` what the loss of a batch is.

The loop over batches is outside the step: inside one traced function a Keras 3 optimizer meets a
merge call in control flow. An update of several passes (`scaling.py`) has an inner loop that only
adds up gradients. Passes run one after the other, so that a worker holds the examples of one pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import structlog
import tensorflow as tf

from services.trainer.program import BadProgram, has_function, program_values
from services.trainer.worker import (
    exactness,
    optimizers,
    own_step,
    program_data,
    row_updates,
    step_loss,
    step_resources,
)
from services.trainer.worker.input_pipeline import Pipeline
from services.trainer.worker.optimizers import RecordedUpdate
from services.trainer.worker.own_step import Kind
from services.trainer.worker.packing import read_packed
from services.trainer.worker.ps_memory import check_ps_memory
from services.trainer.worker.row_updates import RowsOnPs
from services.trainer.worker.scaling import PlacementPlan
from services.trainer.worker.sharded_table import (
    ShardedTable,
    new_shards,
    no_shards,
    ps_variables,
    record_whole_uses,
    shard_place,
)
from services.trainer.worker.staleness import (
    check_staleness,
    count_gradient,
    new_histogram,
)
from services.trainer.worker.table_division import divide_tables
from shared.messages import ModelProfile

logger = structlog.get_logger()
SAME_MODEL = "model() returned a model that it had returned before: it has to build a new one"
SAME_TABLE = (
    "model() uses the large embedding {} again, which it has used before: make its layer in model()"
)
COMPILED_AGAIN = (
    "model() compiles a model again that it has returned before: compile it where it is made, or "
    "make it in model()"
)
PASSES = tf.TensorSpec([], tf.int32)


class TrainingCounters(tf.Module):  # type: ignore[misc]
    """Numbers on a ps besides the model, written in the gradient's own step, and the ledger.

    `applied`: examples applied, counted where they are applied. `last_s`, `first_s`: the times of
    the last update, and of the first of this generation, by the clock of the worker that made it
    (seconds since 1970; 0: none yet). `ledger`: the shard ledger as JSON, written just before a
    checkpoint.

    The names of the attributes and variables are part of the checkpoint format.
    """

    def __init__(self) -> None:
        super().__init__()
        self.applied = tf.Variable(0, dtype=tf.int64, name="weir_applied", trainable=False)
        self.step = tf.Variable(0, dtype=tf.int64, name="weir_step", trainable=False)
        self.last_s = tf.Variable(0.0, dtype=tf.float64, name="weir_last_s", trainable=False)
        self.first_s = tf.Variable(0.0, dtype=tf.float64, name="weir_first_s", trainable=False)
        self.ledger = tf.Variable("", name="weir_ledger", trainable=False)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def updates(self) -> tf.Tensor:
        """Return the number of updates, on its ps. It depends on no other operation of the step, so
        it is read when the step begins.
        """
        with tf.device(self.step.device):
            return self.step.read_value()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def count_update(self, record: tf.Tensor, begun: tf.Tensor, histogram: tf.Variable) -> None:
        """Count one update with this `update_record`, and its staleness. Call it in the step, after
        the gradient. `begun`: `updates` when the gradient was begun.
        """
        with tf.device(self.applied.device):
            self.applied.assign_add(tf.cast(record[0], tf.int64))
            count_gradient(histogram, self.step.assign_add(1) - 1, begun)
            now_s = record[1]
            self.last_s.assign(now_s)
            # Read once: a second read may see the value of another update.
            first = self.first_s.read_value()
            self.first_s.assign(tf.where(first > 0.0, first, now_s))


def update_record(examples: tf.Tensor, computed: Sequence[tf.Tensor] = ()) -> tf.Tensor:
    """Return the number of examples of an update, and the time when these tensors of it are
    computed, as float64: one tensor, because each one that a worker sends to a ps costs a message.

    Deterministic operations have no clock, so the time is 0, and the chief's time counts.
    """
    now_s = tf.zeros((), tf.float64)
    if not exactness.is_deterministic():
        with tf.control_dependencies(computed):
            now_s = tf.timestamp()
    return tf.stack([tf.cast(examples, tf.float64), now_s])


PackedReads = Literal["weights and states", "weights", "none"]
"""States are variables that are not trained, such as moving averages. Only parts read them packed,
because a part assigns nothing on the ps.
"""
PACKED_READS: tuple[PackedReads, ...] = get_args(PackedReads)


class BuiltModel(NamedTuple):
    """`model` and `optimizer`: as the program's functions return them, so each may be a dict.

    `metrics`: the variables of the models' own metrics. `random`: the state of Keras's own random
    numbers. `staleness`: the histogram of this generation (`staleness.py`), not in checkpoints.
    `packed_reads`: the small variables that are read as one tensor (`packing.py`). `max_staleness`:
    staler gradients are dropped; None: all are applied. `ps`: the number of parameter servers.
    `has_table_rows`: divided tables have their initial values.
    """

    model: Any
    optimizer: Any
    counters: TrainingCounters
    profile: ModelProfile
    staleness: tf.Variable
    kind: Kind = "loss"
    metrics: tuple[Any, ...] = ()
    random: Any = None
    packed_reads: PackedReads = "weights"
    max_staleness: int | None = None
    ps: int = 1
    has_table_rows: bool = True

    @property
    def models(self) -> list[Any]:
        return all_models(self.model)

    @property
    def trainable_variables(self) -> list[Any]:
        return [each for model in self.models for each in model.trainable_variables]

    @property
    def variables(self) -> list[Any]:
        return [each for model in self.models for each in model.variables]


def all_models(model: Any) -> list[Any]:
    """Return the models of a program: one, or those of a dict."""
    return list(model.values()) if isinstance(model, dict) else [model]


def build_model(
    program: ModuleType,
    strategy: Any,
    ps: int,
    seed: int | None = None,
    fill_tables: bool = True,
    ps_gib: Sequence[float] = (),
    most_ps: int = 1,
) -> BuiltModel:
    """Build models, optimizers and counters on `ps` parameter servers, largest variable first.

    `seed`: of all random numbers before the model is made; None: any. `fill_tables`: give divided
    tables their initial values; otherwise `Checkpoint.read` or `refill_tables` follows.
    `ps_gib`: the memory of each ps, where it is known: raise `PsTooSmall` before anything is
    created if a model with divided tables does not fit. `most_ps`: that the job may have.
    """
    sizes: list[int] = []
    _set_seed(seed)
    plain, whole = model_without_rows(program, sizes)
    tables = _tables_of(plain)
    first_optimizers = [getattr(each, "optimizer", None) for each in all_models(plain)]
    plan, profile = PlacementPlan(sizes, ps), model_profile(all_models(plain))
    if tables:
        slots = _slots_of_tables(program, plain)
        held = sum(_bytes_with_slots(each, slots) for each in tables)
        check_ps_memory(sizes, held, ps_gib, most_ps)
        profile = msgspec.structs.replace(profile, table_bytes=held)
    kind = own_step.training_kind(program, plain)
    _set_seed(seed)
    with (
        strategy.scope(),
        step_resources.program_tables(),
        divide_tables(partial(new_shards, ps=ps, fill=fill_tables), whole),
        _place_variables(strategy, plan.next_place, plan.record_size),
    ):
        model = make_model(program)
        step_resources.move_models_to_ps(all_models(model))
    _check_second_model(program, model, plain, tables, first_optimizers)
    with strategy.scope(), _place_variables(strategy, lambda: 0):
        random = own_step.fresh_random_state()
        metrics = _build_metrics(program, model, kind)
        optimizer = _build_optimizers(program, model, kind, metrics)
        counters = TrainingCounters()
        staleness = new_histogram()
    return BuiltModel(
        model=model,
        optimizer=optimizer,
        counters=counters,
        profile=profile,
        staleness=staleness,
        kind=kind,
        metrics=metrics,
        random=random,
        ps=ps,
        has_table_rows=fill_tables,
    )


def _check_second_model(
    program: ModuleType, model: Any, first: Any, tables: Sequence[Any], first_optimizers: list[Any]
) -> None:
    """Raise `BadProgram` if the second call of `model()` returned what the first one made, where
    that cannot be used: a divided table without rows, or a model that is compiled anew at each call.

    `tables`, `first_optimizers`: of the first call.
    """
    for table in _tables_of(model):
        if any(table is each for each in tables):
            raise BadProgram(SAME_TABLE.format(table.path), program.model)
    for each, before, optimizer in zip(
        all_models(model), all_models(first), first_optimizers, strict=False
    ):
        if each is before and getattr(each, "optimizer", None) is not optimizer:
            raise BadProgram(COMPILED_AGAIN, program.model)


def model_without_rows(program: ModuleType, sizes: list[int]) -> tuple[Any, frozenset[int]]:
    """Return the program's model, whose divided tables have no rows, and the numbers of the large
    tables that stay whole, because the model, its step or its optimizer uses them as a whole.

    `sizes`: receives the bytes of every variable, in order of creation.
    """
    whole: frozenset[int] = frozenset()
    while True:
        sizes.clear()
        with record_whole_uses() as uses:
            try:
                with (
                    _record_sizes(sizes),
                    step_resources.program_tables(),
                    divide_tables(no_shards, whole),
                ):
                    made = make_model(program)
                if _tables_of(made):
                    _trace_uses(program, made)
                    uses |= _tables_for_whole_updates(program, made)
            except Exception:
                if not uses:
                    raise
        if not uses:
            return made, whole
        if uses <= whole:
            raise BadProgram(SAME_MODEL, program.model)
        logger.warning(
            "TablesStayWhole",
            tables=len(uses),
            cause="the model, its training step or its optimizer uses them as a whole",
        )
        whole |= uses


def _tables_of(model: Any) -> list[ShardedTable]:
    """Return the divided tables of all models, each once."""
    weights = {id(weight): weight for each in all_models(model) for weight in each.weights}
    return row_updates.tables_of(list(weights.values()))


def _bytes_with_slots(table: ShardedTable, slots: int) -> int:
    """Return the bytes of a table with its marks, and `slots` slots if it is trained."""
    copies = 1 + slots if table.trainable else 1
    return copies * table.bytes + table.mark_bytes


def _trace_uses(program: ModuleType, model: Any) -> None:
    """Trace the program's own step, or the outputs of the model, so that tables that are used as a
    whole are recorded. Other faults show when the step is traced for training.
    """
    with contextlib.suppress(Exception):
        kind = own_step.training_kind(program, model)
        if own_step.is_own_step(kind):
            made, _, _ = _program_optimizers(program, model, kind)
            _variables_of_step(program, kind, model, made, _build_metrics(program, model, kind))
            return
        inputs = step_loss.split_batch(program_data.first_batch(program, 1)).inputs
        tf.function(model).get_concrete_function(inputs)


def _tables_for_whole_updates(program: ModuleType, model: Any) -> set[int]:
    """Return the numbers of all tables, if an optimizer may combine their rows."""
    made, _, _ = _program_optimizers(program, model, own_step.training_kind(program, model))
    if all(row_updates.updates_by_element(each) for each in optimizers.optimizer_parts(made)):
        return set()
    return {each.number for each in _tables_of(model)}


def _slots_of_tables(program: ModuleType, model: Any) -> int:
    """Return the least number of variables that an optimizer keeps for each table."""
    made, _, _ = _program_optimizers(program, model, own_step.training_kind(program, model))
    return min(row_updates.slot_count(each) for each in optimizers.optimizer_parts(made))


def _set_seed(seed: int | None) -> None:
    if seed is not None:
        tf.keras.utils.set_random_seed(seed)


def make_model(program: ModuleType) -> Any:
    """Return the program's model, or a dict of models; call a single one on an example if its
    inputs are not known yet.
    """
    made = program.model()
    if isinstance(made, dict):
        own_step.check_names("model()", made, program.model)
        for name, each in made.items():
            _check_model(f"model()[{name!r}]", each, program.model)
            if not each.built:
                raise BadProgram(
                    f"model()[{name!r}] has no inputs yet: give it a keras.Input, or call it once "
                    "in model()",
                    program.model,
                )
        return made
    _check_model("model()", made, program.model)
    if not made.built:
        made(step_loss.split_batch(program_data.first_batch(program, 1)).inputs)
    return made


def _check_model(name: str, made: Any, maker: object) -> None:
    if not isinstance(made, tf.keras.Model):
        raise BadProgram(f"{name} returned {type(made)}; a keras Model is needed", maker)


def _build_metrics(program: ModuleType, model: Any, kind: Kind) -> tuple[Any, ...]:
    """Return the variables of the models' metrics, and of those in `program_values`."""
    if kind == "loss":
        return ()
    if kind != "program":
        step_loss.build_metrics(model, program_data.element_spec(program, model))
    found = [each for part in all_models(model) for each in step_loss.metric_variables(part)]
    for value in program_values(program):
        if isinstance(value, tf.keras.metrics.Metric):
            found += value.variables
    return tuple({id(variable): variable for variable in found}.values())


def _build_optimizers(program: ModuleType, model: Any, kind: Kind, metrics: Sequence[Any]) -> Any:
    """Return the program's optimizers, built for the variables that they train."""
    made, where, maker = _program_optimizers(program, model, kind)
    for each in optimizers.all_optimizers(made):
        optimizers.move_optimizer_to_ps(each, where, maker)
    if not own_step.is_own_step(kind):
        if kind == "loss":
            made = optimizers.scale_for_half(made, model)
        optimizers.build_optimizer(made, model.trainable_variables, where, maker)
        return made
    used = optimizers.all_optimizers(made)
    for each in used:
        optimizers.check_own_step(each, where, maker)
    trained = _variables_of_step(program, kind, model, made, metrics)
    for each, variables in zip(used, trained, strict=True):
        optimizers.build_optimizer(each, variables, where, maker)
        optimizers.remember_scale(each)
    return made


def _variables_of_step(
    program: ModuleType, kind: Kind, model: Any, made: Any, metrics: Sequence[Any]
) -> list[list[Any]]:
    """Trace the program's own step. Return the variables that it trains by each optimizer. `made`:
    the program's optimizer, or a dict of them.
    """
    step = own_step.bound_step(program, kind, model, made, metrics)
    spec = program_data.element_spec(program)
    return own_step.find_variables(step, spec, optimizers.all_optimizers(made))


def _program_optimizers(program: ModuleType, model: Any, kind: Kind) -> tuple[Any, str, object]:
    """Return the optimizer, or a dict of them, and where the program makes it: in words, and its
    function.
    """
    if kind in ("compiled", "model"):
        return own_step.model_optimizers(model), "model.compile() in model()", program.model
    if not has_function(program, "optimizer"):
        raise BadProgram("there is no optimizer(): write it beside loss() or train_step()")
    made = program.optimizer()
    if isinstance(made, dict):
        own_step.check_names("optimizer()", made, program.optimizer)
        if kind == "loss":
            raise BadProgram(
                "optimizer() returned several optimizers: write train_step(models, optimizers, "
                "batch), which calls them, or return a keras.optimizers.MultiOptimizer",
                program.optimizer,
            )
    for each in optimizers.all_optimizers(made):
        if not isinstance(each, tf.keras.optimizers.Optimizer):
            raise BadProgram(
                f"optimizer() returned {type(each)}; a keras Optimizer is needed",
                program.optimizer,
            )
    return made, "optimizer()", program.optimizer


class WholeBatchNeeded(Exception):
    """An update cannot be computed in parts. The text says why."""


def model_profile(models: Iterable[Any]) -> ModelProfile:
    return weights_profile([weight for model in models for weight in model.trainable_variables])


def weights_profile(weights: Sequence[Any]) -> ModelProfile:
    return ModelProfile(
        parameters=sum([weight.shape.num_elements() for weight in weights]),
        bytes=sum([_variable_bytes(weight) for weight in weights]),
        variables=sum([_separate_parts(weight) for weight in weights]),
    )


def _separate_parts(weight: Any) -> int:
    """Return the largest number of ps among which a variable can be divided."""
    return weight.layout.parts if isinstance(weight, ShardedTable) else 1


def _variable_bytes(variable: Any) -> int:
    return int(variable.shape.num_elements()) * int(tf.as_dtype(variable.dtype).size or 8)


def _created_bytes(variable: Any) -> int:
    return (variable.shape.num_elements() or 0) * (variable.dtype.size or 8)


@contextmanager
def _record_sizes(sizes: list[int]) -> Iterator[None]:
    """Append the size of every variable created inside, in bytes, in order of creation."""

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        made = next_creator(**kwargs)
        sizes.append(_created_bytes(made))
        return made

    with tf.variable_creator_scope(creator):
        yield


@contextmanager
def _place_variables(
    strategy: Any,
    choose: Callable[[], int],
    record: Callable[[int, int], None] = lambda place, size: None,
) -> Iterator[None]:
    """Let `choose` pick the ps of every variable created inside; `record` receives its ps and size.

    The strategy places variable number n on ps n mod count; we set n before it looks. The shards of
    tables have their place.
    """

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        shard = shard_place.get()
        if shard is not None:
            strategy.extended._variable_count = shard
            return next_creator(**kwargs)
        place = choose()
        strategy.extended._variable_count = place
        made = next_creator(**kwargs)
        record(place, _created_bytes(made))
        return made

    with tf.variable_creator_scope(creator):
        yield


def trace_step(
    program: ModuleType, strategy: Any, built: BuiltModel, pipeline: Pipeline, several: bool = False
) -> Any:
    """Return a function that makes one update of the passes that are staged next on the worker that
    runs it, and leaves the mean loss in the pipeline.

    `several`: updates may have more than one pass, and the function takes `step_arguments`.
    """

    def step_by_passes(passes: tf.Tensor, batches: tf.Tensor) -> None:
        begun, losses = built.counters.updates(), pipeline.loss_queue()
        loss, examples = strategy.run(
            _update_by_passes, args=(program, built, pipeline, passes, batches, begun)
        )
        pipeline.add_loss(losses, loss, examples)

    def step() -> None:
        begun, losses = built.counters.updates(), pipeline.loss_queue()
        batch, examples, _ = pipeline.take()
        loss = strategy.run(_update_in_one_pass, args=(program, built, batch, examples, begun))
        pipeline.add_loss(losses, loss, examples)

    if several:
        return tf.function(step_by_passes, input_signature=[PASSES, PASSES])
    return tf.function(step, input_signature=[])


def trace_with_packed_reads(built: BuiltModel, trace: Callable[[BuiltModel], Any]) -> Any:
    """Return what `trace` makes of the model. If it fails, fewer variables are read packed: a layer
    of the program may use the resource of a variable, and not its value.
    """
    *packed, last = PACKED_READS[PACKED_READS.index(built.packed_reads) :]
    for packed_reads in packed:
        try:
            return trace(built._replace(packed_reads=packed_reads))
        except (BadProgram, WholeBatchNeeded):
            raise
        except Exception as error:
            logger.debug("NotReadPacked", variables=packed_reads, error=str(error))
    return trace(built._replace(packed_reads=last))


def step_arguments(passes: int, batches: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the traced step's arguments for an update of this many passes and batches."""
    return tf.constant(passes, tf.int32), tf.constant(batches, tf.int32)


def _update_in_one_pass(
    program: ModuleType, built: BuiltModel, batch: Any, count: tf.Tensor, begun: tf.Tensor
) -> tf.Tensor:
    if own_step.is_own_step(built.kind):
        return _update_by_own_step(program, built, batch, count, begun)
    scale = optimizers.loss_scale(built.optimizer)
    loss, gradients = loss_and_gradients(program, built, batch, scale)
    apply_gradients(built, gradients, scale, count, begun)
    check_resources(program, built)
    return loss


def _update_by_own_step(
    program: ModuleType, built: BuiltModel, batch: Any, count: tf.Tensor, begun: tf.Tensor
) -> tf.Tensor:
    step = own_step.bound_step(program, built.kind, built.model, built.optimizer, built.metrics)
    check = StalenessCheck(built, count, begun)
    with check.before_updates():
        loss = step(batch)
    record = check.record if check.record is not None else update_record(count, [loss])
    with tf.control_dependencies(_after_updates(built.variables)):
        built.counters.count_update(record, begun, built.staleness)
    check_resources(program, built)
    return loss


class StalenessCheck:
    """Fails in a traced step before its first gradient is applied, if that is too stale
    (`staleness.py`). Later gradients of a step of the program's own are not checked again.

    What a step assigns by itself, as averages of a batch normalization or in a train_step, may
    stay assigned.

    `record`: the `update_record` of this time; None: nothing was checked.
    """

    def __init__(self, built: BuiltModel, count: tf.Tensor, begun: tf.Tensor) -> None:
        self._built, self._count, self._begun = built, count, begun
        self._largest = built.max_staleness or 0
        self.record: tf.Tensor | None = None
        self._checked: Any = None

    @contextmanager
    def before_updates(self) -> Iterator[None]:
        """Let the optimizers apply gradients after the check. Trace the step in here."""
        if self._built.max_staleness is None:
            yield
            return
        used = optimizers.all_optimizers(self._built.optimizer)
        with optimizers.apply_after(self._check, used):
            yield

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _check(self, gradients: Sequence[Any]) -> Any:
        if self._checked is not None:
            return self._checked
        counters = self._built.counters
        record = update_record(self._count, gradient_parts(list(gradients)))
        with tf.device(counters.step.device):
            self.record = tf.identity(record)  # it is sent once
            with tf.control_dependencies([self.record]):
                step = counters.step.read_value()
            self._checked = check_staleness(step - self._begun, self._largest)
        return self._checked


def check_resources(program: ModuleType, built: BuiltModel) -> None:
    if step_resources.PS in built.counters.applied.device:
        step_resources.check_resources(program)


def _update_by_passes(
    program: ModuleType,
    built: BuiltModel,
    pipeline: Pipeline,
    passes: tf.Tensor,
    batches: tf.Tensor,
    begun: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Make one update; return its mean loss and the number of its examples."""
    scale = optimizers.loss_scale(built.optimizer)

    def share(count: tf.Tensor, batch_count: tf.Tensor) -> tf.Tensor:
        return count / (batch_count * tf.cast(batches, tf.int64))

    loss, examples, gradients = sum_passes(
        program, built, lambda _: pipeline.take(), passes, share, scale
    )
    apply_gradients(built, gradients, scale, examples, begun)
    check_resources(program, built)
    return loss, examples


def sum_passes(
    program: ModuleType,
    built: BuiltModel,
    take: Callable[[tf.Tensor], tuple[Any, tf.Tensor, tf.Tensor]],
    passes: tf.Tensor,
    share_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    scale: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
    """Return the sums over passes of loss times share, examples, and gradients times share.

    `take`: takes the pass with this number, as `Pipeline.take`; `share_of`: the share of a pass,
    from its number of examples and that of its batch.
    """

    def one_pass(at: tf.Tensor) -> tuple[tf.Tensor, list[Any], tf.Tensor]:
        batch, count, batch_count = take(at)
        share = tf.cast(share_of(count, batch_count), tf.float32)
        loss, gradients = loss_and_gradients(program, built, batch, scale)
        shared = [optimizers.multiply_gradient(each, share) for each in gradients]
        return tf.cast(loss, tf.float32) * share, shared, count

    def add_pass(
        at: tf.Tensor, loss: tf.Tensor, examples: tf.Tensor, parts: list[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Any]:
        more, found, count = one_pass(at)
        return (
            at + 1,
            loss + more,
            examples + count,
            add_parts(first, parts, gradient_parts(found)),
        )

    loss, first, count = one_pass(tf.constant(0))
    begin = (tf.constant(1), loss, count, gradient_parts(first))
    shapes = (tf.TensorShape([]), tf.TensorShape([]), tf.TensorShape([]), part_shapes(first))
    _, loss, examples, parts = tf.while_loop(
        lambda at, *_: at < passes, add_pass, begin, shapes, parallel_iterations=1
    )
    return loss, examples, join_parts(first, parts)


def check_passes(program: ModuleType, built: BuiltModel, is_cut: bool) -> None:
    """Raise `BadProgram` if a batch is to be cut into passes, and its loss needs all of it."""
    if not is_cut or built.kind == "loss":
        return
    remedy = "leave device_batch_max out, or let it be no smaller than the batch"
    if own_step.is_own_step(built.kind):
        raise BadProgram(
            "a train_step of the program's own makes a whole update, so device_batch_max cannot "
            f"cut its batch: {remedy}",
            program.train_step if built.kind == "program" else program.model,
        )
    why = step_loss.whole_batch_reason(built.model)
    if why:
        raise BadProgram(
            f"{why}, whose result for a batch may not be the mean over its examples, so "
            f"device_batch_max cannot cut the batch: {remedy}",
            program.model,
        )


def loss_and_gradients(
    program: ModuleType, built: BuiltModel, batch: Any, scale: tf.Tensor | None
) -> tuple[tf.Tensor, list[Any]]:
    """Return the mean loss, and the gradients of `scale` times all that is minimised."""
    to_read = built.model.trainable_variables
    packed = read_packed(to_read) if built.packed_reads != "none" else nullcontext(to_read)
    with packed as weights, tf.GradientTape() as tape:
        tape.watch([weight for weight in weights if isinstance(weight, tf.Tensor)])
        with step_loss.traced_batch(built.metrics):
            if built.kind == "compiled":
                loss, total = step_loss.compiled_loss(built.model, batch)
            else:
                loss, total = step_loss.program_loss(program, built.model, batch)
        scaled = total if scale is None else total * tf.cast(scale, total.dtype)
    return loss, tape.gradient(scaled, weights)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def apply_gradients(
    built: BuiltModel,
    gradients: list[Any],
    scale: tf.Tensor | None,
    count: tf.Tensor,
    begun: tf.Tensor,
) -> None:
    """Apply one update and count it."""
    matched = optimizers.match_scale(built.optimizer, gradients, scale)
    weights = built.model.trainable_variables
    apply_updates(built, [RecordedUpdate(built.optimizer, matched, weights, 0)], count, begun)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def apply_updates(
    built: BuiltModel, updates: Sequence[RecordedUpdate], count: tf.Tensor, begun: tf.Tensor
) -> None:
    """Let each optimizer apply its gradients, and count one update of `count` examples.

    `begun`: the number of updates when the gradients were begun.
    """
    check = StalenessCheck(built, count, begun)
    with check.before_updates():
        if built.max_staleness is None:
            computed = [part for each in updates for part in gradient_parts(each.gradients)]
            record = update_record(count, computed)
        for each in updates:
            each.optimizer.apply_gradients(zip(each.gradients, each.variables, strict=True))
    if check.record is not None:
        record = check.record
    weights = [variable for each in updates for variable in each.variables]
    with tf.control_dependencies(_after_updates(weights)):
        built.counters.count_update(record, begun, built.staleness)


def _after_updates(weights: Any) -> list[tf.Tensor]:
    """Return a cheap operation on each ps that runs after the update of each weight: both name the
    variable.

    The optimizer's own count does not work: it rises when the step begins, even if no gradient
    follows.
    """
    updated = [each for weight in weights for each in ps_variables(weight)]
    return [tf.raw_ops.VarIsInitializedOp(resource=each.handle) for each in updated]


# ---------------------------------------------------------------- gradients as a loop carries them


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def gradient_parts(gradients: list[Any]) -> list[tf.Tensor]:
    """Return the tensors of all gradients: one of a dense gradient, values and row numbers of a
    table's, none of a missing one.
    """
    parts = []
    for each in gradients:
        if isinstance(each, RowsOnPs):
            parts += gradient_parts(list(each.shards))
        elif isinstance(each, tf.IndexedSlices):
            parts += [each.values, each.indices]
        elif each is not None:
            parts.append(each)
    return parts


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def part_shapes(gradients: list[Any]) -> list[tf.TensorShape]:
    """Return the shapes of the parts in the loop; the rows of a table grow with every pass."""
    shapes = []
    for each in gradients:
        if isinstance(each, tf.IndexedSlices):
            shapes += [tf.TensorShape([None, *each.values.shape[1:]]), tf.TensorShape([None])]
        elif each is not None:
            shapes.append(each.shape)
    return shapes


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def add_parts(
    first: list[Any], parts: Sequence[tf.Tensor], more: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return the sum of two lists of parts; rows are appended. `first`: gradients with parts like
    these.
    """
    pairs = iter(zip(parts, more, strict=True))
    sums = []
    for each in first:
        if isinstance(each, tf.IndexedSlices):
            sums += [tf.concat(next(pairs), 0), tf.concat(next(pairs), 0)]
        elif each is not None:
            sums.append(tf.add(*next(pairs)))
    return sums


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def join_parts(first: list[Any], parts: Sequence[tf.Tensor]) -> list[Any]:
    """Return gradients made of these parts, of the kinds of `first`."""
    left, found = iter(parts), []
    for each in first:
        if isinstance(each, tf.IndexedSlices):
            values, indices = next(left), next(left)
            found.append(tf.IndexedSlices(values, indices, each.dense_shape))
        else:
            found.append(None if each is None else next(left))
    return found
