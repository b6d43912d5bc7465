"""The loss of a batch, as `Model.fit` has it: with weights, masks, or a compiled model.

`loss(labels, outputs)` gives the loss of each example, or of each part of it (l_i, i = 1 .. n), and
the batch may have weights w_i. The loss of the batch is Keras's `sum_over_batch_size`:

    sum w_i l_i / n          w_i = 1 without weights

If the outputs carry a mask and l has its shape, places that it hides do not count, and n is the
number of places that do. A loss that is one number already has no l_i, so weights are refused.

A model that the program compiled has its own `compute_loss`, which includes what the model adds
(regularizers). Metrics that it updates meanwhile would be variables on a ps that all workers write.
Nobody reads them, so here they are part of the step's graph and start anew with each batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from services.trainer.program import BadProgram
from services.trainer.worker.step_resources import tables_in_step

HALVES = (tf.float16, tf.bfloat16)
WHOLE_BATCH = ("sum", "mean_with_sample_weight")
"""Reductions whose result for a batch is not the mean over its parts."""


class Example(NamedTuple):
    """A batch of `(inputs, labels)` or `(inputs, labels, weights)`."""

    inputs: Any
    labels: Any
    weights: Any = None


class BatchLoss(NamedTuple):
    """`loss`: for the reports. `total`: to be minimised; it includes what the model adds."""

    loss: tf.Tensor
    total: tf.Tensor


def split_batch(batch: Any) -> Example:
    """Return the parts of a batch; a compiled model may have inputs only."""
    if isinstance(batch, tuple) and 2 <= len(batch) <= 3:
        return Example(*batch)
    if isinstance(batch, tuple) and len(batch) == 1:
        return Example(batch[0], None)
    return Example(batch, None)


# ---------------------------------------------------------------- loss(labels, outputs)


def program_loss(program: ModuleType, model: Any, batch: Any) -> BatchLoss:
    """Return the loss of a batch by the program's `loss`."""
    example = split_batch(batch)
    outputs = model(example.inputs, training=True)
    loss = mean_loss(program, example.labels, outputs, example.weights)
    loss = tf.cast(loss, tf.float32) if loss.dtype in HALVES else loss
    terms = [loss, *(tf.cast(each, loss.dtype) for each in model.losses)]
    return BatchLoss(loss, tf.add_n(terms) if len(terms) > 1 else loss)


def mean_loss(program: ModuleType, labels: Any, outputs: Any, weights: Any = None) -> tf.Tensor:
    """Return the mean loss of a batch. Raise `BadProgram` for weights that do not fit it."""
    losses = tf.convert_to_tensor(program.loss(labels, outputs))
    mask = _fitting_mask(outputs, losses)
    if weights is None and mask is None:
        return tf.reduce_mean(losses)
    if weights is not None:
        _check_weights(program, losses, weights)
    mean: tf.Tensor = keras_loss.reduce_weighted_values(
        losses, weights, mask, "sum_over_batch_size", losses.dtype.name
    )
    return mean


def _fitting_mask(outputs: Any, losses: tf.Tensor) -> Any:
    """Return the outputs' mask, if the losses have as many axes."""
    mask = getattr(outputs, "_keras_mask", None)
    return mask if mask is not None and mask.shape.rank == losses.shape.rank else None


def _check_weights(program: ModuleType, losses: tf.Tensor, weights: Any) -> None:
    if tf.nest.is_nested(weights):
        raise BadProgram(
            "the weights of an example are a structure, and loss() has one result: give one weight "
            "for each example, or compile the model in model()",
            program.loss,
        )
    if losses.shape.rank == 0:
        raise BadProgram(
            "loss() returns one number for a batch whose examples have weights: return the loss of "
            "each example (a function of keras.losses, or a class of it with reduction=None)",
            program.loss,
        )
    given, found = weights.shape, losses.shape
    if given.rank != found.rank and not _differ_by_one(given, found):
        raise BadProgram(
            f"loss() returns the shape {found} and the weights have {given}: return the loss of "
            "each example, or give a weight for each part of it",
            program.loss,
        )


