"""Global batch with files: each update is cut from the examples that the workers have staged.

A worker gets the next group of files when it has read the one before. How many examples that has is
known only at its end, so updates are not planned: the first staged examples of all workers make the
next update (`update_plan.divide_staged`).
"""

from __future__ import annotations

from services.trainer.worker import shard_ledger
from services.trainer.worker.global_batch import GlobalBatchLanes, Update
from services.trainer.worker.input_pipeline import Portion
from services.trainer.worker.lanes import Lane
from services.trainer.worker.part_exchange import Part
from services.trainer.worker.portions import PendingPortion
from services.trainer.worker.shard_ledger import GROUP_POSITIONS, Run
from services.trainer.worker.update_plan import divide_staged


class FileBatchLanes(GlobalBatchLanes):
    """Lanes that make each update together, of the examples of files."""

    def _needs_portion(self, lane: Lane) -> bool:
        return bool(self.ledger.todo) and not lane.pending and lane in self._used_lanes()

    def _take_portion(self, lane: Lane) -> Portion | None:
        self.ledger, run = shard_ledger.take_run(self.ledger, GROUP_POSITIONS)
        portion = self._plan.portion(run, lane.turn, self._batch_to_read())
        lane.pending.append(PendingPortion(portion, lane.portion_size.batches))
        return portion

    def _batch_to_read(self) -> int | None:
        """Return the number of examples of a staged batch; None: that of the request."""
        part = -(-self._plan.update // len(self._used_lanes()))
        return min(part, self._plan.most or part)

    def _has_to_read(self, lane: Lane) -> bool:
        """Return whether to read: also if the others have no example any more."""
        staged = sum([shard_ledger.run_size(run) for run in lane.ready])
        is_needed = bool(lane.pending) and staged < self._plan.update
        return is_needed or super()._has_to_read(lane)

    def _batch_passes(self, lane: Lane) -> int:
        return 1

    def _has_update(self, lane: Lane) -> bool:
        if self._update is not None:
            return lane in self._update.unbegun
        return self._running and bool(self._divide_staged().get(lane))

    def _divide_staged(self) -> dict[Lane, list[int]]:
        """Return the sizes of the passes of the next update; empty if too few are staged."""
        epoch = self._first_epoch()
        ready = [self._staged_sizes(lane, epoch) for lane in self._lanes]
        staged = sum(map(sum, ready))
        examples = min(staged, self._plan.update) if self._is_read(epoch) else self._plan.update
        divided = divide_staged(ready, examples) if staged else None
        if divided is None:
            return {}
        return {lane: sizes for lane, sizes in zip(self._lanes, divided, strict=True) if sizes}

    def _staged_sizes(self, lane: Lane, epoch: int) -> list[int]:
        """Return the number of examples of each staged batch of an epoch."""
        return [shard_ledger.run_size(run) for run in lane.ready if self._epoch(run) == epoch]

    def _first_epoch(self) -> int:
        """Return the first epoch of which examples are not in an update."""
        runs = self._unread_runs()
        for lane in self._lanes:
            runs += lane.ready
        return min(map(self._epoch, runs), default=0)

    def _is_read(self, epoch: int) -> bool:
        """Return whether all examples of this epoch, and of those before, are staged."""
        return all(self._epoch(run) > epoch for run in self._unread_runs())

    def _unread_runs(self) -> list[Run]:
        """Return the runs that lanes have to read, and the next one that is not given out."""
        runs: list[Run] = [(shard,) for shard in self.ledger.todo[:1]]
        for lane in self._lanes:
            runs += [portion.run for portion in lane.pending if portion.run]
        return runs

    def _epoch(self, run: Run) -> int:
        return run[0].start // self.ledger.examples

    def _take_update(self) -> Update:
        firsts: dict[Lane, int] = {}
        parts: dict[Lane, list[Run]] = {}
        for number, (lane, sizes) in enumerate(self._divide_staged().items()):
            firsts[lane] = number
            parts[lane] = [_take_examples(lane, size) for size in sizes]
        return Update(self._begun, firsts, parts, len(parts))

    def _part_of(self, lane: Lane, update: Update) -> Part:
        rows = tuple([shard_ledger.run_size(run) for run in update.parts[lane]])
        return Part(update.number, update.firsts[lane], len(rows), update.examples, rows)


def _take_examples(lane: Lane, count: int) -> Run:
    """Remove the first `count` examples of the first staged batch, and return their positions."""
    taken, rest = shard_ledger.split_run(lane.ready.popleft(), count)
    if rest:
        lane.ready.appendleft(rest)
    return taken
