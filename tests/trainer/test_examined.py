"""Which examples are looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.trainer.examined import ENDS, looked_at, starts


def test_batches_at_the_beginning_in_the_middle_and_at_the_end_are_read() -> None:
    assert starts(1000, 32) == (0, 484, 968)
    assert starts(32, 32) == (0,)
    assert looked_at(484, 32) == (484, 485, 486, 487, 512, 513, 514, 515)


@given(st.integers(1, 10_000), st.integers(1, 600))
def test_what_is_looked_at_is_there(examples: int, batch: int) -> None:
    size = min(batch, examples)

    for start in starts(examples, size):
        assert 0 <= start <= examples - size
        assert {*looked_at(start, size)} <= {*range(start, start + size)}
        assert 1 <= len(looked_at(start, size)) <= 2 * ENDS
