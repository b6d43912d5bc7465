"""Lanes: every batch is applied and counted once, whatever the workers do."""

from __future__ import annotations

import queue
import threading

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.worker import shard_ledger
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.input_pipeline import DataPlan, StagedPass
from services.trainer.worker.lanes import Lanes, update_once
from services.trainer.worker.remote_worker import WorkerFailure
from services.trainer.worker.shard_ledger import Shard
from tests.trainer.worker.fake_worker import FakeWorker

WITHIN_S = 60.0
BATCH = 16


def gone() -> tf.errors.UnavailableError:
    return tf.errors.UnavailableError(None, None, "Connection reset by peer")


class Failing(FakeWorker):
    """Fails at its n-th update, once or for good."""

    def __init__(self, plan: DataPlan, at: int, lost: bool, name: str = "worker-0") -> None:
        super().__init__(plan, name)
        self.at, self.lost, self.calls = at, lost, 0

    def update(self, passes: int, batches: int, turn: int = 0) -> float:
        self.calls += 1
        if self.calls == self.at or (self.lost and self.calls > self.at):
            raise WorkerFailure(gone(), self.lost)
        return super().update(passes, batches, turn)


class Held(FakeWorker):
    """Makes an update when it is told to."""

    def __init__(self, plan: DataPlan) -> None:
        super().__init__(plan)
        self.begun, self.released = threading.Semaphore(0), threading.Semaphore(0)

    def update(self, passes: int, batches: int, turn: int = 0) -> float:
        self.begun.release()
        assert self.released.acquire(timeout=WITHIN_S)
        return super().update(passes, batches, turn)


def plan_of(examples: int, batch: int = BATCH, most: int | None = None, k: int = 1) -> DataPlan:
    return DataPlan(ExampleOrder(examples), batch, most, k)


def run_lanes(lanes: Lanes, inbox: queue.Queue[object], examples: int, epochs: int) -> list[object]:
    """Train to the end; return what went to the inbox."""
    lanes.start(shard_ledger.new_ledger(examples, epochs), 0)
    words = []
    while not words or words[-1] == "first":
        words.append(inbox.get(timeout=WITHIN_S))
    lanes.drain()
    return words


def covered(*workers: FakeWorker) -> list[tuple[int, int]]:
    return sorted(each for worker in workers for update in worker.updates for each in update)


def test_every_batch_is_applied_once_by_several_workers() -> None:
    plan, inbox = plan_of(64), queue.Queue[object]()
    workers = [FakeWorker(plan, f"worker-{n}") for n in range(3)]
    lanes = Lanes(workers, plan, inbox)
    assert run_lanes(lanes, inbox, 64, 3) == ["first", "finished"]
    assert covered(*workers) == [(at, at + BATCH) for at in range(0, 192, BATCH)]
    assert (lanes.ledger.applied, lanes.steps) == (192, 12)


def test_batches_of_a_lost_worker_are_applied_by_another() -> None:
    plan, inbox = plan_of(640), queue.Queue[object]()
    first, other = Failing(plan, at=3, lost=True), FakeWorker(plan, "worker-1")
    lanes = Lanes([first, other], plan, inbox)
    assert run_lanes(lanes, inbox, 640, 2) == ["first", "finished"]
    assert covered(first, other) == [(at, at + BATCH) for at in range(0, 1280, BATCH)]
    assert lanes.lost_workers() == ["worker-0"] and len(first.updates) == 2


def test_a_worker_that_fails_for_a_moment_begins_anew() -> None:
    plan, inbox = plan_of(100), queue.Queue[object]()
    worker = Failing(plan, at=2, lost=False)
    lanes = Lanes([worker], plan, inbox)
    assert run_lanes(lanes, inbox, 100, 1) == ["first", "finished"]
    assert covered(worker) == [(0, 16), (16, 32), (32, 48), (48, 64), (64, 80), (80, 96), (96, 100)]
    assert lanes.lost_workers() == []


