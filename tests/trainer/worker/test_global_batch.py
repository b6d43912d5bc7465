"""Tests of updates that all workers make together: each has exactly the examples of one update."""

from __future__ import annotations

import queue
from collections import Counter, deque

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.worker import shard_ledger
from services.trainer.worker.exact_batches import ExactLanes
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.file_batches import FileBatchLanes
from services.trainer.worker.file_source import FileOrder
from services.trainer.worker.global_batch import GlobalBatchLanes
from services.trainer.worker.input_pipeline import DataPlan, Portion, StagedPass, UpdateLoss
from services.trainer.worker.lanes import Lanes
from services.trainer.worker.part_exchange import Part
from services.trainer.worker.remote_worker import WorkerFailure
from services.trainer.worker.shard_ledger import GROUP_POSITIONS, Ledger, Shard
from services.trainer.worker.update_plan import (
    can_begin_exactly,
    count_parts,
    divide_examples,
    part_speeds,
    plan_round,
)
from services.trainer.worker.whole_updates import (
    WholeUpdateExactLanes,
    WholeUpdateFileLanes,
    WholeUpdateLanes,
)
from tests.trainer.worker.fake_worker import FakeWorker

WITHIN_S = 60.0


def gone() -> tf.errors.UnavailableError:
    return tf.errors.UnavailableError(None, None, "Connection reset by peer")


class Ps:
    """The parts that are stored on the parameter servers, and the updates that were applied.

    A part is the positions of its examples.
    """

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], list[int]] = {}
        self.applied: list[list[int]] = []
        self.cleared = 0

    def apply(self, update: int, parts: int, examples: int) -> None:
        found = [each for number in range(parts) for each in self.stored.pop((update, number))]
        assert len(found) == examples
        self.applied.append(found)

    def clear(self) -> None:
        self.stored.clear()
        self.cleared += 1


class PartWorker(FakeWorker):
    """A worker that stores the positions of a part. `fails`: the numbers of the calls that fail;
    `lost_at`: the call from which on all fail.
    """

    def __init__(
        self,
        plan: DataPlan,
        ps: Ps,
        name: str = "worker-0",
        fails: frozenset[int] = frozenset(),
        lost_at: int | None = None,
    ) -> None:
        super().__init__(plan, name)
        self.ps, self.fails, self.lost_at, self.calls = ps, fails, lost_at, 0
        self.unread_positions: deque[list[int]] = deque()
        self.staged_positions: deque[list[int]] = deque()

    def push(self, portion: Portion) -> None:
        before = len(self.unread)
        super().push(portion)
        positions = [each for shard in portion.run for each in range(shard.start, shard.stop)]
        for each in list(self.unread)[before:]:
            self.unread_positions.append(positions[: each.size])
            del positions[: each.size]

    def fetch(self, passes: int, turn: int) -> list[StagedPass]:
        found = super().fetch(passes, turn)
        for each in found:
            positions = self.unread_positions.popleft()
            if each.size and each.turn == turn:
                self.staged_positions.append(positions)
        return found

    def drop_staged(self) -> None:
        super().drop_staged()
        self.staged_positions.clear()

    def compute_part(self, part: Part) -> None:
        self.calls += 1
        lost = self.lost_at is not None and self.calls >= self.lost_at
        if lost or self.calls in self.fails:
            raise WorkerFailure(gone(), lost)
        stored = []
        for _ in range(part.passes):
            self.staged.popleft()
            stored += self.staged_positions.popleft()
        self.ps.stored[part.update, part.number] = stored
        self.losses.append(UpdateLoss(1.0, len(stored)))


def train(workers: list[PartWorker], plan: DataPlan, ledger: Ledger) -> GlobalBatchLanes:
    """Train to the end."""
    inbox = queue.Queue[object]()
    lanes = GlobalBatchLanes(workers, plan, inbox, workers[0].ps)
    lanes.start(ledger, 0)
    words = [inbox.get(timeout=WITHIN_S)]
    while words[-1] == "first":
        words.append(inbox.get(timeout=WITHIN_S))
    assert words[-1] == "finished", words
    lanes.drain()
    return lanes


