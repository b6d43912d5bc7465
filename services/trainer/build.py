"""The model on its parameter servers: built twice, once plainly to learn its sizes, once where it
belongs.

Slots of the optimizer lie on the ps of their variable, so that applying a gradient never crosses
the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf

from services.trainer import feed
from services.trainer.optimizers import build_optimizer
from services.trainer.placing import PlacementPlan
from services.trainer.program import BadProgram
from shared.messages import ModelProfile


class Meter(tf.Module):  # type: ignore[misc]
    """What a ps knows of the training besides the model: numbers written in the gradient's own
    step, and the ledger.

    `applied`: examples applied, counted where they are applied. `last_s`, `first_s`: when the last
    update was applied, and the first of this generation, by that ps' clock (seconds since 1970; 0:
    none yet). `ledger`: which examples are applied, as JSON; written just before a checkpoint is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.applied = tf.Variable(0, dtype=tf.int64, name="weir_applied", trainable=False)
        self.step = tf.Variable(0, dtype=tf.int64, name="weir_step", trainable=False)
        self.last_s = tf.Variable(0.0, dtype=tf.float64, name="weir_last_s", trainable=False)
        self.first_s = tf.Variable(0.0, dtype=tf.float64, name="weir_first_s", trainable=False)
        self.ledger = tf.Variable("", name="weir_ledger", trainable=False)

    def count(self, examples: tf.Tensor) -> None:
        """Count one update; to be called inside the step, behind the gradient."""
        with tf.device(self.applied.device):
            self.applied.assign_add(tf.cast(examples, tf.int64))
            self.step.assign_add(1)
            now = tf.timestamp()
            self.last_s.assign(now)
            first = (
                self.first_s.read_value()
            )  # once: of two reads one may see what another update wrote meanwhile
            self.first_s.assign(tf.where(first > 0.0, first, now))


class Built(NamedTuple):
    model: Any
    optimizer: Any
    meter: Meter
    profile: ModelProfile


def build(program: ModuleType, strategy: Any, ps: int) -> Built:
    """Model, optimizer and meter on `ps` parameter servers, placed largest first."""
    sizes: list[int] = []
    with _recorded_sizes(sizes):
        plain = _built(program)
    plan, profile = PlacementPlan(sizes, ps), profile_of(plain)
    with strategy.scope(), _placed(strategy, plan.next_place, plan.record_size):
        model = _built(program)
    with strategy.scope(), _placed(strategy, lambda: 0):
        made = _made("optimizer()", program.optimizer, tf.keras.optimizers.Optimizer)
        optimizer = build_optimizer(made, model, program.optimizer)
        meter = Meter()
    return Built(model, optimizer, meter, profile)


def _built(program: ModuleType) -> Any:
    """A model that does not know its inputs yet meets one example."""
    model = _made("model()", program.model, tf.keras.Model)
    if not model.built:
        inputs, _ = feed.first(program, 0, 1)
        model(inputs)
    return model


def _made(name: str, maker: Callable[[], Any], kind: type) -> Any:
    """What a function of the program makes, if it is of this kind; raises `BadProgram`
    otherwise.
    """
    made = maker()
    if not isinstance(made, kind):
        raise BadProgram(f"{name} returned {type(made)}; a keras {kind.__name__} is needed", maker)
    return made


def profile_of(model: Any) -> ModelProfile:
    weights = model.trainable_variables
    count = sum(int(tf.size(v.value)) for v in weights)
    return ModelProfile(
        parameters=count, bytes=sum(_bytes(v) for v in weights), variables=len(weights)
    )


def _bytes(variable: Any) -> int:
    return int(tf.size(variable.value)) * int(tf.as_dtype(variable.dtype).size or 8)


def _created_bytes(variable: Any) -> int:
    return (variable.shape.num_elements() or 0) * (variable.dtype.size or 8)


@contextmanager
def _recorded_sizes(sizes: list[int]) -> Iterator[None]:
    """Append the size of every variable created inside, in bytes, in order of creation."""

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        made = next_creator(**kwargs)
        sizes.append(_created_bytes(made))
        return made

    with tf.variable_creator_scope(creator):
        yield


@contextmanager
def _placed(
    strategy: Any,
    choose: Callable[[], int],
    record: Callable[[int, int], None] = lambda place, size: None,
) -> Iterator[None]:
    """Let `choose` name the ps of every variable created inside; `record` is told where it lies and
    how large it is.

    The strategy places variable number n on ps n mod count; we set n before it looks.
    """

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        place = choose()
        strategy.extended._variable_count = place
        made = next_creator(**kwargs)
        record(place, _created_bytes(made))
        return made

    with tf.variable_creator_scope(creator):
        yield
