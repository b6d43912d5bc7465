"""Global batch: each update is the mean over the same examples, whatever the number of workers.

An update of B examples is divided among the workers. Each computes the gradient of its part, and
stores it on the parameter servers (`part_exchange.py`). When all parts are there, the chief lets
the parameter servers add and apply them. So no gradient is stale, and B does not grow with the
number of workers.

`update_plan.py` says which examples each worker reads. If a worker is lost, the update in progress
is dropped, and all positions that are not applied are planned anew. A worker gets the next group of
files when it has read the one before.

Here are the lanes of numbered examples; those of files are in `file_batches.py`, those of
`consistency: exact` in `exact_batches.py`, and those of steps that cannot be computed in parts in
`whole_updates.py`. `trace_lanes.py` chooses.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from services.trainer.worker import program_data, shard_ledger
from services.trainer.worker.input_pipeline import PORTION_EXAMPLES, DataPlan, Portion
from services.trainer.worker.lanes import (
    PORTIONS_AHEAD,
    TRANSIENT_FAILURES,
    Lane,
    Lanes,
    Worker,
    unknown_result,
)
from services.trainer.worker.part_exchange import Part
from services.trainer.worker.portions import PendingPortion
from services.trainer.worker.remote_worker import WorkerFailure
from services.trainer.worker.shard_ledger import Ledger, Run
from services.trainer.worker.update_plan import part_speeds, plan_round


class Updater(Protocol):
    """Applies updates on the parameter servers. It raises `WorkerFailure`."""

    def apply(self, update: int, parts: int, examples: int) -> None:
        """Apply the stored parts 0 .. parts - 1 of this update, of `examples` examples."""

    def clear(self) -> None:
        """Drop all stored parts."""


class PlannedParts(NamedTuple):
    """The parts of an update that a lane computes: the number of the first one, and how many staged
    batches they take. A lane computes one part, but several with `ExactLanes`.
    """

    first: int
    batches: int = 1


class Update:
    """An update in progress. `firsts`: the number of the first part of each lane; `parts`: the runs
    of its passes; `unbegun`: lanes whose part is not begun; `missing`: lanes whose part is not
    stored. `stored`: number of parts to store. `measures_noise`: all lanes measure gradient noise
    after their parts.
    """

    def __init__(
        self, number: int, firsts: dict[Lane, int], parts: dict[Lane, list[Run]], stored: int
    ) -> None:
        self.number = number
        self.firsts = firsts
        self.parts = parts
        self.stored = stored
        self.examples = sum([self.part_size(lane) for lane in parts])
        self.unbegun = set(parts)
        self.missing = set(parts)
        self.failures: list[tuple[Lane, WorkerFailure]] = []
        self.is_applying = False
        self.measures_noise = False

    def part_size(self, lane: Lane) -> int:
        return sum([shard_ledger.run_size(run) for run in self.parts[lane]])

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.parts.values() for run in runs]


class GlobalBatchLanes(Lanes):
    """Lanes that make each update together."""

    def __init__(
        self,
        workers: Sequence[Worker],
        plan: DataPlan,
        inbox: queue.Queue[Any],
        updater: Updater,
    ) -> None:
        super().__init__(workers, plan, inbox)
        self._updater = updater
        self._assigned: dict[Lane, deque[PendingPortion]] = {lane: deque() for lane in self._lanes}
        self._planned: deque[dict[Lane, PlannedParts]] = deque()
        self._update: Update | None = None
        self._begun = 0

    # ------------------------------------------------------------ reading

    def _needs_portion(self, lane: Lane) -> bool:
        if len(lane.pending) >= PORTIONS_AHEAD or lane not in self._used_lanes():
            return False
        return bool(self._assigned[lane] or self.ledger.todo)

    def _used_lanes(self) -> list[Lane]:
        """Return the lanes that compute parts: no more than an update has examples."""
        return [lane for lane in self._lanes if not lane.lost][: self._plan.update]

    def _take_portion(self, lane: Lane) -> Portion | None:
        while self.ledger.todo and not self._assigned[lane]:
            self._plan_round()
        if not self.ledger.todo:
            self._changed.notify_all()
        if not self._assigned[lane]:
            return None
        pending = self._assigned[lane].popleft()
        portion = pending.portion._replace(turn=lane.turn)
        lane.pending.append(pending)
        return portion

    def _plan_round(self) -> None:
        lanes = self._used_lanes()
        speeds = part_speeds([lane.examples_per_s for lane in lanes])
        asked = min([lane.portion_size.batches for lane in lanes])
        part = -(-self._plan.update // len(lanes))
        most = self._most_updates(part, asked)
        self.ledger, planned = plan_round(self.ledger, self._plan.update, speeds, most)
        for lane, part, run in zip(lanes, planned.parts, planned.runs, strict=True):
            if run:
                portion = self._plan.portion(run, batch=part)
                self._assigned[lane].append(PendingPortion(portion, asked))
        used = [lane for lane, part in zip(lanes, planned.parts, strict=True) if part]
        places = {lane: PlannedParts(number) for number, lane in enumerate(used)}
        self._planned += [places] * planned.updates

    def _most_updates(self, part: int, asked: int) -> int:
        """Return the largest number of updates in a round, of `part` examples for each lane.

        `asked`: the number of batches that a portion is to have.
        """
        fits = program_data.READ_BYTES // (self._plan.example_bytes * part)
        return max(min(asked, fits, PORTION_EXAMPLES // part), 1)

    def _most_to_stage(self, lane: Lane) -> int:
        """Return the number of batches that one call may stage: at least those of an update."""
        planned = self._planned[0].get(lane) if self._planned else None
        return max(super()._most_to_stage(lane), planned.batches if planned else 1)

    def _batch_passes(self, lane: Lane) -> int:
        return self._plan.passes(
            lane.pending[0].portion.batch if lane.pending else self._plan.batch
        )

    def _is_exhausted(self, lane: Lane) -> bool:
        return not self._assigned[lane] and super()._is_exhausted(lane)

    # ------------------------------------------------------------ updates

    def _has_update(self, lane: Lane) -> bool:
        """Return whether the lane has a part of the update in progress, or of one that can begin."""
        if self._update is not None:
            return lane in self._update.unbegun
        if not self._running or not self._planned:
            return False
        planned = self._planned[0]
        return lane in planned and all(
            len(each.ready) >= part.batches for each, part in planned.items()
        )

    def _is_busy(self) -> bool:
        return self._update is not None or super()._is_busy()

    def _step(self, lane: Lane) -> None:
        """Compute a part of an update. The lane with the last part applies the update."""
        with self._changed:
            self._changed.wait_for(lambda: lane.lost or self._has_update(lane))
            if lane.lost:
                return
            update = self._update or self._begin_update()
            update.unbegun.remove(lane)
            turn = lane.turn
        is_last = self._compute_part(lane, update)
        if is_last:
            self._finish_update(update)
        if self._losses_are_due(lane) and not lane.lost:
            self._fetch_losses(lane, turn)
        if update.measures_noise and not lane.lost:
            self._measure_noise(lane, turn)
        self._end_part(lane)

    def _begin_update(self) -> Update:
        """Begin the next update, and wake the lanes that compute its parts."""
        self._update = self._take_update()
        self._update.measures_noise = all(map(self._noise_is_due, self._update.parts))
        self._begun += 1
        for lane in self._update.parts:
            lane.updating = True
        self._changed.notify_all()
        return self._update

    def _take_update(self) -> Update:
        """Take the examples of the next update from what is staged."""
        firsts: dict[Lane, int] = {}
        parts: dict[Lane, list[Run]] = {}
        for lane, part in self._planned.popleft().items():
            firsts[lane] = part.first
            parts[lane] = [lane.ready.popleft() for _ in range(part.batches)]
        return Update(self._begun, firsts, parts, stored=sum(map(len, parts.values())))

    def _compute_part(self, lane: Lane, update: Update) -> bool:
        """Return whether this was the last part of the update in progress, also if it failed."""
        part = self._part_of(lane, update)
        began_s = time.monotonic()
        try:
            self._call_worker(lane, part, len(update.parts[lane]))
        except WorkerFailure as failure:
            update.failures.append((lane, failure))
        else:
            lane.record_update(
                time.monotonic() - began_s, len(update.parts[lane]), update.part_size(lane)
            )
        with self._changed:
            update.missing.remove(lane)
            return not update.missing and self._update is update

    def _call_worker(self, lane: Lane, part: Part, batches: int) -> None:
        """Let the worker compute its part, of so many staged batches. Raise `WorkerFailure`."""
        lane.worker.compute_part(part)

    def _part_of(self, lane: Lane, update: Update) -> Part:
        sizes = [shard_ledger.run_size(run) for run in update.parts[lane]]
        passes = sum([self._plan.passes(size) for size in sizes])
        return Part(update.number, update.firsts[lane], passes, update.examples)

    def _leave(self, lane: Lane) -> None:
        """Let the update in progress fail if a lost lane did not begin its part."""
        with self._changed:
            update = self._update
            if update is None or lane not in update.unbegun:
                return
            update.unbegun.remove(lane)
            update.missing.remove(lane)
            lane.updating = False
            lost = WorkerFailure(RuntimeError(f"{lane.worker.name} is lost"), lost=True)
            update.failures.append((lane, lost))
            is_last = not update.missing
        if is_last:
            self._drop_update(update)

    def _finish_update(self, update: Update) -> None:
        """Apply an update whose parts are all stored; drop it if one failed."""
        if update.failures:
            self._drop_update(update)
            return
        try:
            update.is_applying = True
            self._updater.apply(update.number, update.stored, update.examples)
        except WorkerFailure as failure:
            raise unknown_result(failure) from failure
        finally:
            update.is_applying = False
        with self._changed:
            self.ledger = self._mark_applied(update)
            for lane in update.parts:
                lane.failures = 0
            self._count_step()
            self._update = None
            finished = self.ledger.finished
            is_ready = any(map(self._has_update, self._used_lanes()))
            # After a measurement, the first lane that is ready begins the next update.
            if is_ready and not update.measures_noise:
                self._begin_update()
            else:
                self._changed.notify_all()
        self._post_once("first", "first")
        if finished:
            self._post_once("finished", "finished")

    def _mark_applied(self, update: Update) -> Ledger:
        return shard_ledger.mark_update_applied(self.ledger, update.runs, self._plan.update)

    def _end_part(self, lane: Lane) -> None:
        with self._changed:
            lane.updating = self._update is not None and lane in self._update.unbegun
            is_over = self._update is None or not self._running or self._is_exhausted(lane)
            # While an update is in progress, only `_drop_earlier` has to know now; the others are
            # woken when the update ends.
            if is_over or lane.turn != lane.staged_turn:
                self._changed.notify_all()

    # ------------------------------------------------------------ failures

    def _drop_update(self, update: Update) -> None:
        """Drop an update of which a part failed, and plan its examples anew."""
        try:
            self._updater.clear()
        except WorkerFailure as error:
            raise error.cause from error
        with self._changed:
            self._return_batches(update.runs)
            self._update = None
            for lane, failure in update.failures:
                if not lane.lost:
                    self._count_failure(lane, failure)
            self._plan_anew()

    def _handle_failure(self, lane: Lane, failure: WorkerFailure, turn: int) -> None:
        """Plan all unused batches anew, but not those of an update in progress."""
        with self._changed:
            if lane.turn != turn or lane.lost:
                return
            self._count_failure(lane, failure)
            self._plan_anew()

    def _count_failure(self, lane: Lane, failure: WorkerFailure) -> None:
        """Raise the cause if a worker failed too often in a row without being lost."""
        lane.failures += 1
        if not failure.lost and lane.failures > TRANSIENT_FAILURES:
            raise failure.cause
        lane.lost = failure.lost

    def _plan_anew(self) -> None:
        """Return all positions that are not in an update to the ledger."""
        self._planned.clear()
        for lane in self._lanes:
            self._return_batches([pending.run for pending in self._assigned[lane]])
            self._assigned[lane].clear()
            self._return_batches(lane.drop_unused())

    def _end_lane(self, lane: Lane) -> None:
        if self._update is None or not self._update.is_applying:
            self._update = None  # else it ends when it is applied
        for each in self._lanes:
            each.updating = False
        super()._end_lane(lane)
