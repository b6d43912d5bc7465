"""The evaluation of a trained model, on the chief: the program's metrics and its mean loss.

The weights are copied to plain models, so that the ps are read once and not once a batch. Divided
tables stay on the ps: the rows of each batch are looked up there.

    loss       of each batch of `evaluation()`, as in training and without what the model adds; the
               mean over the examples
    metrics()  a list, or a dict output name -> list; with the weights of the examples

A model that the program compiled gives its own metrics, as `Model.evaluate` does, besides those.
If there are several models, or if the metrics measure something else than `model(inputs)`, the
program defines it in `outputs(models, inputs)`.

The job's last event has numbers only: a vector becomes `name[0]`, `name[1]`, a dict `name/key`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from services.trainer.program import BadProgram, has_function
from services.trainer.worker import own_step, step_loss, training_step
from services.trainer.worker.program_data import (
    batches,
    check_elements,
    locate_errors,
    row_count,
)
from services.trainer.worker.sharded_table import ShardedTable
from services.trainer.worker.watchdog import Watchdog

BATCH = 256
TRIED = 2  # examples: more than one, so that they are a batch
LONGEST = 100  # numbers of one metric


def evaluation_metrics(program: ModuleType, trained: Any, dog: Watchdog) -> dict[str, float]:
    """Return the program's metrics and mean loss over its `evaluation()`; empty if it has none.

    `trained`: the model, or the dict of models, with the weights. Values that are not finite are
    left out: JSON has none, and a diverged model has no meaningful loss.
    """
    return _evaluate(program, trained, dog) if has_function(program, "evaluation") else {}


def try_evaluation(program: ModuleType, dog: Watchdog) -> None:
    """Evaluate a few examples with fresh weights, so that a broken evaluation fails before hours of
    training.
    """
    if has_function(program, "evaluation"):
        _evaluate(program, None, dog, TRIED)


def _evaluate(program: ModuleType, trained: Any, dog: Watchdog, most: int = -1) -> dict[str, float]:
    """Return the results of an evaluation. `trained` None: use fresh weights.

    `most`: maximum number of examples; -1: all.
    """
    with dog.limit("model()"):
        model, _ = training_step.model_without_rows(program, [])
    kind = own_step.training_kind(program, model)
    with dog.limit("metrics()"):
        chosen = program_metrics(program)
    if trained is not None:
        _copy_weights(trained, model)
    for metric in (each.metric for each in chosen):
        metric.reset_state()  # one that was made at import has counted what was tried before
    for each in training_step.all_models(model):
        each.reset_metrics()
    by_itself = kind in ("compiled", "model") and _evaluates_itself(model)
    has_loss = kind in ("loss", "program") and has_function(program, "loss")
    mean = keras.metrics.Mean(name="loss")
    found: dict[str, Any] = {}
    for batch in _evaluation_batches(program, dog, most):
        example = step_loss.split_batch(batch)
        if by_itself:
            found = model._get_metrics_result_or_logs(model.test_step(batch))
        if chosen or has_loss:
            outputs = _outputs(program, model, example.inputs)
            _update_metrics(program, chosen, model, example, outputs)
        if has_loss and example.labels is not None:
            loss = step_loss.mean_loss(program, example.labels, outputs, example.weights)
            mean.update_state(loss, sample_weight=row_count(batch))
    if has_loss:
        found = {"loss": mean.result()}
    return finite_numbers({**found, **{each.name: each.metric.result() for each in chosen}})


def _evaluates_itself(model: Any) -> bool:
    """Return whether a compiled model defines its loss in an evaluation."""
    own = ("test_step", "compute_loss")
    return model._compile_loss is not None or any(step_loss.is_overridden(model, m) for m in own)


def _copy_weights(trained: Any, model: Any) -> None:
    pairs = zip(_all_weights(trained), _all_weights(model), strict=True)
    for source, target in pairs:
        if isinstance(target, ShardedTable):
            target.shards = source.shards
        else:
            target.assign(source.numpy())


def _all_weights(model: Any) -> list[Any]:
    return [weight for each in training_step.all_models(model) for weight in each.weights]


def _outputs(program: ModuleType, model: Any, inputs: Any) -> Any:
    if has_function(program, "outputs"):
        return program.outputs(model, inputs)
    if isinstance(model, dict):
        raise BadProgram(
            "evaluation() has nothing to measure, because model() returned several models: write "
            "outputs(models, inputs), which returns what metrics() compare with the labels",
            program.model,
        )
    return model(inputs, training=False)


def _evaluation_batches(program: ModuleType, dog: Watchdog, most: int) -> Iterator[Any]:
    """Yield batches of `evaluation()`. The limit counts anew for each batch and its use."""
    with dog.limit("evaluation(), or a batch of it,") as inside:
        dataset = check_elements(program, program.evaluation(), "evaluation()", program.evaluation)
        with locate_errors(dataset, program.evaluation):
            for batch in batches(program, dataset.take(most), BATCH):
                inside.renew()
                yield batch


# ---------------------------------------------------------------- the program's metrics


class NamedMetric(NamedTuple):
    """A metric, its name in the results, and the output that it measures; None: all of them."""

    name: str
    metric: Any
    output: str | None = None


def program_metrics(program: ModuleType) -> list[NamedMetric]:
    """Return the metrics of `metrics()`. Raise `BadProgram` for anything else."""
    if not has_function(program, "metrics"):
        return []
    made = program.metrics()
    if isinstance(made, dict):
        found = []
        for output, metrics in made.items():
            for metric in metrics if isinstance(metrics, list | tuple) else [metrics]:
                _check_metric(program, metric)
                found.append(NamedMetric(f"{output}_{metric.name}", metric, str(output)))
        return found
    if not isinstance(made, list | tuple):
        raise BadProgram(
            f"metrics() returned {type(made)}; a list of Keras metrics is needed, or a dict from "
            "the name of an output to such a list",
            program.metrics,
        )
    for metric in made:
        _check_metric(program, metric)
    return [NamedMetric(metric.name, metric) for metric in made]


def _check_metric(program: ModuleType, metric: Any) -> None:
    if not isinstance(metric, keras.metrics.Metric):
        raise BadProgram(
            f"metrics() returned {metric!r}; an object of keras.metrics is needed", program.metrics
        )


def _update_metrics(
    program: ModuleType,
    chosen: list[NamedMetric],
    model: Any,
    example: step_loss.Example,
    outputs: Any,
) -> None:
    names = getattr(model, "output_names", None)
    for each in chosen:
        labels, found, weights = example.labels, outputs, example.weights
        if each.output is not None:
            pick = _OutputPicker(program, each.output, names)
            labels, found = pick(labels, "label"), pick(found, "output")
            weights = pick(weights, "weight") if tf.nest.is_nested(weights) else weights
        if weights is None:
            each.metric.update_state(labels, found)
        else:
            each.metric.update_state(labels, found, sample_weight=weights)


class _OutputPicker(NamedTuple):
    """Picks the part of labels and outputs that belongs to one output, by key or by its place."""

    program: ModuleType
    output: str
    names: list[str] | None

    def __call__(self, parts: Any, what: str) -> Any:
        if isinstance(parts, dict):
            known = list(parts)
            if self.output in parts:
                return parts[self.output]
        elif isinstance(parts, list | tuple) and self.names and len(parts) == len(self.names):
            known = self.names
            if self.output in known:
                return parts[known.index(self.output)]
        else:
            known = self.names or []
            if known == [self.output]:
                return parts
        raise BadProgram(
            f"metrics() names the output {self.output!r}, and there is no such {what}: known are "
            f"{', '.join(map(str, known)) or 'no names'}",
            self.program.metrics,
        )


def finite_numbers(results: Any, name: str = "") -> dict[str, float]:
    """Return results as numbers with a name each. Those that are not finite, and those of a vector
    beyond the first hundred, are left out.
    """
    if isinstance(results, dict):
        found: dict[str, float] = {}
        for key, value in results.items():
            found.update(finite_numbers(value, f"{name}/{key}" if name else str(key)))
        return found
    values = keras.ops.convert_to_numpy(results).astype("float64")
    if values.ndim == 0:
        return {name: float(values)} if math.isfinite(values) else {}
    numbered = {}
    for at, value in enumerate(values.reshape(-1)[:LONGEST].tolist()):
        if math.isfinite(value):
            numbered[f"{name}[{at}]"] = value
    return numbered
