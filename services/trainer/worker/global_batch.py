"""Global batch: each update is the mean over the same examples, whatever the number of workers.

An update of B examples is divided among the workers. Each computes the gradient of its part, and
stores it on the parameter servers (`part_exchange.py`). When all parts are there, the chief lets
the parameter servers add and apply them. So no gradient is stale, and B does not grow with the
number of workers.

`update_plan.py` says which examples each worker reads. If a worker is lost, the update in progress
is dropped, and all positions that are not applied are planned anew. A worker gets the next group of
files when it has read the one before.

Some steps cannot be computed in parts: a step of the program's own that uses what it has updated,
or a loss that is no mean over examples. Their updates are made one after the other, by the workers
in turn. That is correct, but no faster than one worker.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from services.trainer.worker import exactness, program_data, shard_ledger
from services.trainer.worker.input_pipeline import PORTION_EXAMPLES, DataPlan, Portion
from services.trainer.worker.lanes import (
    PORTIONS_AHEAD,
    TRANSIENT_FAILURES,
    Lane,
    Lanes,
    PendingPortion,
    Worker,
    explained_errors,
    rehearse_updates,
    stage_portion,
)
from services.trainer.worker.part_exchange import Part
from services.trainer.worker.remote_worker import (
    WorkerFailure,
    trace_part_workers,
    trace_workers,
)
from services.trainer.worker.shard_ledger import GROUP_POSITIONS, Ledger, Run, Shard
from services.trainer.worker.training_step import BuiltModel, WholeBatchNeeded
from services.trainer.worker.update_plan import (
    divide_examples,
    divide_staged,
    exact_updates,
    part_speeds,
    plan_round,
    slot_count,
)

REHEARSED = (-1, -2)
"""The numbers of the updates before training."""


class Updater(Protocol):
    """Applies updates on the parameter servers. It raises `WorkerFailure`."""

    def apply(self, update: int, parts: int, examples: int) -> None:
        """Apply the stored parts 0 .. parts - 1 of this update, of `examples` examples."""

    def clear(self) -> None:
        """Drop all stored parts."""


class PlannedPart(NamedTuple):
    """A lane's part of an update: the first of its slots, and the number of staged batches.

    A slot is the number of a stored part. A lane has one slot, but several with `ExactLanes`.
    """

    slot: int
    batches: int = 1


class _Update:
    """An update in progress. `slots`: the first slot of each lane; `parts`: the runs of its passes;
    `unbegun`: lanes whose part is not begun; `missing`: lanes whose part is not stored. `stored`:
    number of parts to store. `measures_noise`: all lanes measure gradient noise after their parts.
    """

    def __init__(
        self, number: int, slots: dict[Lane, int], parts: dict[Lane, list[Run]], stored: int
    ) -> None:
        self.number = number
        self.slots = slots
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
        updater: Updater | None,
    ) -> None:
        """`updater`: None if the workers make the updates in turn."""
        super().__init__(workers, plan, inbox)
        self._updater = updater
        self._assigned: dict[Lane, deque[PendingPortion]] = {lane: deque() for lane in self._lanes}
        self._planned: deque[dict[Lane, PlannedPart]] = deque()
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
        places = {lane: PlannedPart(slot) for slot, lane in enumerate(used)}
        self._planned += [places] * planned.updates

    def _plan_turns(self, lanes: Sequence[Lane], most_updates: int, asked: int) -> None:
        """Let each lane make some whole updates, in turn."""
        whole = self._plan.update
        left = {}
        for lane in lanes:
            self.ledger, run = shard_ledger.take_run(self.ledger, whole * most_updates)
            if run:
                self._assigned[lane].append(PendingPortion(self._plan.portion(run), asked))
            left[lane] = shard_ledger.run_size(run)
        while any(left.values()):
            for lane in [lane for lane, examples in left.items() if examples]:
                self._planned.append({lane: self._whole_update(min(whole, left[lane]))})
                left[lane] -= min(whole, left[lane])

    def _whole_update(self, examples: int) -> PlannedPart:
        """Return an update that one lane makes, of as many batches as it takes."""
        return PlannedPart(0, -(-examples // self._plan.batch))

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

    def _begin_update(self) -> _Update:
        self._update = self._take_update()
        self._update.measures_noise = all(map(self._noise_is_due, self._update.parts))
        self._begun += 1
        for lane in self._update.parts:
            lane.updating = True
        self._changed.notify_all()
        return self._update

    def _take_update(self) -> _Update:
        """Take the examples of the next update from what is staged."""
        planned = self._planned.popleft()
        slots = {lane: part.slot for lane, part in planned.items()}
        parts = {
            lane: [lane.ready.popleft() for _ in range(part.batches)]
            for lane, part in planned.items()
        }
        return _Update(self._begun, slots, parts, sum([part.batches for part in planned.values()]))

    def _compute_part(self, lane: Lane, update: _Update) -> bool:
        """Return whether this was the last part of the update in progress, also if it failed."""
        part = self._part_of(lane, update)
        began_s = time.monotonic()
        try:
            if self._updater is None:
                lane.worker.update(part.passes, len(update.parts[lane]))
            else:
                lane.worker.compute_part(part)
        except WorkerFailure as failure:
            if self._updater is None:
                raise failure.cause from failure  # nobody knows whether it is applied
            update.failures.append((lane, failure))
        else:
            lane.record_update(time.monotonic() - began_s, 1, update.part_size(lane))
        with self._changed:
            update.missing.remove(lane)
            return not update.missing and self._update is update

    def _part_of(self, lane: Lane, update: _Update) -> Part:
        sizes = [shard_ledger.run_size(run) for run in update.parts[lane]]
        passes = sum([self._plan.passes(size) for size in sizes])
        return Part(update.number, update.slots[lane], passes, update.examples)

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

    def _finish_update(self, update: _Update) -> None:
        """Apply an update whose parts are all stored; drop it if one failed."""
        if update.failures:
            self._drop_update(update)
            return
        try:
            if self._updater is not None:
                update.is_applying = True
                self._updater.apply(update.number, update.stored, update.examples)
        except WorkerFailure as failure:
            raise failure.cause from failure  # nobody knows whether it is applied
        finally:
            update.is_applying = False
        with self._changed:
            self.ledger = self._mark_applied(update)
            for lane in update.parts:
                lane.failures = 0
            self._count_step()
            self._update = None
            finished = self.ledger.finished
            self._changed.notify_all()
        self._post_once("first", "first")
        if finished:
            self._post_once("finished", "finished")

    def _mark_applied(self, update: _Update) -> Ledger:
        return shard_ledger.mark_update_applied(self.ledger, update.runs, self._plan.update)

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


class FileBatchLanes(GlobalBatchLanes):
    """Lanes that make each update together, of the examples of files.

    Without an updater they make updates in turn, each of a batch as it was read: the last one of a
    group of files is shorter.
    """

    def _needs_portion(self, lane: Lane) -> bool:
        return bool(self.ledger.todo) and not lane.pending and lane in self._used_lanes()

    def _take_portion(self, lane: Lane) -> Portion | None:
        self.ledger, run = shard_ledger.take_run(self.ledger, GROUP_POSITIONS)
        part = -(-self._plan.update // len(self._used_lanes()))
        batch = None if self._updater is None else min(part, self._plan.most or part)
        portion = self._plan.portion(run, lane.turn, batch)
        lane.pending.append(PendingPortion(portion, lane.portion_size.batches))
        return portion

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
        if self._updater is None:
            return self._next_turn()
        epoch = self._first_epoch()
        ready = [
            [shard_ledger.run_size(run) for run in lane.ready if self._epoch(run) == epoch]
            for lane in self._lanes
        ]
        staged = sum([sum(sizes) for sizes in ready])
        examples = min(staged, self._plan.update) if self._is_read(epoch) else self._plan.update
        divided = divide_staged(ready, examples) if staged else None
        if divided is None:
            return {}
        return {lane: sizes for lane, sizes in zip(self._lanes, divided, strict=True) if sizes}

    def _next_turn(self) -> dict[Lane, list[int]]:
        """Return the update of the lane whose turn it is, if it has its batches; else of another."""
        turn = self._begun % len(self._lanes)
        for lane in (*self._lanes[turn:], *self._lanes[:turn]):
            enough = len(lane.ready) >= self._plan.accumulated
            if enough or (lane.ready and not (lane.pending or self.ledger.todo)):
                batches = list(lane.ready)[: self._plan.accumulated]
                return {lane: [shard_ledger.run_size(run) for run in batches]}
        return {}

    def _first_epoch(self) -> int:
        """Return the first epoch of which examples are not in an update."""
        unread = [portion.run for lane in self._lanes for portion in lane.pending]
        ready = [run for lane in self._lanes for run in lane.ready]
        todo = [(shard,) for shard in self.ledger.todo[:1]]
        return min([self._epoch(run) for run in (*unread, *ready, *todo) if run], default=0)

    def _is_read(self, epoch: int) -> bool:
        """Return whether all examples of this epoch, and of those before, are staged."""
        unread = [portion.run for lane in self._lanes for portion in lane.pending]
        todo = [(shard,) for shard in self.ledger.todo[:1]]
        return all(self._epoch(run) > epoch for run in (*unread, *todo) if run)

    def _epoch(self, run: Run) -> int:
        return run[0].start // self.ledger.examples

    def _take_update(self) -> _Update:
        parts = {
            lane: [_take_examples(lane, size) for size in sizes]
            for lane, sizes in self._divide_staged().items()
        }
        slots = {lane: slot for slot, lane in enumerate(parts)}
        return _Update(self._begun, slots, parts, len(parts))

    def _mark_applied(self, update: _Update) -> Ledger:
        if self._updater is not None:
            return super()._mark_applied(update)
        return shard_ledger.mark_runs_applied(self.ledger, update.runs)

    def _part_of(self, lane: Lane, update: _Update) -> Part:
        if self._updater is None:
            return super()._part_of(lane, update)
        rows = tuple([shard_ledger.run_size(run) for run in update.parts[lane]])
        return Part(update.number, update.slots[lane], len(rows), update.examples, rows)


def _take_examples(lane: Lane, count: int) -> Run:
    """Remove the first `count` examples of the first staged batch, and return their positions."""
    taken, rest = shard_ledger.split_run(lane.ready.popleft(), count)
    if rest:
        lane.ready.appendleft(rest)
    return taken


class ExactLanes(GlobalBatchLanes):
    """Lanes whose updates have the same parts, in the same slots, whatever the number of lanes.

    Without an updater, each update is one part.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        plan: DataPlan,
        inbox: queue.Queue[Any],
        updater: Updater | None,
    ) -> None:
        super().__init__(workers, plan, inbox, updater)
        self._slots = 1 if updater is None else slot_count(plan.update, plan.most)

    def _used_lanes(self) -> list[Lane]:
        present = [lane for lane in self._lanes if not lane.lost]
        return present if self._updater is None else present[: self._slots]

    def _plan_round(self) -> None:
        lanes = self._used_lanes()
        updates = exact_updates(self.ledger, self._plan.update, self._slots)
        self.ledger = shard_ledger.take_shards(
            self.ledger, [shard for parts in updates for shard in parts]
        )
        shares = divide_examples(self._slots, part_speeds([lane.examples_per_s for lane in lanes]))
        runs: dict[Lane, list[Shard]] = {lane: [] for lane in lanes}
        for number, parts in enumerate(updates):
            if self._updater is None:
                turn = lanes[number % len(lanes)]
                runs[turn] += parts
                self._planned.append({turn: self._whole_update(parts[0].size)})
            else:
                self._planned.append(self._divide_slots(parts, shares, runs))
        for lane, shards in runs.items():
            self._assign(lane, shards)

    def _divide_slots(
        self, parts: Sequence[Shard], shares: Sequence[int], runs: dict[Lane, list[Shard]]
    ) -> dict[Lane, PlannedPart]:
        """Give each lane the parts of its slots. `shares`: number of slots of each lane."""
        planned, slot = {}, 0
        for (lane, shards), share in zip(runs.items(), shares, strict=True):
            given = parts[slot : slot + share]
            shards += given
            if given:
                planned[lane] = PlannedPart(slot, len(given))
            slot += share
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
        batch = self._plan.batch if self._updater is None else size
        first, count = 0, min(asked, most)
        while first < len(shards):
            portion = self._plan.portion(tuple(shards[first : first + count]), batch=batch)
            self._assigned[lane].append(PendingPortion(portion, asked))
            first, count = first + count, min(2 * count, most)


