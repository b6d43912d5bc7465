"""Tests of the process that tries a program: what it observes of examples, variables and step.

`tests/cli/test_doctor.py` tests the whole doctor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.doctor import examine
from services.trainer.doctor.observations import ExamineRequest, Observations
from services.trainer.worker import program_data

EXAMPLES, BATCH = 100, 8
Sample = Callable[[Callable[[int, int], Any]], Observations]


@pytest.fixture
def sample() -> Iterator[Sample]:
    """Return a function that samples a `dataset` function and returns the observations."""
    reads, writes = os.pipe()

    def sampled(dataset: Callable[[int, int], Any]) -> Observations:
        asked = ExamineRequest(program="mine.py", batch=BATCH, ps=1, shuffled=False)
        examiner = examine.Examiner(asked, writes)
        examiner.seen = Observations(examples=EXAMPLES)
        examiner._sample_examples(SimpleNamespace(dataset=dataset))  # type: ignore[arg-type]
        told = os.read(reads, 1 << 20)
        assert (
            told.endswith(b"\n")
            and msgspec.json.decode(told.splitlines()[-1], type=Observations) == examiner.seen
        )
        return examiner.seen

    yield sampled
    os.close(reads)
    os.close(writes)


def pairs(inputs: Any, labels: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((inputs, labels))


def plain(start: int, stop: int) -> Any:
    numbers = np.arange(start, stop)
    return pairs({"x": numbers[:, None] * [1.0, 2.0], "word": [f"w{n}" for n in numbers]}, numbers)


def test_an_example_has_the_same_digest_alone_and_in_a_batch(sample: Sample) -> None:
    seen = sample(plain)

    assert seen.together == seen.alone and len(seen.together) == 24 and seen.infinite == ()
    assert len(set(seen.together.values())) == 24 and {0, 50, 99} <= set(seen.together)
    assert seen.read_s is not None and seen.read_s > 0


def test_an_example_that_depends_on_its_batch_has_another_digest(sample: Sample) -> None:
    seen = sample(lambda start, stop: plain(start, stop).shuffle(BATCH, seed=1))

    assert any(seen.together[n] != seen.alone[n] for n in seen.together)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_is_found_in_its_example(sample: Sample, bad: float) -> None:
    def spoilt(start: int, stop: int) -> Any:
        numbers = np.arange(start, stop)
        return pairs(np.where(numbers == 97, bad, 1.0), numbers)

    assert sample(spoilt).infinite == (97,)


def one_hot(labels: Any) -> Any:
    return np.eye(10, dtype="float32")[labels]


BY_CLASS = np.arange(EXAMPLES) // 10
SHUFFLED = np.random.default_rng(1).permutation(BY_CLASS)


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [
        (BY_CLASS, True),
        (BY_CLASS[:, None], True),
        (one_hot(BY_CLASS), True),
        (BY_CLASS[::-1].astype("float32"), True),
        (BY_CLASS > 4, True),
        (SHUFFLED, False),
        (one_hot(SHUFFLED), False),
        (np.zeros(EXAMPLES), False),
        (np.stack([BY_CLASS, SHUFFLED], axis=1), False),
        (BY_CLASS.astype(str), False),
    ],
    ids=[
        "numbers",
        "column",
        "one-hot",
        "falling",
        "yes-no",
        "shuffled",
        "one-hot-shuffled",
        "one",
        "two",
        "text",
    ],
)
def test_sorted_labels_are_found_from_first_and_distant_batches(
    sample: Sample, labels: Any, ordered: bool
) -> None:
    assert (
        sample(lambda start, stop: pairs(np.arange(start, stop), labels[start:stop])).ordered
        is ordered
    )


def test_no_read_exceeds_the_device_batch() -> None:
    asked, reads = (
        ExamineRequest(program="mine.py", batch=BATCH, device_batch_max=3, ps=1),
        list[int](),
    )

    def noted(start: int, stop: int) -> Any:
        reads.append(stop - start)
        return plain(start, stop)

    examiner = examine.Examiner(asked, os.open(os.devnull, os.O_WRONLY))
    examiner.seen = Observations(examples=EXAMPLES)
    examiner._sample_examples(SimpleNamespace(dataset=noted))  # type: ignore[arg-type]

    assert max(reads) == 3


EXAMPLES_TEST_INSPECTING = 100


def test_the_digest_covers_type_and_shape() -> None:
    same = [
        np.zeros((1, 4), "int8"),
        np.zeros((1, 2, 2), "int8"),
        np.zeros((1, 1), "int32"),
        np.zeros((1, 2), "int16"),
    ]

    assert len({program_data.example_digest([part], 0) for part in same}) == 4


class Looked(keras.layers.Layer):
    """A layer that looks up rows of a table without reading all of it."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(50, 4), name="table")

    def call(self, ids: Any) -> Any:
        return tf.gather(self.table.value, ids)