def _differ_by_one(one: Any, other: Any) -> bool:
    """Return whether the longer of two shapes has exactly one more axis, a last one of size 1."""
    short, long = sorted((one, other), key=lambda shape: shape.rank or 0)
    return bool(long.rank == short.rank + 1 and long[-1] == 1)


# ---------------------------------------------------------------- a compiled model


def compiled_loss(model: Any, batch: Any) -> BatchLoss:
    """Return the loss of a batch as the model computes it. `Model.fit` reports it as well."""
    inputs, labels, weights = split_batch(batch)
    outputs = model(inputs, training=True) if model._call_has_training_arg else model(inputs)
    loss = model._compute_loss(
        x=inputs, y=labels, y_pred=outputs, sample_weight=weights, training=True
    )
    loss = tf.cast(loss, tf.float32) if loss.dtype in HALVES else loss
    return BatchLoss(loss, loss)


def whole_batch_reason(model: Any) -> str:
    """Return why the loss of a compiled model needs a whole batch; empty if it is a mean over
    examples.
    """
    if is_overridden(model, "compute_loss"):
        return "model() has a compute_loss of its own"
    for each in tf.nest.flatten(model.loss):
        reduction = getattr(each, "reduction", None)
        if isinstance(each, keras.losses.Loss) and reduction in WHOLE_BATCH:
            return f"model() is compiled with the reduction {reduction!r}"
    return ""


def is_overridden(model: Any, method: str) -> bool:
    """Return whether a model has its own form of a method of `keras.Model`."""
    return method in vars(model) or getattr(type(model), method) is not getattr(keras.Model, method)


def build_metrics(model: Any, spec: Any) -> None:
    """Create the variables of a compiled model's metrics, which Keras creates at their first use.

    `spec`: the structure of a batch.
    """
    losses, metrics = model._compile_loss, model._compile_metrics
    unbuilt = [each for each in (losses, metrics) if each is not None and not each.built]
    if not unbuilt:
        return
    inputs, labels, weights = split_batch(tf.nest.map_structure(_symbolic_tensor, spec))
    symbolic = keras.src.backend.compute_output_spec
    outputs = symbolic(model, inputs, training=False)
    if metrics in unbuilt:
        symbolic(model.compute_metrics, inputs, labels, outputs, sample_weight=weights)
    if losses in unbuilt and not is_overridden(model, "compute_loss"):
        symbolic(
            model._compute_loss, inputs, labels, outputs, sample_weight=weights, training=False
        )


def _symbolic_tensor(spec: Any) -> Any:
    kinds = {"sparse": isinstance(spec, tf.SparseTensorSpec)}
    if isinstance(spec, tf.RaggedTensorSpec):
        kinds = {"ragged": True}
    return keras.KerasTensor(spec.shape, spec.dtype.name, **kinds)


def metric_variables(model: Any) -> list[Any]:
    """Return the variables of all metrics of a model, each once."""
    found = {}
    for metric in (*model.metrics, *(model._get_own_metrics() if model.compiled else ())):
        found.update({id(variable): variable for variable in metric.variables})
    return list(found.values())


@contextmanager
def traced_batch(variables: Iterable[Any]) -> Iterator[None]:
    """Make these variables of metrics, and lookup tables, part of the graph traced inside."""
    kept = [(variable, variable._value) for variable in variables]
    for variable, value in kept:
        variable._value = tf.constant(initial_value(value))
        variable._direct_assign = partial(_keep_in_graph, variable)
    try:
        with tables_in_step():
            yield
    finally:
        for variable, value in kept:
            variable._value = value
            del variable._direct_assign


def initial_value(variable: Any) -> Any:
    """Return the value of a metric's variable before training, which does not change it."""
    with tf.init_scope():
        return variable.numpy()


def _keep_in_graph(variable: Any, value: Any) -> None:
    variable._value = tf.cast(value, variable._value.dtype)
