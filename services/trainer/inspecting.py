"""What `examine.py` looks at: examples, variables, the traced step. Edge, as it knows TensorFlow."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import psutil

from services.trainer.examined import Held

PAIR = 5  # examples; a loss of so many times so many numbers has compared each with each


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
    """The same, but names of layers count from the beginning each time: as the program's author knows them."""
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


def compared(module: ModuleType, model: Any) -> tuple[str, ...]:
    """Shapes of labels, outputs and loss, where the loss has a number for each pair of examples: a silent broadcast."""
    import tensorflow as tf

    from services.trainer import feed
    from services.trainer.program import examples

    if examples(module) < PAIR:
        return ()
    inputs, labels = feed.first(module, 0, PAIR)
    outputs = model(inputs, training=False)
    found = tf.convert_to_tensor(module.loss(labels, outputs)).shape
    parts = [part.shape for part in tf.nest.flatten((labels, outputs))]
    if tuple(found[:2]) != (PAIR, PAIR) or any(tuple(shape[:2]) == (PAIR, PAIR) for shape in parts):
        return ()
    return tuple(str(shape) for shape in (*parts, found))


def read_whole(traced: Any, model: Any) -> list[str]:
    """Names of the variables that a step reads as a whole only to look some rows up.

    A variable that is read is copied to whoever reads; `tf.gather(variable, rows)` with a TensorFlow variable looks the
    rows up on its ps. Keras 3's `Embedding` does the first (Keras 3.15): to TensorFlow its variable is a plain tensor.
    """
    variables = {id(variable.value.handle): variable.path for variable in model.variables}
    inside = {inner.name: variables.get(id(outer)) for outer, inner in traced.graph.captures}
    reads = (op for op in traced.graph.get_operations() if op.type == "ReadVariableOp" and _feeds_a_lookup(op))
    return [name for op in reads if (name := inside.get(op.inputs[0].name))]


def _feeds_a_lookup(op: Any) -> bool:
    """Whether the first input of a `GatherV2` comes from here, perhaps through nothing but copies."""
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
