"""`python as_in_one_process.py`: train small nets on parameter servers, and with `Model.fit`.

Three ps and two workers run in this process; most cases use one ps. It prints as
JSON, for each case, how far weights and optimizer state are from those of `Model.fit` after the
same batches in the same order, and for some the accuracy with two asynchronous workers.
"""

import json
import queue
import sys
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from services.trainer.worker import (
    input_pipeline,
    optimizers,
    program_data,
    remote_worker,
    shard_ledger,
    table_division,
    training_step,
)
from services.trainer.worker.checkpoint import Checkpoint
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.lanes import Lanes
from services.trainer.worker.sharded_table import ShardedTable, ps_variables
from services.trainer.worker.trace_lanes import trace_lanes
from services.trainer.worker.watchdog import Watchdog
from tests.trainer.programs.servers import start_servers

EXAMPLES, BATCH = 1408, 32
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
images = (digits.data[order] / 16.0).astype("float32")
labels = digits.target[order].astype("int64")
spoilt = images.copy()
spoilt[5 * BATCH + 3, 0] = np.inf  # one number of the sixth batch
words = (digits.data[order, :12]).astype("int64")
strategy, servers = start_servers(3, workers=2)
entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
fed = []


def net():
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)]
    )


def normalised():
    layers = keras.layers
    regularizer = keras.regularizers.L2(1e-3)
    dense = layers.Dense(32, activation="relu", kernel_regularizer=regularizer)
    return keras.Sequential(
        [layers.Input((64,)), dense, layers.BatchNormalization(), layers.Dense(10)]
    )


def embedded():
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((12,)), layers.Embedding(17, 8), layers.Flatten(), layers.Dense(10)]
    )


def divided():
    """Return the same net. Its table is divided among ps."""
    return embedded()


def numbers_of(variable):
    """Return the value of a variable, of a divided table that of all rows."""
    return np.concatenate([np.atleast_1d(each.numpy()) for each in ps_variables(variable)])


def halved():
    """Return a net that computes in float16. It has tanh and not relu: with relu, one rounded number
    decides whether a unit has a gradient at all, and after 44 updates weights are up to 8 % apart.
    """
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        layers = keras.layers
        dense = layers.Dense(32, activation="tanh")
        return keras.Sequential([layers.Input((64,)), dense, layers.Dense(10, dtype="float32")])
    finally:
        keras.mixed_precision.set_dtype_policy(policy)


class Crossed(keras.Model):
    """A model that creates its variables in another order than it lists them.

    Each new model has one variable more.
    """

    made = 0

    def __init__(self):
        super().__init__()
        Crossed.made += 1
        self.others = [tf.Variable(tf.zeros([900])) for _ in range(Crossed.made)]
        self.last = keras.layers.Dense(10)
        self.norm = keras.layers.BatchNormalization()
        self.small = keras.layers.Dense(24)
        self.large = keras.layers.Dense(200)
        self.table = keras.layers.Embedding(17, 600)

    def call(self, inputs, training=False):
        rows = self.large(tf.reduce_mean(self.table(inputs), axis=1))
        return self.last(self.norm(self.small(rows), training=training))


def placed():
    """Return the bytes of variables and of slots on each ps, and the bytes of each variable."""
    program = program_of(case_of(lambda: keras.optimizers.Adam(1e-2), Crossed, words))
    built = training_step.build_model(program, strategy, 3)
    held = {"model": [0, 0, 0], "optimizer": [0, 0, 0]}
    for name, part in (("model", built.model), ("optimizer", built.optimizer)):
        for variable in part.variables:
            task = tf.DeviceSpec.from_string(variable.value.device).task
            held[name][task] += 4 * int(np.prod(variable.shape))
    return {
        **held,
        "sizes": [4 * int(np.prod(v.shape)) for v in built.model.variables],
        "made": Crossed.made,
    }


def decaying(rate):
    return keras.optimizers.schedules.ExponentialDecay(rate, 20, 0.7)


class DenseClip(keras.optimizers.SGD):
    """SGD that clips the dense form of gradients. Keras alone would count each use of a row."""

    def _clip_gradients(self, grads):
        return super()._clip_gradients([tf.convert_to_tensor(each) for each in grads])


def program_of(case):
    inputs = case.inputs

    def dataset(start, stop):
        return tf.data.Dataset.from_tensor_slices((inputs[start:stop], labels[start:stop]))

    def loss(labels, outputs):
        if tf.reduce_any(
            labels < 0
        ):  # as in many programs: TensorFlow has to rewrite this function
            outputs = outputs * 0.0
        return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

    return SimpleNamespace(
        __file__=__file__,
        model=case.model,
        optimizer=case.optimizer,
        loss=loss,
        dataset=dataset,
        examples=None,
    )