class TracedLanes(NamedTuple):
    """Lanes, and a function that makes two updates on every worker."""

    lanes: Lanes
    rehearse: Callable[[], None]


def trace_lanes(
    program: ModuleType,
    strategy: Any,
    built: BuiltModel,
    plan: DataPlan,
    spec: Any,
    workers: int,
    inbox: queue.Queue[Any],
    is_exact: bool = False,
) -> TracedLanes:
    """Trace the functions of workers that make all updates together. One worker makes whole updates.

    `spec`: the structure of a batch; `is_exact`: the updates have the same parts whatever the
    number of workers.
    """
    kind: type[GlobalBatchLanes] = FileBatchLanes if plan.reads_files else GlobalBatchLanes
    slots = None
    if is_exact:
        exactness.check_program(program)
        kind, slots = ExactLanes, slot_count(plan.update, plan.most)
    parts = program, strategy, built, plan, spec, workers
    if workers == 1 and kind is GlobalBatchLanes:
        return _trace_turns(kind, parts, inbox)
    try:
        remote, updater = trace_part_workers(*parts, slots)
    except WholeBatchNeeded:
        return _trace_turns(kind, parts, inbox)
    if is_exact:
        exactness.check_step(program, remote[0].step.graph)
    lanes = kind(remote, plan, inbox, updater)
    return TracedLanes(lanes, partial(rehearse_parts, remote, plan, updater, slots or workers))


