"""Columns, and a sentence that goes on below itself."""

from __future__ import annotations

import pytest
from rich.text import Text

from services.cli.columns import beside

CELLS = [("12:00:00", 8, "dim"), ("o12", 6, "")]
FRONT = "12:00:00 o12    "
LONG = Text("one two three four five six seven eight nine ten")


def test_without_a_width_a_line_stays_a_line() -> None:
    assert beside(CELLS, LONG, None).plain == FRONT + LONG.plain


def test_at_a_terminal_it_goes_on_below_its_own_beginning() -> None:
    folded = beside(CELLS, LONG, len(FRONT) + 24).plain.splitlines()

    assert folded == [
        FRONT + "one two three four five",
        " " * len(FRONT) + "six seven eight nine ten",
    ]


def test_where_there_is_hardly_room_beside_it_stands_below() -> None:
    folded = beside(CELLS, LONG, len(FRONT) + 20).plain.splitlines()

    assert folded == [
        FRONT.rstrip(),
        "      one two three four five six",
        "      seven eight nine ten",
    ]


@pytest.mark.parametrize("foreign", ["a\nb", "\x1b[31m", "日本語の名前"])
def test_foreign_text_moves_nothing_out_of_its_column(foreign: str) -> None:
    drawn = beside([(foreign, 14, ""), *CELLS], Text("sentence"), 200)

    assert drawn.plain.isprintable()
    assert drawn[: drawn.plain.index("12:00:00")].cell_len == 15
