"""One update: examples in, gradient out, counted where it is applied.

The loop over batches lies outside: inside one traced function a Keras 3 optimizer meets a merge call in control flow.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from services.trainer import feed
from services.trainer.build import Built

POSITION = tf.TensorSpec([], tf.int64)


def traced(program: ModuleType, strategy: Any, built: Built) -> Any:
    """A function of (start, stop) for `ClusterCoordinator.schedule`; it returns the batch's mean loss, a scalar."""
    spec = feed.element_spec(program, built.model)

    @tf.function(input_signature=[POSITION, POSITION])  # type: ignore[untyped-decorator]
    def step(start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        batch = feed.batch_of(spec, start, stop)
        return strategy.run(_update, args=(program, built, *batch, stop - start))

    return step


def _update(program: ModuleType, built: Built, inputs: Any, labels: Any, count: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(program.loss(labels, built.model(inputs, training=True)))
        total = tf.add_n([loss, *built.model.losses]) if built.model.losses else loss
    weights = built.model.trainable_variables
    gradients = tape.gradient(total, weights)
    built.optimizer.apply_gradients(zip(gradients, weights, strict=True))
    with tf.control_dependencies(_after(weights)):
        built.meter.count(count)
    return loss


def _after(weights: Any) -> list[tf.Tensor]:
    """Something cheap that each ps does behind the update of each of its weights, because both name the same variable.

    The optimizer's own count will not do: it rises when the step begins, whether or not a gradient ever comes.
    """
    return [tf.raw_ops.VarIsInitializedOp(resource=weight.value.handle) for weight in weights]