def _trace_turns(
    kind: type[GlobalBatchLanes], parts: tuple[Any, ...], inbox: queue.Queue[Any]
) -> TracedLanes:
    """Trace the functions of workers that make whole updates in turn.

    `parts`: the arguments of `trace_workers`.
    """
    program, _, _, plan, *_ = parts
    workers = trace_workers(*parts)
    if kind is ExactLanes:
        exactness.check_step(program, workers[0].step.graph)
    return TracedLanes(kind(workers, plan, inbox, None), partial(rehearse_updates, workers, plan))


def rehearse_parts(workers: Sequence[Worker], plan: DataPlan, updater: Updater, slots: int) -> None:
    """Let all workers make two updates of the first examples together. `slots`: of an update."""
    shares = divide_examples(slots, [1.0] * len(workers))
    firsts = list(itertools.accumulate(shares, initial=0))
    size = min(-(-plan.update // slots), plan.most or plan.update, plan.order.examples)

    def compute(update: int, place: int) -> int:
        """Return the number of passes; 0 if the first file has no example."""
        worker = workers[place]
        portion = plan.portion((Shard(0, size),) * shares[place], batch=size)
        with explained_errors(worker, portion):
            sizes = stage_portion(worker, portion) if shares[place] else []
            if sizes:
                rows = tuple(sizes) if plan.reads_files else ()
                examples = size * slots
                worker.compute_part(Part(update, firsts[place], len(sizes), examples, rows))
                worker.take_losses()
            return len(sizes)

    used = [place for place, share in enumerate(shares) if share]
    for update in REHEARSED:
        with ThreadPoolExecutor(len(used)) as threads:
            passes = list(threads.map(partial(compute, update), used))
        if all(passes):
            try:
                updater.apply(update, slots, size * slots)
            except WorkerFailure as failure:
                raise failure.cause from failure
