"""A worker without a process, for tests of lanes and of the chief."""

from __future__ import annotations

from collections import deque

import tensorflow as tf

from services.trainer.worker.input_pipeline import DataPlan, Lease, StagedPass


class FakeWorker:
    """Reads and trains in no time. `updates`: the positions of each pass of each update; `leases`:
    the examples of each lease; `read_ms`: what it says that reading one took.
    """

    read_ms = 0

    def __init__(self, plan: DataPlan, name: str = "worker-0") -> None:
        self.plan, self.name = plan, name
        self.leased: deque[StagedPass] = deque()
        self.staged: deque[StagedPass] = deque()
        self.updates: list[list[tuple[int, int]]] = []
        self.leases: list[int] = []

    def push(self, lease: Lease) -> None:
        self.leases.append(lease.stop - lease.start)
        stop = min(lease.stop, lease.start + self.examples_of(lease))
        for first in range(lease.start, stop, lease.batch):
            end = min(first + lease.batch, stop)
            most = self.plan.most or lease.batch
            for start in range(first, end, most):
                size = min(most, end - start)
                self.leased.append(StagedPass(start, size, end - first, self.read_ms, lease.turn))
        self.leased.append(StagedPass(stop, 0, 0, self.read_ms, lease.turn))

    def examples_of(self, lease: Lease) -> int:
        """How many examples there are of this lease."""
        return lease.stop - lease.start

    def fetch(self, passes: int) -> list[StagedPass]:
        found: list[StagedPass] = []
        while len(found) < passes and (not found or found[-1].size):
            found.append(self.leased.popleft())
        self.staged += [each for each in found if each.size]
        return found

    def update(self, passes: int, batches: int, turn: int = 0) -> float:
        while self.staged and self.staged[0].turn != turn:
            self.staged.popleft()
        taken = [self.staged.popleft() for _ in range(passes)]
        self.updates.append([(each.position, each.position + each.size) for each in taken])
        return 1.0

    def explain(self, lease: Lease) -> None:
        raise tf.errors.InvalidArgumentError(None, None, f"example {lease.start} is bad")