def traced(layer: Any) -> tuple[Any, Any]:
    ids = keras.Input((3,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int32)])
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(batch, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return step.get_concrete_function(), model


def test_a_table_read_completely_is_distinguished_from_row_lookups() -> None:
    """If the first assertion fails, Keras looks up rows too.

    Then remove the advice, and `Rows` in the example.
    """
    function, model = traced(keras.layers.Embedding(50, 4))

    assert examine.variables_read_whole(function, model.variables) == [model.variables[0].path]
    function, looked = traced(Looked())
    assert examine.variables_read_whole(function, looked.variables) == []


def test_a_variable_without_a_gradient_is_noted_and_the_others_are_applied() -> None:
    used, idle = keras.Variable(1.0, name="used"), keras.Variable(1.0, name="idle")
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build([used, idle])
    names = examine.record_missing_gradients([optimizer])

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply_gradients(iter([(tf.constant(1.0), used), (None, idle)]))

    assert names == [idle.path] and float(used.value) == 0.5


def squared(labels: Any, outputs: Any) -> Any:
    return (labels - outputs) ** 2


LABELS, OUTPUTS = tf.range(8.0) / 4, tf.range(8.0)[:, None]


def test_a_pairwise_loss_is_detected() -> None:
    """Labels of shape (n,) and outputs of (n, 1) are broadcast to (n, n) without an error."""
    assert examine.pairwise_loss_shape(squared, LABELS, OUTPUTS, 8) == (8, 8)
    assert examine.pairwise_loss_shape(squared, LABELS[:, None], OUTPUTS, 8) == ()
    assert examine.pairwise_loss_shape(keras.losses.mean_squared_error, LABELS, OUTPUTS, 8) == ()
    assert examine.pairwise_loss_shape(squared, tf.zeros((8, 8)), tf.zeros((8, 8)), 8) == (), (
        "they are so themselves"
    )


def test_the_mean_of_a_pairwise_loss_is_detected_and_other_means_are_not() -> None:
    def mean(labels: Any, outputs: Any) -> Any:
        return tf.reduce_mean(squared(labels, outputs))

    assert examine.mean_hides_broadcast(mean, LABELS, OUTPUTS) and examine.mean_hides_broadcast(
        mean, LABELS[:, None], OUTPUTS[:, 0]
    )
    assert not examine.mean_hides_broadcast(mean, LABELS[:, None], OUTPUTS)
    assert not examine.mean_hides_broadcast(
        lambda labels, outputs: mean(labels, outputs[:, 0]), LABELS, OUTPUTS
    )
    assert not examine.mean_hides_broadcast(keras.losses.mean_squared_error, LABELS, OUTPUTS)
    assert not examine.mean_hides_broadcast(
        lambda labels, outputs: mean(labels[:, None], outputs), LABELS, OUTPUTS
    )


def test_the_range_of_a_single_output_is_returned() -> None:
    assert examine.output_range(OUTPUTS) == (0.0, 7.0)
    assert (
        examine.output_range([OUTPUTS, OUTPUTS]) is None
        and examine.output_range(OUTPUTS / 0.0) is None
    )
