"""Tests of what an exact job refuses, and of its seeds and threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker import exactness
from shared.messages import Resources, RoleResources, Shuffle
from tests.trainer.builders import request


def graph_of(step: Any) -> Any:
    return tf.function(step).get_concrete_function().graph


def test_a_step_with_random_numbers_of_its_process_is_refused_by_name() -> None:
    def inner() -> tf.Tensor:
        return tf.random.uniform([2])

    program: Any = SimpleNamespace(model=lambda: None)
    stateless = graph_of(lambda: tf.random.stateless_uniform([2], (1, 2)))
    exactness.check_step(program, stateless)
    for step in (inner, lambda: tf.function(inner)()):
        with pytest.raises(BadProgram, match="uses RandomUniform, whose numbers depend on"):
            exactness.check_step(program, graph_of(step))


def test_a_loss_of_sampled_classes_is_refused_by_name() -> None:
    def loss() -> tf.Tensor:
        ones = tf.ones([8, 2])
        labels = tf.zeros([4, 1], tf.int64)
        return tf.nn.sampled_softmax_loss(ones, tf.ones([8]), labels, tf.ones([4, 2]), 2, 8)

    program: Any = SimpleNamespace(model=lambda: None)
    with pytest.raises(BadProgram, match="uses LogUniformCandidateSampler"):
        exactness.check_step(program, graph_of(loss))


def test_a_program_with_files_is_refused() -> None:
    program: Any = SimpleNamespace(files=lambda: [], read=lambda file: None)
    with pytest.raises(BadProgram, match=r"files\(\) cannot have `consistency: exact`"):
        exactness.check_program(program)


def test_examples_with_random_numbers_are_refused_by_name() -> None:
    def dataset(draw: Any) -> Any:
        def examples_between(start: int, stop: int) -> tf.data.Dataset:
            return tf.data.Dataset.range(start, stop).map(draw)

        return SimpleNamespace(examples=lambda: 5, dataset=examples_between)

    def random_by_number(number: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_uniform([2], tf.stack([number, 1]))

    exactness.check_examples(dataset(random_by_number))
    for draw in (lambda n: tf.random.uniform([2]), lambda n: tf.random.uniform([2], seed=1)):
        with pytest.raises(
            BadProgram, match=r"dataset\(\) gives another example \d when it is read"
        ):
            exactness.check_examples(dataset(draw))


def test_the_initial_weights_follow_the_seed_of_the_order() -> None:
    assert exactness.initial_seed(request()) is None
    assert exactness.initial_seed(request(consistency="exact")) == 0
    assert exactness.initial_seed(request(consistency="exact", shuffle=Shuffle(seed=7))) == 7


def test_the_threads_of_an_operation_follow_the_request_and_not_the_task() -> None:
    large = RoleResources(worker=Resources(cpu=4.0, memory_gib=1.0))
    asked = request(consistency="exact", resources=large)
    assert exactness.operation_threads(asked, "worker") == 4
    assert exactness.operation_threads(asked, "ps") == 1


def test_weights_that_a_program_makes_at_import_are_those_of_the_seed() -> None:
    def weight(seed: int) -> float:
        asked = request(consistency="exact", shuffle=Shuffle(seed=seed))
        exactness.set_initial_seed(asked)
        layer = keras.layers.Dense(1)
        layer.build((None, 1))
        return float(layer.kernel[0, 0])

    first, again, other = weight(1), weight(1), weight(2)
    assert first == again != other