def check_updates(applied: list[list[int]], examples: int, epochs: int, update: int) -> None:
    """Check that each position is in one update, and the sizes: those of one process."""
    counts = Counter(position for each in applied for position in each)
    assert counts == dict.fromkeys(range(examples * epochs), 1)
    whole, rest = divmod(examples, update)
    sizes = [*[update] * whole, *([rest] if rest else [])]
    for epoch in range(epochs):
        of_epoch = [each for each in applied if each[0] // examples == epoch]
        assert sorted(map(len, of_epoch), reverse=True) == sizes
        assert all(position // examples == epoch for each in of_epoch for position in each)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 300),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 2),
    st.integers(2, 5),
    st.sampled_from([None, 3]),
)
def test_every_update_has_the_examples_of_one_process(
    examples: int, epochs: int, batch: int, accumulated: int, workers: int, most: int | None
) -> None:
    plan, ps = DataPlan(ExampleOrder(examples), batch, most, accumulated), Ps()
    lanes = train(
        [PartWorker(plan, ps, f"worker-{n}") for n in range(workers)],
        plan,
        shard_ledger.new_ledger(examples, epochs),
    )
    check_updates(ps.applied, examples, epochs, batch * accumulated)
    assert lanes.steps == len(ps.applied) and lanes.ledger.finished


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.frozensets(st.integers(1, 60), max_size=3), min_size=2, max_size=4),
    st.integers(2, 40),
    st.integers(1, 200),
)
def test_failures_and_lost_workers_change_no_update(
    fails: list[frozenset[int]], lost_at: int, examples: int
) -> None:
    plan, ps = DataPlan(ExampleOrder(examples), 16), Ps()
    workers = [PartWorker(plan, ps, f"worker-{n}", failing) for n, failing in enumerate(fails)]
    workers[-1].lost_at = lost_at
    lanes = train(workers, plan, shard_ledger.new_ledger(examples, 4))
    check_updates(ps.applied, examples, 4, 16)
    assert set(lanes.lost_workers()) <= {workers[-1].name}


def test_a_job_continues_in_the_gaps_that_a_hand_over_left() -> None:
    plan, ps = DataPlan(ExampleOrder(100), 10), Ps()
    gaps = tuple([Shard(at, at + 7) for at in range(0, 70, 10)])
    ledger = Ledger(examples=100, epochs=1, todo=(*gaps, Shard(90, 91)))
    train([PartWorker(plan, ps, f"worker-{n}") for n in range(3)], plan, ledger)
    assert [len(each) for each in ps.applied] == [10] * 5
    assert sorted(each for update in ps.applied for each in update) == [
        each for gap in ledger.todo for each in range(gap.start, gap.stop)
    ]


class CannotRead(PartWorker):
    """A worker that is lost while it reads."""

    def fetch(self, passes: int, turn: int) -> list[StagedPass]:
        if self.calls >= 3:
            raise WorkerFailure(gone(), lost=True)
        return super().fetch(passes, turn)


def test_a_worker_that_is_lost_while_it_reads_takes_no_part() -> None:
    plan, ps = DataPlan(ExampleOrder(640), 16), Ps()
    workers = [PartWorker(plan, ps), CannotRead(plan, ps, "worker-1")]
    lanes = train(workers, plan, shard_ledger.new_ledger(640, 3))
    check_updates(ps.applied, 640, 3, 16)
    assert lanes.lost_workers() == ["worker-1"]


def test_an_error_of_the_program_ends_training() -> None:
    class Wrong(PartWorker):
        def compute_part(self, part: Part) -> None:
            raise ValueError("the shapes do not fit")

    plan, ps, inbox = DataPlan(ExampleOrder(64), 16), Ps(), queue.Queue[object]()
    lanes = GlobalBatchLanes([Wrong(plan, ps), PartWorker(plan, ps, "worker-1")], plan, inbox, ps)
    lanes.start(shard_ledger.new_ledger(64, 1), 0)
    assert isinstance(inbox.get(timeout=WITHIN_S), ValueError)
    assert lanes.ledger.applied == 0


