"""The chief of one generation: prepare beside the running one, begin when told, drain when told.

prepare   connect, build, trace, and run everything once, from a save to its restore, so that nothing remains of it
begin     restore, start the lanes, tell of the first update
train     until drained, finished or broken; a checkpoint now and then (`saving.py`), a report each second
drain     stop at a batch boundary, save, and wait: to be ended, or to go on as if nothing had been asked
finish    save, evaluate, and say so; what cannot be saved for long is not finished

TensorFlow's cancellation managers, one per thread. Works around a fault of TensorFlow.

`ClusterCoordinator` runs each step inside a `CancellationManagerContext`. TensorFlow keeps the
active manager in a module variable that all threads share
(`tensorflow/python/eager/cancellation.py`, seen in 2.21). So a function that another thread calls
meanwhile, such as the write of a checkpoint, gets the manager of the steps. If that function then
fails, because the disk is full for example, TensorFlow cancels everything under its manager: all
steps, now and later.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import cancellation

from services.trainer.program import examples
from services.trainer.protocol import (
    Assignment,
    Begin,
    Drain,
    Finished,
    GoOn,
    Kept,
    Line,
    Prepared,
    Progress,
    Resumed,
    Room,
    SaveNow,
    Unsaved,
)
from services.trainer.worker import (
    failure_cause,
    optimizers,
    program_data,
    saving,
    scaling,
    shard_ledger,
    tensorboard_events,
    training_step,
)
from services.trainer.worker.checkpoint import Checkpoint, restore_earlier, restored
from services.trainer.worker.lanes import Lanes, Pulse, absent, fetched, lost, unreachable
from services.trainer.worker.saving import Draft, Saving
from services.trainer.worker.tensorboard_events import Summaries
from services.trainer.worker.watchdog import Watchdog

LANES_PER_WORKER = 2
LAST_TRIES, LAST_WAIT_S = 13, 10.0  # to save what is trained to the end
TIDY_S = 5.0  # until the ledger has named it
SOON_S = 0.2  # for what TensorBoard is told of a generation that broke
Say = Callable[[Line], None]


def connect(cluster: dict[str, list[str]]) -> Any:
    """Return a strategy over a generation's cluster. Waits until every ps and worker accepts
    connections.
    """
    keep_per_thread()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver)


def paused_s(last_s: float, first_s: float, off_s: float = 0.0) -> float | None:
    """From the last update of the generation before to the first of this one, by the ps' clocks; 0:
    there was none. The time for which the whole cluster was off is left out.

    None where nothing ran before, or nothing was applied: all was, or a lane broke before it had.
    """
    return max(first_s - last_s - off_s, 0.0) if first_s and last_s else None


def last_applied_s(restored_s: float, restored_step: int, order: Begin) -> float:
    """When the last update was applied before this generation: the one in the checkpoint, by its
    ps' clock; where later ones were reported, and lost, the last of those, by its chief's clock. 0:
    none was.
    """
    return max(restored_s, order.applied_s) if order.applied_step > restored_step else restored_s


class Chief:
    """One generation's training. `inbox` brings orders of the supervisor and words of the lanes, in
    order.
    """

    def __init__(
        self,
        assignment: Assignment,
        program: ModuleType,
        say: Say,
        inbox: queue.Queue[Any],
        dog: Watchdog,
    ) -> None:
        self.assignment = assignment
        self.program = program
        self.say = say
        self.inbox = inbox
        self.dog = dog
        self.folder = f"{assignment.checkpoint_dir}/gen-{assignment.generation}"
        self.workers = len(assignment.cluster["worker"])
        self.summaries = Summaries(
            assignment.checkpoint_dir, tensorboard_events.size_of(assignment)
        )

    # ------------------------------------------------------------ prepare

    def prepare(self) -> None:
        began = time.monotonic()
        self.strategy = strategy = connect(self.assignment.cluster)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.dog.absent = lambda: absent(self.coordinator, self.assignment.cluster)
        with self.dog.limited("model() or optimizer()"):
            self.built = training_step.build(
                self.program, strategy, len(self.assignment.cluster["ps"])
            )
        self.rates = optimizers.program_rates(self.built.optimizer)
        optimizers.scale_schedules(self.built.optimizer, self._rate_share())
        with self.dog.limited("examples()"):
            self.ledger = shard_ledger.fresh(examples(self.program), self.assignment.request.epochs)
        self.checkpoint = Checkpoint(self.built)
        with self.dog.limited(
            "dataset(0, 1), or a step through the model and loss(), while it is traced,"
        ):
            self.step = self._trace_step(strategy)
        self.lanes = self._make_lanes()
        self.lanes.deserted = lambda: len(lost(self.coordinator)) == self.workers
        every_s, redo_s = self.assignment.request.checkpoint.every_s, self.assignment.redo_s
        self.saving = Saving(
            self.checkpoint,
            self.folder,
            every_s,
            self.say,
            self.inbox,
            self._lost_ps,
            self._applied,
            redo_s,
        )
        self.dog.checks.append(Pulse(self.lanes, self.dog, self.assignment.stuck_patience))
        if self.assignment.warms_up:
            self._warm()
        if self.assignment.first:
            program_data.tried(self.program, self.dog)
        self.say(Prepared(seconds=time.monotonic() - began))

    def _trace_step(self, strategy: Any) -> Any:
        most = self.assignment.request.device_batch_max
        several = scaling.has_several(self._accumulated, self.assignment.batch, most)
        return training_step.traced(
            self.program, strategy, self.built, several
        ).get_concrete_function()

    def _make_lanes(self) -> Lanes:
        count, most = LANES_PER_WORKER * self.workers, self.assignment.request.device_batch_max
        batch = self.assignment.batch
        return Lanes(self.coordinator, self.step, batch, count, self.inbox, self._accumulated, most)

    @property
    def _accumulated(self) -> int:
        return optimizers.accumulated_batches(self.built.optimizer)

    def _warm(self) -> None:
        """Run the step on every worker, a save and a restore: what is slow the first time happens
        now.
        """
        stop = min(self.assignment.batch, self.ledger.examples)
        positions = training_step.arguments(
            scaling.split_passes([(0, stop)], self.assignment.request.device_batch_max)
        )
        with self.checkpoint.rehearsed(self.folder, self._not_rehearsed):
            for value in [
                self.coordinator.schedule(self.step, args=positions)
                for _ in range(2 * self.workers)
            ]:
                fetched(value)

    def _not_rehearsed(self, error: Any) -> None:
        """Where nothing can be saved a hand-over is not begun; but who has nothing beside him
        trains.
        """
        if self._lost_ps():
            raise error
        why, remedy = failure_cause.trouble(type(error).__name__, error.message)
        if self.assignment.beside:
            raise failure_cause.plainly(f"a checkpoint cannot be written: {why}; {remedy}")
        self.say(Unsaved(step=0, path=self.folder, cause=why, remedy=remedy))

    def _lost_ps(self) -> list[str]:
        return unreachable({"ps": self.assignment.cluster["ps"], "worker": []})

    def _applied(self) -> int:
        return self.lanes.ledger.applied

    # ------------------------------------------------------------ begin

    def begin(self, order: Begin) -> None:
        started = time.monotonic()
        last_s = last_applied_s(self._restore(order), int(self.built.meter.step), order)
        settled = self._settle_rate()
        ready = time.monotonic()
        restored_at = self.ledger.applied
        named = Kept(paths=order.paths, digests=order.digests, samples=order.samples)
        saving.mark_beside(self.assignment, named, self.ledger.total)
        self.saving.begin(order.past)
        self._go(int(self.built.meter.step))
        self._await_first()
        self.dog.relax()
        word = Resumed(
            step=self.lanes.steps,
            samples=self.lanes.ledger.applied,
            pause_s=paused_s(last_s, float(self.built.meter.first_s), self.assignment.off_s),
            restore_s=ready - started,
            first_step_s=time.monotonic() - ready,
            learning_rate=settled,
        )
        self.say(word)
        self.summaries.begin(restored_at, word)

    def _restore(self, order: Begin) -> float:
        """Restore the first that is whole, and return when the last update was applied before (0:
        never).
        """
        found = restored(
            self.checkpoint, order, self.assignment.checkpoint_dir, self.say, self._lost_ps
        )
        if found is None:
            if self.assignment.continue_from:
                self.ledger = restore_earlier(
                    self.checkpoint, self.assignment.continue_from, self.ledger
                )
                self.built.meter.first_s.assign(0.0)
            return 0.0
        self.ledger = found
        self.built.meter.first_s.assign(0.0)
        return float(self.built.meter.last_s)

    def _settle_rate(self) -> float | None:
        """Set and return the rate of this generation; None where a schedule gives it, which
        `prepare` has scaled.
        """
        return optimizers.set_rates(self.built.optimizer, self.rates, self._rate_share())

    def _rate_share(self) -> float:
        """Of the program's learning rate, what this generation trains with."""
        request = self.assignment.request
        share = scaling.of_batch(request.learning_rate, self.assignment.batch, request.batch.start)
        return share * scaling.of_workers(
            request.rate_with_workers, self.workers, request.workers.start
        )

    def _go(self, steps: int) -> None:
        self.reported = self.went = time.monotonic()
        self.reported_at = self.went_at = self.ledger.applied
        self.lanes.start(shard_ledger.settled(self.ledger), steps)
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
            match word:
                case Exception():
                    self.report(time.monotonic())  # how far it came
                    self.summaries.close(SOON_S)
                    raise word
                case "finished":
                    self.finish()
                    return True
                case Drain():
                    if self._hand_over(word):
                        return True
                case SaveNow():
                    self.summaries.flush()
                    draft = self._draft(time.monotonic())
                    if (
                        not draft.ledger.finished
                    ):  # else `finish` saves, which may change the weights before
                        self.saving.now(draft)
                    self._go(self.lanes.steps)
                case Kept():
                    saving.keep_beside(self.assignment, word, self.ledger.total)
                case Room():
                    self.saving.headroom = word

    def _hand_over(self, drain: Drain) -> bool:
        """Drain, save and wait. True when draining finished the job; otherwise train on when told
        to, or not saved.
        """
        self.saving.settle()  # while training goes on
        began = time.monotonic()
        self.lanes.drain()
        if self.lanes.ledger.finished:
            self.finish()
            return True
        if self.saving.now(self._draft(began), drain):
            self.summaries.flush()
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
        return max(min(self.reported + self.assignment.progress_s, self.saving.due_s) - now, 0.0)

    def _due(self) -> None:
        now = time.monotonic()
        if now >= self.reported + self.assignment.progress_s:
            self.report(now)
        if now >= self.saving.due_s:
            draft = self._draft(now)
            if not draft.ledger.finished:  # as in `train`
                self.saving.aside(draft)
            self._go(self.lanes.steps)

    def report(self, now: float) -> None:
        loss, _ = self.lanes.losses()
        ledger = self.lanes.ledger
        speed = (ledger.applied - self.reported_at) / max(now - self.reported, 1e-9)
        self.reported, self.reported_at = now, ledger.applied
        word = Progress(
            step=self.lanes.steps,
            epoch=ledger.epoch,
            samples=ledger.applied,
            total_samples=ledger.total,
            samples_per_second=max(speed, 0.0),
            loss=loss,
            applied_s=self.lanes.applied_s,
            profile=self.built.profile,
        )
        self.say(word)
        self.summaries.report(word)

    # ------------------------------------------------------------ drain, finish

    def _draft(self, began: float) -> Draft:
        """Stop at a batch boundary, which was begun at `began`, and name what is to be saved."""
        speed = (self.lanes.ledger.applied - self.went_at) / max(began - self.went, 1e-9)
        self.lanes.drain()
        self.ledger = shard_ledger.settled(self.lanes.ledger)
        return Draft(
            step=self.lanes.steps,
            ledger=self.ledger,
            began_s=began,
            drained_s=time.monotonic(),
            speed=speed,
        )

    def finish(self) -> None:
        self.lanes.drain()
        self.report(time.monotonic())
        self._finalize_weights()
        self._save_last()
        self.summaries.close()
        metrics = program_data.metrics(self.program, self.built.model, self.dog)
        self._tidy()
        self.say(
            Finished(
                step=int(self.built.meter.step),
                samples=self.lanes.ledger.applied,
                counted=int(self.built.meter.applied),
                metrics=metrics,
            )
        )

    def _finalize_weights(self) -> None:
        """As at the end of `Model.fit`: with `use_ema` the averages become the weights. A second
        time changes nothing.

        No earlier checkpoint has them in place of the weights, so training goes on from what it
        was.
        """
        with self.strategy.scope():
            self.built.optimizer.finalize_variable_values(self.built.model.trainable_variables)

    def _save_last(self) -> None:
        """There is no next save: try again, for two minutes."""
        for left in reversed(range(LAST_TRIES)):
            if self.saving.now(self._draft(time.monotonic())):
                return
            if left:
                time.sleep(LAST_WAIT_S)
        raise failure_cause.plainly(
            f"trained to the end, but it could not be saved under {self.folder}: see training.unsaved"
        )

    def _tidy(self) -> None:
        """What the ledger names no more goes before this process does, once it names the last."""
        with contextlib.suppress(queue.Empty):
            while not self._names_last(word := self.inbox.get(timeout=TIDY_S)):
                pass
            saving.keep(self.assignment, word, self.ledger.total)

    def _names_last(self, word: Any) -> bool:
        return (
            isinstance(word, Kept)
            and self.saving.newest is not None
            and self.saving.newest.path in word.paths
        )


_active = threading.local()


def keep_per_thread() -> None:
    """Make the active cancellation manager a value of each thread. Calling this twice changes
    nothing more.
    """
    cancellation.context = _active_manager
    cancellation.CancellationManagerContext.__enter__ = _enter
    cancellation.CancellationManagerContext.__exit__ = _exit


def _active_manager() -> Any:
    return getattr(_active, "manager", None)


def _enter(context: Any) -> None:
    _active.manager = context._cancellation_manager


def _exit(context: Any, *_: object) -> None:
    _active.manager = None