def case_of(optimizer, model=net, inputs=images, most=None, share=1.0, fits=None, epochs=1):
    """Return a case. `fits` is another optimizer for `Model.fit`."""
    return SimpleNamespace(
        optimizer=optimizer,
        model=model,
        inputs=inputs,
        most=most,
        share=share,
        fits=fits or optimizer,
        epochs=epochs,
    )


def recording(fetch):
    """Return the same function, but with the size of each pass added to `fed`."""

    def fetch_and_record(passes, turn):
        staged = fetch(passes, turn)
        fed.extend(each.size for each in staged if each.size)
        return staged

    return fetch_and_record


def trained(case, workers, weights=None, ps=1, makes_updates_together=False):
    """Train as a chief does. Return the model with its optimizer, and the lanes."""
    program = getattr(case, "program", None) or program_of(case)
    input_pipeline.serve_portions(program, Watchdog(__file__, 60.0, 60.0))
    table_division.DIVIDED_BYTES = 1 if case.model is divided else 2**40
    built = training_step.build_model(program, strategy, ps)
    if weights is not None:
        built.model.set_weights(weights)
    optimizers.scale_schedules(built.optimizer, case.share)
    optimizers.set_rates(built.optimizer, optimizers.program_rates(built.optimizer), case.share)
    batches = optimizers.accumulated_batches(built.optimizer)
    plan = input_pipeline.DataPlan(ExampleOrder(EXAMPLES), BATCH, case.most, batches)
    spec = program_data.element_spec(program, built.model)
    parts = program, strategy, built, plan, spec, workers
    inbox = queue.Queue()
    if makes_updates_together:
        plan = plan._replace(example_bytes=program_data.READ_BYTES)  # an update in a round
        running = trace_lanes(program, strategy, built, plan, *parts[4:], inbox).lanes
    else:
        running = Lanes(remote_worker.trace_workers(*parts), plan, inbox)
    fed.clear()
    for lane in running._lanes:
        lane.worker.fetch = recording(lane.worker.fetch)
    running.start(shard_ledger.new_ledger(EXAMPLES, case.epochs), 0)
    while (word := inbox.get(timeout=120)) != "finished":
        if isinstance(word, Exception):
            raise word
    running.drain()
    with strategy.scope():
        optimizers.finalize_weights(built.optimizer)
    return built, running


def fitted(case):
    """Train with `Model.fit`. Return the model, and its initial weights."""
    model = case.model()
    model.compile(case.fits(), entropy)
    before = model.get_weights()
    model.fit(
        case.inputs[:EXAMPLES], labels[:EXAMPLES], BATCH, case.epochs, shuffle=False, verbose=0
    )
    return model, before


def not_accumulated(variable):
    """Return whether a variable is none of the accumulators, which stay zero: a divided table has a
    smaller one.
    """
    return "accumulator" not in variable.path


def apart(ours, theirs):
    """Return the largest difference of two lists of variables, relative to each one's maximum."""
    assert [v.shape for v in ours] == [v.shape for v in theirs]
    pairs = [
        (np.asarray(o, "float64"), np.asarray(t, "float64"))
        for o, t in zip(ours, theirs, strict=True)
    ]
    return max(float(np.abs(o - t).max() / max(np.abs(t).max(), 1e-6)) for o, t in pairs if t.size)


def accuracy(model, inputs):
    outputs = model(inputs[EXAMPLES:], training=False)
    return float(np.mean(np.argmax(outputs, -1) == labels[EXAMPLES:]))


def compared(case, workers=1, **fields):
    model, before = fitted(case)
    built, lanes = trained(case, workers, before, **fields)
    moved = apart([v.numpy() for v in model.variables], before)
    tables = [v for v in built.model.variables if isinstance(v, ShardedTable)]
    assert bool(tables) == (case.model is divided)
    scale = getattr(built.optimizer, "dynamic_scale", None)
    return {
        "weights": apart(
            [numbers_of(v) for v in built.model.variables],
            [numbers_of(v) for v in model.variables],
        ),
        "state": apart(
            [numbers_of(v) for v in built.optimizer.variables if not_accumulated(v)],
            [numbers_of(v) for v in model.optimizer.variables if not_accumulated(v)],
        ),
        "moved": moved,
        "updates": lanes.steps,
        "counted": [int(built.counters.step), int(built.counters.applied), lanes.ledger.applied],
        "largest": max(fed),
        "scale": None if scale is None else float(scale.numpy()),
        "saved": sorted(part.key for part in Checkpoint(built)._parts) if scale is not None else [],
    }


def compared_in_parts(case):
    """Train with two workers that make each update together."""
    return compared(case, 2, makes_updates_together=True)


def compared_in_parts_on_three_ps(case):
    return compared(case, 2, ps=3, makes_updates_together=True)