def test_an_update_is_counted_once_for_all_its_examples() -> None:
    ledger = shard_ledger.new_ledger(100, 1)
    ledger, planned = plan_round(ledger, 32, [1.0, 1.0], 2)
    assert planned.parts == (16, 16) and [run[0] for run in planned.runs] == [
        Shard(0, 32),
        Shard(32, 64),
    ]
    first = [(Shard(0, 16),), (Shard(32, 48),)]
    assert shard_ledger.mark_update_applied(ledger, first, 32).applied == 32
    with pytest.raises(ValueError, match="16 examples in place of 32"):
        shard_ledger.mark_update_applied(ledger, first[:1], 32)
    with pytest.raises(ValueError, match="32 examples in place of 24"):
        shard_ledger.mark_update_applied(ledger, first, 24)


@given(st.integers(1, 1000), st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12))
def test_parts_are_whole_and_follow_the_speeds(examples: int, speeds: list[float]) -> None:
    parts = divide_examples(examples, speeds)
    assert sum(parts) == examples and min(parts) >= (examples >= len(speeds))
    exact = [max(examples - len(speeds), 0) * speed / sum(speeds) for speed in speeds]
    assert all(abs(part - share) <= 2.0 for part, share in zip(parts, exact, strict=True))


def test_only_clearly_different_speeds_count() -> None:
    assert part_speeds([100.0, 110.0]) == [1.0, 1.0]
    assert part_speeds([100.0, 0.0]) == [1.0, 1.0]
    assert part_speeds([100.0, 200.0]) == [100.0, 200.0]


class FileWorker(FakeWorker):
    """A worker that reads files, and stores the positions of a part.

    `lengths`: the number of examples of each group of files; `lost_at`: the number of the part at
    which it is lost.
    """

    def __init__(
        self, plan: DataPlan, ps: Ps, name: str, lengths: list[int], lost_at: int | None = None
    ) -> None:
        super().__init__(plan, name)
        self.ps, self.lengths, self.lost_at, self.calls = ps, lengths, lost_at, 0
        self.rows: list[int] = []

    def examples_of(self, portion: Portion) -> int:
        assert isinstance(self.plan.order, FileOrder)
        group = self.plan.order.group(portion.start)
        return min(portion.size, self.lengths[group] - portion.start % GROUP_POSITIONS)

    def drop_staged(self) -> None:
        super().drop_staged()
        self.rows.clear()

    def compute_part(self, part: Part) -> None:
        self.calls += 1
        if self.lost_at is not None and self.calls >= self.lost_at:
            raise WorkerFailure(gone(), lost=True)
        stored = []
        for count in part.rows:
            if not self.rows:
                each = self.staged.popleft()
                self.rows = list(range(each.position, each.position + each.size))
            assert count <= len(self.rows), "a pass is of one staged batch"
            stored += self.rows[:count]
            del self.rows[:count]
        self.ps.stored[part.update, part.number] = stored
        self.losses.append(UpdateLoss(1.0, len(stored)))

    def update(self, passes: int, batches: int) -> bool:
        staged = self.staged[0]
        super().update(passes, batches)
        self.ps.applied.append(list(range(staged.position, staged.position + staged.size)))
        return True


