"""Global batch: each update is the mean over the same examples, whatever the number of workers.

An update of B examples is divided among the workers. Each computes the gradient of its part, and
stores it on the parameter servers (`part_exchange.py`). When all parts are there, the chief lets
the parameter servers add and apply them. So no gradient is stale, and B does not grow with the
number of workers.

Which examples an update has is planned for some updates at a time, a round. Each worker reads a run
of positions in a round, so that it reads long ranges:

    round of 3 updates   worker-0: 0 .. 11             worker-1: 12 .. 23
    update 0             0 .. 3                        12 .. 15
    update 1             4 .. 7                        16 .. 19
    update 2             8 .. 11                       20 .. 23

An update has examples of one epoch. The last one of an epoch has those that are left, as in one
process. If a worker is lost, the update in progress is dropped, and all positions that are not
applied are planned anew.

A faster worker gets a larger part, so that all parts are ready at about the same time.

Some steps cannot be computed in parts: a step of the program's own that uses what it has updated,
or a loss that is no mean over examples. Their updates are made one after the other, by the workers
in turn. That is correct, but no faster than one worker.
"""

from __future__ import annotations

import math
import queue
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol

from services.trainer.worker import program_data, shard_ledger
from services.trainer.worker.input_pipeline import PORTION_EXAMPLES, DataPlan, Portion
from services.trainer.worker.lanes import (
    PORTIONS_AHEAD,
    TRANSIENT_FAILURES,
    Lane,
    Lanes,
    PendingPortion,
    Worker,
    explained_errors,
    stage_portion,
)
from services.trainer.worker.part_exchange import Part
from services.trainer.worker.remote_worker import WorkerFailure
from services.trainer.worker.shard_ledger import Ledger, Run, Shard

REHEARSED = (-1, -2)
"""The numbers of the updates before training."""
EQUALLY_FAST = 1.25
"""Workers whose speeds differ by less than this factor get equal parts, because speeds vary."""


class PartWorker(Worker, Protocol):
    """A worker that computes parts of updates."""

    def compute_part(self, part: Part) -> None:
        """Store the gradient of a part, of the first staged passes, on the parameter servers."""


class Updater(Protocol):
    """Applies updates on the parameter servers. It raises `WorkerFailure`."""

    def apply(self, update: int, parts: int, examples: int) -> None:
        """Apply the stored parts 0 .. parts - 1 of this update, of `examples` examples."""

    def clear(self) -> None:
        """Drop all stored parts."""


class Round(NamedTuple):
    """Some updates. `parts`: examples of each worker in an update; `runs`: positions of each."""

    updates: int
    parts: tuple[int, ...]
    runs: tuple[Run, ...]


