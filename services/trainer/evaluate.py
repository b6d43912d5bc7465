"""How good the model is on examples that it was not trained on."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

BATCH = 256


def metrics(program: ModuleType, trained: Any) -> dict[str, float]:
    """The program's metrics and mean loss over its `evaluation()`; empty where it has none.

    The weights are copied to a plain model here, so that evaluating asks the ps once, not once a batch.
    """
    if not callable(getattr(program, "evaluation", None)):
        return {}
    model = program.model()
    chosen = program.metrics() if callable(getattr(program, "metrics", None)) else []
    mean = tf.keras.metrics.Mean(name="loss")
    for number, (inputs, labels) in enumerate(program.evaluation().batch(BATCH)):
        outputs = model(inputs, training=False)
        if number == 0:
            model.set_weights(trained.get_weights())
            outputs = model(inputs, training=False)
        mean.update_state(program.loss(labels, outputs))
        for metric in chosen:
            metric.update_state(labels, outputs)
    return {metric.name: float(metric.result()) for metric in (mean, *chosen)}
