"""Tests of the staleness of gradients, as it is counted on the ps and reported."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.worker import input_pipeline, optimizers, staleness, training_step
from services.trainer.worker.staleness import LARGEST, NO_GRADIENTS
from shared.messages import Staleness


def test_gradients_are_counted_by_the_updates_since_they_were_begun() -> None:
    histogram = staleness.new_histogram()
    count = tf.function(lambda step, begun: staleness.count_gradient(histogram, step, begun))
    for step, begun in [(7, 7), (9, 7), (9, 7), (5_000, 0)]:
        count(tf.constant(step, tf.int64), tf.constant(begun, tf.int64))

    counts = staleness.read_histogram(histogram)

    assert (counts[0], counts[2], counts[LARGEST], sum(counts)) == (1, 2, 1, 4)


@pytest.mark.parametrize(
    ("before", "now", "described"),
    [
        ({}, {}, None),
        ({3: 5}, {3: 5}, None),
        ({}, {0: 4}, Staleness(mean=0.0, p99=0, largest=0)),
        ({}, {1: 99, 40: 1}, Staleness(mean=1.39, p99=1, largest=40)),
        ({}, {1: 98, 40: 2}, Staleness(mean=1.78, p99=40, largest=40)),
        ({1: 50}, {1: 51, 2: 1}, Staleness(mean=1.5, p99=2, largest=2)),
    ],
)
def test_only_gradients_since_the_last_report_count(
    before: dict[int, int], now: dict[int, int], described: Staleness | None
) -> None:
    def counts(found: dict[int, int]) -> list[int]:
        return [found.get(place, 0) for place in range(len(NO_GRADIENTS))]

    assert staleness.describe(counts(before), counts(now)) == described


def test_dropped_gradients_are_reported_also_if_none_is_applied() -> None:
    assert staleness.describe(NO_GRADIENTS, NO_GRADIENTS, 3) == Staleness(dropped=3)
    applied = (4, *NO_GRADIENTS[1:])
    assert staleness.describe(NO_GRADIENTS, applied, 2) == Staleness(dropped=2)


BATCH = (tf.ones([4, 3]), tf.ones([4, 1]))


class Staged(input_pipeline.Pipeline):
    """A pipeline in which the same batch is always staged."""

    def take(self) -> tuple[Any, tf.Tensor, tf.Tensor]:
        return BATCH, tf.constant(4, tf.int64), tf.constant(4, tf.int64)


def net() -> Any:
    layers = [keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def own(model: Any, used: Any, batch: Any) -> dict[str, Any]:
    """Make two updates by optimizers of their own, the second after the first."""
    loss = tf.zeros([])
    for name, variables in (
        ("first", model.layers[0].trainable_variables),
        ("second", model.layers[1].trainable_variables),
    ):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch[1] - model(batch[0])))
            scaled = used[name].scale_loss(loss)
        used[name].apply(tape.gradient(scaled, variables), variables)
    return {"loss": loss}


def adamw_with_average() -> Any:
    return keras.optimizers.AdamW(0.1, use_ema=True, ema_momentum=0.9, global_clipnorm=1.0)


OPTIMIZERS: list[Callable[[], Any]] = [
    adamw_with_average,
    lambda: keras.optimizers.Nadam(0.1),
    lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1), initial_scale=4.0),
    lambda: {
        "first": keras.optimizers.LossScaleOptimizer(adamw_with_average(), initial_scale=4.0),
        "second": keras.optimizers.Adam(0.1),
    },
]


def values(built: training_step.BuiltModel) -> list[Any]:
    counters = built.counters
    made = built.optimizer
    used = list(made.values()) if isinstance(made, dict) else [made]
    slots = [variable for each in used for variable in each.variables]
    found = [variable.numpy() for variable in (*built.variables, *slots)]
    counted = [counters.applied, counters.step, counters.last_s, counters.first_s]
    return [*found, *[each.numpy() for each in counted], built.staleness.numpy()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_gradient_that_is_too_stale_changes_nothing(optimizer: Callable[[], Any]) -> None:
    asked: Any = SimpleNamespace(
        model=net, optimizer=optimizer, dataset=lambda start, stop: None, examples=lambda: 4
    )
    if isinstance(optimizer(), dict):
        asked.train_step = own
    else:
        asked.loss = keras.losses.mean_squared_error
    asked.dataset = lambda start, stop: tf.data.Dataset.from_tensor_slices(BATCH)
    strategy = tf.distribute.get_strategy()
    built = training_step.build_model(asked, strategy, 1)
    spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, BATCH)
    fresh, stale = [
        training_step.trace_step(
            asked, strategy, built._replace(max_staleness=limit), Staged(spec)
        ).get_concrete_function()
        for limit in (0, -1)
    ]

    fresh()
    before = values(built)
    with pytest.raises(tf.errors.InvalidArgumentError) as failed:
        stale()
    after = values(built)
    fresh()

    assert staleness.is_too_stale(failed.value)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert int(built.counters.step) == 2 and int(built.counters.applied) == 8
    assert not np.array_equal(before[0], values(built)[0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:2])
def test_only_operations_on_what_an_update_changes_wait_for_the_check(
    optimizer: Callable[[], Any],
) -> None:
    used, model = optimizer(), net()
    used.build(model.trainable_variables)
    counter = used._iterations.value.handle

    def step() -> None:
        gradients = [tf.ones(each.shape) for each in model.trainable_variables]
        with optimizers.apply_after(lambda _: tf.no_op("check"), [used]):
            used.apply(gradients, model.trainable_variables)

    graph = tf.function(step, autograph=False).get_concrete_function().graph
    operations = graph.get_operations()
    waiting = [each for each in operations if "check" in [one.name for one in each.control_inputs]]
    assigning = [each for each in operations if each.type.startswith("Assign")]
    counted, changed = graph.capture(counter), [each.inputs[0] for each in assigning]
    reading = [each for each in operations if each.type == "ReadVariableOp"]
    of_changed = [each for each in reading if any(each.inputs[0] is one for one in changed)]
    of_count = [each for each in reading if each.inputs[0] is counted]

    assert assigning and all(each in waiting for each in assigning)
    assert all((each in waiting) is (each not in of_count) for each in of_changed)
    assert all(any(one.dtype == tf.resource for one in each.inputs) for each in waiting)
