"""Tests of lanes: every batch is applied and counted once, whatever the workers do."""

from __future__ import annotations

import queue
import threading
from collections import Counter

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.program import BadProgram
from services.trainer.worker import shard_ledger
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.file_source import FileOrder
from services.trainer.worker.input_pipeline import (
    KEPT_SAMPLES,
    DataPlan,
    Portion,
    StagedPass,
    UpdateLoss,
)
from services.trainer.worker.lanes import Lanes
from services.trainer.worker.noise_estimate import Comparison
from services.trainer.worker.rehearsal import update_once
from services.trainer.worker.remote_worker import WorkerFailure
from services.trainer.worker.shard_ledger import GROUP_POSITIONS, Ledger, Shard
from tests.trainer.worker.fake_worker import FakeWorker

WITHIN_S = 60.0
BATCH = 16


def gone() -> tf.errors.UnavailableError:
    return tf.errors.UnavailableError(None, None, "Connection reset by peer")


class Failing(FakeWorker):
    """A worker that fails at update `at`, and at all later ones if it is `lost`."""

    def __init__(self, plan: DataPlan, at: int, lost: bool, name: str = "worker-0") -> None:
        super().__init__(plan, name)
        self.at, self.lost, self.calls = at, lost, 0

    def update(self, passes: int, batches: int) -> bool:
        self.calls += 1
        if self.calls == self.at or (self.lost and self.calls > self.at):
            raise WorkerFailure(gone(), self.lost)
        return super().update(passes, batches)


class Held(FakeWorker):
    """A worker that makes an update when the test releases it."""

    def __init__(self, plan: DataPlan) -> None:
        super().__init__(plan)
        self.begun, self.released = threading.Semaphore(0), threading.Semaphore(0)

    def release(self, updates: int) -> None:
        """Let it make this many updates."""
        self.released.release(updates)

    def update(self, passes: int, batches: int) -> bool:
        self.begun.release()
        assert self.released.acquire(timeout=WITHIN_S)
        return super().update(passes, batches)


class Comparing(Held):
    """A worker that compares gradients after `trace_comparison` only."""

    is_traced, compared = False, 0

    def trace_comparison(self) -> None:
        self.is_traced = True

    def compare_gradients(self) -> Comparison | None:
        assert self.is_traced
        self.compared += 1
        return Comparison(4.0, float(BATCH), 2.0, 1.0)


def plan_of(examples: int, batch: int = BATCH, most: int | None = None, k: int = 1) -> DataPlan:
    return DataPlan(ExampleOrder(examples), batch, most, k)


def run_lanes(lanes: Lanes, inbox: queue.Queue[object], examples: int, epochs: int) -> list[object]:
    """Train to the end. Return what was put into the inbox."""
    lanes.start(shard_ledger.new_ledger(examples, epochs), 0)
    words = []
    while not words or words[-1] == "first":
        words.append(inbox.get(timeout=WITHIN_S))
    if not lanes.has_failed:
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


def test_workers_measure_gradient_noise_once_it_is_traced() -> None:
    plan, inbox = plan_of(640)._replace(noise_share=0.5), queue.Queue[object]()
    workers = [Comparing(plan), Comparing(plan)]
    lanes = Lanes(workers, plan, inbox)
    lanes.start(shard_ledger.new_ledger(640, 2), 0)
    for worker in workers:
        worker.release(KEPT_SAMPLES + 1)
    for worker in workers * (KEPT_SAMPLES + 2):
        assert worker.begun.acquire(timeout=WITHIN_S)
    assert not any(worker.compared for worker in workers)

    lanes.start_noise_measurements()
    for worker in workers:
        worker.release(640)

    assert "finished" in [inbox.get(timeout=WITHIN_S), inbox.get(timeout=WITHIN_S)]
    assert all(worker.compared for worker in workers)


