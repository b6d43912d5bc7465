"""Bars are as wide as they are told, and curves go from the least to the most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.console.top.bars import Part, bar, curve, progress

AMOUNTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(
    lambda amounts: sum(amounts) > 0
)


@given(AMOUNTS, st.integers(1, 120))
def test_a_bar_is_as_wide_as_it_is_told_and_each_part_as_its_share(
    amounts: list[float], width: int
) -> None:
    drawn = bar([Part(amount, chr(65 + at)) for at, amount in enumerate(amounts)], width).plain

    assert len(drawn) == width
    for at, amount in enumerate(amounts):
        assert abs(drawn.count(chr(65 + at)) - amount / sum(amounts) * width) <= 1 + 1e-9


def test_of_nothing_there_is_no_bar() -> None:
    assert bar([], 10).plain == bar([Part(0.0, "A")], 10).plain == ""


def test_a_curve_goes_from_the_least_to_the_most_of_what_it_shows() -> None:
    assert curve([9.0, 3.0, 2.0, 1.0], 3) == "█▅▁" or curve([9.0, 3.0, 2.0, 1.0], 3) == "█▄▁"
    assert curve([1.0, 1.0], 8) == "▁▁" and curve([], 8) == ""


def test_progress_is_a_share_of_its_width() -> None:
    assert (
        progress(0.5, 10) == "█████─────" and progress(1.2, 4) == "████" and progress(None, 4) == ""
    )
