"""Train a program of the zoo in one process, as in TensorFlow's guides, without Weir.

It uses `Model.fit`, or a plain loop for a program with a `train_step`.

    python -m tests.zoo.reference NAME FOLDER SEED... [--without-feature]

The program's data is written to FOLDER. Prints a line of JSON for each seed. Examples are shuffled
as `fit` shuffles arrays: all of them, again for each epoch.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tests.zoo.catalogue import FOLDER, ZOO, Entry

EVALUATED = 256
"""Examples in one batch of an evaluation, as in Weir: a metric may be a mean over batches."""


class Program:
    """The functions of a program, called with the parameters in their signatures."""

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        self.module, self.params = load_program(name), params

    def has(self, name: str) -> bool:
        return hasattr(self.module, name)

    def call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.module, name)
        taken = inspect.signature(function).parameters
        return function(*arguments, **{k: v for k, v in self.params.items() if k in taken})

    def function(self, name: str) -> Any:
        return lambda *arguments: self.call(name, *arguments)


def load_program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"zoo_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_data(name: str, folder: Path) -> None:
    """Write the files that a program reads, if it reads any."""
    program = Program(name, {})
    if program.has("write_data"):
        program.call("write_data", folder)


def run_reference(
    name: str, params: Mapping[str, Any], seed: int, shuffled: bool
) -> dict[str, Any]:
    """Train a program once. Return its metric before and after, the steps, and the time in s."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(seed)
    entry, program = ZOO[name], Program(name, params)
    began = time.monotonic()
    models = program.call("model")
    untrained = evaluate(program, models, entry)
    batches = training_batches(program, entry, seed, shuffled)
    if program.has("train_step"):
        steps = run_loop(program, models, batches, entry.epochs)
    else:
        steps = run_fit(program, models, batches, entry.epochs)
    metric = evaluate(program, models, entry)
    seconds = time.monotonic() - began
    return {
        "seed": seed,
        "untrained": untrained,
        "metric": metric,
        "steps": steps,
        "seconds": round(seconds, 1),
    }


# ---------------------------------------------------------------- data


def training_batches(program: Program, entry: Entry, seed: int, shuffled: bool) -> Any:
    examples = all_examples(program)
    count = int(examples.reduce(0, lambda counted, *_: counted + 1))
    examples = examples.cache()
    if shuffled:
        examples = examples.shuffle(count, seed=seed, reshuffle_each_iteration=True)
    return batch_examples(program, examples, entry.batch).prefetch(2)


def all_examples(program: Program) -> Any:
    if program.has("files"):
        whole, *others = [program.call("read", file) for file in program.call("files")]
        for each in others:
            whole = whole.concatenate(each)
        return whole
    count = program.call("examples")
    by_number = "numbers" in inspect.signature(program.module.dataset).parameters
    return program.call("dataset", *([np.arange(count)] if by_number else [0, count]))


def batch_examples(program: Program, examples: Any, size: int) -> Any:
    if program.has("batched"):
        return program.call("batched", examples, size)
    return examples.batch(size)


# ---------------------------------------------------------------- training


def run_fit(program: Program, model: Any, batches: Any, epochs: int) -> int:
    if not model.compiled:
        model.compile(optimizer=program.call("optimizer"), loss=program.function("loss"))
    model.fit(batches, epochs=epochs, verbose=0)
    return int(model.optimizer.iterations)


def run_loop(program: Program, models: Any, batches: Any, epochs: int) -> int:
    optimizers = program.call("optimizer")
    if isinstance(optimizers, dict):
        for name, optimizer in optimizers.items():
            optimizer.build(models[name].trainable_variables)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(batch: Any) -> Any:
        return program.call("train_step", models, optimizers, batch)

    steps = 0
    for _ in range(epochs):
        for batch in batches:
            step(batch)
            steps += 1
    return steps


# ---------------------------------------------------------------- evaluation


def evaluate(program: Program, models: Any, entry: Entry) -> float:
    """Return the program's metric on its evaluation data."""
    metrics = program.call("metrics")
    for batch in batch_examples(program, program.call("evaluation"), EVALUATED):
        inputs, labels = batch
        outputs = model_outputs(program, models, inputs)
        for metric, name in named_metrics(metrics):
            if name:
                metric.update_state(labels[name], outputs[name])
            else:
                metric.update_state(labels, outputs)
    results = {
        f"{name}_{metric.name}" if name else metric.name: float(metric.result())
        for metric, name in named_metrics(metrics)
    }
    return results[entry.metric]


def model_outputs(program: Program, models: Any, inputs: Any) -> Any:
    if program.has("outputs"):
        return program.call("outputs", models, inputs)
    return models(inputs, training=False)


def named_metrics(metrics: Any) -> list[tuple[Any, str]]:
    """Return each metric with the name of its output, or with an empty name for the whole model."""
    if isinstance(metrics, dict):
        return [(metric, name) for name, some in metrics.items() for metric in some]
    return [(metric, "") for metric in metrics]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(ZOO))
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--without-feature", action="store_true")
    chosen = parser.parse_args()
    write_data(chosen.name, chosen.folder)
    spoilt, by_order = chosen.without_feature, ZOO[chosen.name].shuffled
    params: dict[str, Any] = {"folder": str(chosen.folder)}
    if spoilt and not by_order:
        params["feature"] = False
    for seed in chosen.seeds:
        found = run_reference(chosen.name, params, seed, shuffled=not (spoilt and by_order))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
