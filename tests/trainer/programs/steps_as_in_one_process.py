"""`python steps_as_in_one_process.py`: train with each form of a step on ps and in one process.

On ps it trains with one worker, and with two that make each update together (`global-batch`).
In one process it trains with `Model.fit` or a plain loop. It prints as JSON, for each case, how far
the variables (weights, averages, states of random numbers) and the optimizers are from those of one
process, after the same batches in the same order. Both begin with the same weights, because all
initial values have seeds.
"""

import json
import sys
import tempfile
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker import evaluation, optimizers, training_step
from services.trainer.worker.checkpoint import Checkpoint
from services.trainer.worker.watchdog import Watchdog
from tests.trainer.programs.as_in_one_process import (
    BATCH,
    EXAMPLES,
    apart,
    case_of,
    decaying,
    digits,
    images,
    labels,
    trained,
    words,
)

layers, o = keras.layers, keras.optimizers
weights = np.random.default_rng(1).random(len(labels)).astype("float32") * 3.0
ink = images.mean(axis=1, keepdims=True)
sequences = (digits.data[np.random.default_rng(0).permutation(len(labels)), :12] // 3).astype(
    "int64"
)
tokens = np.char.add("w", words[:, :4].astype(str))
DOG = Watchdog(__file__, 60.0, 60.0)


def seeded():
    return keras.initializers.GlorotUniform(seed=3)


def dense(*args, **fields):
    return layers.Dense(*args, kernel_initializer=seeded(), **fields)


def entropy(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def program(elements, **functions):
    def dataset(start, stop):
        part = tf.nest.map_structure(lambda array: array[start:stop], elements)
        return tf.data.Dataset.from_tensor_slices(part)

    def evaluated():
        part = tf.nest.map_structure(lambda array: array[EXAMPLES:], elements)
        return tf.data.Dataset.from_tensor_slices(part)

    made = {"evaluation": evaluated, "dataset": dataset, "elements": elements, **functions}
    return SimpleNamespace(__file__=__file__, examples=lambda: EXAMPLES, **made)


def small():
    return keras.Sequential([layers.Input((64,)), dense(32, activation="relu"), dense(10)])


def with_dropout():
    hidden = dense(32, activation="relu")
    parts = [hidden, layers.BatchNormalization(), layers.Dropout(0.3, seed=5), dense(10)]
    return keras.Sequential([layers.Input((64,)), *parts])


def masked():
    table = layers.Embedding(17, 8, mask_zero=True, embeddings_initializer=seeded())
    return keras.Sequential([layers.Input((12,)), table, dense(10)])


def looked_up():
    lookup = layers.StringLookup()
    lookup.adapt(tokens)
    table = layers.Embedding(20, 8, embeddings_initializer=seeded())
    inputs = layers.Input((4,), dtype="string")
    return keras.Model(inputs, dense(10)(layers.Flatten()(table(lookup(inputs)))))


def two_outputs(**fields):
    inputs = {"image": keras.Input((64,), name="image"), "ink": keras.Input((1,), name="ink")}
    hidden = dense(32, activation="relu")(layers.Concatenate()(list(inputs.values())))
    outputs = {"digit": dense(10, name="digit")(hidden), "amount": dense(1, name="amount")(hidden)}
    made = keras.Model(inputs, outputs)
    made.compile(
        o.Adam(1e-2, **fields),
        loss={
            "digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "amount": "mse",
        },
        loss_weights={"digit": 1.0, "amount": 3.0},
        metrics={"digit": ["accuracy"], "amount": ["mae"]},
    )
    return made


TWO = ({"image": images, "ink": ink}, {"digit": labels, "amount": ink})


@keras.saving.register_keras_serializable()
class OwnLoss(keras.Model):
    """A model with its own `compute_loss`, which counts the loss in its own metric."""

    def __init__(self):
        super().__init__()
        self.first, self.last = dense(32, activation="relu"), dense(10)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, inputs):
        return self.last(self.first(inputs))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        each = entropy(y, y_pred) + 1e-2 * tf.reduce_sum(y_pred**2, axis=-1)
        self.seen.update_state(each)
        return tf.reduce_mean(each)


def own_loss():
    made = OwnLoss()
    made.compile(o.SGD(0.1))
    return made


class OwnStep(keras.Model):
    """A model with its own `train_step` and two optimizers, as in the guides of Keras."""

    def __init__(self):
        super().__init__()
        self.first, self.last = dense(32, activation="relu"), dense(10)
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.last(self.first(inputs))

    def compile(self, first, last):
        super().compile(optimizer=first)
        self.second = last

    def train_step(self, data):
        inputs, labels = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(entropy(labels, self(inputs, training=True)))
        for part, optimizer in ((self.first, self.optimizer), (self.last, self.second)):
            found = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, found), found, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def own_step():
    made = OwnStep()
    made.compile(o.SGD(0.1), o.Adam(1e-2))
    return made


def pair():
    return {"student": small(), "follower": small()}