def test_batches_of_a_lost_worker_are_applied_by_another() -> None:
    plan, inbox = plan_of(640), queue.Queue[object]()
    first, other = Failing(plan, at=3, lost=True), FakeWorker(plan, "worker-1")
    lanes = Lanes([first, other], plan, inbox)
    assert run_lanes(lanes, inbox, 640, 2) == ["first", "finished"]
    assert covered(first, other) == [(at, at + BATCH) for at in range(0, 1280, BATCH)]
    assert lanes.lost_workers() == ["worker-0"] and len(first.updates) == 2


def test_no_checkpoint_is_made_after_an_update_of_which_nobody_knows_whether_it_is_applied() -> (
    None
):
    plan, inbox = plan_of(100), queue.Queue[object]()
    lanes = Lanes([Failing(plan, at=2, lost=False), FakeWorker(plan, "worker-1")], plan, inbox)
    assert isinstance(run_lanes(lanes, inbox, 100, 9)[-1], tf.errors.UnavailableError)
    assert not lanes.lost_workers()
    with pytest.raises(tf.errors.UnavailableError):
        lanes.drain()


def test_a_worker_that_fails_to_read_for_a_moment_begins_anew() -> None:
    class FailsToRead(FakeWorker):
        fetches = 0

        def fetch(self, passes: int, turn: int) -> list[StagedPass]:
            self.fetches += 1
            if self.fetches == 2:
                raise WorkerFailure(gone(), lost=False)
            return super().fetch(passes, turn)

    plan, inbox = plan_of(100), queue.Queue[object]()
    worker = FailsToRead(plan)
    lanes = Lanes([worker], plan, inbox)
    assert run_lanes(lanes, inbox, 100, 1) == ["first", "finished"]
    assert covered(worker) == [(0, 16), (16, 32), (32, 48), (48, 64), (64, 80), (80, 96), (96, 100)]
    assert lanes.lost_workers() == []


def test_an_update_that_is_in_progress_counts_when_reading_fails_beside_it() -> None:
    class FailsToRead(Held):
        def __init__(self, plan: DataPlan) -> None:
            super().__init__(plan)
            self.fetches, self.failed, self.dropped = 0, threading.Event(), threading.Event()

        def drop_staged(self) -> None:
            self.dropped.set()
            super().drop_staged()

        def fetch(self, passes: int, turn: int) -> list[StagedPass]:
            self.fetches += 1
            if self.fetches == 2:
                assert self.begun.acquire(timeout=WITHIN_S)
                self.failed.set()
                raise WorkerFailure(gone(), lost=False)
            return super().fetch(passes, turn)

    plan, inbox = plan_of(10 * BATCH), queue.Queue[object]()
    worker = FailsToRead(plan)
    lanes = Lanes([worker], plan, inbox)
    lanes.start(shard_ledger.new_ledger(10 * BATCH, 1), 0)
    assert worker.failed.wait(WITHIN_S)
    assert not worker.dropped.wait(0.2), "the update in progress uses what is staged"
    worker.released.release(10)

    assert [inbox.get(timeout=WITHIN_S) for _ in range(2)] == ["first", "finished"]
    assert covered(worker) == [(at, at + BATCH) for at in range(0, 160, BATCH)]


def test_losses_are_fetched_after_the_last_update() -> None:
    plan, inbox = plan_of(10 * BATCH), queue.Queue[object]()
    worker = FakeWorker(plan)
    lanes = Lanes([worker], plan, inbox)
    run_lanes(lanes, inbox, 10 * BATCH, 1)

    assert lanes.take_losses() == (1.0, 10 * BATCH)
    assert lanes.take_losses() == (None, 0)


