"""The chief of one generation: prepare beside the running one, begin and drain on order.

prepare   connect, build, trace, and run everything once, from a save to its restore, without a
          lasting effect; read the tables of the running generation
begin     restore, start the lanes, report the first update
train     until drained, finished or broken; checkpoints in between (`saving.py`), a report each
          second
drain     stop at a batch boundary, save, and wait: for the end, or for the order to continue
finish    save, evaluate, report; a job whose last checkpoint cannot be saved for long is not
          finished
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import msgspec
import structlog
import tensorflow as tf

from services.trainer import checkpoint_policy
from services.trainer.protocol import (
    Assignment,
    Begin,
    CatchUp,
    CheckpointAvailable,
    CommittedCheckpoints,
    ContinueTraining,
    Drain,
    Finished,
    Line,
    MemoryHeadroom,
    NothingToSave,
    Prepared,
    Progress,
    Resumed,
    SaveNow,
)
from services.trainer.worker import (
    evaluation,
    exactness,
    example_source,
    failure_cause,
    optimizers,
    program_data,
    saving,
    scaling,
    tensorboard_events,
    training_step,
)
from services.trainer.worker.checkpoint import (
    CONTINUE_FROM,
    Checkpoint,
    check_same_files,
    restore_earlier,
    restore_newest,
)
from services.trainer.worker.checkpoint_files import (
    committed_digest,
    committed_digests,
    restore_fault,
)
from services.trainer.worker.exact_batches import ExactLanes
from services.trainer.worker.example_source import Order
from services.trainer.worker.input_pipeline import DataPlan
from services.trainer.worker.lanes import Lanes
from services.trainer.worker.ps_memory import PS_GIB
from services.trainer.worker.rehearsal import rehearse_updates
from services.trainer.worker.remote_worker import trace_workers
from services.trainer.worker.saving import CheckpointSaver, Draft
from services.trainer.worker.shard_ledger import Ledger
from services.trainer.worker.staleness import read_histogram
from services.trainer.worker.stall_detector import StallDetector, unreachable_tasks
from services.trainer.worker.tensorboard_events import EventWriter
from services.trainer.worker.trace_lanes import trace_lanes
from services.trainer.worker.watchdog import Watchdog
from shared.checkpoints import restore_candidates
from shared.messages import (
    FEWEST_VIRTUAL_WORKERS,
    GIB,
    ModelProfile,
    PreparationParts,
    RoleResources,
    TableRound,
)
from shared.sample_efficiency import staleness_cost
from shared.text import format_count

LAST_TRIES, LAST_WAIT_S = 13, 10.0  # for the last save
COMMIT_WAIT_S = 5.0  # wait for the ledger to name the last checkpoint
LOST_PS_CHECK_S = 5.0  # between two looks for lost ps
LAST_POINTS_S = 0.2  # to write the last TensorBoard points of a broken generation
MOST_ROUNDS, MOST_OF_LAST_ROUND = 4, 0.7
"""Tables are read again while what changed meanwhile is at most this share of what was read before.
Rounds shrink because the next one has less time to change rows; when they do not, more of them only
delay the hand-over.
"""
NEXT_CHECKPOINT_S = 30.0  # wait for the running generation's next checkpoint
READ_AHEAD_WAIT_S = 120.0
"""All waits for such checkpoints, less than the time in which a generation has to be prepared. The
running one may first have to complete its first base. Without this wait, training would stand still
until that is written and read.
"""
Send = Callable[[Line], None]
logger = structlog.get_logger()


def connect_cluster(cluster: dict[str, list[str]]) -> Any:
    """Return a strategy over a generation's cluster. Waits until every ps and worker accepts
    connections.

    A `ClusterCoordinator` is not used: it gives a step to any worker (`remote_worker.py`).
    """
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    strategy.extended._allow_run_without_coordinator = True
    return strategy


def pause_between(last_s: float, first_s: float, off_s: float = 0.0) -> float | None:
    """Return the seconds from the last update of the previous generation to the first of this one,
    by the workers' clocks (0: no such update). The time for which the whole cluster was off is left
    out.

    Return None if nothing ran before, or nothing was applied: all was done, or a lane broke first.
    """
    return max(first_s - last_s - off_s, 0.0) if first_s and last_s else None


def last_applied_s(restored_s: float, restored_step: int, order: Begin) -> float:
    """Return the time of the last update before this generation; 0: there was none.

    That is the update in the checkpoint, by its worker's clock. If later ones were reported and
    lost, it is the last of those, by its chief's clock.
    """
    return max(restored_s, order.applied_s) if order.applied_step > restored_step else restored_s


def _preparation_report(import_s: float, times: list[float], profile: ModelProfile) -> Prepared:
    """Return the report about a preparation from the times between its parts."""
    connect_s, build_s, trace_s, first_step_s, tables_s = [b - a for a, b in pairwise(times)]
    parts = PreparationParts(
        import_s=import_s,
        connect_s=connect_s,
        build_s=build_s,
        trace_s=trace_s,
        first_step_s=first_step_s,
        tables_s=tables_s,
    )
    return Prepared(seconds=times[-1] - times[0], parts=parts, profile=profile)


def _rounds_since(rounds: Sequence[TableRound], begun: int) -> tuple[TableRound, ...]:
    """Return the reads of tables; those from number `begun` on were made in the pause."""
    paused = [msgspec.structs.replace(each, paused=True) for each in rounds[begun:]]
    return (*rounds[:begun], *paused)


class Chief:
    """One generation's training. `inbox` carries orders of the supervisor and events of the lanes,
    in order.
    """

    def __init__(
        self,
        assignment: Assignment,
        program: ModuleType,
        send: Send,
        inbox: queue.Queue[Any],
        watchdog: Watchdog,
        import_s: float = 0.0,
    ) -> None:
        """`import_s`: duration of the program's import in s."""
        self._import_s = import_s
        self.assignment = assignment
        self.program = program
        self.send = send
        self.inbox = inbox
        self.watchdog = watchdog
        self.folder = f"{assignment.checkpoint_dir}/gen-{assignment.generation}"
        self.workers = len(assignment.cluster["worker"])
        self.lanes: Lanes
        self._rehearse_updates: Callable[[], None]
        self._noise_tracing: threading.Thread | None = None
        self._read_path = ""
        """The checkpoint whose tables were read before training began; empty: none."""
        self._postponed: deque[Any] = deque()
        """Messages of the inbox that were taken too early; they come before those in it."""
        self.summaries = EventWriter(
            assignment.checkpoint_dir, tensorboard_events.generation_size(assignment)
        )

    # ------------------------------------------------------------ prepare

    def prepare(self) -> None:
        times = [time.monotonic()]
        parts = (self._connect, self._build, self._trace, self._rehearse, self._read_ahead)
        for part in parts:
            part()
            times.append(time.monotonic())
        self.send(_preparation_report(self._import_s, times, self.built.profile))

    def _connect(self) -> None:
        self.strategy = connect_cluster(self.assignment.cluster)
        self.watchdog.missing_tasks = lambda: unreachable_tasks(self.assignment.cluster)

    def _build(self) -> None:
        """Build the model on the ps, and the ledger."""
        seed = exactness.initial_seed(self.assignment.request)
        with self.watchdog.limit("model() or optimizer()"):
            begins = self.assignment.first and not self.assignment.continue_from
            self.built = training_step.build_model(
                self.program,
                self.strategy,
                len(self.assignment.cluster["ps"]),
                seed,
                fill_tables=begins,
                ps_gib=self._ps_limits(),
                most_ps=self.assignment.request.ps.max,
            )
        self.rates = optimizers.program_rates(self.built.optimizer)
        optimizers.scale_schedules(self.built.optimizer, self._rate_share())
        self.checkpoint = Checkpoint(self.built)
        with self.watchdog.limit("examples() or files()"):
            self.source = example_source.source_of(self.program)
            self.ledger = self.source.new_ledger(self.assignment.request.epochs)

    def _trace(self) -> None:
        """Trace the step of every worker, and make the lanes and the checkpoint saver."""
        reading = program_data.first_call(self.program)
        with self.watchdog.limit(
            f"{reading}, or a step through the model and loss(), while it is traced,"
        ):
            spec = program_data.element_spec(self.program, self.built.model)
            if self._is_exact and self.assignment.first:
                exactness.check_examples(self.program)
            order = self.source.order(self.assignment.request.shuffle)
            self.plan = self._data_plan(order, spec)
            self._trace_workers(spec)
        self.lanes.read_staleness = partial(read_histogram, self.built.staleness)
        self.watchdog.missing_tasks = self._missing_tasks
        self.watchdog.checks.append(
            StallDetector(self.lanes, self.watchdog, self.assignment.stuck_patience)
        )
        self.saving = CheckpointSaver(
            self.checkpoint,
            self.folder,
            self.assignment.request.checkpoint.every_s,
            self.send,
            self.inbox,
            self._unreachable_ps,
            self._applied_examples,
            self.assignment.redo_s,
        )

    def _trace_workers(self, spec: Any) -> None:
        """Trace what workers run. `spec`: the structure of a batch."""
        parts = self.program, self.strategy, self.built, self.plan, spec, self.workers
        if self._makes_updates_together:
            self.lanes, self._rehearse_updates = trace_lanes(*parts, self.inbox, self._is_exact)
            return
        limit = self.assignment.request.staleness_limit(self.workers)
        workers = trace_workers(*parts, limit)
        self.lanes = Lanes(workers, self.plan, self.inbox)
        self._rehearse_updates = partial(rehearse_updates, workers, self.plan)

    @property
    def _makes_updates_together(self) -> bool:
        """Return whether all workers make each update together."""
        return self.assignment.request.makes_updates_together

    @property
    def _is_exact(self) -> bool:
        return self.assignment.request.consistency == "exact"

    def _rehearse(self) -> None:
        """Run the step on every worker, a save, a restore and an evaluation for the first time.

        So their slow first run, or their error, comes before training needs them.
        """
        if self.assignment.warms_up:
            room = self._ps_have_room_for_copies()
            with self.checkpoint.rehearse(self.folder, self._on_rehearsal_failed, room):
                self._rehearse_updates()
        if self.assignment.first:
            evaluation.try_evaluation(self.program, self.watchdog)

    def _ps_have_room_for_copies(self) -> bool:
        """Return whether each ps is known to have room for this generation and the one that trains,
        each with its values, a copy of them and their gradients, and its tables.
        """
        held: float = 3 * self.checkpoint.largest_cut_bytes
        if self.checkpoint.tables is not None:
            held += self.checkpoint.tables.bytes_on_ps
        generation_gib = PS_GIB + held / GIB
        limits = self.assignment.ps_gib
        return bool(limits) and min(limits) >= 2 * generation_gib

    def _missing_tasks(self) -> list[str]:
        """Return the tasks that have gone: lost workers, and those that cannot be reached at their
        address, which may belong to another by now.
        """
        return [*self.lanes.lost_workers(), *unreachable_tasks(self.assignment.cluster)]

    def _data_plan(self, order: Order, spec: Any) -> DataPlan:
        """`spec`: the structure of a batch."""
        plan = DataPlan(
            order=order,
            batch=self.assignment.batch,
            most=self.assignment.request.device_batch_max,
            accumulated=optimizers.accumulated_batches(self.built.optimizer),
            example_bytes=program_data.example_bytes(spec),
            has_fixed_size=program_data.has_fixed_size(spec),
            noise_share=self.assignment.noise_share,
            virtual_workers=self.assignment.request.virtual_workers or FEWEST_VIRTUAL_WORKERS,
        )
        is_large = plan.update > plan.batch * self.workers or self._is_exact
        if self._makes_updates_together and is_large:
            # A part may be larger than a batch, for which the memory was chosen.
            return plan._replace(most=min(plan.most or plan.batch, plan.batch))
        return plan

    def _on_rehearsal_failed(self, error: Any) -> None:
        """Fail a hand-over whose next generation cannot save."""
        if self._unreachable_ps():
            raise error
        why, remedy = failure_cause.explain_storage_error(type(error).__name__, error.message)
        raise failure_cause.plain_failure(f"a checkpoint cannot be written: {why}; {remedy}")

    def _ps_limits(self) -> tuple[float, ...]:
        """Return the memory of each ps, if the request names one. What Weir has chosen grows if it
        was too little; an answered request without `resources` has the defaults.
        """
        asked = self.assignment.request.resources
        return () if asked in (None, RoleResources()) else self.assignment.ps_gib

    def _unreachable_ps(self) -> list[str]:
        return unreachable_tasks({"ps": self.assignment.cluster["ps"], "worker": []})

    def _applied_examples(self) -> int:
        return self.lanes.ledger.applied

    # ------------------------------------------------------------ read tables ahead

    def _read_ahead(self) -> None:
        """Read the tables of the running generation: its last checkpoint, and then what changes
        while this is read, as long as that becomes less.
        """
        if self.checkpoint.tables is None or not self.assignment.beside:
            return
        self.checkpoint.tables.transfer.rehearse_delta()
        try:
            marked = committed_digests(self.assignment.checkpoint_dir)
        except tf.errors.OpError as error:
            why = failure_cause.storage_message(str(error))
            self._warn_tables_unread(self.assignment.checkpoint_dir, why)
            return
        for path in restore_candidates((), marked)[:1]:
            self._read_tables(path)
        size, until_s = math.inf, time.monotonic() + READ_AHEAD_WAIT_S
        for _ in range(MOST_ROUNDS):
            self.send(CatchUp())
            path, before = self._next_checkpoint(until_s), len(self._table_rounds)
            if not path or not self._read_tables(path):
                return
            read = sum(each.bytes for each in self._table_rounds[before:])
            if read > MOST_OF_LAST_ROUND * size:
                return
            size = read

    def _next_checkpoint(self, until_s: float) -> str:
        """Wait for a checkpoint that is later than the one whose tables were read, and return the
        last such one. Return "" if there is none until then, or if an order arrives.
        """
        if self._read_path:
            until_s = min(until_s, time.monotonic() + NEXT_CHECKPOINT_S)
        found = ""
        while True:
            wait_s = 0.0 if found else max(until_s - time.monotonic(), 0.0)
            try:
                message = self._next_message(wait_s)
            except queue.Empty:
                return found
            if not isinstance(message, CheckpointAvailable):
                self._postponed.append(message)
                return found
            if self._is_later(message.path):
                found = message.path
            elif not message.path and not found:
                return ""

    def _is_later(self, path: str) -> bool:
        """Return whether a checkpoint is later than the one whose tables were read."""
        age = checkpoint_policy.checkpoint_age(path)
        read = checkpoint_policy.checkpoint_age(self._read_path)
        return age is not None and (read is None or age > read)

    def await_begin(self) -> Begin:
        """Wait for the order to begin. Until then, read the tables of each new checkpoint."""
        while True:
            match self._next_message():
                case Begin() as order:
                    return order
                case CheckpointAvailable(path=path):
                    if self.checkpoint.tables is None or self._has_messages():
                        continue
                    if self._is_later(path):
                        self._read_tables(path)
                case Exception() as error:
                    raise error
                case order:
                    raise RuntimeError(f"expected an order to begin, not {order}")

    def _read_tables(self, path: str) -> bool:
        """Read the rows of tables from a checkpoint, while the generation that saved it trains.
        Return whether they were read; otherwise `begin` reads what is missing.
        """
        tables = self.checkpoint.tables
        assert tables is not None
        try:
            # `begin` does not check the files that were read here again.
            if fault := restore_fault(path, committed_digest(path), tables.files):
                self._warn_tables_unread(path, fault)
                return False
            tables.read(path)
        except (tf.errors.OpError, msgspec.DecodeError) as error:
            if self._unreachable_ps():
                raise
            self._warn_tables_unread(path, failure_cause.storage_message(str(error)))
            return False
        self._read_path = path
        return True

    def _warn_tables_unread(self, path: str, why: str) -> None:
        logger.warning("TablesNotReadAhead", path=path, error=why)

    def _next_message(self, timeout_s: float | None = None) -> Any:
        """Return the next order or event. Raise `queue.Empty` after `timeout_s` seconds."""
        if self._postponed:
            return self._postponed.popleft()
        return self.inbox.get(timeout=timeout_s)

    def _has_messages(self) -> bool:
        return bool(self._postponed) or not self.inbox.empty()

    # ------------------------------------------------------------ begin

    def begin(self, order: Begin) -> None:
        started, rounds = time.monotonic(), len(self._table_rounds)
        last_s = last_applied_s(
            self._restore_checkpoint(order), int(self.built.counters.step), order
        )
        self.built.staleness.assign(tf.zeros_like(self.built.staleness))  # of the rehearsal
        settled = self._settle_rate()
        ready = time.monotonic()
        restored_at = self.ledger.applied
        named = CommittedCheckpoints(
            paths=order.paths, digests=order.digests, samples=order.samples
        )
        saving.mark_named_in_background(self.assignment, named, self.ledger.total)
        self.saving.begin(order.past, int(self.built.counters.step))
        self._note_start(self.ledger)
        self.lanes.start(self.ledger, int(self.built.counters.step))
        self._await_first_update()
        self.watchdog.use_later_limit()
        report = Resumed(
            step=self.lanes.steps,
            samples=self.lanes.ledger.applied,
            pause_s=pause_between(last_s, self._first_applied_s(), self.assignment.off_s),
            restore_s=ready - started,
            first_step_s=time.monotonic() - ready,
            learning_rate=settled,
            table_rounds=_rounds_since(self._table_rounds, rounds),
        )
        self.send(report)
        self.summaries.begin(restored_at, report)

    @property
    def _table_rounds(self) -> list[TableRound]:
        return self.checkpoint.tables.rounds if self.checkpoint.tables is not None else []

    def _first_applied_s(self) -> float:
        """Return the time of the first update of this generation; 0: there was none."""
        return float(self.built.counters.first_s) or self.lanes.first_applied_s

    def _restore_checkpoint(self, order: Begin) -> float:
        """Restore the newest complete checkpoint, if there is one.

        Return the time of its last update in this job; 0: there was none.
        """
        found = restore_newest(
            self.checkpoint,
            order,
            self.assignment.checkpoint_dir,
            self.send,
            self._unreachable_ps,
        )
        if found is None:
            if self.assignment.continue_from:
                self.ledger = restore_earlier(
                    self.checkpoint,
                    self.assignment.continue_from,
                    self.ledger,
                    self._unreachable_ps,
                )
                self.built.counters.first_s.assign(0.0)
                self._check_exact_start()
            return 0.0
        check_same_files(found, self.ledger)
        self.ledger = found
        self.built.counters.first_s.assign(0.0)
        return float(self.built.counters.last_s)

    def _check_exact_start(self) -> None:
        """Fail an exact job that continues another one where no exact update begins."""
        if isinstance(self.lanes, ExactLanes) and not self.lanes.can_begin(self.ledger):
            raise failure_cause.plain_failure(
                f"{CONTINUE_FROM}: {self.assignment.continue_from} ends within an epoch, and not "
                f"where exact updates of {format_count(self.plan.update, 'example')} in "
                f"{format_count(self.plan.part_count, 'part')} leave off: continue from the end of an "
                "epoch, or from an exact job with the same batch and virtual_workers"
            )

    def _settle_rate(self) -> float | None:
        """Set and return the learning rate of this generation; None if it is a schedule, which
        `prepare` scaled.
        """
        return optimizers.set_rates(self.built.optimizer, self.rates, self._rate_share())

    def _rate_share(self) -> float:
        """Return the factor on the program's learning rate in this generation."""
        request = self.assignment.request
        share = scaling.rate_for_batch(
            request.learning_rate, self.assignment.batch, request.batch.start
        )
        return share * scaling.rate_for_workers(
            request.worker_rate_rule, self.workers, request.workers.start
        )

    def _note_start(self, ledger: Ledger) -> None:
        """Measure speed from here on. A job that is finished already has no update to wait for."""
        self.reported_s = self.resumed_s = time.monotonic()
        self.reported_examples = self.resumed_examples = ledger.applied
        if ledger.finished:
            self.inbox.put("finished")

    def _resume_lanes(self) -> None:
        self._note_start(self.lanes.ledger)
        self.lanes.resume()

    def _await_first_update(self) -> None:
        """Wait for the first update; other events that arrive meanwhile stay for `train`."""
        later = []
        while (message := self._next_message()) != "first":
            later.append(message)
            if isinstance(message, Exception) or message == "finished":
                break
        self._postponed.extendleft(reversed(later))

    # ------------------------------------------------------------ train

    def train(self) -> None:
        """Train until the job is finished. Raise the error of a lane.

        After a hand-over this waits: the supervisor ends the process.
        """
        try:
            self._train_all_examples()
        except Exception:
            self.report(time.monotonic())  # the last progress
            self.summaries.close(LAST_POINTS_S)
            raise
        self.finish()

    def _train_all_examples(self) -> None:
        while True:
            message = self._next_event()
            match message:
                case Exception():
                    raise message
                case "finished":
                    return
                case Drain():
                    if self._hand_over(message):
                        return
                case SaveNow():
                    self._save_now()
                case CommittedCheckpoints():
                    saving.keep_committed_in_background(self.assignment, message, self.ledger.total)
                case MemoryHeadroom():
                    self.saving.headroom = message

    def _save_now(self) -> None:
        """Save, as ordered: a delta while training goes on, everything else while it stands."""
        self.summaries.flush()
        if not self._await_save():
            return
        draft = self._drain_to_draft(time.monotonic())
        # `finish` may change the weights, then saves.
        if draft.ledger.finished or not self._save_draft(draft):
            self.send(NothingToSave())
        self._resume_lanes()

    def _save_draft(self, draft: Draft) -> bool:
        """Return whether there was something to save, and it could be saved."""
        if self.checkpoint.tables is None:
            return self.saving.save_and_wait(draft)
        return self.saving.save_in_background(draft, planned=False)

    def _await_save(self) -> bool:
        """Wait until a save is possible, while training goes on. Return false if training has
        failed before that: its error is among the next events.
        """
        while not self.saving.wait_for_write(self.assignment.progress_s):
            self.report(time.monotonic())
            if self.lanes.has_failed:
                return False
        return True

    def _hand_over(self, drain: Drain) -> bool:
        """Drain, save and wait. Return True if draining finished the job. Otherwise train on, when
        ordered or if nothing was saved.
        """
        if not self._await_save():
            return False
        began = time.monotonic()
        self.lanes.drain()
        if self.lanes.ledger.finished:
            return True
        if self.saving.save_and_wait(self._drain_to_draft(began), drain):
            self.summaries.flush()
            self._await_continue()
        self._resume_lanes()
        return False

    def _await_continue(self) -> None:
        """Wait for the order to train on, which does not come if the hand-over succeeds. Lanes may
        fail meanwhile, because their ps are ended; that matters only if training continues.
        """
        failure: Exception | None = None
        while not isinstance(message := self._next_message(), ContinueTraining):
            if isinstance(message, msgspec.DecodeError):
                raise message  # no order can follow
            if isinstance(message, Exception):
                failure = failure or message
        if failure is not None:
            raise failure

    def _next_event(self) -> Any:
        """Return the next event. While waiting, report and save when that is due."""
        while True:
            try:
                return self._next_message(self._seconds_until_due())
            except queue.Empty:
                self._do_due_work()

    def _seconds_until_due(self) -> float:
        now = time.monotonic()
        return max(min(self.reported_s + self.assignment.progress_s, self.saving.due_s) - now, 0.0)

    def _do_due_work(self) -> None:
        now = time.monotonic()
        if now >= self.reported_s + self.assignment.progress_s:
            self.report(now)
            if self._noise_tracing is None:
                self._start_noise_measurements()
        if now >= self.saving.due_s:
            draft = self._drain_to_draft(now)
            if not draft.ledger.finished:  # as in `train`
                self.saving.save_in_background(draft, planned=True)
            self._resume_lanes()

    def _start_noise_measurements(self) -> None:
        """Trace the measurement of gradient noise in a thread; then workers measure. Traced before
        training, it would make each preparation longer.

        Keras's variables are tensors meanwhile. Until `finish`, which waits for it, no other thread
        traces anything that reads them.
        """
        self._noise_tracing = threading.Thread(
            target=self.lanes.start_noise_measurements, name="tracing", daemon=True
        )
        self._noise_tracing.start()

    def _await_noise_tracing(self) -> None:
        if self._noise_tracing is not None:
            with self.watchdog.limit("a step through the model and loss(), while it is traced,"):
                self._noise_tracing.join()

    def report(self, now: float) -> None:
        loss, _ = self.lanes.take_losses()
        ledger = self.lanes.ledger
        speed = (ledger.applied - self.reported_examples) / max(now - self.reported_s, 1e-9)
        self.reported_s, self.reported_examples = now, ledger.applied
        stale, noise = self.lanes.take_staleness(), self.lanes.gradient_noise
        cost = None
        if stale is not None and noise.phi is not None:
            cost = staleness_cost(self.plan.update, stale.mean, noise.phi)
        report = Progress(
            step=self.lanes.steps,
            epoch=ledger.epoch,
            samples=ledger.applied,
            total_samples=ledger.total,
            samples_per_second=max(speed, 0.0),
            loss=loss,
            applied_s=self.lanes.applied_s,
            profile=self.built.profile,
            gradient_noise=noise.phi,
            gradient_noise_at_least=noise.at_least,
            staleness=stale,
            staleness_cost=cost,
        )
        self.send(report)
        self.summaries.report(report)

    # ------------------------------------------------------------ drain, finish

    def _drain_to_draft(self, began: float) -> Draft:
        """Stop at a batch boundary, which was requested at `began`, and return the draft of a
        checkpoint.
        """
        speed = (self.lanes.ledger.applied - self.resumed_examples) / max(
            began - self.resumed_s, 1e-9
        )
        self.ledger = self.lanes.drain()
        if self._is_exact:
            self.built.counters.last_s.assign(self.lanes.applied_s)
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
        self._await_noise_tracing()
        self._finalize_weights()
        self._save_final()
        self.summaries.close()
        metrics = evaluation.evaluation_metrics(self.program, self.built.model, self.watchdog)
        self._remove_old_checkpoints()
        self.send(
            Finished(
                step=int(self.built.counters.step),
                samples=self.lanes.ledger.applied,
                counted=int(self.built.counters.applied),
                metrics=metrics,
            )
        )

    def _finalize_weights(self) -> None:
        """Finish as `Model.fit` does: with `use_ema` the averages become the weights.

        A second call changes nothing. No earlier checkpoint has the averages in place of the
        weights, so training that continues from one is not affected.
        """
        with self.strategy.scope():
            optimizers.finalize_weights(self.built.optimizer)

    def _save_final(self) -> None:
        """Save for the last time; try for two minutes. A write or base that is in progress ends
        first: both use the same storage, so a storage that hangs would hold the last save as well.
        """
        for wait in (self.saving.wait_for_write, self.saving.wait_for_base):
            while not wait(LOST_PS_CHECK_S):
                if lost := self._unreachable_ps():
                    raise tf.errors.UnavailableError(None, None, f"{', '.join(lost)} is gone")
        for left in reversed(range(LAST_TRIES)):
            if self.saving.save_and_wait(self._drain_to_draft(time.monotonic())):
                return
            if left:
                time.sleep(LAST_WAIT_S)
        raise failure_cause.plain_failure(
            f"trained to the end, but not saved under {self.folder}: see training.unsaved"
        )

    def _remove_old_checkpoints(self) -> None:
        """Wait until the ledger names the newest checkpoint; remove those it no longer names."""
        with contextlib.suppress(queue.Empty):
            while not self._names_newest(message := self._next_message(COMMIT_WAIT_S)):
                pass
            saving.keep_committed(self.assignment, message, self.ledger.total)

    def _names_newest(self, message: Any) -> bool:
        return (
            isinstance(message, CommittedCheckpoints)
            and self.saving.newest is not None
            and self.saving.newest.path in message.paths
        )