def plan_round(
    ledger: Ledger, update: int, speeds: Sequence[float], most_updates: int
) -> tuple[Ledger, Round]:
    """Return the ledger with the examples of the next updates given out, and these as a round.

    `update`: examples of an update; `speeds`: of the workers. There have to be examples to do.
    """
    left = shard_ledger.left_in_unit(ledger)
    updates = max(min(left // update, most_updates), 1)
    parts = divide_examples(min(left, update), speeds)
    runs = []
    for part in parts:
        ledger, run = shard_ledger.take_run(ledger, part * updates)
        runs.append(run)
    return ledger, Round(updates, parts, tuple(runs))


def divide_examples(examples: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return whole parts of `examples`: one for each speed, and the others in proportion to the
    speeds (method of largest remainders). The first parts have one if there are too few examples.
    """
    if examples < len(speeds):
        return (1,) * examples + (0,) * (len(speeds) - examples)
    shares = [(examples - len(speeds)) * speed / sum(speeds) for speed in speeds]
    parts = [1 + int(share) for share in shares]
    by_remainder = sorted(range(len(parts)), key=lambda at: int(shares[at]) - shares[at])
    for at in by_remainder[: examples - sum(parts)]:
        parts[at] += 1
    return tuple(parts)


class _Update:
    """An update in progress. `unbegun`: lanes whose part is not begun; `missing`: lanes whose part
    is not stored.
    """

    def __init__(self, number: int, parts: dict[Lane, Run]) -> None:
        self.number = number
        self.parts = parts
        self.examples = sum([shard_ledger.run_size(run) for run in parts.values()])
        self.unbegun = set(parts)
        self.missing = set(parts)
        self.failures: list[tuple[Lane, WorkerFailure]] = []

    def slot(self, lane: Lane) -> int:
        return list(self.parts).index(lane)


class GlobalBatchLanes(Lanes):
    """Lanes that make each update together."""

    def __init__(
        self,
        workers: Sequence[PartWorker],
        plan: DataPlan,
        inbox: queue.Queue[Any],
        updater: Updater | None,
    ) -> None:
        """`updater`: None if the workers make the updates in turn."""
        super().__init__(workers, plan, inbox)
        self._updater = updater
        self._assigned: dict[Lane, deque[PendingPortion]] = {lane: deque() for lane in self._lanes}
        self._planned: deque[list[Lane]] = deque()
        self._update: _Update | None = None
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
        fits = program_data.READ_BYTES // (self._plan.example_bytes * part)
        most = max(min(asked, fits, PORTION_EXAMPLES // part), 1)
        if self._updater is None:
            self._plan_turns(lanes, most, asked)
            return
        self.ledger, planned = plan_round(self.ledger, self._plan.update, speeds, most)
        for lane, part, run in zip(lanes, planned.parts, planned.runs, strict=True):
            if run:
                portion = self._plan.portion(run, batch=part)
                self._assigned[lane].append(PendingPortion(portion, asked))
        used = [lane for lane, part in zip(lanes, planned.parts, strict=True) if part]
        self._planned += [used] * planned.updates

    def _plan_turns(self, lanes: Sequence[Lane], most_updates: int, asked: int) -> None:
        """Let each lane make some whole updates, in turn."""
        counts = []
        for lane in lanes:
            size = self._plan.update * most_updates
            self.ledger, run = shard_ledger.take_run(self.ledger, size)
            if run:
                self._assigned[lane].append(PendingPortion(self._plan.portion(run), asked))
            counts.append(-(-shard_ledger.run_size(run) // self._plan.update))
        for turn in range(most_updates):
            self._planned += [
                [lane] for lane, count in zip(lanes, counts, strict=True) if turn < count
            ]

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
        return lane in self._planned[0] and all(each.ready for each in self._planned[0])

    def _is_busy(self) -> bool:
        return self._update is not None or super()._is_busy()

    def _step(self, lane: Lane) -> None:
        """Compute a part of an update. The lane with the last part applies the update."""
        with self._changed:
            self._changed.wait_for(lambda: lane.lost or self._has_update(lane))
            if lane.lost:
                self._give_up_part(lane)
                return
            update = self._update or self._begin_update()
            update.unbegun.remove(lane)
            turn = lane.turn
        is_last = self._compute_part(lane, update)
        if is_last:
            self._finish_update(update)
        if self._losses_are_due(lane) and not lane.lost:
            self._fetch_losses(lane, turn)
        self._end_part(lane)

    def _begin_update(self) -> _Update:
        parts = {lane: lane.ready.popleft() for lane in self._planned.popleft()}
        self._update = _Update(self._begun, parts)
        self._begun += 1
        for lane in parts:
            lane.updating = True
        self._changed.notify_all()
        return self._update

    def _compute_part(self, lane: Lane, update: _Update) -> bool:
        """Return whether this was the last part of the update in progress, also if it failed."""
        run = update.parts[lane]
        passes = self._plan.passes(shard_ledger.run_size(run))
        began_s = time.monotonic()
        try:
            if self._updater is None:
                lane.worker.update(passes, 1)
            else:
                part = Part(update.number, update.slot(lane), passes, update.examples)
                lane.worker.compute_part(part)  # type: ignore[attr-defined]
        except WorkerFailure as failure:
            update.failures.append((lane, failure))
        else:
            lane.record_update(time.monotonic() - began_s, 1, shard_ledger.run_size(run))
        with self._changed:
            update.missing.remove(lane)
            return not update.missing and self._update is update

    def _give_up_part(self, lane: Lane) -> None:
        """Let the update in progress fail if a lost lane did not begin its part."""
        update = self._update
        if update is None or lane not in update.unbegun:
            return
        update.unbegun.remove(lane)
        update.missing.remove(lane)
        lane.updating = False
        lost = WorkerFailure(RuntimeError(f"{lane.worker.name} is lost"), lost=True)
        update.failures.append((lane, lost))
        if not update.missing:
            self._drop_update(update)

    def _finish_update(self, update: _Update) -> None:
        """Apply an update whose parts are all stored; drop it if one failed."""
        if update.failures:
            self._drop_update(update)
            return
        try:
            if self._updater is not None:
                self._updater.apply(update.number, len(update.parts), update.examples)
        except WorkerFailure as failure:
            raise failure.cause from failure  # nobody knows whether it is applied
        with self._changed:
            self.ledger = shard_ledger.mark_update_applied(
                self.ledger, update.parts.values(), self._plan.update
            )
            for lane in update.parts:
                lane.failures = 0
            self._steps += 1
            self.applied_s = time.time()
            self._update = None
            finished = self.ledger.finished
            self._changed.notify_all()
        self._post_once("first", "first")
        if finished:
            self._post_once("finished", "finished")

    def _end_part(self, lane: Lane) -> None:
        with self._changed:
            lane.updating = self._update is not None and lane in self._update.unbegun
            self._changed.notify_all()

    # ------------------------------------------------------------ failures

    def _drop_update(self, update: _Update) -> None:
        """Drop an update of which a part failed, and plan its examples anew."""
        try:
            if self._updater is not None:
                self._updater.clear()
        except WorkerFailure as error:
            raise error.cause from error
        with self._changed:
            self._return_batches(update.parts.values())
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
        self._update = None
        for each in self._lanes:
            each.updating = False
        super()._end_lane(lane)


def part_speeds(examples_per_s: Sequence[float]) -> list[float]:
    """Return relative speeds: equal unless all are known (not 0) and they clearly differ."""
    known = [speed for speed in examples_per_s if speed > 0.0 and math.isfinite(speed)]
    if len(known) < len(examples_per_s) or max(known) < EQUALLY_FAST * min(known):
        return [1.0] * len(examples_per_s)
    return list(examples_per_s)


def rehearse_parts(workers: Sequence[PartWorker], plan: DataPlan, updater: Updater) -> None:
    """Let all workers make two updates of the first examples together."""
    sizes = divide_examples(plan.update, [1.0] * len(workers))
    runs = [(Shard(0, min(max(size, 1), plan.order.examples)),) for size in sizes]
    examples = sum([shard_ledger.run_size(run) for run in runs])

    def compute(update: int, slot: int) -> None:
        worker, run = workers[slot], runs[slot]
        portion = plan.portion(run, batch=shard_ledger.run_size(run))
        with explained_errors(worker, portion):
            passes = stage_portion(worker, portion)
            worker.compute_part(Part(update, slot, passes, examples))
            worker.take_losses()

    for update in REHEARSED:
        with ThreadPoolExecutor(len(workers)) as threads:
            list(threads.map(partial(compute, update), range(len(workers))))
        updater.apply(update, len(workers), examples)