def test_a_worker_that_fails_to_read_again_and_again_ends_training() -> None:
    class Unlucky(FakeWorker):
        def fetch(self, passes: int, turn: int) -> list[StagedPass]:
            raise WorkerFailure(gone(), lost=False)

    plan, inbox = plan_of(64), queue.Queue[object]()
    worker = Unlucky(plan)
    lanes = Lanes([worker], plan, inbox)
    (word,) = run_lanes(lanes, inbox, 64, 1)
    assert isinstance(word, tf.errors.UnavailableError)
    assert shard_ledger.settle_ledger(lanes.ledger) == shard_ledger.new_ledger(64, 1)


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
        def update(self, passes: int, batches: int) -> bool:
            raise tf.errors.InvalidArgumentError(None, None, "the program raised")

    plan, inbox = plan_of(48), queue.Queue[object]()
    lanes = Lanes([Broken(plan)], plan, inbox)
    (word,) = run_lanes(lanes, inbox, 48, 1)
    assert isinstance(word, tf.errors.InvalidArgumentError), word
    left = shard_ledger.settle_ledger(lanes.ledger)
    assert (lanes.steps, left) == (0, shard_ledger.new_ledger(48, 1))


def test_an_update_that_may_be_half_applied_gets_into_no_checkpoint() -> None:
    class Broken(FakeWorker):
        def update(self, passes: int, batches: int) -> bool:
            raise tf.errors.InvalidArgumentError(None, None, "raised between two variables")

    plan, inbox = plan_of(48), queue.Queue[object]()
    lanes = Lanes([Broken(plan)], plan, inbox)
    run_lanes(lanes, inbox, 48, 1)
    assert lanes.has_failed
    for go_on in (lanes.drain, lanes.resume):
        with pytest.raises(tf.errors.InvalidArgumentError, match="between two variables"):
            go_on()


def test_an_error_in_the_data_is_explained_by_the_worker() -> None:
    class Unreadable(FakeWorker):
        def fetch(self, passes: int, turn: int) -> list[StagedPass]:
            raise tf.errors.InvalidArgumentError(None, None, "[[{{node cond}}]]")

    plan, inbox = plan_of(48), queue.Queue[object]()
    lanes = Lanes([Unreadable(plan)], plan, inbox)
    (word,) = run_lanes(lanes, inbox, 48, 1)
    assert "example 0 is bad" in str(word)
    with pytest.raises(tf.errors.InvalidArgumentError, match="example 0 is bad"):
        update_once(Unreadable(plan), plan)


def test_what_was_read_before_an_error_in_the_data_is_trained() -> None:
    class Broken(FakeWorker):
        def fetch(self, passes: int, turn: int) -> list[StagedPass]:
            if self.unread[0].position >= 2 * BATCH:
                raise tf.errors.InvalidArgumentError(None, None, "[[{{node cond}}]]")
            return super().fetch(passes, turn)

    plan, inbox = plan_of(6 * BATCH), queue.Queue[object]()
    lanes = Lanes([Broken(plan)], plan, inbox)
    assert str(run_lanes(lanes, inbox, 6 * BATCH, 1)[-1]).endswith("is bad")
    assert lanes.steps == 2


def test_a_worker_that_stages_other_positions_ends_training() -> None:
    class Wrong(FakeWorker):
        def fetch(self, passes: int, turn: int) -> list[StagedPass]:
            return [StagedPass(each.position + 1, 1, 1) for each in super().fetch(passes, turn)]

    plan, inbox = plan_of(48), queue.Queue[object]()
    (word,) = run_lanes(Lanes([Wrong(plan)], plan, inbox), inbox, 48, 1)
    assert isinstance(word, RuntimeError)


def test_the_last_portions_are_small() -> None:
    plan, most = plan_of(1_000_000), 100_000
    ledger = shard_ledger.new_ledger(1_000_000, 1)
    assert plan.portion_size(ledger, 2, most) == 131_072
    assert plan.portion_size(ledger, 2, 8) == 8 * BATCH
    assert plan.portion_size(shard_ledger.new_ledger(640, 1), 2, most) == 10 * BATCH
    assert plan.portion_size(shard_ledger.new_ledger(17, 1), 2, most) == BATCH
    large = plan._replace(example_bytes=600_000)
    assert large.portion_size(ledger, 2, most) == 3 * BATCH, "a portion fits in memory"


