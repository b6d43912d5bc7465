"""A CSV file is read as a whole, or refused with every reason."""

from __future__ import annotations

import pytest

from services.whatif.simulator.losses import Bad
from services.whatif.simulator.tables import Column, Table, amount, number, table, whole

COLUMNS = (
    Column("name", str),
    Column("cores", whole(1)),
    Column("share", number(0.0), optional=True, default=0.5),
)


def said(read: Table) -> list[str]:
    return str(Bad(read.reasons)).splitlines()


def test_cells_are_typed_and_empty_ones_take_their_default() -> None:
    read = table("\ufeffcores, name,share\n\n2,a,0.25\n 3 ,b,\n4.0,c\n", COLUMNS)
    assert read.reasons == []
    assert [tuple(row.cells.values()) for row in read.rows] == [
        ("a", 2, 0.25),
        ("b", 3, 0.5),
        ("c", 4, 0.5),
    ]
    assert [row.line for row in read.rows] == [3, 4, 5]


def test_every_reason_is_told_with_line_and_column() -> None:
    read = table("name,cores,share\na,x,-1\n,1.5,nan\nb,0,1,7\n", COLUMNS)
    assert said(read) == [
        "line 2, column 2 (cores): 'x' is not a number",
        "line 2, column 3 (share): -1 is less than 0",
        "line 3, column 1 (name): is empty",
        "line 3, column 2 (cores): 1.5 is not a whole number",
        "line 3, column 3 (share): nan is not finite",
        "line 4, column 2 (cores): 0 is less than 1",
        "line 4: has 4 cells under 3 columns",
    ]


def test_a_header_that_lacks_a_column_says_so_once() -> None:
    read = table("naem,cores,note,cores\na,1,x,2\nb,y,x,2\n", COLUMNS)
    assert said(read)[:3] == [
        "line 1, column 1 (naem): no such column; did you mean 'name'?",
        "line 1, column 4 (cores): is there twice",
        "line 1: no column 'name'",
    ]
    assert read.rows == []


EMPTY = "line 1: the file is empty; its first line names the columns"


@pytest.mark.parametrize(
    ("text", "why"), [("", f"{EMPTY} name, cores"), ("name,cores\n", "line 1: there are no rows")]
)
def test_a_file_without_rows_is_refused(text: str, why: str) -> None:
    assert said(table(text, COLUMNS)) == [why]


def test_an_amount_of_work_is_rounded_up() -> None:
    assert amount("1e3") == 1000 and amount("12.2") == 13
    with pytest.raises(ValueError, match="not above 0"):
        amount("0")
