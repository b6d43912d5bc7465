"""The loss of a batch in a traced step, and the resources that such a step may use: lookup tables.

The loss is that of `Model.fit`: with weights, masks, or a compiled model.

`loss(labels, outputs)` gives the loss of each example, or of each part of it (l_i, i = 1 .. n), and
the batch may have weights w_i. The loss of the batch is Keras's `sum_over_batch_size`:

    sum w_i l_i / n          w_i = 1 without weights

If the outputs carry a mask and l has its shape, places that it hides do not count, and n is the
number of places that do. A loss that is one number already has no l_i, so weights are refused.

A model that the program compiled has its own `compute_loss`, which includes what the model adds
(regularizers). Metrics that it updates meanwhile would be variables on a ps that all workers write.
Nobody reads them, so here they are part of the step's graph and start anew with each batch.

A step that the chief traces runs on a worker. A resource of the chief's process does not exist
there. A static lookup table (`StringLookup`, `TextVectorization`, `tf.lookup.StaticHashTable`) is
made in `model()` on the chief, but it never changes. So a step has its rows as a constant, and each
worker fills a table of the same name when it looks something up for the first time. Filling a table
twice with the same rows changes nothing. Anything else would be a copy that only the chief knows: a
table that changes, a variable or layer made when the program was imported. It is refused, with the
line that uses it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_lookup_ops, lookup_ops

from services.trainer.program import BadProgram, is_program_file

PS = "/job:ps"
TABLE = "LookupTable"
_in_step: ContextVar[bool] = ContextVar("in_step", default=False)


# ---------------------------------------------------------------- lookup tables


class WorkerTable(lookup_ops.StaticHashTable):  # type: ignore[misc]
    """A static lookup table whose rows are part of a traced step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._name_on_worker = f"weir_table_{uuid.uuid4()}"
        self._entries: tuple[Any, Any] | None = None

    @property
    def resource_handle(self) -> Any:
        if tf.executing_eagerly() or not _in_step.get():
            return super().resource_handle
        return self._handle_on_worker()

    def _handle_on_worker(self) -> tf.Tensor:
        """Return the handle of the table in the process that runs the graph; first use fills it."""
        keys, values = self._read_entries()
        handle = gen_lookup_ops.hash_table_v2(
            shared_name=self._name_on_worker,
            key_dtype=self._initializer.key_dtype,
            value_dtype=self._initializer.value_dtype,
        )

        def fill() -> tf.Tensor:
            filled = gen_lookup_ops.initialize_table_v2(
                handle,
                tf.constant(keys, self._initializer.key_dtype),
                tf.constant(values, self._initializer.value_dtype),
            )
            with tf.control_dependencies([filled]):
                return tf.constant(True)

        if not len(keys):
            return handle
        is_empty = tf.equal(gen_lookup_ops.lookup_table_size_v2(handle), 0)
        ready = tf.cond(is_empty, fill, lambda: tf.constant(True))
        with tf.control_dependencies([ready]):
            return tf.identity(handle)

    def _read_entries(self) -> tuple[Any, Any]:
        if self._entries is None:
            with tf.init_scope():
                keys, values = gen_lookup_ops.lookup_table_export_v2(
                    super().resource_handle, self._key_dtype, self._value_dtype
                )
                self._entries = keys.numpy(), values.numpy()
        return self._entries


def worker_tables() -> AbstractContextManager[Any]:
    """Make every static table that is created in this context a `WorkerTable`."""
    scope: AbstractContextManager[Any] = ops.resource_creator_scope(
        "StaticHashTable", lambda next_creator, *args, **kwargs: WorkerTable(*args, **kwargs)
    )
    return scope


@contextmanager
def tables_in_step() -> Iterator[None]:
    """Make the graph that is traced in this context contain the rows of its tables."""
    token = _in_step.set(True)
    try:
        yield
    finally:
        _in_step.reset(token)


# ---------------------------------------------------------------- what a step must not hold


def check_resources(program: ModuleType) -> None:
    """Raise `BadProgram` if the graph that is traced uses a resource that is not on a ps."""
    for outer, inner in tf.compat.v1.get_default_graph().captures:
        if outer.dtype == tf.resource and PS not in outer.device:
            users = [op for op in inner.consumers() if op.type != "Placeholder"]
            raise BadProgram(_foreign_resource(outer, users), _place_in_program(program, users))


def _foreign_resource(outer: Any, users: list[Any]) -> str:
    if any(TABLE in op.type for op in users):
        return (
            "the training step uses a lookup table that can change, or that was not made in "
            "model(): it would exist on the chief only. Make a StringLookup, IntegerLookup, "
            "TextVectorization or tf.lookup.StaticHashTable in model(); for rows that learn, use "
            "keras.layers.Embedding"
        )
    return (
        "the training step uses a variable that was not made in model() or optimizer(): it would "
        "exist on the chief only, not on the parameter servers. Make it, or the layer or metric "
        "that has it, in model()"
    )


def _place_in_program(program: ModuleType, users: list[Any]) -> object:
    """Return the line of the program that uses a resource, in the form that `BadProgram` takes."""
    for op in users:
        for frame in reversed(op.traceback or ()):
            if is_program_file(frame.filename, str(program.__file__)):
                code = SimpleNamespace(co_filename=frame.filename, co_firstlineno=frame.lineno)
                return SimpleNamespace(__code__=code)
    return program.model


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
