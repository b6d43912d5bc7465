"""Lanes: threads of the chief that keep every worker busy, each with one batch out at a time.

Twice as many lanes as workers, so that a worker finds the next batch waiting when it has done one.
A lane takes the batches of an update from the ledger (several with gradient accumulation; where
fewer are left, those), schedules it, waits until it is applied, and only then enters them as done.
So a hand-over loses nothing that was accumulated.

The pulse of a generation: while batches are out, updates are applied.

A step that hangs inside TensorFlow shows no Python stack anywhere, but nothing is applied any more:
neither while training nor while draining, for both wait for batches that are out. While saving,
evaluating or standing drained none is out, so however long those take, the pulse is no worse for
it.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from services.trainer.protocol import Failed
from services.trainer.worker import shard_ledger, training_step
from services.trainer.worker.scaling import split_passes
from services.trainer.worker.shard_ledger import Ledger, Shard, examples_of
from services.trainer.worker.watchdog import Watchdog

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
        self.ledger: Ledger = shard_ledger.fresh(1, 1)

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
        batches = [shard_ledger.examples_of(self.ledger, shard) for shard in taken]
        passes = split_passes(batches, self._device_batch_max)
        return fetched(
            self._coordinator.schedule(self._traced, args=training_step.arguments(passes))
        )

    def _take(self) -> list[Shard]:
        """The batches of the next update; none where nothing is to do just now."""
        taken: list[Shard] = []
        with self._lock:
            while len(taken) < self._accumulated:
                self.ledger, shard = shard_ledger.take(self.ledger, self._batch)
                if shard is None:
                    break
                taken.append(shard)
        return taken

    def _done(self, taken: Sequence[Shard], loss: float) -> None:
        with self._lock:
            for shard in taken:
                self.ledger = shard_ledger.done(self.ledger, shard)
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


REACH_S = 1.0


class Lanes_pulse(Protocol):
    """`lanes.Lanes`, as far as its pulse is felt."""

    @property
    def steps(self) -> int: ...

    @property
    def ledger(self) -> Ledger: ...


class Pulse:
    """A check for the watchdog: failed, once no update was applied for so long while batches are
    out.
    """

    def __init__(self, lanes: Lanes_pulse, dog: Watchdog, patience: float) -> None:
        self._lanes = lanes
        self._dog = dog
        self._patience = patience
        self._steps, self._since_s = 0, 0.0

    def __call__(self) -> Failed | None:
        ledger = self._lanes.ledger
        steps = self._lanes.steps
        now = self._dog.clock_s
        if not ledger.given or steps != self._steps:
            self._steps, self._since_s = steps, now
        if now - self._since_s < self._patience * self._dog.limit_s:
            return None
        return self._dog.failed(stalled(ledger, steps, now - self._since_s))


def stalled(ledger: Ledger, steps: int, waited_s: float) -> str:
    """What is known of a step that does not return."""
    spans = [examples_of(ledger, shard) for shard in ledger.given]
    out = ", ".join(f"{start} .. {stop - 1}" for start, stop in spans)
    return (
        f"no update was applied for {waited_s:.0f} s (since update {steps}), while {len(spans)} batches were out "
        f"(examples {out}): a step does not return. It is TensorFlow that runs the model and loss() inside of it, so "
        "there is no Python stack to show; a loop that never ends, for instance a tf.while_loop, looks like this."
    )


def absent(coordinator: Any, cluster: dict[str, list[str]]) -> list[str]:
    """Tasks that were there and are not: the coordinator has lost them, or nobody answers where
    they stood.

    The first because the address of a lost worker may be another's by now.
    """
    return [*lost(coordinator), *unreachable(cluster)]


def lost(coordinator: Any) -> list[str]:
    """The workers that are dead, as far as the coordinator has noticed; it goes on waiting for each
    for an hour.
    """
    return [
        f"worker-{worker.worker_index}"
        for worker in coordinator._cluster.workers
        if worker._is_dead_with_error
    ]


def unreachable(cluster: dict[str, list[str]]) -> list[str]:
    """The ps and workers that accept no connection, as `role-index at address`."""
    tasks = [
        (f"{role}-{at}", to) for role in ("ps", "worker") for at, to in enumerate(cluster[role])
    ]
    return [f"{name} at {address}" for name, address in tasks if not _accepts(address)]


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=REACH_S):
        return True
    return False
