"""What `examine.py` looks at: examples, variables, the traced step. Edge, as it knows
TensorFlow.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import psutil

from services.trainer.examined import Held, Shape

FEW = 5  # examples
ALIKE, APART = 1e-4, 1e-2  # shares of a loss: so near is the same, and further than so much another


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def digest(batch: Iterable[Any], row: int) -> str:
    """Of one example: types, shapes and bytes of all its parts."""
    found = hashlib.sha256()
    for part in batch:
        value = part[row]
        text = repr(value) if part.dtype == object else value.tobytes().hex()
        found.update(f"{part.dtype} {part.shape[1:]} {text};".encode())
    return found.hexdigest()[:16]


def finite(batch: Iterable[Any], row: int) -> bool:
    import numpy as np

    return all(np.isfinite(part[row]).all() for part in batch if part.dtype.kind == "f")


def class_labels(labels: Any) -> list[float] | None:
    """A number for each example of a batch: its label, or the place of the one in a one-hot label;
    None if it has more than that.
    """
    import numpy as np
    import tensorflow as tf

    parts = tf.nest.flatten(labels)
    if len(parts) != 1 or not (
        parts[0].dtype.is_integer or parts[0].dtype.is_floating or parts[0].dtype.is_bool
    ):
        return None
    values = parts[0].numpy().astype("float64").reshape(len(parts[0]), -1)
    if values.shape[1] == 1:
        return list(values[:, 0].tolist())
    one_hot = ((values == 0) | (values == 1)).all() and (values.sum(axis=1) == 1).all()
    return [float(place) for place in np.argmax(values, axis=1)] if one_hot else None


def bytes_of(variable: Any) -> int:
    import tensorflow as tf

    return int(math.prod(variable.shape)) * int(tf.as_dtype(variable.dtype).size or 8)


def held(model: Any, unlearnt: Iterable[str] = (), whole: Iterable[str] = ()) -> Iterator[Held]:
    trained = {id(variable) for variable in model.trainable_variables}
    for each in model.variables:
        yield Held(
            name=each.path,
            shape=tuple(each.shape),
            bytes=bytes_of(each),
            learns=each.path not in set(unlearnt) if id(each) in trained else None,
            whole=each.path in set(whole),
        )


def named_anew(maker: Callable[[], Any]) -> Callable[[], Any]:
    """The same, but names of layers count from the beginning each time: as the program's author
    knows them.
    """
    from keras.src.utils import naming

    def made() -> Any:
        naming.reset_uids()
        return maker()

    return made


def noting_unlearnt(optimizer: Any) -> list[str]:
    """Names of the variables whose gradient is missing when the optimizer is next given them."""
    names: list[str] = []
    apply = optimizer.apply_gradients

    def asked(pairs: Iterable[tuple[Any, Any]]) -> Any:
        given = list(pairs)
        names.extend(variable.path for gradient, variable in given if gradient is None)
        return apply(given)

    optimizer.apply_gradients = asked
    return names


def answered(module: ModuleType, model: Any, size: int) -> tuple[Any, Any]:
    """A batch's labels, and the model's outputs for it."""
    from services.trainer import feed

    inputs, labels = feed.first(module, 0, size)
    return labels, model(inputs, training=False)


def shapes(parts: Any) -> tuple[Shape, ...]:
    import tensorflow as tf

    return tuple(tuple(part.shape) for part in tf.nest.flatten(parts))


def span(outputs: Any) -> tuple[float, float] | None:
    """The least and the most of them; None where there are several, or a number that is none."""
    import tensorflow as tf

    parts = tf.nest.flatten(outputs)
    ends = [
        float(reduce(tf.cast(parts[0], tf.float32))) for reduce in (tf.reduce_min, tf.reduce_max)
    ]
    return (ends[0], ends[1]) if len(parts) == 1 and all(map(math.isfinite, ends)) else None


def compared(loss: Callable[[Any, Any], Any], labels: Any, outputs: Any, size: int) -> Shape:
    """The shape of a loss that has a number for each pair of examples: a silent broadcast."""
    import tensorflow as tf

    found = tuple(tf.convert_to_tensor(loss(labels, outputs)).shape)
    each = (size, size)
    return (
        found
        if found[:2] == each and all(shape[:2] != each for shape in shapes((labels, outputs)))
        else ()
    )


def mixed(loss: Callable[[Any, Any], Any], labels: Any, outputs: Any) -> bool:
    """Whether a mean hides such a broadcast: where one of the two lacks an axis of one, the loss of
    a batch is not the mean of its examples' losses, and with the axis it is.
    """
    import tensorflow as tf

    if (
        len(tf.nest.flatten((labels, outputs))) != 2
        or abs(labels.shape.rank - outputs.shape.rank) != 1
    ):
        return False
    labels, outputs = labels[:FEW], outputs[:FEW]
    alone = [_mean(loss, labels[n : n + 1], outputs[n : n + 1]) for n in range(len(labels))]
    wider = (
        (tf.expand_dims(labels, -1), outputs)
        if labels.shape.rank < outputs.shape.rank
        else (labels, outputs[..., None])
    )
    whole = _mean(loss, labels, outputs)
    mended = _mean(loss, *wider)
    each = sum(alone) / len(alone)
    return math.isclose(mended, each, rel_tol=ALIKE) and not math.isclose(
        whole, each, rel_tol=APART
    )


def _mean(loss: Callable[[Any, Any], Any], labels: Any, outputs: Any) -> float:
    """No number, where it does not take them."""
    import tensorflow as tf

    try:
        return float(tf.reduce_mean(loss(labels, outputs)))
    except (ValueError, TypeError, tf.errors.OpError):
        return math.nan


def read_whole(traced: Any, model: Any) -> list[str]:
    """Names of the variables that a step reads as a whole only to look some rows up.

    A variable that is read is copied to whoever reads; `tf.gather(variable, rows)` with a
    TensorFlow variable looks the rows up on its ps. Keras 3's `Embedding` does the first (Keras
    3.15): to TensorFlow its variable is a plain tensor.
    """
    variables = {id(variable.value.handle): variable.path for variable in model.variables}
    inside = {inner.name: variables.get(id(outer)) for outer, inner in traced.graph.captures}
    reads = (
        op
        for op in traced.graph.get_operations()
        if op.type == "ReadVariableOp" and _feeds_a_lookup(op)
    )
    return [name for op in reads if (name := inside.get(op.inputs[0].name))]


def _feeds_a_lookup(op: Any) -> bool:
    """Whether the first input of a `GatherV2` comes from here, perhaps through nothing but
    copies.
    """
    for output in op.outputs:
        for user in output.consumers():
            if user.type == "GatherV2" and user.inputs[0].name == output.name:
                return True
            if user.type == "Identity" and _feeds_a_lookup(user):
                return True
    return False


def all_finite(variable: Any) -> bool:
    import tensorflow as tf

    return bool(tf.reduce_all(tf.math.is_finite(variable.value)))
