"""A worker without a process, for tests of lanes and of the chief."""

from __future__ import annotations

from collections import deque
from collections.abc import Container

import tensorflow as tf

from services.trainer.worker.input_pipeline import DataPlan, Portion, StagedPass, UpdateLoss
from services.trainer.worker.noise_estimate import Comparison
from services.trainer.worker.part_exchange import Part


class FakeWorker:
    """Reads and trains in no time.

    `updates` has the positions of each pass of each update, `portions` the number of examples of
    each portion. `too_stale`: the numbers, from 1, of updates that are dropped. `read_ms` and
    `batch_ms` are the reported times of reading a portion, and of each batch in it.
    """

    read_ms = 0
    batch_ms = 0

    def __init__(self, plan: DataPlan, name: str = "worker-0") -> None:
        self.plan, self.name = plan, name
        self.unread: deque[StagedPass] = deque()
        self.staged: deque[StagedPass] = deque()
        self.updates: list[list[tuple[int, int]]] = []
        self.portions: list[int] = []
        self.losses: list[UpdateLoss] = []
        self.update_calls = 0
        self.too_stale: Container[int] = ()

    def push(self, portion: Portion) -> None:
        self.portions.append(portion.size)
        batches = -(-portion.size // portion.batch)
        read_ms = self.read_ms + self.batch_ms * batches
        stop = portion.start + min(portion.size, self.examples_of(portion))
        for first in range(portion.start, stop, portion.batch):
            end = min(first + portion.batch, stop)
            most = self.plan.most or portion.batch
            for start in range(first, end, most):
                size = min(most, end - start)
                self.unread.append(StagedPass(start, size, end - first, read_ms, portion.turn))
        self.unread.append(StagedPass(stop, 0, 0, read_ms, portion.turn))

    def examples_of(self, portion: Portion) -> int:
        """Return the number of examples of this portion."""
        return portion.size

    def fetch(self, passes: int, turn: int) -> list[StagedPass]:
        found: list[StagedPass] = []
        while len(found) < passes and (not found or found[-1].size):
            found.append(self.unread.popleft())
        self.staged += [each for each in found if each.size and each.turn == turn]
        return found

    def drop_staged(self) -> None:
        self.staged.clear()

    def update(self, passes: int, batches: int) -> bool:
        taken = [self.staged.popleft() for _ in range(passes)]
        self.update_calls += 1
        if self.update_calls in self.too_stale:
            return False
        self.updates.append([(each.position, each.position + each.size) for each in taken])
        self.losses.append(UpdateLoss(1.0, sum([each.size for each in taken])))
        return True

    def compute_part(self, part: Part) -> None:
        raise NotImplementedError

    def take_losses(self) -> list[UpdateLoss]:
        taken, self.losses = self.losses, []
        return taken

    def compare_gradients(self) -> Comparison | None:
        return None

    def trace_comparison(self) -> None:
        pass

    def explain(self, portion: Portion) -> None:
        raise tf.errors.InvalidArgumentError(None, None, f"example {portion.start} is bad")
