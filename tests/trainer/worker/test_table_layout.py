"""Tests of the division of tables by rows."""

from __future__ import annotations

import pytest

from services.trainer.table_files import EARLIER_PARTS, PARTS
from services.trainer.worker.table_layout import TableLayout

MOST_PS = 51
"""The README promises it."""
SIZES = [10_007 * 2**at for at in range(10)]


@pytest.mark.parametrize("rows", [1, 3, PARTS - 1, PARTS, PARTS + 1, 1_000_003])
@pytest.mark.parametrize("ps", [1, 2, 3, 7])
def test_each_row_is_on_one_ps(rows: int, ps: int) -> None:
    layout = TableLayout(rows)
    assert [row for at in range(ps) for row in layout.rows_of(at, ps)] == list(range(rows))


@pytest.mark.parametrize("rows", [5, 1_000_003])
def test_a_part_is_on_one_ps(rows: int) -> None:
    layout = TableLayout(rows)
    for ps in (1, 2, 4, 7):
        parts = [part for at in range(ps) for part in layout.parts_of(at, ps)]
        assert parts == list(range(layout.parts))


@pytest.mark.parametrize("parts", [1, 4, PARTS])
def test_blocks_begin_at_the_same_rows_on_any_number_of_ps(parts: int) -> None:
    layout = TableLayout(1_000_003)
    starts = {layout.first_row(part) for part in range(0, PARTS, parts)}
    for ps in (1, 2, 3, 7):
        for at in range(ps):
            rows = layout.rows_of(at, ps)
            blocks = layout.blocks_of(rows, parts)
            assert [row for block in blocks for row in block] == list(rows)
            assert {block.start for block in blocks[1:]} <= starts


@pytest.mark.parametrize("ps", range(1, MOST_PS + 1))
def test_the_fullest_ps_is_within_5_percent_of_the_mean(ps: int) -> None:
    """Ten tables of very different sizes."""
    held = [sum(len(TableLayout(rows).rows_of(at, ps)) for rows in SIZES) for at in range(ps)]
    assert max(held) <= 1.05 * sum(held) / ps


@pytest.mark.parametrize("rows", [3, EARLIER_PARTS + 1, 1_000_003])
def test_earlier_parts_begin_where_parts_begin_today(rows: int) -> None:
    today, earlier = TableLayout(rows), TableLayout(rows, EARLIER_PARTS)
    starts = {today.first_row(part) for part in range(today.parts)}
    assert {earlier.first_row(part) for part in range(earlier.parts)} <= starts
