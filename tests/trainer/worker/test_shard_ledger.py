"""Tests of the shard ledger: every position is applied exactly once, in any history."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.worker import shard_ledger
from services.trainer.worker.shard_ledger import Ledger, Shard

SIZES = st.integers(1, 40)


class Run:
    """A training that applies the shards it gets, and a ledger that must agree with it."""

    def __init__(self, examples: int, epochs: int) -> None:
        self.ledger = shard_ledger.new_ledger(examples, epochs)
        self.applied: list[int] = []
        self.saved: tuple[Ledger, list[int]] = (self.ledger, [])

    def take(self, size: int) -> None:
        self.ledger, shard = shard_ledger.take_shard(self.ledger, size)
        if shard is not None:
            assert 0 < shard.size <= size
            assert shard.start // self.ledger.examples == (shard.stop - 1) // self.ledger.examples

    def done(self, which: int) -> None:
        if self.ledger.given:
            shard = self.ledger.given[which % len(self.ledger.given)]
            self.ledger = shard_ledger.mark_applied(self.ledger, shard)
            self.applied += range(shard.start, shard.stop)

    def give_back(self, which: int) -> None:
        if self.ledger.given:
            shard = self.ledger.given[which % len(self.ledger.given)]
            self.ledger = shard_ledger.return_shard(self.ledger, shard)

    def hand_over(self) -> None:
        """Save and restore the ledger through the codec, as in a checkpoint."""
        settled = shard_ledger.settle_ledger(self.ledger)
        self.ledger = msgspec.json.decode(msgspec.json.encode(settled), type=Ledger)
        self.saved = (self.ledger, list(self.applied))

    def crash(self) -> None:
        """Lose a ps: model and ledger are rolled back together."""
        self.ledger, self.applied = self.saved[0], list(self.saved[1])

    def check(self) -> None:
        held = [p for s in (*self.ledger.todo, *self.ledger.given) for p in range(s.start, s.stop)]
        assert sorted([*held, *self.applied]) == list(range(self.ledger.total))
        assert list(self.ledger.todo) == sorted(self.ledger.todo)
        assert self.ledger.applied == len(self.applied)

    def finish(self, size: int) -> None:
        self.hand_over()
        while not self.ledger.finished:
            self.take(size)
            self.done(0)


MOMENTS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), SIZES),
        st.tuples(st.just("done"), st.integers(0, 9)),
        st.tuples(st.just("give_back"), st.integers(0, 9)),
        st.tuples(st.just("hand_over")),
        st.tuples(st.just("crash")),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(st.integers(1, 50), st.integers(1, 4), MOMENTS, SIZES)
def test_every_position_is_applied_exactly_once(
    examples: int, epochs: int, moments: list[tuple[str, int]], size: int
) -> None:
    run = Run(examples, epochs)
    for name, *chosen in moments:
        getattr(run, name)(*chosen)
        run.check()

    run.finish(size)

    run.check()
    assert sorted(run.applied) == list(range(examples * epochs))
    assert run.ledger.applied == run.ledger.total and run.ledger.epoch == epochs


def test_a_batch_never_crosses_the_end_of_an_epoch() -> None:
    ledger = shard_ledger.new_ledger(examples=10, epochs=2)

    sizes = []
    while ledger.todo:
        ledger, shard = shard_ledger.take_shard(ledger, 4)
        assert shard is not None
        sizes.append(shard.size)

    assert sizes == [4, 4, 2, 4, 4, 2]


def test_an_epoch_is_open_until_its_last_batch_is_applied() -> None:
    ledger, first = shard_ledger.take_shard(shard_ledger.new_ledger(examples=4, epochs=2), 4)
    ledger, second = shard_ledger.take_shard(ledger, 4)
    assert first and second

    assert shard_ledger.mark_applied(ledger, second).epoch == 0
    assert shard_ledger.mark_applied(ledger, first).epoch == 1
    assert shard_ledger.mark_applied(shard_ledger.mark_applied(ledger, first), second).epoch == 2


def test_a_returned_shard_is_handed_out_next() -> None:
    ledger, first = shard_ledger.take_shard(shard_ledger.new_ledger(examples=10, epochs=1), 4)
    assert first
    ledger, _ = shard_ledger.take_shard(ledger, 4)

    assert shard_ledger.take_shard(shard_ledger.return_shard(ledger, first), 4)[1] == first


def test_a_returned_shard_can_be_split_by_a_smaller_batch() -> None:
    ledger, first = shard_ledger.take_shard(shard_ledger.new_ledger(examples=10, epochs=1), 8)
    assert first

    assert shard_ledger.take_shard(shard_ledger.return_shard(ledger, first), 3)[1] == Shard(0, 3)


def test_examples_are_numbered_from_zero_in_each_epoch() -> None:
    ledger = shard_ledger.new_ledger(examples=10, epochs=3)

    assert shard_ledger.example_range(ledger, Shard(24, 28)) == (4, 8)


def test_a_shard_that_was_not_handed_out_cannot_be_completed() -> None:
    with pytest.raises(ValueError):
        shard_ledger.mark_applied(shard_ledger.new_ledger(10, 1), Shard(0, 4))


def test_a_shard_cannot_be_completed_twice() -> None:
    ledger, shard = shard_ledger.take_shard(shard_ledger.new_ledger(10, 1), 4)
    assert shard

    with pytest.raises(ValueError):
        shard_ledger.mark_applied(shard_ledger.mark_applied(ledger, shard), shard)


def test_nothing_is_handed_out_while_the_last_batches_are_in_flight() -> None:
    ledger, _ = shard_ledger.take_shard(shard_ledger.new_ledger(4, 1), 4)

    assert shard_ledger.take_shard(ledger, 4) == (ledger, None)
    assert not ledger.finished
