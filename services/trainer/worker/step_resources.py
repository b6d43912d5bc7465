"""The resources that a traced step may use: variables on the ps, and lookup tables.

A step that the chief traces runs on a worker. A resource of the chief's process does not exist
there. A static lookup table (`StringLookup`, `TextVectorization`, `tf.lookup.StaticHashTable`) is
made on the chief, but it never changes. So a step has its rows as a constant, and each worker fills
a table of the same name when it looks something up for the first time. Filling a table twice with
the same rows changes nothing.

Layers, models and optimizers that a program makes when it is imported have their variables on the
chief. Those of the models that `model()` returns, and of the optimizers, are moved to the ps
(`move_to_ps`). A metric needs no variable: it begins anew with each batch. Anything else would be a
copy that only the chief knows, and that no checkpoint has: a table that changes, a variable of no
model. It is refused, with the line that uses it.

A chief imports the program before it connects to its cluster, and the program's functions use what
it made then: a `TextVectorization` that `dataset` maps, say. The connection would lose all of it:
TensorFlow gives the devices of the process other names, and removes the tables that it keeps by
name. So the devices have their later names from the beginning (`name_devices_of_chief`), and tables
are kept by reference (`program_tables`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_lookup_ops, lookup_ops

from services.trainer.program import BadProgram, is_program_file, program_values
from services.trainer.worker.sharded_table import ShardedTable, ps_variables

PS = "/job:ps"
CHIEF = "chief"
TABLE = "LookupTable"
STATIC_TABLES = ["StaticHashTable", "HashTable"]
"""`HashTable` is that of a `StaticVocabularyTable`."""
MUTABLE_TABLES = ["MutableHashTable", "DenseHashTable"]
BY_REFERENCE = "experimental_is_anonymous"
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


@contextmanager
def program_tables() -> Iterator[None]:
    """Make every static table that is created in this context a `WorkerTable`, and keep all tables
    while something refers to them.
    """

    def new_static(next_creator: Any, *args: Any, **kwargs: Any) -> WorkerTable:
        return WorkerTable(*args, **{**kwargs, BY_REFERENCE: True})

    def new_mutable(next_creator: Any, *args: Any, **kwargs: Any) -> Any:
        return next_creator(*args, **{**kwargs, BY_REFERENCE: True})

    with (
        ops.resource_creator_scope(STATIC_TABLES, new_static),
        ops.resource_creator_scope(MUTABLE_TABLES, new_mutable),
    ):
        yield


def name_devices_of_chief() -> None:
    """Give the devices of this process the names that they have once a chief has connected.

    Call it before anything uses TensorFlow's runtime. It looks for devices, and does not start the
    runtime: a program may still call `tf.config` when it is imported.
    """
    server = ServerDef(job_name=CHIEF, task_index=0, protocol="grpc")
    server.default_session_config.CopyFrom(context.context().config)
    job = server.cluster.job.add(name=CHIEF)
    job.tasks[0] = "localhost:0"
    context.set_server_def(server)


@contextmanager
def tables_in_step() -> Iterator[None]:
    """Make the graph that is traced in this context contain the rows of its tables."""
    token = _in_step.set(True)
    try:
        yield
    finally:
        _in_step.reset(token)


# ---------------------------------------------------------------- variables made at import


def move_models_to_ps(models: Iterable[Any]) -> None:
    """Move the variables of models that the program made when it was imported to the ps.

    What Keras has traced with the former variables is dropped.
    """
    for model in models:
        if move_to_ps(model.variables):
            for layer in model._flatten_layers():
                if isinstance(layer, tf.keras.Model):
                    layer.train_function = layer.test_function = layer.predict_function = None


def move_to_ps(variables: Iterable[Any]) -> bool:
    """Move Keras variables that are not on a ps there, with their values. Return whether there were
    any.

    Call it in the scope that places new variables; the largest come first. A Keras variable refers
    to a variable of TensorFlow, so all that uses the Keras variable follows. A function that was
    traced before keeps the former variable; a training step that calls it is refused.
    """
    moved = [each for each in variables if _is_on_chief(each)]
    moved.sort(key=lambda each: each.shape.num_elements() or 0, reverse=True)
    for each in moved:
        former = each._value
        each._value = tf.Variable(
            former.read_value(), trainable=former.trainable, dtype=former.dtype, name=each.name
        )
    return bool(moved)


def _is_on_chief(variable: Any) -> bool:
    if isinstance(variable, ShardedTable) or variable._value is None:
        return False
    return PS not in variable._value.device


# ---------------------------------------------------------------- what a step must not hold


def check_resources(program: ModuleType) -> None:
    """Raise `BadProgram` if the graph that is traced uses a resource that is not on a ps."""
    for outer, inner in tf.compat.v1.get_default_graph().captures:
        if outer.dtype == tf.resource and PS not in outer.device:
            users = [op for op in inner.consumers() if op.type != "Placeholder"]
            path = _path_of_variable(outer, _variables_of_program(program))
            raise BadProgram(_foreign_resource(path, users), _place_in_program(program, users))


def _variables_of_program(program: ModuleType) -> Iterator[Any]:
    """Yield the Keras variables of everything that has a name in the program."""
    for value in program_values(program):
        if isinstance(value, tf.keras.layers.Layer):
            yield from value.variables
        elif isinstance(value, tf.keras.random.SeedGenerator):
            yield value.state
        elif isinstance(value, tf.keras.Variable):
            yield value


def _path_of_variable(handle: Any, variables: Iterable[Any]) -> str:
    """Return the path of the variable with this handle; empty if it is none of these."""
    for variable in variables:
        for each in ps_variables(variable):
            if each.handle is handle:
                return str(variable.path)
    return ""


def _foreign_resource(path: str, users: list[Any]) -> str:
    """Return why a step may not use a resource. `path`: of the variable, if it is known."""
    if any(TABLE in op.type for op in users):
        return (
            "the training step uses a lookup table that can change: it would exist on the chief "
            "only. Use a StringLookup, IntegerLookup, TextVectorization or "
            "tf.lookup.StaticHashTable; for rows that learn, use keras.layers.Embedding"
        )
    variable = f"the variable {path}, which" if path else "a variable that"
    return (
        f"the training step uses {variable} belongs to none of the models that model() returns: it "
        "would exist on the chief only, and in no checkpoint. Make the layer that has it an attribute "
        "of a model; for a single variable, call the model's add_weight"
    )


def _place_in_program(program: ModuleType, users: list[Any]) -> object:
    """Return the line of the program that uses a resource, in the form that `BadProgram` takes."""
    for op in users:
        for frame in reversed(op.traceback or ()):
            if is_program_file(frame.filename, str(program.__file__)):
                code = SimpleNamespace(co_filename=frame.filename, co_firstlineno=frame.lineno)
                return SimpleNamespace(__code__=code)
    return program.model