def test_a_portion_of_an_epoch_has_its_last_batch() -> None:
    """The last batch is short, and reading it alone may cost as much as the rest."""
    plan = plan_of(BATCH * 390 + 10)
    ledger = shard_ledger.new_ledger(BATCH * 390 + 10, 100)
    assert plan.portion_size(ledger, 1, 1_000) > BATCH * 390


def test_a_portion_ends_with_a_window_of_the_order() -> None:
    order = ExampleOrder(100_000, seed=0, block=32, window=1_024)
    plan, most = plan_of(100_000)._replace(order=order, accumulated=2), 1_000
    ledger, update = shard_ledger.new_ledger(100_000, 2), 2 * BATCH
    sizes = []
    while not ledger.finished:
        ledger, shard = shard_ledger.take_shard(ledger, plan.portion_size(ledger, 1, most))
        assert shard is not None
        ledger = shard_ledger.mark_applied(ledger, shard)
        sizes.append(shard.size)
    assert sum(sizes) == 200_000
    assert all(size % update == 0 and 1_024 - update < size <= 1_024 for size in sizes[:97])


@pytest.mark.parametrize("accumulated", [1, 8])
def test_the_portions_of_a_worker_grow(accumulated: int) -> None:
    plan, inbox = plan_of(400 * BATCH)._replace(accumulated=accumulated), queue.Queue[object]()
    worker = FakeWorker(plan)
    worker.read_ms = 300
    run_lanes(Lanes([worker], plan, inbox), inbox, 400 * BATCH, 1)
    assert worker.portions[0] == accumulated * BATCH and sum(worker.portions) == 400 * BATCH
    assert max(worker.portions) >= 64 * BATCH


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
    batches = [min(batch, examples - start) for start in range(0, examples, batch)]
    assert pass_counts(worker) == [plan.passes(each) for each in batches]


def pass_counts(worker: FakeWorker) -> list[int]:
    """Return the number of passes of each update."""
    return [len(update) for update in worker.updates]


# ---------------------------------------------------------------- files


class FileReader(FakeWorker):
    """A worker that reads groups of files with these numbers of examples."""

    def __init__(self, plan: DataPlan, lengths: list[int], name: str = "worker-0") -> None:
        super().__init__(plan, name)
        self.lengths = lengths

    def examples_of(self, portion: Portion) -> int:
        assert isinstance(self.plan.order, FileOrder)
        group = self.plan.order.group(portion.start)
        left = self.lengths[group] - portion.start % GROUP_POSITIONS
        return min(portion.size, left)


def test_all_losses_of_files_are_fetched() -> None:
    """Only the end of its file shows that an update was the last one."""
    plan, inbox = file_plan(2), queue.Queue[object]()
    lanes = Lanes([FileReader(plan, [5 * BATCH, 4 * BATCH])], plan, inbox)
    lanes.start(shard_ledger.new_file_ledger(2, 1, 7), 0)
    while inbox.get(timeout=WITHIN_S) != "finished":
        pass
    assert lanes.take_losses() == (1.0, 9 * BATCH)


def test_a_job_finishes_if_a_worker_is_lost_when_its_last_losses_are_fetched() -> None:
    class LostAtTheEnd(FileReader):
        def take_losses(self) -> list[UpdateLoss]:
            if len(self.updates) == 5:
                raise WorkerFailure(gone(), lost=True)
            return super().take_losses()

        def fetch(self, passes: int, turn: int) -> list[StagedPass]:
            if not self.unread[0].size:
                with lanes._changed:
                    assert lanes._changed.wait_for(
                        lambda: lanes.steps == 5 and not lanes._lanes[0].updating, WITHIN_S
                    )
            return super().fetch(1, turn)

    plan, inbox = file_plan(1), queue.Queue[object]()
    lanes = Lanes([LostAtTheEnd(plan, [5 * BATCH])], plan, inbox)
    lanes.start(shard_ledger.new_file_ledger(1, 1, 7), 0)
    assert [inbox.get(timeout=WITHIN_S) for _ in range(2)] == ["first", "finished"]
    assert lanes.ledger.applied == 5 * BATCH