def pair_optimizers():
    return {"head": o.Adam(decaying(1e-2), use_ema=True, ema_momentum=0.9), "body": o.SGD(0.1)}


pair_metrics = {"loss": keras.metrics.Mean()}


def pair_step(models, optimizers, batch):
    """Train with two learning rates; a second model follows the first. A metric of the program has
    the loss of the batch.
    """
    student, follower = models["student"], models["follower"]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(entropy(batch["label"], student(batch["image"], training=True)))
    found = student.trainable_variables
    gradients = tape.gradient(loss, found)
    optimizers["body"].apply_gradients(zip(gradients[:2], found[:2], strict=True))
    optimizers["head"].apply_gradients(zip(gradients[2:], found[2:], strict=True))
    for behind, ahead in zip(follower.variables, student.variables, strict=True):
        behind.assign(0.9 * behind + 0.1 * ahead)
    pair_metrics["loss"].reset_state()
    pair_metrics["loss"].update_state(loss)
    return {"loss": pair_metrics["loss"].result(), "least": tf.reduce_min(gradients[0])}


class Stretched(keras.Model):
    """A model with a weight that Keras does not count as trainable; a step of its own trains it."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = dense(32, activation="relu"), dense(10)
        self.stretch = self.add_weight(shape=(10,), initializer="ones", trainable=False)

    def call(self, inputs):
        return self.last(self.hidden(inputs)) * self.stretch


def model_with_stretch():
    made = Stretched()
    made(images[:1])
    return made


def stretched_step(model, optimizer, batch):
    found = [*model.trainable_variables, model.stretch]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(entropy(batch[1], model(batch[0], training=True)))
    optimizer.apply_gradients(zip(tape.gradient(loss, found), found, strict=True))
    return {"loss": loss}


def scaled_step(model, optimizer, batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(entropy(batch[1], model(batch[0], training=True)))
        scaled = optimizer.scale_loss(loss)
    found = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(scaled, found), found, strict=True))
    return {"loss": loss}


def compiled(make, loss=None, **fields):
    def model():
        made = make()
        made.compile(o.SGD(0.1, momentum=0.9, **fields), loss or entropy, metrics=["accuracy"])
        return made

    return model


def plain(make):
    return {"model": make, "optimizer": lambda: o.SGD(0.1, momentum=0.9), "loss": entropy}


def accuracy():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


FITTED = {
    "weights": program((images, labels, weights), **plain(small), metrics=accuracy),
    "mask": program((words, sequences % 10), **plain(masked)),
    "dropout": program((images, labels), **plain(with_dropout)),
    "lookup": program((tokens, labels), **plain(looked_up)),
    "compiled": program((images, labels, weights), model=compiled(small)),
    "compiled-passes": program(
        (images, labels, weights), model=compiled(small, gradient_accumulation_steps=2)
    ),
    "compiled-outputs": program(TWO, model=two_outputs),
    "compute-loss": program((images, labels), model=own_loss),
    "train-step": program((images, labels), model=own_step),
}
LOOPED = {
    "several-models": program(
        {"image": images, "label": labels},
        model=pair,
        optimizer=pair_optimizers,
        train_step=tf.function(pair_step),
        pair_metrics=pair_metrics,
    ),
    "not-trainable": program(
        (images, labels),
        model=model_with_stretch,
        optimizer=lambda: o.SGD(0.1, momentum=0.9),
        train_step=stretched_step,
    ),
    "scaled-loss": program(
        (images, labels),
        model=small,
        optimizer=lambda: o.LossScaleOptimizer(o.SGD(0.1), dynamic_growth_steps=20),
        train_step=scaled_step,
    ),
}
AT_IMPORT = ("dropout", "compiled-outputs", "several-models", "scaled-loss")
"""Cases that are tried with models and optimizers that are made before the ps are known, too."""
PASSES = {"compiled-passes": 2}
CUT = {"compiled": 12}


def fitted(program):
    """Return the model after `Model.fit`, its optimizers, the loss and the metrics."""
    model = program.model()
    if not model.compiled:
        model.compile(program.optimizer(), program.loss)
    dataset = tf.data.Dataset.from_tensor_slices(program.elements).take(EXAMPLES).batch(BATCH)
    history = model.fit(dataset, verbose=0)
    extra = [model.second] if hasattr(model, "second") else []
    measured = program.evaluation().batch(256)
    metrics = {} if extra else model.evaluate(measured, verbose=0, return_dict=True)
    return model, [model.optimizer, *extra], history.history["loss"][0], metrics


def looped(program):
    """Return the models after a plain loop, their optimizers and the mean loss."""
    model, optimizer = program.model(), program.optimizer()
    plain = getattr(program.train_step, "python_function", program.train_step)
    step = tf.function(lambda batch: plain(model, optimizer, batch)["loss"])
    losses = []
    dataset = tf.data.Dataset.from_tensor_slices(program.elements).take(EXAMPLES).batch(BATCH)
    for batch in dataset:
        losses.append(float(step(batch)))
    for each in optimizers.all_optimizers(optimizer):
        each.finalize_variable_values(each._trainable_variables)
    return model, optimizers.all_optimizers(optimizer), float(np.mean(losses)), {}


def values(parts):
    return [variable.numpy() for part in parts for variable in part.variables]


def made_at_import(program):
    """Return the program as if it made its models and optimizers when it is imported."""
    made = {
        name: getattr(program, name)() for name in ("model", "optimizer") if hasattr(program, name)
    }
    functions = {name: lambda each=each: each for name, each in made.items()}
    return SimpleNamespace(**{**vars(program), **functions})


def compared(name, program, by, **fields):
    alone, used, loss, metrics = by(program)
    case = case_of(None, most=CUT.get(name))
    case.program = made_at_import(program) if fields.pop("at_import", False) else program
    built, lanes = trained(case, **{"workers": 1, **fields})
    ours, theirs = built.models, training_step.all_models(alone)
    assert [v.path for m in ours for v in m.variables], "it has variables"
    measured = {}
    if not isinstance(built.model, dict):
        evaluation.try_evaluation(case.program, DOG)
        measured = evaluation.evaluation_metrics(case.program, built.model, DOG)
    return {
        "weights": apart(values(ours), values(theirs)),
        "state": apart(values(optimizers.all_optimizers(built.optimizer)), values(used)),
        "lanes": type(lanes).__name__,
        "updates": lanes.steps,
        "counted": [int(built.counters.step), int(built.counters.applied), lanes.ledger.applied],
        "loss": [lanes.take_losses()[0], loss],
        "metrics": [measured, {key: float(value) for key, value in metrics.items()}],
    }


# ---------------------------------------------------------------- checkpoints, and what is refused

table = tf.lookup.experimental.MutableHashTable("string", "int64", 0)
outside = keras.Variable(1.0)


class Counts(layers.Layer):
    def call(self, words):
        return tf.ensure_shape(tf.cast(table.lookup(words), "float32"), (None, 4))


def counted_words():
    return keras.Sequential([layers.Input((4,), dtype="string"), Counts(), dense(10)])


def scaled_outside(labels, outputs):
    return entropy(labels, outputs * outside)


def seldom_step(model, optimizer, batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(entropy(batch[1], model(batch[0], training=True)))
    found = model.trainable_variables
    gradients = tape.gradient(loss, found)
    if loss > 1.0:
        optimizer.apply_gradients(zip(gradients, found, strict=True))
    return {"loss": loss}


REFUSED = {
    "condition": program((images, labels), model=small, optimizer=o.SGD, train_step=seldom_step),
    "table": program((tokens, labels), **plain(counted_words)),
    "variable": program((images, labels), **{**plain(small), "loss": scaled_outside}),
}


def refused(asked):
    """Return the reason why a step cannot be traced, and the line."""
    case = case_of(None)
    case.program = asked
    try:
        trained(case, 1)
    except BadProgram as error:
        return [str(error), error.line]
    return ["", 0]


def restored(asked, folder):
    """Return the names of the variables that a new and an older checkpoint restore, and of all.

    The older checkpoint has no states of random numbers. Both are of a trained model.
    """
    case = case_of(None)
    case.program = asked
    built, lanes = trained(case, 1)
    checkpoint = Checkpoint(built)
    checkpoint.write(f"{folder}/new", lanes.ledger)
    older = tf.train.Checkpoint(model=built.model, optimizer=built.optimizer, meter=built.counters)
    older.write(f"{folder}/old")
    before = {v.path: v.numpy() for v in built.variables}
    found = []
    for name in ("new", "old"):
        for variable in built.variables:
            variable.assign(tf.zeros_like(variable.value))
        checkpoint.read(f"{folder}/{name}")
        now = {v.path: v.numpy() for v in built.variables}
        found.append(sorted(path for path in now if np.array_equal(now[path], before[path])))
    return [*found, sorted(before)]


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    chosen = sys.argv[1:] or [*FITTED, *LOOPED]
    said = {}
    for name in chosen:
        cases, by = (FITTED, fitted) if name in FITTED else (LOOPED, looped)
        said[name] = compared(name, cases[name], by)
        print(name, said[name], file=sys.stderr, flush=True)
        together = compared(name, cases[name], by, workers=2, ps=3, makes_updates_together=True)
        said[f"{name} together"] = together
        print(name, "together", together, file=sys.stderr, flush=True)
        if name in AT_IMPORT:
            early = compared(name, cases[name], by, ps=3, at_import=True)
            said[f"{name} at import"] = early
            print(name, "at import", early, file=sys.stderr, flush=True)
    if not sys.argv[1:]:
        said["refused"] = {name: refused(asked) for name, asked in REFUSED.items()}
        with tempfile.TemporaryDirectory() as folder:
            both = ("dropout", "lookup")
            said["restored"] = {name: restored(FITTED[name], f"{folder}/{name}") for name in both}
    print(json.dumps(said), flush=True)
