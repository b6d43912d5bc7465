"""Lanes: threads of the chief that keep every worker busy.

Each worker has two. The feeder gives it portions of the positions in the ledger, and has the
batches staged there before they are needed (`input_pipeline.py`). The stepper lets the worker make
one update after the other of the batches that are staged, and records each as applied when the
worker has returned. So a hand-over loses nothing.

    todo  --portion-->  pending  --fetch-->  ready  --update-->  applied
      ^                  |                   |         |
      +------------------+------ the worker is lost ---+
      +------------------------- or the gradient is too stale (`staleness.py`)

All but `todo` and applied are `given` in the ledger. A checkpoint counts them as to do.

If an update fails though its worker is there (the connection to a ps broke), nobody knows whether
it was applied, or on which ps. So the generation ends, and the next one continues from the last
checkpoint. A worker that is lost may have applied its last update: the bound of examples that are
applied twice is one update for each lost worker.

Numbered examples are given out some batches at a time, and early, so that a worker never waits.
Files are given out late: a worker gets the next group of files when it has read the one before to
its end. The number of examples of a group is known only at its end.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker import shard_ledger, staleness
from services.trainer.worker.file_source import FileOrder
from services.trainer.worker.input_pipeline import (
    KEPT_SAMPLES,
    DataPlan,
    Portion,
    StagedPass,
    UpdateLoss,
)
from services.trainer.worker.noise_estimate import (
    Comparison,
    MeasurementTimer,
    NoiseEstimate,
)
from services.trainer.worker.part_exchange import Part
from services.trainer.worker.portions import (
    PendingPortion,
    PortionSize,
    batches_to_stage,
    staged_batches,
)
from services.trainer.worker.remote_worker import WorkerFailure
from services.trainer.worker.shard_ledger import Ledger, Run
from services.trainer.worker.staleness import NO_GRADIENTS
from shared.messages import Staleness
from shared.text import format_count

SMOOTHING = 0.9
"""Share of the former value in the mean time of training a batch."""
LOSSES_S = 0.5
"""Seconds between two fetches of the losses of a worker's updates: a fetch costs the chief as much
as an update.
"""
PORTIONS_AHEAD = 2
"""Number of portions of a worker of numbered examples: while it reads one, the next one waits
there.
"""
TRANSIENT_FAILURES = 3
"""Number of calls in a row that may fail on a worker without its being lost; one more ends the
generation. Updates do not count: one that fails ends the generation at once (a part of an update
can be computed again).
"""


class Worker(Protocol):
    """A worker of the cluster (`remote_worker.py`). Each call returns when the worker has done it;
    it raises `WorkerFailure`, or the error of the program.
    """

    name: str

    def push(self, portion: Portion) -> None:
        """Let the worker read this portion after the ones before."""

    def fetch(self, passes: int, turn: int) -> list[StagedPass]:
        """Read this many passes, in the order of the portions, up to the end of a portion, and stage
        those of this turn.

        If a portion ends before, the mark of its end is the last element.
        """

    def drop_staged(self) -> None:
        """Drop the staged passes."""

    def update(self, passes: int, batches: int) -> bool:
        """Make an update of the first staged passes. Return False if its gradient was too stale, so
        that it was not applied.
        """

    def compute_part(self, part: Part) -> None:
        """Store the gradient of a part of an update, of the first staged passes, on the ps."""

    def take_losses(self) -> list[UpdateLoss]:
        """Return the losses of the updates since the last call."""

    def compare_gradients(self) -> Comparison | None:
        """Compare the gradients of the passes that were staged last, and change nothing. Call it
        when there are KEPT_SAMPLES, after `trace_comparison`. Return None if gradients of this
        program are not compared.
        """

    def trace_comparison(self) -> None:
        """Trace what `compare_gradients` runs, once for all workers of a generation."""

    def explain(self, portion: Portion) -> None:
        """Read this portion in Python. Raise its error, with the line; return if there is none."""


class Lane:
    """The batches of one worker.

    `pending`: its portions that are not staged to the end; `passes`: the staged passes of a batch
    that is not complete; `ready`: the staged batches. `updating`: an update is in progress, or its
    loss is being fetched.
    """

    def __init__(self, worker: Worker, noise_share: float = 0.0) -> None:
        self.worker = worker
        self.pending: deque[PendingPortion] = deque()
        self.passes: list[StagedPass] = []
        self.ready: deque[Run] = deque()
        self.updating = False
        self.losses_taken_s = -math.inf
        self.samples = 0  # passes that were staged since gradient noise was measured
        self.noise_timer = MeasurementTimer(noise_share)
        self.portion_size = PortionSize()
        self.lost = False
        self.failures = 0
        self.turn = self.staged_turn = 0
        """`turn` rises when all unused batches are dropped. What the worker was given before is read,
        but not used. `staged_turn`: the turn of what is staged.
        """
        self.batch_s = math.inf  # mean time of training a batch
        self.examples_per_s = 0.0  # while it trains; 0: unknown
        self.read_s = 0.0  # time of reading a batch, in the last call

    def record_update(self, took_s: float, batches: int, examples: int) -> None:
        """Record the time of an update of this many batches, and of this many examples."""
        batch_s, examples_per_s = took_s / batches, examples / max(took_s, 1e-6)
        if math.isfinite(self.batch_s):
            batch_s = SMOOTHING * self.batch_s + (1 - SMOOTHING) * batch_s
            examples_per_s = SMOOTHING * self.examples_per_s + (1 - SMOOTHING) * examples_per_s
        self.batch_s, self.examples_per_s = batch_s, examples_per_s

    def drop_unused(self) -> list[Run]:
        """Drop the batches of which no update has begun, and return them."""
        dropped = [*self.ready, *[portion.run for portion in self.pending]]
        self.ready, self.pending, self.passes = deque(), deque(), []
        self.turn += 1
        return dropped

    def has_unread(self) -> bool:
        return any(portion.run for portion in self.pending)

    def add_pass(self, staged: StagedPass) -> None:
        """Record a staged pass, and its batch as ready if it is the last one of it.

        Raise `RuntimeError` if the worker was not told to stage it now.
        """
        run = self.pending[0].run if self.pending else ()
        position = self.pending[0].position if self.pending else 0
        done = sum([each.size for each in self.passes])
        if staged.position != position + done or done + staged.size > shard_ledger.run_size(run):
            raise RuntimeError(f"{run} was given out, and the worker staged {staged}")
        self.passes.append(staged)
        self.samples += 1
        if done + staged.size == staged.batch_size:
            self.ready.append(self.pending[0].take(staged.batch_size))
            self.passes = []


def unknown_result(failure: WorkerFailure) -> Any:
    """Return the error that ends a generation, because nobody knows whether an update is applied.
    The next one continues from the last checkpoint.
    """
    why = f"an update may be applied or not: {failure.cause}"
    return tf.errors.UnavailableError(None, None, why)


class Lanes:
    """Begin with `start`, stop at a batch boundary with `drain`, go on with `resume`.

    Each of these goes to `inbox` at most once a run: `"first"` (an update is applied), `"finished"`
    (nothing is left to do), and the exception that ended a lane. After that exception there is no
    checkpoint of this generation any more.
    """

    def __init__(self, workers: Sequence[Worker], plan: DataPlan, inbox: queue.Queue[Any]) -> None:
        self._plan = plan
        self._inbox = inbox
        self._lanes = [Lane(worker, plan.noise_share) for worker in workers]
        self._changed = threading.Condition()
        self._running = False
        self._error: Exception | None = None
        self._losses: list[UpdateLoss] = []
        self._steps = 0
        self._posted: set[str] = set()
        self.read_staleness: Callable[[], tuple[int, ...]] = lambda: NO_GRADIENTS
        """Returns the histogram of the ps (`staleness.py`)."""
        self._gradients = self._reported_gradients = NO_GRADIENTS
        self._staleness_read_s = -math.inf
        self._noise = NoiseEstimate(plan.order.examples)
        self._may_measure_noise = False
        self._dropped = 0  # gradients since the last report
        self.first_applied_s = self.applied_s = 0.0
        """When the first and the last update were applied, in seconds since 1970; 0: none was."""
        self.ledger: Ledger = shard_ledger.new_ledger(1, 1)

    # ------------------------------------------------------------ start, drain, resume

    def start(self, ledger: Ledger, steps: int) -> None:
        """Train from this ledger and number of updates. Call it once."""
        self.ledger, self._steps = shard_ledger.settle_ledger(ledger), steps
        self.resume()
        for lane in self._lanes:
            for target in (self._feed, self._step):
                threading.Thread(target=self._guard, args=(target, lane), daemon=True).start()

    def resume(self) -> None:
        """Train on. Raise the error of a lane that has ended, and `Unavailable` if no worker is
        left.
        """
        with self._changed:
            self._raise_error()
            if self.no_worker_left():
                raise tf.errors.UnavailableError(None, None, "no worker is left")
            self._posted.clear()
            self._running = True
            self._changed.notify_all()

    def drain(self) -> Ledger:
        """Return the ledger for a checkpoint when no update is in progress.

        Raise the error of a lane that has ended: its last update may be applied in part.
        """
        with self._changed:
            self._running = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_busy())
            self._raise_error()
            return shard_ledger.settle_ledger(self.ledger)

    @property
    def has_failed(self) -> bool:
        """Return whether a lane has ended with an error, which `drain` and `resume` raise. After
        the last update it does not matter.
        """
        return self._error is not None and not self.ledger.finished

    def _raise_error(self) -> None:
        if self._error is not None and self.has_failed:
            raise self._error

    def no_worker_left(self) -> bool:
        return all(lane.lost for lane in self._lanes)

    def lost_workers(self) -> list[str]:
        return [lane.worker.name for lane in self._lanes if lane.lost]

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def is_updating(self) -> bool:
        """Return whether an update is due or in progress."""
        return (self._running and bool(self.ledger.given)) or self._is_busy()

    def _is_busy(self) -> bool:
        """Return whether an update is in progress."""
        return any(lane.updating for lane in self._lanes)

    def take_losses(self) -> tuple[float | None, int]:
        """Return the mean loss of the examples applied since the last call, and their number."""
        with self._changed:
            taken, self._losses = self._losses, []
        total, count = 0.0, 0
        for loss, examples in taken:
            total += loss * examples
            count += examples
        return (total / count if count else None), count

    def take_staleness(self) -> Staleness | None:
        """Return the staleness of the gradients since the last call, as far as it is fetched."""
        with self._changed:
            before, self._reported_gradients = self._reported_gradients, self._gradients
            dropped, self._dropped = self._dropped, 0
        return staleness.describe(before, self._reported_gradients, dropped)

    @property
    def gradient_noise(self) -> NoiseEstimate:
        """What is known of the gradient noise scale."""
        return self._noise

    def start_noise_measurements(self) -> None:
        """Trace what measures gradient noise, and let the workers measure from then on.

        No other thread may use a Keras variable until this returns: while a step is traced, its
        variables hold tensors of the graph. An update that has to be traced waits.
        """
        for lane in self._lanes:
            lane.worker.trace_comparison()
        self._may_measure_noise = True

    # ------------------------------------------------------------ the threads of a lane

    def _guard(self, target: Any, lane: Lane) -> None:
        try:
            while not lane.lost:
                target(lane)
            self._leave(lane)
        except Exception as error:
            with self._changed:
                self._error = self._error or error
                self._end_lane(lane)
            self._post_once("failed", error)

    def _leave(self, lane: Lane) -> None:
        """Called when a lane whose worker is lost has ended its last action."""

    def _end_lane(self, lane: Lane) -> None:
        """End training after an error of a lane."""
        self._running = False
        lane.updating = False
        self._changed.notify_all()

    def _feed(self, lane: Lane) -> None:
        """Give the worker a portion if few positions are pending, else stage batches."""
        with self._changed:
            self._changed.wait_for(lambda: lane.lost or self._has_to_read(lane))
            if lane.lost:
                return
            turn = lane.turn
            given = self._take_portion(lane) if self._needs_portion(lane) else None
            if given is None and not lane.pending:
                return
            passes = 0 if given else self._missing_passes(lane)
            reading = [each.run or each.portion.run for each in list(lane.pending)[:1]]
        try:
            if given is not None:
                lane.worker.push(given)
            else:
                self._stage(lane, passes, turn)
        except WorkerFailure as failure:
            self._handle_failure(lane, failure, turn)
        except tf.errors.OpError:
            self._finish_updates(lane)
            self._explain(lane, reading)
            raise

    def _finish_updates(self, lane: Lane) -> None:
        """Wait until the batches read before an error are applied, unless training stops."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    lane.lost or not (lane.updating or self._has_update(lane)) or not self._running
                )
            )

    def _has_to_read(self, lane: Lane) -> bool:
        if self._needs_portion(lane):
            return True
        return bool(lane.pending) and len(lane.ready) <= self._most_to_stage(lane)

    def _needs_portion(self, lane: Lane) -> bool:
        if not self.ledger.todo:
            return False
        return len(lane.pending) < (1 if self._plan.reads_files else PORTIONS_AHEAD)

    def _most_to_stage(self, lane: Lane) -> int:
        """Return the number of batches that one call may stage: half of those to keep staged."""
        return staged_batches(self._plan, lane.batch_s, not self.ledger.todo) // 2

    def _missing_passes(self, lane: Lane) -> int:
        """Return the number of passes to stage in one call."""
        most = self._most_to_stage(lane)
        batches = batches_to_stage(len(lane.ready), most, lane.batch_s, lane.read_s)
        return batches * self._batch_passes(lane) - len(lane.passes)

    def _batch_passes(self, lane: Lane) -> int:
        """Return the number of passes of a batch of this lane."""
        return self._plan.passes(self._plan.batch)

    def _take_portion(self, lane: Lane) -> Portion | None:
        present = sum([not each.lost for each in self._lanes])
        asked = lane.portion_size.batches
        size = self._plan.portion_size(self.ledger, max(present, 1), asked)
        self.ledger, shard = shard_ledger.take_shard(self.ledger, size)
        if shard is None:
            return None
        portion = self._plan.portion((shard,), lane.turn)
        lane.pending.append(PendingPortion(portion, asked))
        if not self.ledger.todo:  # a lane may have its last update, of fewer batches
            self._changed.notify_all()
        return portion

    def _stage(self, lane: Lane, passes: int, turn: int) -> None:
        """Stage this many passes, fewer if a portion ends before. Skip passes of earlier turns."""
        self._drop_earlier(lane, turn)
        staged: list[StagedPass] = []
        while not staged:
            began_s = time.monotonic()
            staged = [each for each in lane.worker.fetch(passes, turn) if each.turn == turn]
        read_s = time.monotonic() - began_s
        with self._changed:
            if lane.turn != turn:
                return
            if staged[0].size:  # not only the end of a portion
                lane.read_s = read_s * self._batch_passes(lane) / len(staged)
            for each in staged:
                if each.size:
                    lane.add_pass(each)
                else:
                    self._end_portion(lane, each.read_ms)
            finished = self.ledger.finished
            self._changed.notify_all()
        self._fetch_last_losses(lane, turn)
        if finished:  # the last group of files had no more examples
            self._post_once("finished", "finished")

    def _drop_earlier(self, lane: Lane, turn: int) -> None:
        """Drop what is staged of earlier turns, after an update in progress, which uses it."""
        if lane.staged_turn == turn:
            return
        with self._changed:
            self._changed.wait_for(lambda: lane.lost or not lane.updating)
        if not lane.lost:
            lane.worker.drop_staged()
            lane.staged_turn = turn

    def _end_portion(self, lane: Lane, read_ms: int) -> None:
        """Drop a portion that was read to its end, and record how long that took.

        Raise `BadProgram` if examples are missing, unless it is of files whose length was not
        known.
        """
        portion = lane.pending.popleft()
        lane.portion_size.record_read(portion.asked, portion.batches, read_ms)
        if not portion.run:
            return
        rest, order = portion.run[0], self._plan.order
        if not isinstance(order, FileOrder) or not shard_ledger.is_open(self.ledger, rest):
            raise BadProgram(
                f"{format_count(shard_ledger.run_size(portion.run), 'example')} at the end of "
                f"{shard_ledger.describe_shard(self.ledger, rest)} are missing: each epoch has to "
                "have every example, and batched() may not leave out any"
            )
        self.ledger = shard_ledger.end_group(self.ledger, rest, order.group(rest.start))

    def _explain(self, lane: Lane, runs: Iterable[Run]) -> None:
        for run in runs:
            lane.worker.explain(self._plan.portion(run))

    def _step(self, lane: Lane) -> None:
        """Make one update. Fetch the losses if that is due."""
        with self._changed:
            self._changed.wait_for(lambda: lane.lost or self._has_update(lane))
            if lane.lost:
                return
            turn = lane.turn
            count = min(self._plan.accumulated, len(lane.ready))
            batches = [lane.ready.popleft() for _ in range(count)]
            lane.updating = True
            if self._has_to_read(lane):  # a thread that is woken for nothing costs CPU
                self._changed.notify_all()
        sizes = [shard_ledger.run_size(batch) for batch in batches]
        passes = sum([self._plan.passes(size) for size in sizes])
        began_s = time.monotonic()
        try:
            is_applied = lane.worker.update(passes, len(batches))
        except WorkerFailure as failure:
            if not failure.lost:
                raise unknown_result(failure) from failure
            self._return_batches(batches)
            self._handle_failure(lane, failure, turn)
        else:
            lane.record_update(time.monotonic() - began_s, len(batches), sum(sizes))
            if is_applied:
                self._record_applied(lane, batches)
            else:
                self._record_dropped(lane, batches)
            if self._losses_are_due(lane):
                self._fetch_losses(lane, turn)
            if self._noise_is_due(lane):
                self._measure_noise(lane, turn)
        self._end_update(lane)

    def _has_update(self, lane: Lane) -> bool:
        """Return whether an update's batches are ready: as many as it needs, or the last ones."""
        if not self._running or not lane.ready:
            return False
        enough = len(lane.ready) >= self._plan.accumulated
        return enough or not (lane.pending or self.ledger.todo)

    def _record_applied(self, lane: Lane, batches: Sequence[Run]) -> None:
        with self._changed:
            self.ledger = shard_ledger.mark_runs_applied(self.ledger, batches)
            lane.failures = 0
            self._count_step()
        self._post_once("first", "first")

    def _record_dropped(self, lane: Lane, batches: Sequence[Run]) -> None:
        """Put the examples of an update that was not applied back to do."""
        with self._changed:
            self._return_batches(batches)
            lane.failures = 0
            self._dropped += 1

    def _count_step(self) -> None:
        self._steps += 1
        self.applied_s = time.time()
        self.first_applied_s = self.first_applied_s or self.applied_s

    def _losses_are_due(self, lane: Lane) -> bool:
        """Return whether to fetch a lane's losses: every `LOSSES_S`, and after its last update."""
        with self._changed:
            is_last = self._is_exhausted(lane) or not self._running
        return is_last or time.monotonic() >= lane.losses_taken_s + LOSSES_S

    def _fetch_losses(self, lane: Lane, turn: int) -> None:
        """Fetch the losses of a lane's updates. They are only reported, so training continues
        without those of a worker that fails now.
        """
        lane.losses_taken_s = time.monotonic()
        try:
            losses = lane.worker.take_losses()
        except WorkerFailure as failure:
            self._handle_failure(lane, failure, turn)
            return
        with self._changed:
            self._losses += losses
        self._fetch_staleness(lane)

    def _fetch_staleness(self, lane: Lane) -> None:
        """Fetch the staleness of all gradients, if that is due. Like the losses, it is only reported."""
        now_s = time.monotonic()
        with self._changed:
            is_last = self._is_exhausted(lane) or not self._running
            if not is_last and now_s < self._staleness_read_s + LOSSES_S:
                return
            self._staleness_read_s = now_s
        with contextlib.suppress(tf.errors.OpError):
            gradients = self.read_staleness()
            with self._changed:
                self._gradients = gradients

    def _noise_is_due(self, lane: Lane) -> bool:
        """Return whether a worker is to measure gradient noise: it has new samples, and nothing waits
        for the end of its update.
        """
        is_due = lane.samples >= KEPT_SAMPLES and lane.noise_timer.is_due(time.monotonic())
        return self._may_measure_noise and is_due and self._running and not lane.lost

    def _measure_noise(self, lane: Lane, turn: int) -> None:
        """Let a worker measure gradient noise. Training continues without it if that fails."""
        began_s = time.monotonic()
        try:
            found = lane.worker.compare_gradients()
        except WorkerFailure as failure:
            self._handle_failure(lane, failure, turn)
            return
        except tf.errors.OpError:
            found = None
        if found is None:
            lane.noise_timer.stop()
            return
        lane.noise_timer.record(began_s, time.monotonic())
        with self._changed:
            lane.samples = 0
            self._noise = self._noise.add(found)

    def _is_exhausted(self, lane: Lane) -> bool:
        """Return whether nothing is left for a lane but the update in progress."""
        return not (lane.ready or self.ledger.todo or lane.has_unread())

    def _fetch_last_losses(self, lane: Lane, turn: int) -> None:
        """Fetch the losses of a lane if no update follows.

        It may learn only from the end of its data that no update follows.
        """
        with self._changed:
            if not self._is_exhausted(lane):
                return
            self._changed.wait_for(lambda: lane.lost or not lane.updating)
        if not lane.lost:
            self._fetch_losses(lane, turn)

    def _end_update(self, lane: Lane) -> None:
        with self._changed:
            lane.updating = False
            finished = self.ledger.finished
            # Nobody waits for the end of an update after which this lane makes the next one, but
            # for a new turn.
            if not self._has_update(lane) or lane.turn != lane.staged_turn:
                self._changed.notify_all()
        if finished:
            self._post_once("finished", "finished")

    def _handle_failure(self, lane: Lane, failure: WorkerFailure, turn: int) -> None:
        """Put the worker's unused batches back to do, but not those of an update in progress.

        Raise the cause if the worker has failed too often in a row without being lost.
        """
        with self._changed:
            if lane.turn != turn:
                return
            lane.failures += 1
            if not failure.lost and lane.failures > TRANSIENT_FAILURES:
                raise failure.cause
            lane.lost = failure.lost
            self._return_batches(lane.drop_unused())

    def _return_batches(self, batches: Iterable[Run]) -> None:
        with self._changed:
            for shard in [shard for batch in batches for shard in batch]:
                self.ledger = shard_ledger.return_shard(self.ledger, shard)
            self._changed.notify_all()

    def _post_once(self, key: str, event: object) -> None:
        with self._changed:
            if key in self._posted:
                return
            self._posted.add(key)
        self._inbox.put(event)
