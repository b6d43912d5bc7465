"""Calls of one worker by the chief: each runs a traced function on the worker and waits for it.

`ClusterCoordinator.schedule` gives a function to whichever worker is free. Here a worker has staged
the batches of its own updates, so the chief has to say which worker it means.

A failed call is one of three: the worker is lost (no pod starts again at its address, so this is
final), something between worker and ps failed for a moment, or the program is at fault.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context, executor

from services.trainer.worker import gradient_noise, own_step, scaling, staleness, training_step
from services.trainer.worker.input_pipeline import (
    DataPlan,
    Pipeline,
    Portion,
    StagedPass,
    UpdateLoss,
)
from services.trainer.worker.noise_estimate import Comparison
from services.trainer.worker.part_exchange import Part, PartExchange
from services.trainer.worker.part_step import (
    PartKind,
    PartStep,
    part_order,
)
from services.trainer.worker.training_step import BuiltModel, WholeBatchNeeded

PS_NAME = "/job:ps"
TASK_NAME = "/job:"


class WorkerFailure(Exception):
    """A call of a worker failed, not because of the program. `lost`: later calls fail, too."""

    def __init__(self, cause: Exception, lost: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.lost = lost


def trace_workers(
    program: ModuleType,
    strategy: Any,
    built: BuiltModel,
    plan: DataPlan,
    spec: Any,
    count: int,
    max_staleness: int | None = None,
) -> list[RemoteWorker]:
    """Trace the functions that workers run, and return `count` workers.

    `spec`: the structure of a batch. `max_staleness`: staler gradients are dropped; None: none are.
    """
    built = built._replace(max_staleness=max_staleness)
    is_cut = plan.most is not None and plan.most < plan.batch
    training_step.check_passes(program, built, is_cut)
    keeps_samples = plan.measures_noise and gradient_noise.is_measured(built)
    pipeline = Pipeline(spec, plan.most if is_cut else None, keeps_samples)
    several = scaling.has_several_passes(plan.accumulated, plan.batch, plan.most)

    def trace(model: BuiltModel) -> Any:
        traced = training_step.trace_step(program, strategy, model, pipeline, several)
        return traced.get_concrete_function()

    step = training_step.trace_with_packed_reads(built, trace)
    measurement = gradient_noise.NoiseMeasurement(program, strategy, built, pipeline)
    return [RemoteWorker(index, pipeline, step, several, measurement) for index in range(count)]


def trace_part_workers(
    program: ModuleType,
    strategy: Any,
    built: BuiltModel,
    plan: DataPlan,
    spec: Any,
    count: int,
    part_count: int | None = None,
) -> tuple[list[RemoteWorker], RemoteUpdater]:
    """Trace the functions of updates that workers make together; return `count` workers, and what
    applies their updates. Raise `WholeBatchNeeded` if an update cannot be computed in parts.

    `spec`: the structure of a batch; `part_count`: of each update, None: one for each worker.
    """
    is_cut = plan.most is not None and plan.most < plan.update and part_count is None
    if (is_cut or plan.reads_files) and own_step.is_own_step(built.kind):
        raise WholeBatchNeeded("train_step cannot add up the gradients of several passes")
    kind: PartKind = "passes" if is_cut else "one pass"
    if plan.reads_files:
        kind = "rows"
    keeps_samples = plan.measures_noise and gradient_noise.is_measured(built)
    pipeline = Pipeline(spec, plan.most if kind == "passes" else None, keeps_samples)

    def trace(model: BuiltModel) -> tuple[PartStep, Any]:
        step = PartStep(program, strategy, model, pipeline, PartExchange())
        return step, step.trace_part(kind)

    packed = built._replace(packed_reads="weights and states")
    step, part = training_step.trace_with_packed_reads(packed, trace)
    measurement = gradient_noise.NoiseMeasurement(program, strategy, built, pipeline)
    workers = [RemoteWorker(index, pipeline, part, False, measurement) for index in range(count)]
    return workers, RemoteUpdater(step, part_count or count, measurement.tracing)


class RemoteWorker:
    """One worker of the cluster. Reading and updates have a stream of calls each, so that neither
    waits for the other.
    """

    def __init__(
        self,
        index: int,
        pipeline: Pipeline,
        step: Any,
        several: bool,
        measurement: gradient_noise.NoiseMeasurement,
    ) -> None:
        """`several`: the step takes `step_arguments`. `measurement`: shared by all workers."""
        self._several = several
        self._measurement = measurement
        self.name = f"worker-{index}"
        self._device = f"/job:worker/replica:0/task:{index}/device:CPU:0"
        self._pipeline = pipeline
        self.step = step
        self._reading = executor.new_executor(enable_async=False)
        self._updating = executor.new_executor(enable_async=False)
        self._opened = False

    def push(self, portion: Portion) -> None:
        if not self._opened:
            self._call(self._reading, self._pipeline.open)
            self._opened = True
        self._call(self._reading, self._pipeline.push, tf.constant(portion.row(), tf.int64))

    def fetch(self, passes: int, turn: int) -> list[StagedPass]:
        arguments = tf.constant(passes, tf.int32), tf.constant(turn, tf.int64)
        rows = self._call(self._reading, self._pipeline.fetch, *arguments)
        return [StagedPass(*row) for row in rows.tolist()]

    def drop_staged(self) -> None:
        self._call(self._reading, self._pipeline.drop_staged)

    def update(self, passes: int, batches: int) -> bool:
        arguments = training_step.step_arguments(passes, batches) if self._several else ()
        try:
            self._call(self._updating, self.step, *arguments)
        except tf.errors.InvalidArgumentError as error:
            if staleness.is_too_stale(error):
                return False
            raise
        return True

    def compute_part(self, part: Part) -> None:
        """`step` has to be that of `trace_part`."""
        self._call(self._updating, self.step, part_order(part))

    def take_losses(self) -> list[UpdateLoss]:
        rows = self._call(self._updating, self._pipeline.take_losses)
        return [UpdateLoss(loss, int(examples)) for loss, examples in rows.tolist()]

    def compare_gradients(self) -> Comparison | None:
        if self._measurement.function is None:
            return None
        return Comparison(*self._call(self._updating, self._measurement.function).tolist())

    def trace_comparison(self) -> None:
        self._measurement.trace()

    def explain(self, portion: Portion) -> None:
        """Let the worker read a portion in Python. Raise the program's error with its line."""
        self._call(self._reading, self._pipeline.explain, tf.constant(portion.row(), tf.int64))

    def _call(self, stream: Any, function: Any, *arguments: tf.Tensor) -> Any:
        """Run a function on the worker; return its result, if it has one, as a NumPy value.

        The call returns when the function has ended. A result is one more call, of nearly the same
        cost.
        """
        with _as_failure(), tf.device(self._device), context.executor_scope(stream):
            result = function(*arguments)
            return None if result is None else result.numpy()


