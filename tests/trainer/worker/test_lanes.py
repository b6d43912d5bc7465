"""Lanes: what a reader meets when the worker that holds its value is gone."""

import itertools
import queue
import threading
import time
from collections.abc import Iterator

import pytest
import tensorflow as tf

from services.trainer.worker import shard_ledger
from services.trainer.worker.lanes import Lanes, fetch_loss
from services.trainer.worker.shard_ledger import Shard


def gone() -> tf.errors.UnavailableError:
    return tf.errors.UnavailableError(None, None, "Connection reset by peer")


class Value:
    """As TensorFlow's: raises what it is given, then gives the number."""

    def __init__(self, words: Iterator[Exception | float]) -> None:
        self.words = words

    def fetch(self) -> float:
        word = next(self.words)
        if isinstance(word, Exception):
            raise word
        return word


def test_a_value_lost_with_its_worker_is_fetched_again() -> None:
    assert fetch_loss(Value(iter([gone(), gone(), 0.5]))) == 0.5


@pytest.mark.parametrize("first", [[], [gone()]])
def test_an_error_of_the_coordinator_is_raised(first: list[Exception]) -> None:
    error = gone()
    with pytest.raises(tf.errors.UnavailableError) as raised:
        fetch_loss(Value(itertools.chain(first, itertools.repeat(error))))
    assert raised.value is error


def test_a_cancelled_batch_is_raised_at_once() -> None:
    with pytest.raises(tf.errors.CancelledError):
        fetch_loss(Value(iter([tf.errors.CancelledError(None, None, "another one failed")])))


class Coordinator:
    """Every second batch loses its worker once."""

    def __init__(self) -> None:
        self.scheduled = 0

    def schedule(self, fn: object, args: object = None) -> Value:
        self.scheduled += 1
        return Value(iter([gone(), 1.0] if self.scheduled % 2 else [1.0]))


def test_lanes_survive_lost_workers_and_count_every_batch_once() -> None:
    inbox: queue.Queue[object] = queue.Queue()
    coordinator = Coordinator()
    lanes = Lanes(coordinator, None, 16, 2, inbox)
    lanes.start(shard_ledger.new_ledger(64, 3), 0)
    words = [inbox.get(timeout=60), inbox.get(timeout=60)]
    lanes.drain()
    assert words == ["first", "finished"]
    assert lanes.ledger.applied == 192 and lanes.steps == coordinator.scheduled == 12


class Never:
    """A batch whose worker is dead. `waited_for`: released once for each that somebody waits
    for.
    """

    def __init__(self, waited_for: threading.Semaphore) -> None:
        self.waited_for = waited_for

    def fetch(self) -> float:
        self.waited_for.release()
        threading.Event().wait()
        raise AssertionError


class Deserted:
    """Two batches come home, then the last worker dies."""

    def __init__(self) -> None:
        self.left, self.lost = itertools.count(), threading.Semaphore(0)

    def schedule(self, fn: object, args: object = None) -> Value | Never:
        return Value(iter([1.0])) if next(self.left) < 2 else Never(self.lost)


def test_a_drain_without_workers_ends_with_batches_in_flight() -> None:
    coordinator = Deserted()
    lanes = Lanes(coordinator, None, 16, 2, queue.Queue())
    lanes.start(shard_ledger.new_ledger(64, 3), 0)
    for _ in range(2):
        assert coordinator.lost.acquire(timeout=10), "a lane does not wait for its batch"
    assert (lanes.steps, len(lanes.ledger.given)) == (2, 2)
    lanes.no_worker_left = lambda: True

    lanes.drain()

    assert shard_ledger.settle_ledger(lanes.ledger).applied == 32 == 16 * lanes.steps
    with pytest.raises(tf.errors.UnavailableError):
        lanes.start(shard_ledger.settle_ledger(lanes.ledger), lanes.steps)


class Listening:
    """Notes what it is given, and does it; from the `until`-th update on it does nothing any
    more.
    """

    def __init__(self, until: int = 1000) -> None:
        self.until, self.asked = until, list[list[tuple[int, int, float]]]()

    def schedule(self, fn: object, args: object = None) -> Value | Never:
        assert isinstance(args, tuple)
        self.asked.append(list(zip(*(each.numpy().tolist() for each in args), strict=True)))
        return Value(iter([1.0])) if len(self.asked) < self.until else Never()