def train_files(
    lengths: list[int], epochs: int, workers: int, lost_at: int | None, batch: int, in_turn: bool
) -> tuple[list[list[int]], FileOrder]:
    """Return the positions of each update."""
    order = FileOrder(len(lengths), 5, 100, digest=7)
    plan, ps, inbox = DataPlan(order, batch), Ps(), queue.Queue[object]()
    remote = [
        FileWorker(plan, ps, f"worker-{n}", lengths, lost_at if n == 1 else None)
        for n in range(workers)
    ]
    lanes: FileBatchLanes = (
        WholeUpdateFileLanes(remote, plan, inbox)
        if in_turn
        else FileBatchLanes(remote, plan, inbox, ps)
    )
    lanes.start(shard_ledger.new_file_ledger(len(lengths), epochs, 7), 0)
    while (word := inbox.get(timeout=WITHIN_S)) != "finished":
        assert word == "first", word
    assert lanes.drain().finished
    counts = Counter(position for update in ps.applied for position in update)
    expected = {
        (epoch * len(lengths) + place) * GROUP_POSITIONS + n
        for epoch in range(epochs)
        for place in range(len(lengths))
        for n in range(lengths[order.group((epoch * len(lengths) + place) * GROUP_POSITIONS)])
    }
    assert counts == dict.fromkeys(expected, 1)
    return ps.applied, order


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any),
    st.integers(1, 3),
    st.integers(2, 4),
    st.none() | st.integers(1, 20),
    st.integers(1, 40),
)
def test_every_update_of_files_has_the_examples_of_one_process(
    lengths: list[int], epochs: int, workers: int, lost_at: int | None, batch: int
) -> None:
    applied, order = train_files(lengths, epochs, workers, lost_at, batch, in_turn=False)
    whole, rest = divmod(sum(lengths), batch)
    sizes = [*[batch] * whole, *([rest] if rest else [])]
    for epoch in range(epochs):
        of_epoch = [each for each in applied if each[0] // order.examples == epoch]
        assert list(map(len, of_epoch)) == sizes
        assert all(position // order.examples == epoch for each in of_epoch for position in each)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any), st.integers(2, 3))
def test_workers_in_turn_apply_every_example_of_files_once(
    lengths: list[int], workers: int
) -> None:
    train_files(lengths, 2, workers, None, 16, in_turn=True)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_in_turn_make_whole_updates(workers: int) -> None:
    plan, ps, inbox = DataPlan(ExampleOrder(100), 16), Ps(), queue.Queue[object]()
    remote = [Whole(plan, ps, f"worker-{n}") for n in range(workers)]
    lanes = WholeUpdateLanes(remote, plan, inbox)
    lanes.start(shard_ledger.new_ledger(100, 3), 0)
    while inbox.get(timeout=WITHIN_S) != "finished":
        pass
    check_updates(ps.applied, 100, 3, 16)
    assert all(worker.updates for worker in remote)


class Stopping(Ps):
    """Stores that stop their lanes after some updates."""

    def __init__(self, stop_after: int) -> None:
        super().__init__()
        self.stop_after = stop_after
        self.lanes: list[GlobalBatchLanes] = []

    def apply(self, update: int, parts: int, examples: int) -> None:
        self.applied += [self.stored.pop((update, number)) for number in range(parts)]
        self.applied.append([])  # the end of an update
        self.stop_after -= 1
        if not self.stop_after:
            self.lanes[0]._running = False


def train_exactly(
    examples: int, epochs: int, batch: int, sizes: list[tuple[int, int, frozenset[int]]]
) -> list[list[int]]:
    """Return the positions of each part, with an empty list after each update.

    `sizes`: for each generation the number of workers, the updates after which the next one
    follows, and the calls of its first worker that fail.
    """
    plan = DataPlan(ExampleOrder(examples), batch, virtual_workers=8)
    inbox = queue.Queue[object]()
    ledger, applied = shard_ledger.new_ledger(examples, epochs), list[list[int]]()
    for workers, updates, fails in [*sizes, (1, 0, frozenset())]:
        ps = Stopping(updates)
        remote = [PartWorker(plan, ps, f"worker-{n}") for n in range(workers)]
        remote[0].fails = fails
        lanes = ExactLanes(remote, plan, inbox, ps)
        ps.lanes.append(lanes)
        assert lanes.can_begin(ledger), "exact updates left off here"
        lanes.start(ledger, 0)
        while not lanes.ledger.finished and (ps.stop_after or not updates):
            word = inbox.get(timeout=WITHIN_S)
            assert word in ("first", "finished"), word
            if word == "first" and updates:
                with lanes._changed:
                    assert lanes._changed.wait_for(
                        lambda lanes=lanes, ps=ps: lanes.ledger.finished or not ps.stop_after,
                        WITHIN_S,
                    )
        ledger = lanes.drain()
        applied += ps.applied
        inbox = queue.Queue[object]()
        if ledger.finished:
            return applied
    raise AssertionError("the last generation trains to the end")


GENERATIONS = st.tuples(
    st.integers(1, 5), st.integers(1, 12), st.frozensets(st.integers(1, 8), max_size=1)
)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 400),
    st.integers(1, 2),
    st.sampled_from([6, 7, 16]),
    st.lists(GENERATIONS, max_size=6),
)
def test_exact_updates_do_not_depend_on_the_history(
    examples: int, epochs: int, batch: int, sizes: list[tuple[int, int, frozenset[int]]]
) -> None:
    assert train_exactly(examples, epochs, batch, sizes) == train_exactly(
        examples, epochs, batch, []
    )


