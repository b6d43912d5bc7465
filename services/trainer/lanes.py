"""Lanes: threads of the chief that keep every worker busy, each with one batch out at a time.

Twice as many lanes as workers, so that a worker finds the next batch waiting when it has done one. A lane takes a batch
from the ledger, schedules it, waits until it is applied, and only then enters it as done.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from services.trainer import shards
from services.trainer.shards import Ledger, Shard

RETRY_S, LOOK_S = 0.02, 0.1


class Value(Protocol):
    """`tf.distribute.coordinator.RemoteValue`, as far as a lane needs it."""

    def fetch(self) -> Any: ...


class Coordinator(Protocol):
    """`tf.distribute.coordinator.ClusterCoordinator`, as far as a lane needs it."""

    def schedule(self, fn: Any, args: Any = None) -> Value: ...


def fetched(value: Value) -> float:
    """The number, once a worker has brought it home. Raises what the coordinator gives up with.

    A value wakes its reader before it has left its worker. Where the worker dies in between, the reader meets an error
    while the coordinator runs the batch again elsewhere, after which the same value can be fetched. An error that is
    there to stay is the very same object at each try; TensorFlow offers no event to wait for.
    """
    seen: Exception | None = None
    while True:
        try:
            return float(value.fetch())
        except tf.errors.CancelledError:
            raise
        except tf.errors.OpError as error:
            if error is seen:
                raise
            seen = error
            time.sleep(RETRY_S)


class Lanes:
    """Begin with `start`, stop at a batch boundary with `drain`. What ends them goes to `inbox`, once a run.

    Into `inbox` go `"first"` (an update is applied), `"finished"` (nothing is left to do) and exceptions.
    """

    def __init__(self, coordinator: Coordinator, step: Any, batch: int, count: int, inbox: queue.Queue[Any]) -> None:
        self._coordinator, self._step, self._batch, self._count = coordinator, step, batch, count
        self._inbox = inbox
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._losses: list[tuple[float, int]] = []
        self._steps = 0
        self.applied_s = 0.0  # when the last update came home, in seconds since 1970
        self._said: set[str] = set()
        self.deserted: Callable[[], bool] = lambda: False  # whether no worker is left
        self.ledger: Ledger = shards.fresh(1, 1)

    def start(self, ledger: Ledger, step: int) -> None:
        """Train on from this ledger and number of updates; raises `Unavailable` where batches are still out."""
        if any(thread.is_alive() for thread in self._threads):
            raise tf.errors.UnavailableError(None, None, "no worker is left")
        self.ledger, self._steps = ledger, step
        self._said.clear()
        self._stop.clear()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self._count)]
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        """Return when no batch is out, or when those that are will not come home, because no worker is left."""
        self._stop.set()
        for thread in self._threads:
            while thread.is_alive() and not self.deserted():
                thread.join(LOOK_S)

    @property
    def steps(self) -> int:
        return self._steps

    def losses(self) -> tuple[float | None, int]:
        """The mean loss of the examples applied since the last call, and how many those are."""
        with self._lock:
            taken, self._losses = self._losses, []
        count = sum(n for _, n in taken)
        return (sum(loss * n for loss, n in taken) / count if count else None), count

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                shard = self._take()
                if shard is None:
                    return
                self._done(shard, self._apply(shard))
        except Exception as error:
            self._stop.set()
            self._say("failed", error)

    def _apply(self, shard: Shard) -> float:
        start, stop = shards.examples_of(self.ledger, shard)
        positions = (tf.constant(start, tf.int64), tf.constant(stop, tf.int64))
        return fetched(self._coordinator.schedule(self._step, args=positions))

    def _take(self) -> Shard | None:
        with self._lock:
            self.ledger, shard = shards.take(self.ledger, self._batch)
            return shard

    def _done(self, shard: Shard, loss: float) -> None:
        with self._lock:
            self.ledger = shards.done(self.ledger, shard)
            self._losses.append((loss, shard.size))
            self._steps += 1
            self.applied_s = time.time()
            finished = self.ledger.finished
        self._say("first", "first")
        if finished:
            self._say("finished", "finished")

    def _say(self, key: str, word: object) -> None:
        with self._lock:
            if key in self._said:
                return
            self._said.add(key)
        self._inbox.put(word)
