"""The evaluation of a trained model, on the chief: the program's metrics and its mean loss.

The weights are copied to a plain model, so that the ps are read once and not once a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from services.trainer.program import has_function
from services.trainer.worker.program_data import check_pairs, locate_errors
from services.trainer.worker.watchdog import Watchdog

BATCH = 256
TRIED = 2  # examples: more than one, so that they are a batch


def evaluation_metrics(program: ModuleType, trained: Any, dog: Watchdog) -> dict[str, float]:
    """Return the program's metrics and mean loss over its `evaluation()`; empty if it has none.

    Values that are not finite are left out: JSON has none, and the loss of a diverged model says no
    more.
    """
    return _evaluate(program, trained, dog) if has_function(program, "evaluation") else {}


def try_evaluation(program: ModuleType, dog: Watchdog) -> None:
    """Evaluate a few examples with fresh weights, so that a broken evaluation fails before hours of
    training.
    """
    if has_function(program, "evaluation"):
        _evaluate(program, None, dog, TRIED)


def _evaluate(program: ModuleType, trained: Any, dog: Watchdog, most: int = -1) -> dict[str, float]:
    """`trained`: the model with the weights; None: fresh ones. `most`: number of examples; -1:
    all.
    """
    with dog.limit("model()"):
        model = program.model()
    with dog.limit("metrics()"):
        chosen = program.metrics() if has_function(program, "metrics") else []
    mean = tf.keras.metrics.Mean(name="loss")
    for number, (inputs, labels) in enumerate(_evaluation_batches(program, dog, most)):
        outputs = model(inputs, training=False)
        if number == 0 and trained is not None:
            model.set_weights(trained.get_weights())
            outputs = model(inputs, training=False)
        mean.update_state(program.loss(labels, outputs))
        for metric in chosen:
            metric.update_state(labels, outputs)
    found = {metric.name: float(metric.result()) for metric in (mean, *chosen)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _evaluation_batches(program: ModuleType, dog: Watchdog, most: int) -> Iterator[Any]:
    """Yield batches of `evaluation()`; each, with its use, has the limit's time."""
    with dog.limit("evaluation(), or a batch of it,") as inside:
        dataset = check_pairs(program.evaluation(), "evaluation()", program.evaluation)
        with locate_errors(dataset, program.evaluation):
            for batch in dataset.take(most).batch(BATCH):
                inside.renew()
                yield batch
