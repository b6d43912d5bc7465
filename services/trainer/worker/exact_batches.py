"""Exact updates: the parts of an update, and the order in which they are added, are always the same.

An update has a fixed number of parts (virtual workers), which are divided among the workers
(`update_plan.exact_updates`). `exactness.py` has the other conditions of `consistency: exact`.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

from services.trainer.worker import program_data, shard_ledger
from services.trainer.worker.global_batch import GlobalBatchLanes, PlannedParts, Updater
from services.trainer.worker.input_pipeline import PORTION_EXAMPLES, DataPlan
from services.trainer.worker.lanes import Lane, Worker
from services.trainer.worker.part_exchange import Part
from services.trainer.worker.portions import PendingPortion
from services.trainer.worker.shard_ledger import Ledger, Shard
from services.trainer.worker.update_plan import (
    can_begin_exactly,
    divide_examples,
    exact_updates,
    part_speeds,
)


class ExactLanes(GlobalBatchLanes):
    """Lanes whose updates have the same parts, in the same order, whatever the number of lanes."""

    def __init__(
        self, workers: Sequence[Worker], plan: DataPlan, inbox: queue.Queue[Any], updater: Updater
    ) -> None:
        super().__init__(workers, plan, inbox, updater)
        self._part_count = self._parts_of_update()

    def _parts_of_update(self) -> int:
        """Return the number of parts of an update."""
        return self._plan.part_count

    def can_begin(self, ledger: Ledger) -> bool:
        """Return whether updates can continue after what is applied in this ledger."""
        return can_begin_exactly(ledger, self._plan.update, self._part_count)

    def _used_lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes if not lane.lost][: self._part_count]

    def _call_worker(self, lane: Lane, part: Part, batches: int) -> None:
        """Let the worker compute its parts, one after the other. A loop in one traced
        function is slower, because TensorFlow then runs a loop on each ps, too.
        """
        for number in range(part.number, part.number + batches):
            lane.worker.compute_part(part._replace(number=number, passes=1))

    def _plan_round(self) -> None:
        lanes = self._used_lanes()
        updates = exact_updates(self.ledger, self._plan.update, self._part_count)
        planned = [shard for parts in updates for shard in parts]
        self.ledger = shard_ledger.take_shards(self.ledger, planned)
        runs: dict[Lane, list[Shard]] = {lane: [] for lane in lanes}
        self._divide_updates(updates, runs)
        for lane, shards in runs.items():
            self._assign(lane, shards)

    def _divide_updates(
        self, updates: Sequence[tuple[Shard, ...]], runs: dict[Lane, list[Shard]]
    ) -> None:
        """Give each lane some parts of each update. `updates`: their parts; `runs`: receives those
        of each lane.
        """
        speeds = part_speeds([lane.examples_per_s for lane in runs])
        shares = divide_examples(self._part_count, speeds)
        self._planned += [self._divide_parts(parts, shares, runs) for parts in updates]

    def _divide_parts(
        self, parts: Sequence[Shard], shares: Sequence[int], runs: dict[Lane, list[Shard]]
    ) -> dict[Lane, PlannedParts]:
        """Give each lane its parts of an update. `shares`: number of parts of each lane."""
        planned, first = {}, 0
        for (lane, shards), share in zip(runs.items(), shares, strict=True):
            given = parts[first : first + share]
            shards += given
            if given:
                planned[lane] = PlannedParts(first, len(given))
            first += share
        return planned

    def _assign(self, lane: Lane, shards: Sequence[Shard]) -> None:
        """Let a lane read these parts, in this order, in portions that grow: the first one is ready
        soon, and each costs a call of Python.
        """
        if not shards:
            return
        size = shards[0].size
        fits = program_data.READ_BYTES // (self._plan.example_bytes * size)
        asked = lane.portion_size.batches
        most = max(min(fits, PORTION_EXAMPLES // size), 1)
        batch = self._batch_to_read(size)
        first, count = 0, min(asked, most)
        while first < len(shards):
            portion = self._plan.portion(tuple(shards[first : first + count]), batch=batch)
            self._assigned[lane].append(PendingPortion(portion, asked))
            first, count = first + count, min(2 * count, most)

    def _batch_to_read(self, part: int) -> int:
        """Return the number of examples of a staged batch, for parts of `part` examples."""
        return part
