"""The measurement of gradient noise on a worker: some gradients, compared and dropped.

Now and then, between two updates, a worker computes the mean gradients of the passes that were
staged last. Most of them are not trained yet, and it does not take them. It returns four numbers, of
which `noise_estimate.py` makes the noise scale. This is a function of its own, so that the steps of
all modes remain as they are: it assigns no variable, moves no random numbers and leaves no examples
out, and training is bit by bit the same.

It costs as much as KEPT_SAMPLES gradients without their updates. Several batches at a time say more
than two: K gradients at the same weights make K (K - 1) / 2 pairs of which each says as much about
|G|^2, so with four the same certainty costs a third of the time. Two halves of one batch would say
less still. Only the sum of the gradients and the last one are in memory.

The loss is that of training. So what depends on the whole batch counts, too: with batch
normalisation the noise of the batch's averages, with dropout that of the places left out (each pass
draws others).

The function is traced when training has begun (`NoiseMeasurement`): that takes about as long as
tracing the step, and a hand-over would have to wait for it.

A training step of the program's own is not measured: it applies gradients itself, maybe of several
losses. Nor is a model that writes to variables otherwise than by Keras's `assign`, or calls Python:
`part_step.record_states` cannot keep that from happening.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from services.trainer.worker import optimizers, own_step, step_loss, training_step
from services.trainer.worker.input_pipeline import KEPT_SAMPLES, Pipeline
from services.trainer.worker.part_step import record_states
from services.trainer.worker.sharded_table import ShardedTable
from services.trainer.worker.training_step import BuiltModel

MOST_BYTES = 512 * 2**20
"""Maximum bytes of trainable weights, without divided tables: a worker needs memory for one more
gradient.
"""
PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
UNCHANGING = optimizers.READ_OPERATIONS | {
    "InitializeTableV2",  # a table of the worker, always with the same rows
    "LookupTableFindV2",
    "LookupTableSizeV2",
}
"""Operations that use a variable or a table and change nothing."""


def is_measured(built: BuiltModel) -> bool:
    """Return whether the gradient noise of a program is measured: its loss has to be a mean over the
    examples of a batch.
    """
    if own_step.is_own_step(built.kind) or _gradient_bytes(built) > MOST_BYTES:
        return False
    return built.kind == "loss" or not step_loss.whole_batch_reason(built.model)


def _gradient_bytes(built: BuiltModel) -> int:
    """Return the bytes of a gradient without its rows of divided tables, which are few."""
    dense = [each for each in built.trainable_variables if not isinstance(each, ShardedTable)]
    return int(training_step.weights_profile(dense).bytes)


class NoiseMeasurement:
    """The measurement of a generation's workers. `function`: what a worker runs; None until `trace`,
    and for a program that is not measured.

    `tracing`: held while something is traced, one thing at a time, because variables hold tensors
    of the graph meanwhile.
    """

    def __init__(
        self, program: ModuleType, strategy: Any, built: BuiltModel, pipeline: Pipeline
    ) -> None:
        self._parts = program, strategy, built, pipeline
        self._is_traced = False
        self.tracing = threading.Lock()
        self.function: Any = None

    def trace(self) -> None:
        """Trace the function, unless that was tried before."""
        with self.tracing:
            if not self._is_traced:
                self._is_traced = True
                self.function = _trace_measurement(*self._parts)


def _trace_measurement(
    program: ModuleType, strategy: Any, built: BuiltModel, pipeline: Pipeline
) -> Any:
    """Return a function that returns a `Comparison` of the samples on the worker that runs it.

    Return None if that cannot be traced, or would change anything: training does not fail for a
    measurement.
    """
    if not pipeline.keeps_samples:
        return None

    def trace(model: BuiltModel) -> Any:
        def measure() -> tf.Tensor:
            return strategy.run(_compare_samples, args=(program, model, pipeline))

        return tf.function(measure, input_signature=[]).get_concrete_function()

    try:
        traced = training_step.trace_with_packed_reads(built, trace)
    except Exception:
        return None
    return None if changing_operations(traced.graph) else traced


def changing_operations(graph: Any) -> set[str]:
    """Return the kinds of operations in a graph, and in its functions, that may change something:
    those that use a variable or a queue and do not only read it, and calls of Python.
    """
    definition = graph.as_graph_def()
    nodes = [*definition.node, *[each for f in definition.library.function for each in f.node_def]]
    kinds = {node.op for node in nodes} - UNCHANGING
    return {kind for kind in kinds if kind in PYTHON or _uses_resource(kind)}


def _uses_resource(kind: str) -> bool:
    operation = op_def_registry.get(kind)
    inputs = operation.input_arg if operation is not None else ()
    return any(each.type == tf.resource.as_datatype_enum for each in inputs)


class _SampleGradient(NamedTuple):
    """The mean gradient of a sample. `square_norm`: |g|^2; `inverse_examples`: 1 / its examples."""

    gradients: list[Any]
    square_norm: tf.Tensor
    inverse_examples: tf.Tensor


def _compare_samples(program: ModuleType, built: BuiltModel, pipeline: Pipeline) -> tf.Tensor:
    """Return the fields of a `Comparison` of the kept samples, as a tensor of four numbers.

    The gradients are computed one after the other, so that a worker needs the memory of one step.
    """
    scale = optimizers.loss_scale(built.optimizer)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])  # type: ignore[untyped-decorator]
    def gradient_of(at: tf.Tensor) -> _SampleGradient:
        return _sample_gradient(program, built, pipeline, scale, at)

    def add_sample(at: tf.Tensor, squares: tf.Tensor, inverse: tf.Tensor, parts: Any) -> Any:
        sample = gradient_of(at)
        more = training_step.gradient_parts(sample.gradients)
        summed = training_step.add_parts(first.gradients, parts, more)
        return at + 1, squares + sample.square_norm, inverse + sample.inverse_examples, summed

    first = gradient_of(tf.constant(0))
    parts = training_step.gradient_parts(first.gradients)
    with tf.control_dependencies(parts):
        at = tf.identity(tf.constant(1))
    scalar = tf.TensorShape([])
    _, squares, inverse, parts = tf.while_loop(
        lambda at, *_: at < KEPT_SAMPLES,
        add_sample,
        (at, first.square_norm, first.inverse_examples, parts),
        (scalar, scalar, scalar, training_step.part_shapes(first.gradients)),
        parallel_iterations=1,
    )
    training_step.check_resources(program, built)
    count = tf.constant(KEPT_SAMPLES, tf.float64)
    square_of_sum = square_norm(training_step.join_parts(first.gradients, parts))
    return tf.stack([count, count / inverse, squares / count, square_of_sum / count**2])


def _sample_gradient(
    program: ModuleType, built: BuiltModel, pipeline: Pipeline, scale: Any, at: tf.Tensor
) -> _SampleGradient:
    """Return the gradient of a kept sample. What the model would assign is dropped. `scale`: of the
    loss, or None.
    """
    unscale = tf.ones(()) if scale is None else 1.0 / tf.cast(scale, tf.float32)
    batch, count = pipeline.sample(at)
    with record_states(built, tf.cast(at, tf.int64)):
        _, scaled = training_step.loss_and_gradients(program, built, batch, scale)
    gradients = [optimizers.multiply_gradient(each, unscale) for each in scaled]
    return _SampleGradient(gradients, square_norm(gradients), 1.0 / tf.cast(count, tf.float64))


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def square_norm(gradients: list[Any]) -> tf.Tensor:
    """Return the square of the norm of a gradient. Values of equal rows of a table are added up."""
    squares = []
    for each in gradients:
        if isinstance(each, tf.IndexedSlices):
            rows, places = tf.unique(each.indices)
            values = tf.cast(each.values, tf.float32)
            values = tf.math.unsorted_segment_sum(values, places, tf.size(rows))
        elif each is not None:
            values = tf.cast(each, tf.float32)
        else:
            continue
        squares.append(tf.cast(tf.reduce_sum(tf.square(values)), tf.float64))
    return tf.add_n(squares)
