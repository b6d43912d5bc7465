"""The chief of one generation: prepare beside the running one, begin when told, drain when told.

prepare   connect, build, trace, and run everything once, from a save to its restore, so that nothing remains of it
begin     restore, start the lanes, tell of the first update
train     until drained, finished or broken; a checkpoint now and then, a report each second
drain     stop at a batch boundary, save, and wait: to be ended, or to go on as if nothing had been asked
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from services.trainer import build, evaluate, rate, shards, step
from services.trainer.checkpoint import Checkpoint
from services.trainer.lanes import Lanes, fetched
from services.trainer.orders import (
    Assignment,
    Begin,
    Drain,
    Finished,
    GoOn,
    Line,
    Prepared,
    Progress,
    Resumed,
    Saved,
    SaveNow,
)
from services.trainer.program import examples
from services.trainer.pulse import Pulse, absent, lost
from services.trainer.watchdog import Watchdog

LANES_PER_WORKER = 2
Say = Callable[[Line], None]


def connect(assignment: Assignment) -> Any:
    """A strategy over the generation's cluster; waits until every ps and worker stands."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(assignment.cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver)


class Chief:
    """One generation's training. `inbox` brings orders of the supervisor and words of the lanes, in order."""

    def __init__(
        self, assignment: Assignment, program: ModuleType, say: Say, inbox: queue.Queue[Any], dog: Watchdog
    ) -> None:
        self.assignment, self.program, self.say, self.inbox, self.dog = assignment, program, say, inbox, dog
        self.folder = Path(assignment.checkpoint_dir) / f"gen-{assignment.generation}"
        self.workers = len(assignment.cluster["worker"])

    # ------------------------------------------------------------ prepare

    def prepare(self) -> None:
        began = time.monotonic()
        strategy = connect(self.assignment)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.dog.absent = lambda: absent(self.coordinator, self.assignment.cluster)
        with self.dog.limited("model() or optimizer()"):
            self.built = build.build(self.program, strategy, len(self.assignment.cluster["ps"]))
        self.rate = float(self.built.optimizer.learning_rate)
        with self.dog.limited("examples()"):
            self.ledger = shards.fresh(examples(self.program), self.assignment.request.epochs)
        self.checkpoint = Checkpoint(self.built)
        with self.dog.limited("dataset(0, 1), or a step through the model and loss(), while it is traced,"):
            self.step = step.traced(self.program, strategy, self.built).get_concrete_function()
        lanes = LANES_PER_WORKER * self.workers
        self.lanes = Lanes(self.coordinator, self.step, self.assignment.batch, lanes, self.inbox)
        self.lanes.deserted = lambda: len(lost(self.coordinator)) == self.workers
        self.dog.checks.append(Pulse(self.lanes, self.dog, self.assignment.stuck_patience))
        if self.assignment.warms_up:
            self._warm()
        if self.assignment.first:
            evaluate.tried(self.program, self.dog)
        self.say(Prepared(seconds=time.monotonic() - began))

    def _warm(self) -> None:
        """Run the step on every worker, a save and a restore: what is slow the first time happens now."""
        stop = min(self.assignment.batch, self.ledger.examples)
        positions = (tf.constant(0, tf.int64), tf.constant(stop, tf.int64))
        with self.checkpoint.rehearsed(self.folder):
            for value in [self.coordinator.schedule(self.step, args=positions) for _ in range(2 * self.workers)]:
                fetched(value)

    # ------------------------------------------------------------ begin

    def begin(self, order: Begin) -> None:
        started = time.monotonic()
        last_s = self._restore(order.path)
        settled = self._settle_rate()
        restored = time.monotonic()
        self._go(int(self.built.meter.step))
        self._await_first()
        self.dog.relax()
        first_s = float(self.built.meter.first_s)
        self.say(
            Resumed(
                step=self.lanes.steps,
                samples=self.lanes.ledger.applied,
                pause_s=max(first_s - last_s, 0.0) if last_s else None,
                restore_s=restored - started,
                first_step_s=time.monotonic() - restored,
                learning_rate=settled,
            )
        )

    def _restore(self, path: str | None) -> float:
        """Restore, and return when the last update was applied before (0: never)."""
        if path is None:
            return 0.0
        self.ledger = self.checkpoint.read(path)
        self.built.meter.first_s.assign(0.0)
        return float(self.built.meter.last_s)

    def _settle_rate(self) -> float | None:
        """Set and return the rate of this generation; a schedule of the program's own is left alone (None)."""
        request, optimizer = self.assignment.request, self.built.optimizer
        share = rate.of_batch(request.learning_rate, self.assignment.batch, request.batch.start)
        share *= rate.of_workers(request.rate_with_workers, self.workers, request.workers.start)
        if not isinstance(optimizer.learning_rate, keras.Variable):
            return None
        optimizer.learning_rate = self.rate * share
        return float(optimizer.learning_rate)

    def _go(self, steps: int) -> None:
        self.reported = self.saved = time.monotonic()
        self.reported_at = self.ledger.applied
        self.lanes.start(shards.settled(self.ledger), steps)
        if self.ledger.finished:
            self.inbox.put("finished")

    def _await_first(self) -> None:
        """Wait for the first update; whatever else comes meanwhile is kept for `train`."""
        later = []
        while (word := self.inbox.get()) != "first":
            later.append(word)
            if isinstance(word, Exception) or word == "finished":
                break
        for kept in later:
            self.inbox.put(kept)

    # ------------------------------------------------------------ train

    def train(self) -> bool:
        """Train until finished (True), or drained and ended (False). Raises what broke a lane."""
        while True:
            word = self._next()
            if isinstance(word, Exception):
                self.report(time.monotonic())  # how far it came
                raise word
            if word == "finished":
                self.finish()
                return True
            if isinstance(word, SaveNow):
                self._save_and_go_on()
            if isinstance(word, Drain) and self._hand_over(word):
                return True

    def _save_and_go_on(self) -> None:
        self.save()
        self._go(self.lanes.steps)

    def _hand_over(self, drain: Drain) -> bool:
        """Drain, save and wait. True when draining finished the job; otherwise train on when told to."""
        began = time.monotonic()
        self.lanes.drain()
        if self.lanes.ledger.finished:
            self.finish()
            return True
        self.save(drain, began)
        while not isinstance(self.inbox.get(), GoOn):
            pass
        self._go(self.lanes.steps)
        return False

    def _next(self) -> Any:
        """The next word; reports and saves when their time has come."""
        while True:
            try:
                return self.inbox.get(timeout=self._until_due())
            except queue.Empty:
                self._due()

    def _until_due(self) -> float:
        now = time.monotonic()
        due = min(self.reported + self.assignment.progress_s, self.saved + self.assignment.request.checkpoint.every_s)
        return max(due - now, 0.0)

    def _due(self) -> None:
        now = time.monotonic()
        if now >= self.reported + self.assignment.progress_s:
            self.report(now)
        if now >= self.saved + self.assignment.request.checkpoint.every_s:
            self._save_and_go_on()

    def report(self, now: float) -> None:
        loss, _ = self.lanes.losses()
        ledger = self.lanes.ledger
        speed = (ledger.applied - self.reported_at) / max(now - self.reported, 1e-9)
        self.reported, self.reported_at = now, ledger.applied
        self.say(
            Progress(
                step=self.lanes.steps,
                epoch=ledger.epoch,
                samples=ledger.applied,
                total_samples=ledger.total,
                samples_per_second=max(speed, 0.0),
                loss=loss,
                profile=self.built.profile,
            )
        )

    # ------------------------------------------------------------ drain

    def save(self, drain: Drain | None = None, began: float | None = None) -> None:
        """Stop at a batch boundary (since `began`, where somebody has begun to) and write all down.

        `drain`: it is final, for the generation that this names, if any.
        """
        began = time.monotonic() if began is None else began
        self.lanes.drain()
        drained = time.monotonic()
        self.ledger = shards.settled(self.lanes.ledger)
        path = self.checkpoint.write(self.folder, self.lanes.steps, self.ledger)
        self.saved = time.monotonic()
        self.say(
            Saved(
                step=self.lanes.steps,
                samples=self.ledger.applied,
                path=path,
                seconds=self.saved - drained,
                drain_s=drained - began,
                final=drain is not None,
                successor=drain.successor if drain else None,
            )
        )

    def finish(self) -> None:
        self.lanes.drain()
        self.report(time.monotonic())
        self.save()
        self.say(
            Finished(
                step=int(self.built.meter.step),
                samples=self.lanes.ledger.applied,
                counted=int(self.built.meter.applied),
                metrics=evaluate.metrics(self.program, self.built.model, self.dog),
            )
        )
