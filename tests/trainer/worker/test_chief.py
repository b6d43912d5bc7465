"""Tests of the pauses that a chief reports, and of the ledger in its checkpoints.

The ledger may have batches in flight that are lost. `test_training` tests how a chief trains.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import msgspec
import pytest
import tensorflow as tf

from services.launcher.settings import Settings as LauncherSettings
from services.trainer.protocol import Begin, ContinueTraining, Drain, NothingToSave, SaveNow
from services.trainer.worker import optimizers, shard_ledger, training_step
from services.trainer.worker.chief import (
    READ_AHEAD_WAIT_S,
    Chief,
    last_applied_s,
    pause_between,
)
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.failure_cause import RemoteFailure
from services.trainer.worker.input_pipeline import DataPlan
from services.trainer.worker.lanes import Lanes
from services.trainer.worker.remote_worker import WorkerFailure
from services.trainer.worker.saving import Draft
from services.trainer.worker.shard_ledger import Shard
from services.trainer.worker.staleness import new_histogram
from services.trainer.worker.training_step import TrainingCounters, update_record
from services.trainer.worker.watchdog import Watchdog
from services.trainer.worker.whole_updates import WholeUpdateExactLanes
from tests.trainer.builders import assignment
from tests.trainer.worker.fake_worker import FakeWorker


@pytest.mark.parametrize(
    ("last_s", "first_s", "off_s", "paused"),
    [
        (1000.0, 1000.8, 0.0, pytest.approx(0.8)),
        (1000.0, 1609.5, 600.0, pytest.approx(9.5)),  # the whole cluster was off in between
        (0.0, 1000.8, 0.0, None),  # nothing ran before
        (
            1000.0,
            0.0,
            0.0,
            None,
        ),  # no update was left, or a lane failed before the first: the pause has no end
        (1000.0, 999.9, 0.0, 0.0),  # clocks of two machines
    ],
)
def test_a_pause_is_from_the_last_update_to_the_first(
    last_s: float, first_s: float, off_s: float, paused: float | None
) -> None:
    assert pause_between(last_s, first_s, off_s) == paused


@pytest.mark.parametrize(
    ("restored_s", "restored_step", "reported", "last_s"),
    [
        (1000.0, 50, (50, 1000.2), 1000.0),  # a hand-over: the clock of the ps
        (1000.0, 50, (90, 1118.0), 1118.0),  # 40 updates were lost with a node
        (0.0, 0, (90, 1118.0), 1118.0),  # all updates were lost: there was no checkpoint
        (1000.0, 50, (90, 0.0), 1000.0),  # an older chief did not report the time
        (0.0, 0, (0, 0.0), 0.0),  # nothing ran before
    ],
)
def test_the_last_update_before_a_pause_may_be_unsaved(
    restored_s: float, restored_step: int, reported: tuple[int, float], last_s: float
) -> None:
    order = Begin(applied_step=reported[0], applied_s=reported[1])
    assert last_applied_s(restored_s, restored_step, order) == last_s


def test_the_time_of_the_first_update_is_read_once_per_update() -> None:
    """Two reads of one variable in a step have no order.

    If two updates ran at once, the later one could see the other's time in one read and zero in the
    other read, and write the zero back.
    """
    meter, histogram = TrainingCounters(), new_histogram()
    traced = tf.function(
        lambda record: meter.count_update(record, meter.updates(), histogram)
    ).get_concrete_function(tf.TensorSpec([2], tf.float64))
    handle = next(t for v, t in traced.graph.captures if v is meter.first_s.handle)

    reads = [
        op
        for op in traced.graph.get_operations()
        if op.type == "ReadVariableOp" and op.inputs[0] is handle
    ]

    assert len(reads) == 1


def test_the_time_of_the_first_update_is_not_overwritten() -> None:
    meter, histogram = TrainingCounters(), new_histogram()
    meter.count_update(update_record(tf.constant(32, tf.int64)), meter.updates(), histogram)
    first_s = float(meter.first_s)
    meter.count_update(update_record(tf.constant(32, tf.int64)), meter.updates(), histogram)

    assert float(meter.first_s) == first_s > 0.0 and float(meter.last_s) >= first_s


BATCH = 16
PLAN = DataPlan(ExampleOrder(64), BATCH)


class LosesWorker(FakeWorker):
    """A worker that makes two updates, and is lost when the test allows it."""

    def __init__(self, plan: DataPlan) -> None:
        super().__init__(plan)
        self.numbers, self.begun, self.may_die = (
            itertools.count(),
            threading.Event(),
            threading.Event(),
        )

    def update(self, passes: int, batches: int) -> bool:
        if next(self.numbers) < 2:
            return super().update(passes, batches)
        self.begun.set()
        assert self.may_die.wait(60)
        raise self.error()

    def error(self) -> Exception:
        return WorkerFailure(tf.errors.UnavailableError(None, None, "gone"), lost=True)


class Saves:
    """Records drafts of checkpoints and writes nothing. `due_s` is when the next save is due."""

    def __init__(self) -> None:
        self.drafts, self.due_s = list[Draft](), float("inf")

    def begin(self, *_: object) -> None:
        pass

    def wait_for_write(self, _: float | None = None) -> bool:
        return True

    def save_and_wait(self, draft: Draft, *_: object, **__: object) -> bool:
        self.drafts.append(draft)
        return True

    save_in_background = save_and_wait


def chief_of(folder: Path, worker: FakeWorker, saves: Saves) -> Chief:
    """Return a prepared chief with a fake worker and fake saves."""
    program: Any = SimpleNamespace(
        model=lambda: keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)]),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        loss=keras.losses.mean_squared_error,
    )
    assigned = assignment(batch=BATCH, checkpoint_dir=str(folder))
    inbox = queue.Queue[Any]()
    made: Any = Chief(assigned, program, lambda _: None, inbox, Watchdog("digits.py", 60.0, 60.0))
    made.built = training_step.build_model(program, tf.distribute.get_strategy(), 1)
    made.rates = optimizers.program_rates(made.built.optimizer)
    made.checkpoint, made.saving = SimpleNamespace(tables=None), saves
    made.ledger = shard_ledger.new_ledger(64, 3)
    made.lanes = Lanes([worker], PLAN, inbox)
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("occasion", ["drain", "save now", "the interval"])
def test_a_checkpoint_stores_batches_in_flight_as_not_done(tmp_path: Path, occasion: str) -> None:
    worker, saves = LosesWorker(PLAN), Saves()
    chief = chief_of(tmp_path, worker, saves)
    chief.begin(Begin())
    assert worker.begun.wait(10), "no batch is out"
    worker.may_die.set()
    if occasion == "the interval":
        saves.due_s = time.monotonic()
    for word in {"drain": [Drain(successor=2), ContinueTraining()], "save now": [SaveNow()]}.get(
        occasion, []
    ):
        chief.inbox.put(word)

    with pytest.raises(tf.errors.UnavailableError):  # no worker is left
        chief.train()

    (draft,) = saves.drafts
    assert draft.ledger.given == (), "a batch that nobody will apply is no longer to do"
    assert draft.ledger.applied == 2 * BATCH == BATCH * draft.step
    assert sum(shard.size for shard in draft.ledger.todo) == 3 * 64 - 2 * BATCH


@pytest.mark.parametrize("occasion", ["drain", "save now", "the interval"])
def test_no_checkpoint_has_an_update_that_failed_in_between(tmp_path: Path, occasion: str) -> None:
    class Fails(LosesWorker):
        def error(self) -> Exception:
            return tf.errors.InvalidArgumentError(None, None, "between two variables")

    worker, saves = Fails(PLAN), Saves()
    chief = chief_of(tmp_path, worker, saves)
    chief.begin(Begin())
    assert worker.begun.wait(10), "no batch is out"
    if occasion == "the interval":
        saves.due_s = time.monotonic()
    orders: dict[str, Any] = {"drain": Drain(successor=2), "save now": SaveNow()}
    if occasion in orders:
        chief.inbox.put(orders[occasion])
    worker.may_die.set()

    with pytest.raises(tf.errors.InvalidArgumentError, match="between two variables"):
        chief.train()

    assert saves.drafts == []


def test_a_save_that_is_ordered_and_has_nothing_to_save_is_answered(tmp_path: Path) -> None:
    class NothingNew(Saves):
        def save_and_wait(self, draft: Draft, *_: object, **__: object) -> bool:
            return False

    worker, said = LosesWorker(PLAN), list[Any]()
    chief: Any = chief_of(tmp_path, worker, NothingNew())
    chief.send = said.append
    chief.begin(Begin())
    assert worker.begun.wait(10)
    worker.may_die.set()
    chief.inbox.put(SaveNow())
    with pytest.raises(tf.errors.UnavailableError):
        chief.train()

    assert NothingToSave() in said


def test_an_exact_job_continues_another_one_only_where_an_update_begins(tmp_path: Path) -> None:
    chief: Any = chief_of(tmp_path, FakeWorker(PLAN), Saves())
    chief.assignment = msgspec.structs.replace(chief.assignment, continue_from="/earlier")
    chief.plan = PLAN
    chief.lanes = WholeUpdateExactLanes([FakeWorker(PLAN)], PLAN, chief.inbox)  # type: ignore[list-item]
    chief._check_exact_start()
    ledger, _ = shard_ledger.take_run(chief.ledger, BATCH + 1)
    chief.ledger = msgspec.structs.replace(ledger, given=())

    with pytest.raises(
        RemoteFailure, match=f"/earlier ends within an epoch, .* of {BATCH} examples"
    ):
        chief._check_exact_start()


def test_a_restored_ledger_hands_out_batches_in_flight_first(
    tmp_path: Path,
) -> None:
    worker = LosesWorker(PLAN)
    chief = chief_of(tmp_path, worker, Saves())
    chief.ledger, shard = shard_ledger.take_shard(chief.ledger, BATCH)
    assert shard == Shard(0, BATCH)

    chief.begin(Begin())

    assert worker.updates[0] == [(0, BATCH)], "the batch that was out is left out"
    worker.may_die.set()
    chief.lanes.drain()


def test_waits_for_checkpoints_leave_time_to_prepare_a_generation() -> None:
    """It is also imported and traced, and it reads the tables."""
    assert 0.75 * LauncherSettings().prepare_timeout_s > READ_AHEAD_WAIT_S