def test_accumulated_batches_are_one_update_and_so_is_the_rest_at_the_end() -> None:
    inbox: queue.Queue[object] = queue.Queue()
    coordinator = Listening()
    lanes = Lanes(coordinator, None, 16, 1, inbox, accumulated=3)
    lanes.start(shard_ledger.new_ledger(40, 2), 0)
    words = [inbox.get(timeout=60), inbox.get(timeout=60)]
    lanes.drain()

    assert words == ["first", "finished"]
    spans = [[(start, stop) for start, stop, _ in update] for update in coordinator.asked]
    assert spans == [[(0, 16), (16, 32), (32, 40)]] * 2
    assert lanes.steps == 2 and lanes.ledger.applied == 80


def test_accumulated_but_unapplied_batches_are_redone() -> None:
    lanes = Lanes(Listening(until=2), None, 16, 1, queue.Queue(), accumulated=3)
    lanes.start(shard_ledger.new_ledger(64, 3), 0)
    while lanes.steps < 1 or len(lanes.ledger.given) < 3:
        time.sleep(0.01)
    lanes.no_worker_left = lambda: True

    lanes.drain()

    assert shard_ledger.settle_ledger(lanes.ledger).applied == 48 and lanes.ledger.applied == 48


def test_no_pass_exceeds_the_device_batch() -> None:
    inbox: queue.Queue[object] = queue.Queue()
    coordinator = Listening()
    lanes = Lanes(coordinator, None, 16, 1, inbox, device_batch_max=6)
    lanes.start(shard_ledger.new_ledger(16, 1), 0)
    assert [inbox.get(timeout=60), inbox.get(timeout=60)] == ["first", "finished"]

    assert coordinator.asked == [[(0, 6, 0.375), (6, 12, 0.375), (12, 16, 0.25)]]
    assert lanes.steps == 1


class Held:
    """A batch that is applied once it is released."""

    def __init__(self) -> None:
        self.waited_for, self.released = threading.Event(), threading.Event()

    def fetch(self) -> float:
        self.waited_for.set()
        assert self.released.wait(60)
        return 1.0


class Slow:
    """Applies no batch before it is told to. `out`: the batches, in order."""

    def __init__(self) -> None:
        self.out: queue.Queue[Held] = queue.Queue()

    def schedule(self, fn: object, args: object = None) -> Held:
        self.out.put(batch := Held())
        return batch


def test_a_batch_is_counted_when_it_is_applied() -> None:
    inbox: queue.Queue[object] = queue.Queue()
    coordinator = Slow()
    lanes = Lanes(coordinator, None, 16, 1, inbox)
    lanes.start(shard_ledger.new_ledger(48, 1), 0)
    for before in range(3):
        batch = coordinator.out.get(timeout=60)
        while not batch.waited_for.is_set() and lanes.steps == before:
            time.sleep(0.001)
        assert (lanes.steps, lanes.ledger.applied) == (before, 16 * before), (
            "counted before it was applied"
        )
        assert lanes.ledger.given == (Shard(16 * before, 16 * before + 16),)
        assert list(inbox.queue) == (["first"] if before else [])
        batch.released.set()
    while not lanes.ledger.finished:
        time.sleep(0.001)
    lanes.drain()
    assert list(inbox.queue) == ["first", "finished"]
    assert (lanes.steps, lanes.ledger.applied) == (3, 48)


class Broken:
    """Gives up every batch with the same error."""

    def __init__(self) -> None:
        self.error = tf.errors.InvalidArgumentError(None, None, "the program raised")

    def schedule(self, fn: object, args: object = None) -> Value:
        return Value(itertools.repeat(self.error))


def test_a_failed_batch_is_not_counted_and_stays_open() -> None:
    inbox: queue.Queue[object] = queue.Queue()
    lanes = Lanes(Broken(), None, 16, 1, inbox)
    lanes.start(shard_ledger.new_ledger(48, 1), 0)
    word = inbox.get(timeout=60)
    lanes.drain()

    assert isinstance(word, tf.errors.InvalidArgumentError), word
    assert (lanes.steps, lanes.ledger.applied) == (0, 0)
    assert shard_ledger.settle_ledger(lanes.ledger) == shard_ledger.settle_ledger(
        shard_ledger.take_shard(shard_ledger.new_ledger(48, 1), 16)[0]
    )