def test_a_worker_that_fails_again_and_again_ends_training() -> None:
    class Unlucky(FakeWorker):
        def update(self, passes: int, batches: int, turn: int = 0) -> float:
            raise WorkerFailure(gone(), lost=False)

    plan, inbox = plan_of(64), queue.Queue[object]()
    worker = Unlucky(plan)
    lanes = Lanes([worker], plan, inbox)
    (word,) = run_lanes(lanes, inbox, 64, 1)
    assert isinstance(word, tf.errors.UnavailableError)
    assert lanes.drain() == shard_ledger.new_ledger(64, 1)


def test_training_cannot_go_on_without_a_worker() -> None:
    plan, inbox = plan_of(64), queue.Queue[object]()
    worker = Failing(plan, at=3, lost=True)
    lanes = Lanes([worker], plan, inbox)
    lanes.start(shard_ledger.new_ledger(64, 3), 0)
    assert inbox.get(timeout=WITHIN_S) == "first"
    with lanes._changed:
        assert lanes._changed.wait_for(lanes.no_worker_left, WITHIN_S)
    settled = lanes.drain()
    assert settled.applied == 32 == BATCH * lanes.steps and not settled.given
    with pytest.raises(tf.errors.UnavailableError):
        lanes.resume()


def test_accumulated_batches_are_one_update_and_so_is_the_rest_at_the_end() -> None:
    plan, inbox = plan_of(40, k=3), queue.Queue[object]()
    worker = FakeWorker(plan)
    lanes = Lanes([worker], plan, inbox)
    assert run_lanes(lanes, inbox, 40, 2) == ["first", "finished"]
    assert worker.updates == [[(0, 16), (16, 32), (32, 40)], [(40, 56), (56, 72), (72, 80)]]
    assert lanes.steps == 2 and lanes.ledger.applied == 80


def test_workers_get_batches_of_whole_updates() -> None:
    plan, inbox = plan_of(40 * BATCH, k=4), queue.Queue[object]()
    workers = [FakeWorker(plan, f"worker-{n}") for n in range(3)]
    lanes = Lanes(workers, plan, inbox)
    assert run_lanes(lanes, inbox, 40 * BATCH, 1) == ["first", "finished"]
    assert lanes.steps == 10
    assert {len(update) for worker in workers for update in worker.updates} == {4}


def test_no_pass_exceeds_the_device_batch() -> None:
    plan, inbox = plan_of(16, most=6), queue.Queue[object]()
    worker = FakeWorker(plan)
    lanes = Lanes([worker], plan, inbox)
    assert run_lanes(lanes, inbox, 16, 1) == ["first", "finished"]
    assert worker.updates == [[(0, 6), (6, 12), (12, 16)]] and lanes.steps == 1


def test_a_batch_is_counted_when_it_is_applied() -> None:
    plan, inbox = plan_of(48), queue.Queue[object]()
    worker = Held(plan)
    lanes = Lanes([worker], plan, inbox)
    lanes.start(shard_ledger.new_ledger(48, 1), 0)
    for before in range(3):
        assert worker.begun.acquire(timeout=WITHIN_S)
        assert (lanes.steps, lanes.ledger.applied) == (before, BATCH * before)
        assert list(inbox.queue) == (["first"] if before else [])
        worker.released.release()
    assert [inbox.get(timeout=WITHIN_S), inbox.get(timeout=WITHIN_S)] == ["first", "finished"]
    assert (lanes.steps, lanes.ledger.applied) == (3, 48)


def test_a_drain_waits_for_the_update_and_keeps_what_is_staged() -> None:
    plan, inbox = plan_of(160), queue.Queue[object]()
    worker = Held(plan)
    lanes = Lanes([worker], plan, inbox)
    lanes.start(shard_ledger.new_ledger(160, 1), 0)
    assert worker.begun.acquire(timeout=WITHIN_S)
    drained = queue.Queue[shard_ledger.Ledger]()
    threading.Thread(target=lambda: drained.put(lanes.drain())).start()
    with lanes._changed:
        assert lanes._changed.wait_for(lambda: not lanes._running, WITHIN_S)
    assert drained.empty()
    worker.released.release()
    settled = drained.get(timeout=WITHIN_S)
    assert settled.applied == BATCH and not settled.given, "a checkpoint has the rest to do"

    lanes.resume()
    worker.released.release(9)
    assert [inbox.get(timeout=WITHIN_S) for _ in range(3)] == ["first", "first", "finished"]
    assert covered(worker) == [(at, at + BATCH) for at in range(0, 160, BATCH)]


