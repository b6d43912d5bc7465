"""A CSV file as typed rows; or every reason against it, with line and column, at once."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from math import ceil, isfinite
from typing import Any

import msgspec

from services.whatif.simulator.losses import Reason
from shared.messages import DNS_LABEL

ALIKE = 0.7  # of an unknown column's name to a known one: a slip of the finger


class Column(msgspec.Struct, frozen=True):
    """One column of a file."""

    name: str
    read: Callable[[str], Any]
    """Reads a cell; raises `ValueError`."""
    optional: bool = False
    default: Any = None
    """The value of an empty cell."""


class Row(msgspec.Struct, frozen=True):
    """The values of one line, by column."""

    line: int
    cells: dict[str, Any]


class Table(msgspec.Struct, frozen=True):
    """The rows that could be read, and the reasons against the others."""

    rows: list[Row]
    reasons: list[Reason]
    at: dict[str, int]
    """The number of each column, counted from one."""

    def against(self, row: Row, column: str, why: str) -> Reason:
        """Return a reason against a cell of a row that could be read."""
        number = self.at.get(column)
        return _at(row.line, number, column, why)


def _at(line: int, number: int | None, column: str, why: str) -> Reason:
    """Return a reason against a cell; its column has a number if it is there."""
    if number:
        return Reason(line, f", column {number} ({column}): {why}")
    return Reason(line, f", column {column}: {why}")


def table(text: str, columns: Sequence[Column]) -> Table:
    """Read a table. Lines without content are skipped.

    Columns that nobody knows are left alone, unless they look misspelt.
    """
    lines = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    header = next(filter(_has_content, lines), None)
    if header is None:
        return Table([], [_no_header(columns)], {})
    names = list(map(str.strip, header))
    places = {name: number for number, name in enumerate(names, start=1)}
    reasons = list(_against_header(names, columns, lines.line_num))
    whole_header = not reasons
    read = Table([], reasons, places)

    for line in lines:
        if _has_content(line):
            _take(read, lines.line_num, line, columns)

    if not whole_header:
        return Table([], read.reasons, read.at)
    if not read.rows and not read.reasons:
        read.reasons.append(Reason(lines.line_num, ": there are no rows"))
    return read


def _has_content(line: Sequence[str]) -> bool:
    """Return true if any cell of a line is not blank."""
    return "".join(line).strip() != ""


def _no_header(columns: Sequence[Column]) -> Reason:
    """Return the reason against a file without a line."""
    wanted = ", ".join(column.name for column in columns if not column.optional)
    return Reason(1, f": the file is empty; its first line names the columns {wanted}")


def _against_header(names: Sequence[str], columns: Sequence[Column], line: int) -> Iterator[Reason]:
    """Yield the columns that are lacking, that are there twice, and that look misspelt."""
    known = [column.name for column in columns]
    absent = [name for name in known if name not in names]
    for column in columns:
        if not column.optional and column.name in absent:
            yield Reason(line, f": no column {column.name!r}")

    for number, name in enumerate(names, start=1):
        if name in names[: number - 1]:
            yield _at(line, number, name, "is there twice")
        elif name not in known:
            meant = _meant_column(name, absent)
            if meant:
                yield _at(line, number, name, f"no such column; did you mean {meant!r}?")


def _meant_column(name: str, absent: Sequence[str]) -> str:
    """Return the absent column that an unknown one is a misspelling of; empty if there is none."""
    close = difflib.get_close_matches(name, absent, n=1, cutoff=ALIKE)
    if not close:
        return ""
    return close[0]


def _take(read: Table, line: int, cells: Sequence[str], columns: Sequence[Column]) -> None:
    """Add one more row, or the reasons against it."""
    row = Row(line, {})
    reasons = []
    most = max(read.at.values())
    if len(cells) > most:
        reasons.append(Reason(line, f": has {len(cells)} cells under {most} columns"))

    # Read all cells, so that every reason is told at once.
    for column in columns:
        number = read.at.get(column.name, 0)
        try:
            row.cells[column.name] = _value(column, cells, number)
        except ValueError as error:
            reasons.append(_at(line, number, column.name, str(error)))

    read.reasons.extend(reasons)
    if not reasons:
        read.rows.append(row)


def _value(column: Column, cells: Sequence[str], number: int) -> Any:
    """Return the value of a cell, or the default of an empty or absent one.

    `number`: that of the column, counted from one; 0: it is absent.
    """
    text = ""
    if 0 < number <= len(cells):
        text = cells[number - 1].strip()
    if text:
        return column.read(text)
    if number and not column.optional:
        raise ValueError("is empty")
    return column.default


# ---------------------------------------------------------------- the kinds of cells


def number(least: float, above: bool = False) -> Callable[[str], float]:
    """Return a reader of finite numbers that are at least (or above) `least`."""

    def read(text: str) -> float:
        value = _float(text)
        if value < least or (above and value == least):
            relation = "not above" if above else "less than"
            raise ValueError(f"{text} is {relation} {least:g}")
        return value

    return read


def whole(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers that are at least `least`."""

    def read(text: str) -> int:
        value = number(least)(text)
        if value != int(value):
            raise ValueError(f"{text} is not a whole number")
        return int(value)

    return read


def label(text: str) -> str:
    """Read a name as Kubernetes has it."""
    if not re.fullmatch(DNS_LABEL, text):
        raise ValueError(f"{text!r} is no name of small letters, digits and -")
    return text


def amount(text: str) -> int:
    """Read an amount of work, rounded up to whole samples."""
    value = number(0.0, above=True)(text)
    return ceil(value)


def _float(text: str) -> float:
    """Read a finite number."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value