class LostReader(FileReader):
    """A worker that is lost at its second update."""

    def update(self, passes: int, batches: int) -> bool:
        if self.updates:
            raise WorkerFailure(gone(), lost=True)
        return super().update(passes, batches)


def file_plan(groups: int, seed: int | None = 5, batch: int = BATCH) -> DataPlan:
    return DataPlan(FileOrder(groups, seed, 100, digest=7), batch)


def read_files(
    workers: list[FileReader], ledger: Ledger
) -> tuple[dict[tuple[int, int, int], int], Ledger]:
    """Train to the end.

    Return how often each (epoch, group, example) was applied, and the ledger.
    """
    plan, inbox = workers[0].plan, queue.Queue[object]()
    assert isinstance(plan.order, FileOrder)
    lanes = Lanes(workers, plan, inbox)
    lanes.start(ledger, 0)
    while (word := inbox.get(timeout=WITHIN_S)) != "finished":
        assert word == "first", word
    counts = Counter[tuple[int, int, int]]()
    for start, stop in covered(*workers):
        epoch, group = start // plan.order.examples, plan.order.group(start)
        for position in range(start, stop):
            counts[epoch, group, position % GROUP_POSITIONS] += 1
    return counts, lanes.drain()


def all_once(lengths: list[int], epochs: int) -> dict[tuple[int, int, int], int]:
    return {
        (epoch, group, n): 1
        for epoch in range(epochs)
        for group, length in enumerate(lengths)
        for n in range(length)
    }


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_example_of_files_is_applied_once_an_epoch(
    lengths: list[int], workers: int, epochs: int, shuffled: bool
) -> None:
    plan = file_plan(len(lengths), 5 if shuffled else None)
    readers = [FileReader(plan, lengths, f"worker-{n}") for n in range(workers)]
    ledger = shard_ledger.new_file_ledger(len(lengths), epochs, digest=7)
    counts, done = read_files(readers, ledger)
    assert counts == all_once(lengths, epochs)
    assert (done.applied, done.total) == (epochs * sum(lengths),) * 2
    assert done.files is not None and done.files.lengths == tuple(lengths)


def test_another_worker_reads_on_where_a_lost_one_was() -> None:
    lengths = [100, 40, 70]
    plan = file_plan(len(lengths))
    lost, other = LostReader(plan, lengths), FileReader(plan, lengths, "worker-1")
    ledger = shard_ledger.new_file_ledger(len(lengths), 2, digest=7)
    counts, done = read_files([lost, other], ledger)
    assert counts == all_once(lengths, 2)
    assert done.applied == 2 * sum(lengths)


class HeldReader(FileReader):
    """A worker that makes its updates when `go` is set."""

    def __init__(self, plan: DataPlan, lengths: list[int], name: str, go: threading.Event) -> None:
        super().__init__(plan, lengths, name)
        self.go, self.begun = go, threading.Event()

    def update(self, passes: int, batches: int) -> bool:
        self.begun.set()
        assert self.go.wait(WITHIN_S)
        return super().update(passes, batches)


def test_a_worker_gets_its_next_files_when_it_has_read_those_before() -> None:
    lengths = [10 * BATCH] * 5
    plan, inbox = file_plan(len(lengths), seed=None), queue.Queue[object]()
    slow = HeldReader(plan, lengths, "worker-0", threading.Event())
    quick = HeldReader(plan, lengths, "worker-1", slow.begun)
    lanes = Lanes([slow, quick], plan, inbox)
    lanes.start(shard_ledger.new_file_ledger(len(lengths), 1, digest=7), 0)
    with lanes._changed:
        assert lanes._changed.wait_for(lambda: len(quick.updates) == 40, WITHIN_S)
    slow.go.set()
    while inbox.get(timeout=WITHIN_S) != "finished":
        pass
    assert (len(slow.portions), len(quick.portions)) == (1, 4)


