"""`python noise.py [NAME ...]`: measure the gradient noise of small programs as a worker does, and
offline.

For each program: train for some updates; then, at fixed weights, let the worker compare gradients,
and compute the gradient of each example of the epoch. It prints both noise scales as JSON, the
number of comparisons that the estimate took, and the variables that measuring changed.
"""

import json
import sys
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from services.trainer.worker import (
    input_pipeline,
    program_data,
    remote_worker,
    training_step,
)
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.input_pipeline import KEPT_SAMPLES, DataPlan
from services.trainer.worker.noise_estimate import NoiseEstimate
from services.trainer.worker.shard_ledger import Shard
from services.trainer.worker.watchdog import Watchdog
from tests.trainer.programs.servers import start_servers
from tests.zoo.programs import wide_and_deep

BATCH, MOST, PORTION = 64, 600, 8
VISITS = 3000  # the examples of `wide-and-deep`: fewer than it has
digits = load_digits()
images = (digits.images / 16.0).astype("float32")[..., None]
labels = digits.target.astype("int64")
layers = keras.layers
strategy, servers = start_servers(1)

DIMENSIONS, NOISE = 20, 2.0
_random = np.random.default_rng(3)
_points = _random.normal(size=(4096, DIMENSIONS)).astype("float32")
_values = _points @ _random.normal(size=(DIMENSIONS, 1)) + NOISE * _random.normal(size=(4096, 1))


def program_of(model, inputs, labels, loss, optimizer=lambda: keras.optimizers.SGD(0.02)):
    return SimpleNamespace(
        __file__=__file__,
        model=model,
        optimizer=optimizer,
        loss=loss,
        examples=lambda: len(labels),
        dataset=lambda numbers: tf.data.Dataset.from_tensor_slices(
            (inputs[numbers], labels[numbers])
        ),
    )


def convnet():
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def half_precision_convnet():
    """Return the same net in half precision."""
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        return convnet()
    finally:
        keras.mixed_precision.set_dtype_policy(policy)


def stateful():
    """Return a net with random numbers and moving averages."""
    dropped = [layers.Flatten(), layers.Dropout(0.3), layers.BatchNormalization()]
    return keras.Sequential([layers.Input((8, 8, 1)), *dropped, layers.Dense(10)])


def entropy(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def with_loss_scale():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.02))


def line():
    return keras.Sequential([layers.Input((DIMENSIONS,)), layers.Dense(1)])


PROGRAMS = {
    "line": (program_of(line, _points, _values, keras.losses.mean_squared_error), 20),
    "convnet": (program_of(convnet, images, labels, entropy), 150),
    "half-precision": (
        program_of(half_precision_convnet, images, labels, entropy, with_loss_scale),
        150,
    ),
    "wide-and-deep": (SimpleNamespace(**{**vars(wide_and_deep), "examples": lambda: VISITS}), 60),
}
STATES = program_of(stateful, images, labels, entropy, lambda: keras.optimizers.Adam(1e-3))


class Training:
    """One worker that trains a program, without a chief's lanes."""

    def __init__(self, program):
        self.built = training_step.build_model(program, strategy, 1, seed=5)
        self.program, self.examples = program, program.examples()
        self.spec = program_data.element_spec(program, self.built.model)
        order = ExampleOrder(self.examples, seed=1)
        self.plan = DataPlan(order, BATCH, noise_share=1.0)
        (self.worker,) = remote_worker.trace_workers(
            program, strategy, self.built, self.plan, self.spec, 1
        )
        self.worker.trace_comparison()
        input_pipeline._served.clear()
        input_pipeline.serve_portions(program, Watchdog(lambda _: None, 300.0, 300.0))
        self.position = self.unread = 0

    def stage(self):
        """Stage one batch."""
        if not self.unread:
            left = self.examples - self.position % self.examples  # of the epoch
            size = min(PORTION * BATCH, left)
            self.worker.push(self.plan.portion((Shard(self.position, self.position + size),)))
            self.position += size
            self.unread = -(-size // BATCH)
        if not self.worker.fetch(1, 0)[0].size:  # the end of the portion before
            self.worker.fetch(1, 0)
        self.unread -= 1

    def update(self):
        self.stage()
        self.worker.update(1, 1)

    def values(self):
        weights = [(v.path, v.value) for v in (*self.built.variables, self.built.random)]
        slots = [(v.path, v.value) for v in self.built.optimizer.variables]
        return {name: value.numpy() for name, value in (*weights, *slots)}


def offline(training):
    """Return the noise scale from the gradient of each example."""
    built, program = training.built, training.program

    @tf.function(input_signature=[training.spec])
    def gradient(batch):
        _, found = training_step.loss_and_gradients(program, built, batch, None)
        dense = [tf.reshape(tf.convert_to_tensor(each), [-1]) for each in found]
        return tf.cast(tf.concat(dense, 0), tf.float64)

    every = program.dataset(np.arange(training.examples)).batch(1)
    total, squares = 0.0, 0.0
    for batch in every:
        found = gradient(batch).numpy()
        total, squares = total + found, squares + np.sum(found**2)
    count = training.examples
    square = float(np.sum((total / count) ** 2))
    variance = (squares / count - square) * count / (count - 1)
    return variance / square


def measure_noise_scale(training):
    """Return the noise scale at fixed weights, and the number of comparisons."""
    estimate = NoiseEstimate(training.examples)
    for number in range(1, MOST + 1):
        for _ in range(KEPT_SAMPLES):
            training.stage()
        training.worker.drop_staged()
        estimate = estimate.add(training.worker.compare_gradients())
        if estimate.phi is not None:
            return estimate.phi, number
    return None, MOST


def compare_noise_scales(program, updates):
    training = Training(program)
    for _ in range(updates):
        training.update()
    phi, comparisons = measure_noise_scale(training)
    return {"measured": phi, "offline": float(offline(training)), "comparisons": comparisons}


def find_changed_variables():
    """Return the variables that a measurement changes, and whether an update changes others."""
    training = Training(STATES)
    for _ in range(KEPT_SAMPLES):
        training.update()
    before = training.values()
    found = training.worker.compare_gradients()
    after = training.values()
    training.update()
    later = training.values()
    return {
        "measured": found.square_norm_of_mean > 0.0,
        "by measuring": [name for name in before if not np.array_equal(before[name], after[name])],
        "by training": [name for name in before if not np.array_equal(before[name], later[name])],
    }


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    said = {"changed": find_changed_variables()}
    for name in sys.argv[1:] or PROGRAMS:
        program, updates = PROGRAMS[name]
        said[name] = compare_noise_scales(program, updates)
        print(name, said[name], file=sys.stderr, flush=True)
    print(json.dumps(said), flush=True)
