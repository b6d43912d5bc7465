"""Which embedding tables are divided among parameter servers, and their initial values.

While `model()` runs, `Layer.add_weight` makes a `ShardedTable` of

    the rows of a stock `keras.layers.Embedding`, and of a subclass that keeps its `build` and `call`
    a weight that a layer names in its attribute `row_lookup_weights`, such as ("table",)

if it has at least `DIVIDED_BYTES`. Some tables stay whole: with a constraint, LoRA or quantization,
with an initializer that needs the whole table, or that we do not know, and those that the model,
its training step or its optimizer uses as a whole (`training_step.model_without_rows`).

Initial values are drawn part by part where they live, from the initializer's seed and the number of
the part. They have the distribution of the initializer for the whole table.

A regularizer of a table counts the rows that were looked up, each once, and not all rows: with L2,
rows decay when they are used. Keras would change every row in every update.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from services.trainer.worker.sharded_table import FillPart, ShardedTable, TableShard

DIVIDED_BYTES = 16 * 2**20
EMBEDDINGS = "embeddings"
"""The name of the table of a `keras.layers.Embedding`."""
MakeShards = Callable[[ShardedTable, FillPart], list[TableShard]]


@contextmanager
def divide_tables(make_shards: MakeShards, whole: Collection[int] = frozenset()) -> Iterator[None]:
    """Let large tables that are created inside be divided. `make_shards`: makes their shards;
    `whole`: the numbers of those that are not divided.
    """
    layer_class: Any = keras.layers.Layer
    add_weight = layer_class.add_weight
    numbers = itertools.count()

    def add_divided(layer: Any, *args: Any, **kwargs: Any) -> Any:
        weight = {**dict(zip(("shape", "initializer"), args, strict=False)), **kwargs}
        if len(args) > 2 or not _is_divided(layer, weight):
            return add_weight(layer, *args, **kwargs)
        number = next(numbers)
        if number in whole:
            return add_weight(layer, *args, **kwargs)
        table = _add_table(layer, make_shards, **weight)
        table.number = number
        return table

    layer_class.add_weight = add_divided
    try:
        yield
    finally:
        layer_class.add_weight = add_weight


def _is_divided(layer: Any, weight: dict[str, Any]) -> bool:
    """Return whether a layer's weight, as these arguments of `add_weight` describe it, becomes a
    divided table.
    """
    shape = weight.get("shape") or ()
    named = weight.get("name") in getattr(layer, "row_lookup_weights", ())
    stock = _is_stock_embedding(layer) and weight.get("name") == EMBEDDINGS
    if len(shape) < 2 or not (named or stock):
        return False
    if weight.get("constraint") is not None or not weight.get("trainable", True):
        return False
    if named and weight.get("regularizer") is not None:
        return False
    dtype = tf.as_dtype(weight.get("dtype") or layer.variable_dtype)
    if math.prod(shape) * dtype.size < DIVIDED_BYTES:
        return False
    return _fill_part(weight.get("initializer"), tuple(shape)) is not None


def _is_stock_embedding(layer: Any) -> bool:
    kind = type(layer)
    stock = keras.layers.Embedding
    return (
        isinstance(layer, stock)
        and kind.build is stock.build
        and kind.call is stock.call
        and not layer.lora_rank
        and not layer.quantization_mode
    )


def _add_table(
    layer: Any,
    make_shards: MakeShards,
    *,
    shape: Any,
    initializer: Any = None,
    name: str | None = None,
    dtype: Any = None,
    regularizer: Any = None,
    autocast: bool = True,
    **_: Any,
) -> ShardedTable:
    fill = _fill_part(initializer, tuple(shape))
    assert fill is not None
    with keras.src.backend.name_scope(layer.name, caller=layer):
        table = ShardedTable(
            lambda made: make_shards(made, fill),
            shape=shape,
            dtype=dtype or layer.variable_dtype,
            autocast=autocast,
            name=name,
        )
    table.overwrite_with_gradient = False
    layer._track_variable(table)
    if _is_stock_embedding(layer) and name == EMBEDDINGS:
        layer.call = _LookUp(layer, table, keras.regularizers.get(regularizer))
    return table


class _LookUp:
    """The `call` of an `Embedding` with a divided table."""

    def __init__(self, layer: Any, table: ShardedTable, regularizer: Any) -> None:
        self._layer, self._table, self._regularizer = layer, table, regularizer

    def __call__(self, inputs: Any) -> Any:
        if self._layer.lora_enabled or self._layer.quantization_mode:
            raise self._table.whole_use_error()  # it was added to a layer that was built
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(inputs)  # an empty place looks up row 0, as with Keras
        if isinstance(inputs, tf.RaggedTensor):
            return tf.ragged.map_flat_values(self, inputs)
        ids = tf.cast(inputs, tf.int64)
        ids = tf.where(ids < 0, ids + self._table.shape[0], ids)  # as Keras counts them
        unique, places = tf.unique(tf.reshape(ids, [-1]))
        rows = self._table.unique_rows(unique)
        if self._regularizer is not None:
            self._layer.add_loss(self._regularizer(rows))
        return tf.cast(self._table.spread(rows, places, ids), self._layer.compute_dtype)


# ---------------------------------------------------------------- initial values


def _fill_part(initializer: Any, shape: tuple[int, ...]) -> FillPart | None:
    """Return a function that draws a part of a table of this shape; None: the initializer needs the
    whole table, or is not known.
    """
    kinds = keras.initializers
    found = kinds.get("glorot_uniform" if initializer is None else initializer)
    constant = _constant_value(found)
    if constant is not None:
        return lambda part, size, dtype: tf.fill(size, tf.cast(constant, dtype))
    is_scaled = isinstance(found, kinds.VarianceScaling)
    if is_scaled and type(found).__call__ is kinds.VarianceScaling.__call__ and len(shape) == 2:
        found = _scaled_initializer(found, shape)
    draw = DRAWS.get(type(found))
    seed = getattr(found, "_init_seed", None)
    if seed is None:
        seed = getattr(found, "seed", None)
    if draw is None or not isinstance(seed, int):
        return None
    first, second = _distribution(found)
    return lambda part, size, dtype: draw(size, _part_seed(seed, part), first, second, dtype)


DRAWS: dict[type, Callable[..., tf.Tensor]] = {
    keras.initializers.RandomUniform: tf.random.stateless_uniform,
    keras.initializers.RandomNormal: tf.random.stateless_normal,
    keras.initializers.TruncatedNormal: tf.random.stateless_truncated_normal,
}
"""Functions that draw as these initializers do, of (shape, seed, first, second, dtype)."""


def _distribution(found: Any) -> tuple[float, float]:
    """Return the bounds of a uniform distribution, or mean and standard deviation of a normal one."""
    if isinstance(found, keras.initializers.RandomUniform):
        return found.minval, found.maxval
    return found.mean, found.stddev


def _constant_value(found: Any) -> float | None:
    kinds = keras.initializers
    if type(found) is kinds.Constant:
        return None if np.ndim(found.value) else found.value
    return {kinds.Zeros: 0.0, kinds.Ones: 1.0}.get(type(found))


def _part_seed(seed: int, part: tf.Tensor) -> tf.Tensor:
    """Return the seed of a part, int64 [2]; neighbouring seeds and parts have different ones (Knuth's
    multiplicative hashing).
    """
    prime = 2**31 - 1
    mixed = (seed * 2_654_435_761 % prime + tf.cast(part, tf.int64) * 40_503 + 1) % prime
    return tf.stack([mixed, tf.zeros_like(mixed)])


def _scaled_initializer(found: Any, shape: tuple[int, ...]) -> Any:
    """Return an initializer with the distribution that `VarianceScaling` has for the whole table
    (He et al., 2015; Glorot and Bengio, 2010): its scale depends on the table's shape, and not on
    that of a part.
    """
    fan_in, fan_out = shape
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[found.mode]
    scale = found.scale / max(1.0, fan)
    if found.distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return keras.initializers.RandomUniform(-limit, limit, seed=found.seed)
    deviation = math.sqrt(scale)
    if found.distribution == "truncated_normal":
        # The standard deviation of a standard normal that is cut at 2 (as Keras divides by it).
        return keras.initializers.TruncatedNormal(0.0, deviation / 0.87962566103423978, found.seed)
    return keras.initializers.RandomNormal(0.0, deviation, seed=found.seed)
