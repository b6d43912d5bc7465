"""Lanes: threads of the chief that keep every worker busy, each with one batch out at a time.

Twice as many lanes as workers, so that a worker finds the next batch waiting when it has done one.
A lane takes the batches of an update from the ledger (several with gradient accumulation; where
fewer are left, those), schedules it, waits until it is applied, and only then enters them as done.
So a hand-over loses nothing that was accumulated.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from services.trainer import shards, step
from services.trainer.passes import split_passes
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

    A value wakes its reader before it has left its worker. Where the worker dies in between, the
    reader meets an error while the coordinator runs the batch again elsewhere, after which the same
    value can be fetched. An error that is there to stay is the very same object at each try;
    TensorFlow offers no event to wait for.
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
    """Begin with `start`, stop at a batch boundary with `drain`. What ends them goes to `inbox`,
    once a run.

    Into `inbox` go `"first"` (an update is applied), `"finished"` (nothing is left to do) and
    exceptions.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        traced: Any,
        batch: int,
        count: int,
        inbox: queue.Queue[Any],
        accumulated: int = 1,
        device_batch_max: int | None = None,
    ) -> None:
        """`accumulated`: batches of an update. `device_batch_max`: the most examples that a worker
        may hold at once.
        """
        self._coordinator = coordinator
        self._traced = traced
        self._batch = batch
        self._count = count
        self._inbox = inbox
        self._accumulated = accumulated
        self._device_batch_max = device_batch_max
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._losses: list[tuple[float, int]] = []
        self._steps = 0
        self.applied_s = 0.0  # when the last update came home, in seconds since 1970
        self._said: set[str] = set()
        self.deserted: Callable[[], bool] = lambda: False  # whether no worker is left
        self.ledger: Ledger = shards.fresh(1, 1)

    def start(self, ledger: Ledger, steps: int) -> None:
        """Train on from this ledger and number of updates; raises `Unavailable` where batches are
        still out.
        """
        if any(thread.is_alive() for thread in self._threads):
            raise tf.errors.UnavailableError(None, None, "no worker is left")
        self.ledger, self._steps = ledger, steps
        self._said.clear()
        self._stop.clear()
        self._threads = [
            threading.Thread(target=self._run, daemon=True) for _ in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        """Return when no batch is out, or when those that are will not come home, because no worker
        is left.
        """
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
                taken = self._take()
                if not taken:
                    return
                self._done(taken, self._apply(taken))
        except Exception as error:
            self._stop.set()
            self._say("failed", error)

    def _apply(self, taken: Sequence[Shard]) -> float:
        batches = [shards.examples_of(self.ledger, shard) for shard in taken]
        passes = split_passes(batches, self._device_batch_max)
        return fetched(self._coordinator.schedule(self._traced, args=step.arguments(passes)))

    def _take(self) -> list[Shard]:
        """The batches of the next update; none where nothing is to do just now."""
        taken: list[Shard] = []
        with self._lock:
            while len(taken) < self._accumulated:
                self.ledger, shard = shards.take(self.ledger, self._batch)
                if shard is None:
                    break
                taken.append(shard)
        return taken

    def _done(self, taken: Sequence[Shard], loss: float) -> None:
        with self._lock:
            for shard in taken:
                self.ledger = shards.done(self.ledger, shard)
            self._losses.append((loss, sum(shard.size for shard in taken)))
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
