"""The ways in which a program trains: by `loss()`, by its compiled model, or by a training step of
its own.

    "loss"      optimizer() and loss(labels, outputs)
    "compiled"  model() calls compile(); its loss and its compute_loss are used
    "model"     the same, but its class has a train_step of its own
    "program"   train_step(models, optimizers, batch)

If several fit, the lowest line counts, but a program with `loss()` and a compiled model trains by
`loss()`. A step of its own runs in the traced step, once for an update, and applies gradients
itself. Keras creates the slots of an optimizer at its first use, when the variables have to be in
place already. So the step is traced once before, only to learn which variables each optimizer gets.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal

import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random import seed_generator

from services.trainer.program import BadProgram, has_function
from services.trainer.worker import optimizers
from services.trainer.worker.step_loss import is_overridden, traced_batch

Kind = Literal["loss", "compiled", "model", "program"]
PART_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
NOT_TRAINABLE = (
    "there is no loss(), and model() is not compiled: write loss(labels, outputs) and optimizer(), "
    "or call model.compile(optimizer, loss) in model()"
)
MERGE_CALL = "`merge_call` called"
CONTROL_FLOW = (
    "the training step applies gradients inside of a condition, a loop or another tf.function, "
    "which parameter servers cannot: apply them in train_step itself, and multiply a gradient by 0 "
    "to ignore it"
)


def training_kind(program: ModuleType, model: Any) -> Kind:
    """Return how a program trains. Raise `BadProgram` if it cannot, or not on parameter servers."""
    if has_function(program, "train_step"):
        return "program"
    if isinstance(model, dict):
        raise BadProgram(
            "model() returned several models: write train_step(models, optimizers, batch), which "
            "trains them",
            program.model,
        )
    if has_function(program, "loss"):
        return "loss"
    if not model.compiled:
        raise BadProgram(NOT_TRAINABLE, program.model)
    if model.run_eagerly:
        raise BadProgram(
            "model() is compiled with run_eagerly=True, but a step is traced: leave it out",
            program.model,
        )
    return "model" if is_overridden(model, "train_step") else "compiled"


def is_own_step(kind: Kind) -> bool:
    return kind in ("model", "program")


def check_names(what: str, made: dict[Any, Any], maker: object) -> None:
    """Raise `BadProgram` unless these can be names of parts in a checkpoint."""
    wrong = [name for name in made if not isinstance(name, str) or not PART_NAME.fullmatch(name)]
    if wrong or not made:
        found = ", ".join(map(repr, wrong)) or "no name"
        raise BadProgram(
            f"{what} returned a dict with {found}; names of letters, digits, _ and - are needed, "
            "each beginning with a letter",
            maker,
        )


def model_optimizers(model: Any) -> Any:
    """Return the optimizers of a compiled model: that of `compile`, or a dict with those that the
    class keeps in attributes of its own.
    """
    found = {"optimizer": model.optimizer}
    for name, value in vars(model).items():
        if isinstance(value, tf.keras.optimizers.Optimizer) and value is not model.optimizer:
            found[name.lstrip("_")] = value
    return found if len(found) > 1 else model.optimizer


def find_variables(step: Callable[[Any], Any], spec: Any, used: Sequence[Any]) -> list[list[Any]]:
    """Return the variables to which a step applies gradients, for each of these optimizers.

    `spec`: the structure of a batch. Nothing is computed.
    """
    found: list[list[Any]] = [[] for _ in used]
    with optimizers.record_variables(used, found):
        tf.function(step, input_signature=[spec]).get_concrete_function()
    return found


def bound_step(
    program: ModuleType, kind: Kind, model: Any, optimizer: Any, metrics: Sequence[Any]
) -> Callable[[Any], tf.Tensor]:
    """Return a function that makes one update of a batch and returns its loss."""
    maker = program.train_step if kind == "program" else type(model).train_step
    step = _plain_function(program.train_step if kind == "program" else model.train_step)

    def run(batch: Any) -> tf.Tensor:
        try:
            with traced_batch(metrics):
                logs = step(model, optimizer, batch) if kind == "program" else step(batch)
        except RuntimeError as error:
            if MERGE_CALL in str(error):
                raise BadProgram(CONTROL_FLOW, maker) from error
            raise
        return reported_loss(logs, maker)

    return run


def _plain_function(step: Any) -> Any:
    """Return a function without the `tf.function` around it: an optimizer cannot be called inside
    of another one.
    """
    if isinstance(step, functools.partial) and hasattr(step.func, "python_function"):
        return functools.partial(step.func.python_function, *step.args, **step.keywords)
    return getattr(step, "python_function", step)


def reported_loss(logs: Any, maker: object) -> tf.Tensor:
    """Return the entry `loss` of a step's result, or its first one."""
    if not isinstance(logs, dict) or not logs:
        raise BadProgram(
            f"train_step() returned {type(logs)}; a dict of numbers is needed, of which `loss` or "
            "the first one is reported",
            maker,
        )
    name = "loss" if "loss" in logs else next(iter(logs))
    loss = tf.convert_to_tensor(logs[name])
    if loss.shape.rank != 0:
        raise BadProgram(
            f"train_step() returned {name!r} of the shape {loss.shape}; one number is needed "
            "(tf.reduce_mean)",
            maker,
        )
    return tf.cast(loss, tf.float32)


def fresh_random_state() -> Any:
    """Return the variable from which Keras draws random numbers for layers and functions without a
    generator of their own. It is made where this is called.
    """
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
    return seed_generator.global_seed_generator().state
