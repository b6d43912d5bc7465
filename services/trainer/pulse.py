"""The pulse of a generation: while batches are out, updates are applied.

A step that hangs inside TensorFlow shows no Python stack anywhere, but nothing is applied any more:
neither while training nor while draining, for both wait for batches that are out. While saving,
evaluating or standing drained none is out, so however long those take, the pulse is no worse for
it.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Protocol

from services.trainer.orders import Failed
from services.trainer.shards import Ledger, examples_of
from services.trainer.watchdog import Watchdog

REACH_S = 1.0


class Lanes(Protocol):
    """`lanes.Lanes`, as far as its pulse is felt."""

    @property
    def steps(self) -> int: ...

    @property
    def ledger(self) -> Ledger: ...


class Pulse:
    """A check for the watchdog: failed, once no update was applied for so long while batches are
    out.
    """

    def __init__(self, lanes: Lanes, dog: Watchdog, patience: float) -> None:
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
