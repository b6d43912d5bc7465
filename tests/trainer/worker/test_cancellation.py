"""A function that fails in one thread does not cancel what another thread runs."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

from services.trainer.worker.chief import keep_cancellation_per_thread


@tf.function
def read_file(path: tf.Tensor) -> tf.Tensor:
    return tf.io.read_file(path)


def fail_to_read() -> None:
    with pytest.raises(tf.errors.NotFoundError):
        read_file(tf.constant("/nowhere"))


def test_a_function_that_fails_in_another_thread_does_not_cancel_the_manager_of_this_thread() -> (
    None
):
    keep_cancellation_per_thread()
    manager = cancellation.CancellationManager()
    with cancellation.CancellationManagerContext(manager):
        other = threading.Thread(target=fail_to_read)
        other.start()
        other.join()
    assert not manager.is_cancelled


def test_a_function_that_fails_in_this_thread_cancels_its_own_manager() -> None:
    keep_cancellation_per_thread()
    manager = cancellation.CancellationManager()
    with cancellation.CancellationManagerContext(manager):
        fail_to_read()
    assert manager.is_cancelled
    assert cancellation.context() is None