@pytest.mark.parametrize(
    ("update", "most", "parts"),
    [(32, None, 8), (100, None, 5), (7, None, 7), (13, None, 1), (64, 4, 16), (1, None, 1)],
)
def test_parts_divide_an_update(update: int, most: int | None, parts: int) -> None:
    assert count_parts(update, most, wanted=8) == parts


def ledger_after(applied: list[tuple[int, int]], examples: int, epochs: int = 2) -> Ledger:
    ledger = shard_ledger.new_ledger(examples, epochs)
    shards = [Shard(*each) for each in applied]
    return shard_ledger.mark_runs_applied(shard_ledger.take_shards(ledger, shards), [tuple(shards)])


@pytest.mark.parametrize(
    ("applied", "can_begin"),
    [
        ([], True),
        ([(0, 100)], True),
        ([(0, 100), (100, 200)], True),
        ([(0, 4), (48, 52)], True),
        ([(0, 96)], True),
        ([(0, 8)], False),
        ([(0, 5)], False),
        ([(0, 4), (52, 56)], False),
        ([(0, 92), (96, 100)], False),
        ([(0, 96), (100, 108)], False),
    ],
)
def test_exact_updates_continue_only_where_exact_updates_leave_off(
    applied: list[tuple[int, int]], can_begin: bool
) -> None:
    assert can_begin_exactly(ledger_after(applied, 100), update=8, part_count=2) == can_begin


class LosesAtLosses(PartWorker):
    """A worker that is lost when its losses are fetched."""

    fetched = 0

    def take_losses(self) -> list[UpdateLoss]:
        self.fetched += 1
        if self.fetched >= 2:
            self.lost_at = 0
            raise WorkerFailure(gone(), lost=True)
        return super().take_losses()


class CannotTakePortions(PartWorker):
    """A worker that is lost when it is given a portion."""

    def push(self, portion: Portion) -> None:
        if self.calls >= 2:
            raise WorkerFailure(gone(), lost=True)
        super().push(portion)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([LosesAtLosses, CannotTakePortions]), st.integers(2, 4), st.booleans())
def test_a_worker_may_be_lost_in_any_call(
    kind: type[PartWorker], workers: int, fetches_often: bool
) -> None:
    plan, ps, inbox = DataPlan(ExampleOrder(640), 16), Ps(), queue.Queue[object]()
    others = [PartWorker(plan, ps, f"worker-{n}") for n in range(1, workers)]
    lanes = GlobalBatchLanes([kind(plan, ps), *others], plan, inbox, ps)
    if fetches_often:
        lanes._losses_are_due = lambda lane: True  # type: ignore[method-assign]
    lanes.start(shard_ledger.new_ledger(640, 2), 0)
    while (word := inbox.get(timeout=WITHIN_S)) != "finished":
        assert word == "first", word
    lanes.drain()
    check_updates(ps.applied, 640, 2, 16)


