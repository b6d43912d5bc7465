"""How good the model is on examples that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from services.trainer.feed import pairs
from services.trainer.program import has
from services.trainer.sought import sought
from services.trainer.watchdog import Watchdog

BATCH = 256
TRIED = 2  # examples, so that there is a batch of them


def metrics(program: ModuleType, trained: Any, dog: Watchdog) -> dict[str, float]:
    """The program's metrics and mean loss over its `evaluation()`; empty where it has none.

    The weights are copied to a plain model here, so that evaluating asks the ps once, not once a
    batch. What is no finite number is left out: JSON has none, and the loss of a model that
    diverged says no more.
    """
    return _measured(program, trained, dog) if has(program, "evaluation") else {}


def tried(program: ModuleType, dog: Watchdog) -> None:
    """Evaluate a few examples with fresh weights: what cannot be evaluated is to fail before hours
    of training.
    """
    if has(program, "evaluation"):
        _measured(program, None, dog, TRIED)


def _measured(program: ModuleType, trained: Any, dog: Watchdog, most: int = -1) -> dict[str, float]:
    """`trained`: the model whose weights are to be used; None: fresh ones. `most`: so many
    examples; -1: all.
    """
    with dog.limited("model()"):
        model = program.model()
    with dog.limited("metrics()"):
        chosen = program.metrics() if has(program, "metrics") else []
    mean = tf.keras.metrics.Mean(name="loss")
    for number, (inputs, labels) in enumerate(_batches(program, dog, most)):
        outputs = model(inputs, training=False)
        if number == 0 and trained is not None:
            model.set_weights(trained.get_weights())
            outputs = model(inputs, training=False)
        mean.update_state(program.loss(labels, outputs))
        for metric in chosen:
            metric.update_state(labels, outputs)
    found = {metric.name: float(metric.result()) for metric in (mean, *chosen)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _batches(program: ModuleType, dog: Watchdog, most: int) -> Iterator[Any]:
    """Batches of the program's; each, and what is made of it, has the limit's time."""
    with dog.limited("evaluation(), or a batch of it,") as inside:
        dataset = pairs(program.evaluation(), "evaluation()", program.evaluation)
        with sought(dataset, program.evaluation):
            for batch in dataset.take(most).batch(BATCH):
                inside.renew()
                yield batch
