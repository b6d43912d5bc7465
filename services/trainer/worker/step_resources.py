"""The lookup tables that a traced step may use, besides the variables on the ps.

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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_lookup_ops, lookup_ops

from services.trainer.program import BadProgram, is_program_file

PS = "/job:ps"
TABLE = "LookupTable"
_in_step: ContextVar[bool] = ContextVar("in_step", default=False)


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