class Whole(PartWorker):
    """A worker that makes whole updates."""

    def update(self, passes: int, batches: int) -> bool:
        applied = [self.staged_positions.popleft() for _ in range(passes)]
        super().update(passes, batches)
        self.ps.applied.append([position for each in applied for position in each])
        return True


@pytest.mark.parametrize("kind", [WholeUpdateLanes, WholeUpdateExactLanes])
@pytest.mark.parametrize("workers", [1, 3])
def test_whole_updates_have_all_accumulated_batches(
    kind: type[WholeUpdateLanes], workers: int
) -> None:
    plan, ps, inbox = DataPlan(ExampleOrder(100), 8, None, 3), Ps(), queue.Queue[object]()
    remote = [Whole(plan, ps, f"worker-{n}") for n in range(workers)]
    lanes = kind(remote, plan, inbox)
    lanes.start(shard_ledger.new_ledger(100, 2), 0)
    while (word := inbox.get(timeout=WITHIN_S)) != "finished":
        assert word == "first", word
    check_updates(ps.applied, 100, 2, 24)


def restarted_worker_error() -> tf.errors.InvalidArgumentError:
    return tf.errors.InvalidArgumentError(None, None, "some remote workers have been restarted")


def check_ends_with_unknown_result(lanes: Lanes, inbox: queue.Queue[object]) -> None:
    lanes.start(shard_ledger.new_ledger(100, 2), 0)
    words = [inbox.get(timeout=WITHIN_S)]
    while words[-1] == "first":
        words.append(inbox.get(timeout=WITHIN_S))
    assert isinstance(words[-1], tf.errors.UnavailableError)
    assert "may be applied or not" in str(words[-1])


@pytest.mark.parametrize("lost", [False, True])
def test_a_whole_update_that_fails_ends_training_because_it_may_be_applied(lost: bool) -> None:
    class Fails(Whole):
        def update(self, passes: int, batches: int) -> bool:
            raise WorkerFailure(restarted_worker_error(), lost)

    plan, ps, inbox = DataPlan(ExampleOrder(100), 8), Ps(), queue.Queue[object]()
    lanes = WholeUpdateLanes([Fails(plan, ps), Whole(plan, ps, "worker-1")], plan, inbox)
    check_ends_with_unknown_result(lanes, inbox)


def test_a_joint_update_that_fails_on_a_ps_ends_training_because_it_may_be_applied() -> None:
    class Fails(Ps):
        def apply(self, update: int, parts: int, examples: int) -> None:
            raise WorkerFailure(restarted_worker_error(), lost=False)

    plan, ps, inbox = DataPlan(ExampleOrder(100), 8), Fails(), queue.Queue[object]()
    lanes = GlobalBatchLanes(
        [PartWorker(plan, ps), PartWorker(plan, ps, "worker-1")], plan, inbox, ps
    )
    check_ends_with_unknown_result(lanes, inbox)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(50, 400),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 15)), min_size=1, max_size=5),
)
def test_the_number_of_updates_does_not_depend_on_the_history(
    examples: int, sizes: list[tuple[int, int]]
) -> None:
    plan, applied = DataPlan(ExampleOrder(examples), 16), list[list[int]]()
    ledger = shard_ledger.new_ledger(examples, 2)
    for workers, updates in [*sizes, (1, 10_000)]:
        ps, inbox = Ps(), queue.Queue[object]()
        remote = [Whole(plan, ps, f"worker-{n}") for n in range(workers)]
        lanes = GlobalBatchLanes(remote, plan, inbox, ps)
        if workers == 1:
            lanes = WholeUpdateLanes(remote, plan, inbox)
        lanes.start(ledger, 0)
        with lanes._changed:
            assert lanes._changed.wait_for(
                lambda lanes=lanes, updates=updates: (
                    lanes.ledger.finished or lanes.steps >= updates
                ),
                WITHIN_S,
            )
        ledger = lanes.drain()
        applied += ps.applied
        if ledger.finished:
            break
    check_updates(applied, examples, 2, 16)