def test_files_that_have_lost_examples_end_training() -> None:
    """The checkpoint says that there are more examples."""
    plan, inbox = file_plan(1), queue.Queue[object]()
    ledger = shard_ledger.new_file_ledger(1, 1, digest=7)
    ledger, shard = shard_ledger.take_shard(ledger, 50)
    assert shard is not None
    ledger = shard_ledger.return_shard(shard_ledger.end_group(*whole_group(ledger)), shard)
    lanes = Lanes([FileReader(plan, [30])], plan, inbox)
    lanes.start(ledger, 0)
    while (word := inbox.get(timeout=WITHIN_S)) == "first":
        pass
    assert isinstance(word, BadProgram) and "20 examples at the end of" in str(word)


def whole_group(ledger: Ledger) -> tuple[Ledger, Shard, int]:
    """Return the ledger with the rest of its only group handed out, that rest, and the group."""
    ledger, rest = shard_ledger.take_shard(ledger, GROUP_POSITIONS)
    assert rest is not None
    return ledger, rest, 0


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 200),
    st.integers(1, 3),
    st.lists(st.sets(st.integers(1, 30)), min_size=1, max_size=3),
)
def test_examples_of_gradients_that_are_too_stale_are_trained_again(
    examples: int, accumulated: int, too_stale: list[set[int]]
) -> None:
    plan, inbox = plan_of(examples, k=accumulated), queue.Queue[object]()
    workers = [FakeWorker(plan, f"worker-{n}") for n in range(len(too_stale))]
    for worker, numbers in zip(workers, too_stale, strict=True):
        worker.too_stale = numbers
    lanes = Lanes(workers, plan, inbox)
    assert run_lanes(lanes, inbox, examples, 2) == ["first", "finished"]
    positions = [at for start, stop in covered(*workers) for at in range(start, stop)]
    assert positions == list(range(2 * examples))
    assert lanes.ledger.applied == 2 * examples
    assert lanes.steps == sum(len(worker.updates) for worker in workers)
    dropped = sum(worker.update_calls - len(worker.updates) for worker in workers)
    stale = lanes.take_staleness()
    assert (stale.dropped if stale else 0) == dropped


def test_a_checkpoint_has_the_examples_of_a_dropped_gradient_to_do() -> None:
    plan, inbox = plan_of(64), queue.Queue[object]()
    worker = Held(plan)
    worker.too_stale = {1, 3}
    lanes = Lanes([worker], plan, inbox)
    lanes.start(shard_ledger.new_ledger(64, 1), 0)
    applied = []
    for _ in range(3):
        assert worker.begun.acquire(timeout=WITHIN_S)
        threading.Timer(0.05, worker.released.release).start()
        saved = lanes.drain()
        applied.append(saved.applied)
        assert sum(shard.size for shard in saved.todo) == 64 - saved.applied and not saved.given
        lanes.resume()
    assert applied == [0, BATCH, BATCH]
    for _ in range(3):
        worker.released.release()
    while inbox.get(timeout=WITHIN_S) != "finished":
        pass
    assert covered(worker) == [(at, at + BATCH) for at in range(0, 64, BATCH)]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(any),
    st.lists(st.sets(st.integers(1, 12)), min_size=1, max_size=3),
)
def test_dropped_examples_of_files_are_applied_once(
    lengths: list[int], too_stale: list[set[int]]
) -> None:
    plan = file_plan(len(lengths))
    readers = [FileReader(plan, lengths, f"worker-{n}") for n in range(len(too_stale))]
    for reader, numbers in zip(readers, too_stale, strict=True):
        reader.too_stale = numbers
    ledger = shard_ledger.new_file_ledger(len(lengths), 2, digest=7)
    counts, done = read_files(list(readers), ledger)
    assert counts == all_once(lengths, 2)
    assert (done.applied, done.total) == (2 * sum(lengths),) * 2
