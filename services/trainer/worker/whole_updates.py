"""Updates that one worker makes as a whole, by the workers in turn.

Some steps cannot be computed in parts: a step of the program's own that uses what it has updated,
or a loss that is no mean over examples. Their updates are made one after the other. That is
correct, but no faster than one worker. A job with one worker makes its updates in this way, too.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

from services.trainer.worker import shard_ledger
from services.trainer.worker.exact_batches import ExactLanes
from services.trainer.worker.file_batches import FileBatchLanes
from services.trainer.worker.global_batch import GlobalBatchLanes, PlannedParts, Update
from services.trainer.worker.input_pipeline import DataPlan
from services.trainer.worker.lanes import Lane, Worker, unknown_result
from services.trainer.worker.part_exchange import Part
from services.trainer.worker.portions import PendingPortion
from services.trainer.worker.remote_worker import WorkerFailure
from services.trainer.worker.shard_ledger import Ledger, Shard


class AppliedByWorkers:
    """The `Updater` of updates that a worker's own step has applied: nothing is left to do."""

    def apply(self, update: int, parts: int, examples: int) -> None:
        pass

    def clear(self) -> None:
        pass


class WholeUpdates(GlobalBatchLanes):
    """The common part of lanes that make whole updates in turn."""

    def __init__(self, workers: Sequence[Worker], plan: DataPlan, inbox: queue.Queue[Any]) -> None:
        super().__init__(workers, plan, inbox, AppliedByWorkers())

    def _whole_update(self, examples: int) -> PlannedParts:
        """Return an update that one lane makes, of as many batches as it takes."""
        return PlannedParts(0, -(-examples // self._plan.batch))

    def _call_worker(self, lane: Lane, part: Part, batches: int) -> None:
        try:
            lane.worker.update(part.passes, batches)
        except WorkerFailure as failure:
            raise unknown_result(failure) from failure


class WholeUpdateLanes(WholeUpdates):
    """Lanes that make whole updates of numbered examples in turn."""

    def _plan_round(self) -> None:
        lanes = self._used_lanes()
        asked = min([lane.portion_size.batches for lane in lanes])
        whole = self._plan.update
        most = self._most_updates(-(-whole // len(lanes)), asked)
        left = {}
        for lane in lanes:
            self.ledger, run = shard_ledger.take_run(self.ledger, whole * most)
            if run:
                self._assigned[lane].append(PendingPortion(self._plan.portion(run), asked))
            left[lane] = shard_ledger.run_size(run)
        while any(left.values()):
            for lane in [lane for lane, examples in left.items() if examples]:
                self._planned.append({lane: self._whole_update(min(whole, left[lane]))})
                left[lane] -= min(whole, left[lane])


class WholeUpdateFileLanes(WholeUpdates, FileBatchLanes):
    """Lanes that make whole updates of files in turn. An update is a batch as it was read: the last
    one of a group of files is shorter.
    """

    def _batch_to_read(self) -> int | None:
        return None

    def _divide_staged(self) -> dict[Lane, list[int]]:
        """Return the update of the lane whose turn it is, if it has its batches; else of another."""
        turn = self._begun % len(self._lanes)
        for lane in (*self._lanes[turn:], *self._lanes[:turn]):
            enough = len(lane.ready) >= self._plan.accumulated
            if enough or (lane.ready and not (lane.pending or self.ledger.todo)):
                batches = list(lane.ready)[: self._plan.accumulated]
                return {lane: [shard_ledger.run_size(run) for run in batches]}
        return {}

    def _mark_applied(self, update: Update) -> Ledger:
        return shard_ledger.mark_runs_applied(self.ledger, update.runs)

    def _part_of(self, lane: Lane, update: Update) -> Part:
        return GlobalBatchLanes._part_of(self, lane, update)


class WholeUpdateExactLanes(WholeUpdates, ExactLanes):
    """Lanes that make whole exact updates in turn. Each update is one part."""

    def _parts_of_update(self) -> int:
        return 1

    def _used_lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes if not lane.lost]

    def _divide_updates(
        self, updates: Sequence[tuple[Shard, ...]], runs: dict[Lane, list[Shard]]
    ) -> None:
        lanes = list(runs)
        for number, (part,) in enumerate(updates):
            lane = lanes[number % len(lanes)]
            runs[lane].append(part)
            self._planned.append({lane: self._whole_update(part.size)})

    def _batch_to_read(self, part: int) -> int:
        return self._plan.batch