class RemoteUpdater:
    """Applies the updates that workers make together. `parts`: the usual number of parts;
    `tracing`: held while something is traced (`gradient_noise.NoiseMeasurement`).
    """

    def __init__(self, step: PartStep, parts: int, tracing: threading.Lock) -> None:
        self._step = step
        self._tracing = tracing
        self._clear = step.trace_clear()
        self._updates = {parts: step.trace_update(parts)}

    def apply(self, update: int, parts: int, examples: int) -> None:
        if parts not in self._updates:
            with self._tracing:
                self._updates[parts] = self._step.trace_update(parts)
        with _as_failure():
            self._updates[parts](part_order(Part(update, 0, 0, examples)))

    def clear(self) -> None:
        with _as_failure():
            self._clear()


@contextmanager
def _as_failure() -> Iterator[None]:
    """Raise an error of the worker or the network as `WorkerFailure`."""
    try:
        yield
    except tf.errors.OpError as error:
        failure = classify_error(error)
        if failure is None:
            raise
        raise failure from error


def classify_error(error: Any) -> WorkerFailure | None:
    """Return the failure of the worker or the network; None: the program is at fault."""
    if cluster_coordinator._is_ps_failure(error):
        return WorkerFailure(error, lost=False)
    if cluster_coordinator._is_worker_failure(error):
        return WorkerFailure(error, lost=True)
    if isinstance(error, tf.errors.CancelledError) and TASK_NAME in str(error):
        return WorkerFailure(error, lost=False)  # it follows from another task's failure
    return None
