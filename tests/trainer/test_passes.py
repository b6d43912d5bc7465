"""An update's batches are cut into passes that a device holds, and their shares make the mean of
the batches.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.passes import Pass, has_several, split_passes

BATCHES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 200)).map(lambda b: (b[0], b[0] + b[1])),
    min_size=1,
)


def test_a_batch_that_fits_is_one_pass() -> None:
    assert split_passes([(32, 64)], 32) == split_passes([(32, 64)], None) == [Pass(32, 64, 1.0)]


def test_a_larger_batch_takes_as_few_passes_as_the_device_allows() -> None:
    assert split_passes([(0, 32)], 12) == [
        Pass(0, 12, 0.375),
        Pass(12, 24, 0.375),
        Pass(24, 32, 0.25),
    ]


def test_each_accumulated_batch_has_the_same_share_however_small_it_is() -> None:
    assert split_passes([(90, 100), (0, 30)], 20) == [
        Pass(90, 100, 0.5),
        Pass(0, 20, 1 / 3),
        Pass(20, 30, 1 / 6),
    ]


@given(BATCHES, st.none() | st.integers(1, 64))
def test_every_example_is_in_one_pass_and_no_pass_is_too_large(
    batches: list[tuple[int, int]], most: int | None
) -> None:
    passes = split_passes(batches, most)

    assert [n for p in passes for n in range(p.start, p.stop)] == [
        n for b in batches for n in range(*b)
    ]
    assert all(0 < p.stop - p.start <= (most or p.stop) for p in passes)
    assert sum(p.share for p in passes) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("accumulated", "batch", "most", "several"),
    [(1, 32, None, False), (1, 32, 32, False), (1, 33, 32, True), (2, 32, None, True)],
)
def test_several_passes_are_expected_where_they_may_come(
    accumulated: int, batch: int, most: int | None, several: bool
) -> None:
    assert has_several(accumulated, batch, most) is several
