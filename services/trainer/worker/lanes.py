"""Lanes: threads of the chief that keep every worker busy, each with one update in progress.

There are twice as many lanes as workers, so that a worker finds its next batch waiting. A lane
takes the batches of an update from the ledger (several with gradient accumulation; fewer if fewer
are left), schedules it, waits until it is applied, and only then records them as applied. So a
hand-over loses nothing that was accumulated.

`StallDetector`: while batches are out, updates must be applied. A step that hangs inside TensorFlow
shows no Python stack, but no update is applied any more, neither while training nor while draining.
While the chief saves, evaluates or waits after a drain, no batch is out, so that time does not
count.
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
from services.trainer.worker.shard_ledger import Ledger, Shard, example_range
from services.trainer.worker.watchdog import Watchdog

RETRY_S, LOOK_S = 0.02, 0.1
REACH_S = 1.0


class Value(Protocol):
    """`tf.distribute.coordinator.RemoteValue`, as far as a lane needs it."""

    def fetch(self) -> Any: ...


class Coordinator(Protocol):
    """`tf.distribute.coordinator.ClusterCoordinator`, as far as a lane needs it."""

    def schedule(self, fn: Any, args: Any = None) -> Value: ...


def fetch_loss(value: Value) -> float:
    """Return the loss once a worker has delivered it. Raise the error with which the coordinator
    gives up.

    A value wakes its reader before it has left its worker. If the worker dies in between, the
    reader gets an error while the coordinator runs the batch again elsewhere; after that the same
    value can be fetched. A permanent error is the very same object at each try. TensorFlow offers
    no event to wait for.
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
    """Begin with `start`, stop at a batch boundary with `drain`.

    Each of these goes to `inbox` at most once a run: `"first"` (an update is applied), `"finished"`
    (nothing is left to do), and the exception that ended a lane.
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
        self.applied_s = 0.0  # when the last update was applied, in seconds since 1970
        self._posted: set[str] = set()
        self.no_worker_left: Callable[[], bool] = lambda: False
        self.ledger: Ledger = shard_ledger.new_ledger(1, 1)

    def start(self, ledger: Ledger, steps: int) -> None:
        """Train on from this ledger and number of updates. Raise `Unavailable` if batches are still
        out.
        """
        if any(thread.is_alive() for thread in self._threads):
            raise tf.errors.UnavailableError(None, None, "no worker is left")
        self.ledger, self._steps = ledger, steps
        self._posted.clear()
        self._stop.clear()
        self._threads = [
            threading.Thread(target=self._run_lane, daemon=True) for _ in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        """Return when no batch is out, or when no worker is left that could finish one."""
        self._stop.set()
        for thread in self._threads:
            while thread.is_alive() and not self.no_worker_left():
                thread.join(LOOK_S)

    @property
    def steps(self) -> int:
        return self._steps

    def take_losses(self) -> tuple[float | None, int]:
        """Return the mean loss of the examples applied since the last call, and their number."""
        with self._lock:
            taken, self._losses = self._losses, []
        total, count = 0.0, 0
        for loss, examples in taken:
            total += loss * examples
            count += examples
        return (total / count if count else None), count

    def _run_lane(self) -> None:
        try:
            while not self._stop.is_set():
                taken = self._take_batches()
                if not taken:
                    return
                self._record_applied(taken, self._apply_update(taken))
        except Exception as error:
            self._stop.set()
            self._post_once("failed", error)

    def _apply_update(self, taken: Sequence[Shard]) -> float:
        batches = [shard_ledger.example_range(self.ledger, shard) for shard in taken]
        passes = split_passes(batches, self._device_batch_max)
        return fetch_loss(
            self._coordinator.schedule(self._traced, args=training_step.step_arguments(passes))
        )

    def _take_batches(self) -> list[Shard]:
        """Return the batches of the next update; empty if there is nothing to do now."""
        taken: list[Shard] = []
        with self._lock:
            while len(taken) < self._accumulated:
                self.ledger, shard = shard_ledger.take_shard(self.ledger, self._batch)
                if shard is None:
                    break
                taken.append(shard)
        return taken

    def _record_applied(self, taken: Sequence[Shard], loss: float) -> None:
        with self._lock:
            for shard in taken:
                self.ledger = shard_ledger.mark_applied(self.ledger, shard)
            self._losses.append((loss, sum(shard.size for shard in taken)))
            self._steps += 1
            self.applied_s = time.time()
            finished = self.ledger.finished
        self._post_once("first", "first")
        if finished:
            self._post_once("finished", "finished")

    def _post_once(self, key: str, word: object) -> None:
        with self._lock:
            if key in self._posted:
                return
            self._posted.add(key)
        self._inbox.put(word)


class LaneProgress(Protocol):
    """The part of `Lanes` that the detector needs."""

    @property
    def steps(self) -> int: ...

    @property
    def ledger(self) -> Ledger: ...


class StallDetector:
    """A check of the watchdog: fails if no update was applied for too long while batches are
    out.
    """

    def __init__(self, lanes: LaneProgress, dog: Watchdog, patience: float) -> None:
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
        return self._dog.failure(describe_stall(ledger, steps, now - self._since_s))


def describe_stall(ledger: Ledger, steps: int, waited_s: float) -> str:
    """Return the facts about a step that does not return."""
    spans = []
    for shard in ledger.given:
        start, stop = example_range(ledger, shard)
        spans.append(f"{start} .. {stop - 1}")
    out = ", ".join(spans)
    return (
        f"no update was applied for {waited_s:.0f} s (since update {steps}), while {len(spans)}"
        f" batches were out (examples {out}): a step does not return. It is TensorFlow that runs"
        " the model and loss() inside of it, so there is no Python stack to show; a loop that"
        " never ends, for instance a tf.while_loop, looks like this."
    )


def missing_tasks(coordinator: Any, cluster: dict[str, list[str]]) -> list[str]:
    """Return the tasks that have gone: lost by the coordinator, or unreachable at their address.

    The coordinator's view counts because the address of a lost worker may belong to another by now.
    """
    return [*lost_workers(coordinator), *unreachable_tasks(cluster)]


def lost_workers(coordinator: Any) -> list[str]:
    """Return the workers that the coordinator knows to be dead. It waits an hour for each."""
    return [
        f"worker-{worker.worker_index}"
        for worker in coordinator._cluster.workers
        if worker._is_dead_with_error
    ]


def unreachable_tasks(cluster: dict[str, list[str]]) -> list[str]:
    """Return the ps and workers that accept no connection, as `role-index at address`."""
    unreachable = []
    for role in ("ps", "worker"):
        for index, address in enumerate(cluster[role]):
            if not _accepts_connection(address):
                unreachable.append(f"{role}-{index} at {address}")
    return unreachable


def _accepts_connection(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=REACH_S):
        return True
    return False
