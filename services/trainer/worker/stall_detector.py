"""Detect and describe training that stands still.

While workers have batches, updates must be applied. A step that hangs inside TensorFlow shows no
Python stack, but no update is applied any more, neither while training nor while draining. While the
chief saves, evaluates or waits after a drain, no update is due, so that time does not count.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

from services.trainer.protocol import Failed
from services.trainer.worker.shard_ledger import Ledger, describe_shard, example_range
from services.trainer.worker.watchdog import Watchdog
from shared.text import format_count, format_names

SPANS_NAMED = 4
REACH_S = 1.0


class LaneProgress(Protocol):
    """The part of `Lanes` that the detector needs."""

    @property
    def steps(self) -> int: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def is_updating(self) -> bool: ...


class StallDetector:
    """A check of the watchdog: fails if workers have batches and apply none for too long."""

    def __init__(self, lanes: LaneProgress, dog: Watchdog, patience: float) -> None:
        self._lanes = lanes
        self._dog = dog
        self._patience = patience
        self._steps, self._since_s = 0, 0.0

    def __call__(self) -> Failed | None:
        ledger = self._lanes.ledger
        steps = self._lanes.steps
        now = self._dog.clock_s
        if not self._lanes.is_updating or steps != self._steps:
            self._steps, self._since_s = steps, now
        if now - self._since_s < self._patience * self._dog.limit_s:
            return None
        return self._dog.failure(describe_stall(ledger, steps, now - self._since_s))


def describe_stall(ledger: Ledger, steps: int, waited_s: float) -> str:
    """Return the facts about a step that does not return."""
    return (
        f"no update was applied for {waited_s:.0f} s (since update {steps}), while"
        f" {_describe_given(ledger)}: a step does not return."
        " TensorFlow runs the model and loss() in it, so there is no Python stack to show. A likely"
        " cause is a loop that never ends, for instance a tf.while_loop."
    )


def _describe_given(ledger: Ledger) -> str:
    if ledger.files is not None:
        places = [describe_shard(ledger, shard) for shard in ledger.given]
        return f"workers had {format_names(places, SPANS_NAMED)}"
    spans = []
    for shard in ledger.given:
        start, stop = example_range(ledger, shard)
        spans.append(f"{start} .. {stop - 1}")
    count = format_count(sum([shard.size for shard in ledger.given]), "example")
    return f"workers had {count} (places {format_names(spans, SPANS_NAMED)} of their epoch)"


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