def together(case):
    """Train with two asynchronous workers, and in one process. Return the figures."""
    alone, _ = fitted(case)
    built, lanes = trained(case, 2)
    plain = case.model()
    plain.set_weights(built.model.get_weights())
    counted = [int(built.counters.step), int(built.counters.applied), lanes.ledger.applied]
    return {
        "accuracy": accuracy(plain, case.inputs),
        "alone": accuracy(alone, case.inputs),
        "updates": lanes.steps,
        "counted": counted,
        "largest": max(fed),
    }


o = keras.optimizers
EXACT = {
    "plain": case_of(lambda: o.SGD(0.1)),
    "loss-scale": case_of(lambda: o.LossScaleOptimizer(o.SGD(0.1), dynamic_growth_steps=20)),
    "loss-scale-factor": case_of(lambda: o.SGD(0.1, loss_scale_factor=1024.0)),
    "mixed-float16": case_of(lambda: o.SGD(0.1), halved),
    "not-finite": case_of(lambda: o.LossScaleOptimizer(o.SGD(0.1)), inputs=spoilt),
    "ema": case_of(lambda: o.Adam(1e-2, use_ema=True, ema_momentum=0.9)),
    "accumulation": case_of(lambda: o.Adam(decaying(1e-2), gradient_accumulation_steps=4)),
    "accumulation-ema": case_of(
        lambda: o.SGD(0.2, 0.9, use_ema=True, ema_momentum=0.9, gradient_accumulation_steps=4)
    ),
    "accumulated-rows": case_of(
        lambda: o.Adam(1e-2, gradient_accumulation_steps=2), embedded, words
    ),
    "ftrl-rows": case_of(lambda: o.Ftrl(0.1), embedded, words),
    "adadelta-rows": case_of(lambda: o.Adadelta(1.0), embedded, words),
    "accumulation-scaled": case_of(
        lambda: o.LossScaleOptimizer(
            o.SGD(0.2, gradient_accumulation_steps=2, clipnorm=0.5), dynamic_growth_steps=20
        )
    ),
    "device-rows": case_of(lambda: o.SGD(0.5), embedded, words, most=12),
    "divided": case_of(lambda: o.SGD(0.5), divided, words),
    "divided-passes": case_of(lambda: o.SGD(0.5), divided, words, most=12),
    "divided-accumulated": case_of(
        lambda: o.SGD(0.5, gradient_accumulation_steps=2), divided, words
    ),
    "divided-clipped": case_of(
        lambda: o.SGD(0.5, global_clipnorm=0.05),
        divided,
        words,
        fits=lambda: DenseClip(0.5, global_clipnorm=0.05),
    ),
    "divided-loss-scale": case_of(
        lambda: o.LossScaleOptimizer(o.SGD(0.5), dynamic_growth_steps=20), divided, words
    ),
    "regularized": case_of(lambda: o.Adam(1e-2, gradient_accumulation_steps=2), normalised),
    "clipnorm": case_of(lambda: o.SGD(0.5, clipnorm=0.05)),
    "weight-decay-accumulated": case_of(
        lambda: o.AdamW(1e-2, weight_decay=0.1, global_clipnorm=0.05, gradient_accumulation_steps=4)
    ),
    "schedule": case_of(
        lambda: o.SGD(decaying(0.4), 0.9), share=0.25, fits=lambda: o.SGD(decaying(0.1), 0.9)
    ),
    "several-optimizers": case_of(
        lambda: o.MultiOptimizer(o.OptimizerMap(o.SGD(0.4), {"dense.*": o.Adam(4e-2)})),
        share=0.25,
        fits=lambda: o.MultiOptimizer(o.OptimizerMap(o.SGD(0.1), {"dense.*": o.Adam(1e-2)})),
    ),
}
IN_PARTS = {name: case for name, case in EXACT.items() if case.model is not normalised}
TOGETHER = {
    "loss-scale": case_of(lambda: o.LossScaleOptimizer(o.SGD(0.1)), epochs=12),
    "ema": case_of(lambda: o.Adam(5e-3, use_ema=True, ema_momentum=0.95), epochs=8),
    "accumulation": case_of(
        lambda: o.Adam(5e-3, gradient_accumulation_steps=4), epochs=12, most=20
    ),
}

if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    keras.utils.set_random_seed(0)
    said = {"exact": {}, "in parts": {}, "on three ps": {}, "together": {}, "placed": placed()}
    for kind, cases, look in (
        ("exact", EXACT, compared),
        ("in parts", IN_PARTS, compared_in_parts),
        ("on three ps", IN_PARTS, compared_in_parts_on_three_ps),
        ("together", TOGETHER, together),
    ):
        for name, case in cases.items():
            said[kind][name] = look(case)
            print(
                kind, name, said[kind][name], file=sys.stderr, flush=True
            )  # shows where it is if it does not finish
    print(json.dumps(said), flush=True)
