"""Tests of optimizers that do more than update, in whole jobs of real tasks; and of refusals.

`test_as_in_one_process.py` tests that updates are those of one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.pod.children import ForkServer
from services.trainer.program import BadProgram
from services.trainer.protocol import Finished, Resumed
from services.trainer.worker import optimizers, training_step
from shared.messages import Span
from tests.trainer.cradle import BATCH, Cradle

EXAMPLES = 640
PROGRAM = """
import time

import keras
import numpy as np
import tensorflow as tf


def model():
    layers = [keras.layers.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    return keras.Sequential(layers)


def loss(labels, outputs):
    if not tf.executing_eagerly():
        tf.debugging.assert_less_equal(tf.shape(labels)[0], {most}, "too many examples at once")
    return outputs  # its gradient is one, whatever the weights are


def examples():
    return {EXAMPLES}


def dataset(start, stop):
    time.sleep({wait_s})
    ones = np.ones((stop - start, 4), "float32")
    return tf.data.Dataset.from_tensor_slices((ones, ones[:, :1]))


def evaluation():
    return dataset(0, {most})


def metrics():
    return [keras.metrics.MeanAbsoluteError(name="miss")]


def optimizer():
    return {optimizer}
"""
ONE_WORKER = Span(start=1, min=1, max=4)


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer("chief")
    yield made
    made.close()


def text(optimizer: str, most: int = BATCH, wait_s: float = 0.0) -> str:
    return PROGRAM.format(optimizer=optimizer, most=most, wait_s=wait_s, EXAMPLES=EXAMPLES)


def finished(cradle: Cradle) -> Finished:
    (found,) = (word for word in cradle.said["chief"] if isinstance(word, Finished))
    return found


def weights(path: str) -> tuple[Any, Any]:
    """Return the weights of a checkpoint and their averages, as any Keras program reads them.

    The averages are zero if the checkpoint has none.
    """
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(use_ema=True)
    optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, optimizer=optimizer).read(path).expect_partial()
    return model.get_weights()[0], optimizer._model_variables_moving_average[0].numpy()


async def test_averaged_weights_are_applied_only_at_the_end(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    cradle = Cradle(fork_server, tmp_path, workers=2)
    cradle.saves_early = True
    await cradle.lives(
        text("keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)", wait_s=0.1)
    )

    early, last = cradle.saved()[0], cradle.saved()[-1]
    (weight, average), (final, final_average) = weights(early.path), weights(last.path)
    assert 0 < early.step < last.step == EXAMPLES // BATCH
    # Two workers have half the rate. Their first updates may come together, and both set the
    # average.
    assert np.allclose(weight, -0.25 * early.step), "training goes on from the weights themselves"
    assert np.all(weight <= average)
    assert np.array_equal(final, final_average) and np.all(final < average)
    assert finished(cradle).metrics["miss"] == pytest.approx(1.0 - float(final.sum()), rel=1e-4)


async def test_a_split_batch_is_one_update_of_a_scaled_schedule(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    """With two workers in place of one, each update has half the rate.

    2 sin(30 degrees) is half of the bound of one worker.
    """
    schedule = "keras.optimizers.schedules.PiecewiseConstantDecay([10_000], [0.5, 0.5])"
    asked = {
        "device_batch_max": 5,
        "batch": Span(start=BATCH, min=5, max=BATCH),
        "workers": ONE_WORKER,
    }
    cradle = Cradle(fork_server, tmp_path, asked, workers=2)
    await cradle.lives(text(f"keras.optimizers.SGD({schedule})", most=5))

    updates, said = EXAMPLES // BATCH, finished(cradle)
    assert (said.step, said.samples, said.counted) == (updates, EXAMPLES, EXAMPLES)
    assert weights(cradle.saved()[-1].path)[0] == pytest.approx(-updates * 0.5 * 0.5, rel=1e-4)
    (resumed,) = (word for word in cradle.said["chief"] if isinstance(word, Resumed))
    assert resumed.learning_rate is None


async def test_an_accumulated_update_counts_once_with_all_its_batches(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    asked = {"epochs": 2, "rate_with_workers": "keep"}
    cradle = Cradle(fork_server, tmp_path, asked, workers=2)
    await cradle.lives(text("keras.optimizers.SGD(0.5, gradient_accumulation_steps=8)"))

    said, updates = finished(cradle), 2 * EXAMPLES // BATCH // 8
    assert (said.step, said.samples, said.counted) == (updates, 2 * EXAMPLES, 2 * EXAMPLES)
    assert weights(cradle.saved()[-1].path)[0] == pytest.approx(-updates * 0.5, rel=1e-4)


def test_any_form_of_learning_rate_is_scaled() -> None:
    decay = keras.optimizers.schedules.ExponentialDecay(0.4, 10, 0.5)
    for rate, at_first, later in ((decay, 0.1, 0.05), (lambda: 0.4, 0.1, 0.1)):
        made = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate))
        optimizers.scale_schedules(made, 0.25)
        assert (
            optimizers.program_rates(made) == [None]
            and optimizers.set_rates(made, [None], 0.25) is None
        )
        assert float(made.learning_rate) == pytest.approx(at_first)
        made.inner_optimizer._iterations.assign(10)
        assert float(made.learning_rate) == pytest.approx(later)


def test_a_numeric_learning_rate_is_set_by_each_generation() -> None:
    made = keras.optimizers.SGD(0.4)
    rates = optimizers.program_rates(made)
    optimizers.scale_schedules(made, 0.5)

    assert [optimizers.set_rates(made, rates, share) for share in (0.5, 0.25)] == pytest.approx(
        [0.2, 0.1]
    )
    assert float(made.learning_rate) == pytest.approx(0.1)


def test_small_gradients_are_sent_together_and_stay_the_same() -> None:
    shapes = [(3, 2), (2,), (200, 200), (), (4, 2), (5,)]
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    variables[-1] = tf.Variable(tf.zeros([5], tf.float64))

    @tf.function(autograph=False)
    def pack() -> list[Any]:
        gradients: list[Any] = [
            tf.reshape(tf.range(float(variable.shape.num_elements())), variable.shape)
            for variable in variables[:-1]
        ]
        gradients[4] = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]), tf.constant([4, 2]))
        return optimizers.pack_gradients([*gradients, tf.ones([5], tf.float64)], variables)

    operations = pack.get_concrete_function().graph.get_operations()
    found = pack()

    assert [len(each.inputs) - 1 for each in operations if each.type == "ConcatV2"] == [3]
    for place, shape in enumerate(shapes[:4]):
        expected = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
        assert np.array_equal(found[place], expected)
    assert found[4].indices.numpy().tolist() == [3] and found[5].dtype == tf.float64


def test_gradients_are_sent_together_to_the_ps_of_their_variable() -> None:
    places = ["/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0"]
    variables: list[Any] = [SimpleNamespace(device=places[n % 2]) for n in range(4)]
    with tf.Graph().as_default():
        packed = optimizers.pack_gradients([tf.ones([3]) for _ in variables], variables)

    assert [each.device for each in packed] == [each.device for each in variables]
    sources = [each.op.inputs[0].op.inputs[0] for each in packed]
    assert [source.device for source in sources] == [""] * 4, "put together on the worker"
    assert sources[0] is not sources[1] and len({id(each) for each in sources}) == 2


@pytest.mark.parametrize("scaled", [False, True])
def test_two_workers_that_update_at_once_are_both_counted(scaled: bool) -> None:
    """Adding one is a single operation on the ps."""
    variable = keras.Variable([1.0])
    inner = keras.optimizers.Adam()
    made = keras.optimizers.LossScaleOptimizer(inner) if scaled else inner
    optimizers.build_optimizer(made, [variable])
    made.apply([tf.ones([1])], [variable])

    counting = tf.function(lambda: inner._iterations.assign_add(1)).get_concrete_function()
    types = [each.type for each in counting.graph.get_operations()]
    assert "AssignAddVariableOp" in types and "AssignVariableOp" not in types
    assert int(inner._iterations) == 1


def test_every_part_of_an_optimizer_counts_on_its_ps() -> None:
    mapped = keras.optimizers.OptimizerMap(keras.optimizers.Adam(), {"b.*": keras.optimizers.SGD()})
    several = keras.optimizers.MultiOptimizer(mapped)
    variables = [keras.Variable([1.0], name="a"), keras.Variable([1.0], name="b")]
    made = keras.optimizers.LossScaleOptimizer(several)
    optimizers.build_optimizer(made, variables)

    counters = [made._iterations, several._iterations]
    counters += [part._iterations for part in optimizers.optimizer_parts(made)]
    assert len(counters) == 4 and all("assign_add" in vars(each) for each in counters)


def test_overwriting_with_averages_is_refused_by_name() -> None:
    program: Any = SimpleNamespace(
        model=lambda: keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)]),
        optimizer=lambda: keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=10),
        loss=keras.losses.mean_squared_error,
    )
    with pytest.raises(
        BadProgram, match=r"optimizer\(\) sets ema_overwrite_frequency, which Weir does not support"
    ):
        training_step.build_model(program, tf.distribute.get_strategy(), 1)


def test_parts_that_accumulate_differently_are_refused() -> None:
    parts = {"dense.*": keras.optimizers.SGD(gradient_accumulation_steps=2)}
    mapped = keras.optimizers.OptimizerMap(keras.optimizers.Adam(), parts)
    layers = [keras.layers.Input((1,)), keras.layers.Dense(1), keras.layers.BatchNormalization()]
    program: Any = SimpleNamespace(
        model=lambda: keras.Sequential(layers),
        optimizer=lambda: keras.optimizers.MultiOptimizer(mapped),
        loss=keras.losses.mean_squared_error,
    )
    with pytest.raises(BadProgram, match="different gradient_accumulation_steps"):
        training_step.build_model(program, tf.distribute.get_strategy(), 1)