def test_an_error_of_the_program_ends_training_and_counts_nothing() -> None:
    class Broken(FakeWorker):
        def update(self, passes: int, batches: int, turn: int = 0) -> float:
            raise tf.errors.InvalidArgumentError(None, None, "the program raised")

    plan, inbox = plan_of(48), queue.Queue[object]()
    lanes = Lanes([Broken(plan)], plan, inbox)
    (word,) = run_lanes(lanes, inbox, 48, 1)
    assert isinstance(word, tf.errors.InvalidArgumentError), word
    assert (lanes.steps, lanes.drain()) == (0, shard_ledger.new_ledger(48, 1))


def test_an_error_in_the_data_is_explained_by_the_worker() -> None:
    class Unreadable(FakeWorker):
        def fetch(self, passes: int) -> list[StagedPass]:
            raise tf.errors.InvalidArgumentError(None, None, "[[{{node cond}}]]")

    plan, inbox = plan_of(48), queue.Queue[object]()
    lanes = Lanes([Unreadable(plan)], plan, inbox)
    (word,) = run_lanes(lanes, inbox, 48, 1)
    assert "example 0 is bad" in str(word)
    with pytest.raises(tf.errors.InvalidArgumentError, match="example 0 is bad"):
        update_once(Unreadable(plan), plan)


def test_a_worker_that_stages_other_positions_ends_training() -> None:
    class Wrong(FakeWorker):
        def fetch(self, passes: int) -> list[StagedPass]:
            return [StagedPass(each.position + 1, 1, 1) for each in super().fetch(passes)]

    plan, inbox = plan_of(48), queue.Queue[object]()
    (word,) = run_lanes(Lanes([Wrong(plan)], plan, inbox), inbox, 48, 1)
    assert isinstance(word, RuntimeError)


def test_the_last_leases_are_small() -> None:
    plan = plan_of(10_000)
    ledger = shard_ledger.new_ledger(10_000, 1)
    assert plan.lease_batches(ledger, 2) == 64
    assert plan.lease_batches(shard_ledger.new_ledger(640, 1), 2) == 10
    assert plan.lease_batches(shard_ledger.new_ledger(17, 1), 2) == 1
    large = plan._replace(example_bytes=600_000)
    assert large.lease_batches(ledger, 2) == 3, "a lease fits in memory"


@pytest.mark.parametrize(("read_ms", "longest"), [(0, 32 * BATCH), (100, BATCH), (500, BATCH)])
def test_leases_grow_while_they_are_read_quickly(read_ms: int, longest: int) -> None:
    """They begin with one batch, so training begins soon."""
    plan, inbox = plan_of(200 * BATCH), queue.Queue[object]()
    worker = FakeWorker(plan)
    worker.read_ms = read_ms
    run_lanes(Lanes([worker], plan, inbox), inbox, 200 * BATCH, 1)
    assert worker.leases[0] == BATCH and sum(worker.leases) == 200 * BATCH
    assert longest <= max(worker.leases) <= 64 * BATCH
    assert read_ms == 0 or max(worker.leases) == BATCH


@given(st.integers(1, 500), st.integers(1, 64), st.none() | st.integers(1, 64))
def test_every_example_is_in_one_pass_and_no_pass_is_too_large(
    examples: int, batch: int, most: int | None
) -> None:
    plan, inbox = plan_of(examples, batch, most), queue.Queue[object]()
    worker = FakeWorker(plan)
    run_lanes(Lanes([worker], plan, inbox), inbox, examples, 1)
    passes = covered(worker)
    assert [n for start, stop in passes for n in range(start, stop)] == list(range(examples))
    assert all(stop - start <= (most or batch) for start, stop in passes)
    assert pass_counts(worker) == [plan.passes(each) for each in plan.cut(Shard(0, examples))]


def pass_counts(worker: FakeWorker) -> list[int]:
    """The number of passes of each update."""
    return [len(update) for update in worker.updates]
