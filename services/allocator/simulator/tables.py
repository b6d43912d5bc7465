"""A CSV file as typed rows; or every reason why not, with line and column, at once."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, isfinite
from typing import Any

import msgspec

from shared.messages import DNS_LABEL

ALIKE = 0.7  # of an unknown column's name to a known one: a slip of the finger


class Reason(msgspec.Struct, frozen=True, order=True):
    """Why a file cannot be used: where, and what is wrong there."""

    line: int
    said: str


class Bad(ValueError):
    """A file that cannot be used; its text has a line for each reason."""

    def __init__(self, reasons: Iterable[Reason]) -> None:
        self.reasons = tuple(sorted(reasons))
        super().__init__("\n".join(f"line {reason.line}{reason.said}" for reason in self.reasons))


class Column(msgspec.Struct, frozen=True):
    """One column: how a cell is read (raises `ValueError`), and what an empty or absent one means."""

    name: str
    read: Callable[[str], Any]
    optional: bool = False
    default: Any = None


class Row(msgspec.Struct, frozen=True):
    line: int
    cells: dict[str, Any]


class Table(msgspec.Struct, frozen=True):
    """What could be read, and why the rest could not. `at`: where each column stands, counted from one."""

    rows: list[Row]
    reasons: list[Reason]
    at: dict[str, int]

    def against(self, row: Row, column: str, why: str) -> Reason:
        return _at(row.line, self.at.get(column), column, why)


def _at(line: int, number: int | None, column: str, why: str) -> Reason:
    return Reason(line, f", column {number} ({column}): {why}" if number else f", column {column}: {why}")


def table(text: str, columns: Sequence[Column]) -> Table:
    """Lines without content are skipped; columns that nobody knows are left alone, unless they look misspelt."""
    lines = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    header = next((line for line in lines if any(cell.strip() for cell in line)), None)
    if header is None:
        wanted = ", ".join(column.name for column in columns if not column.optional)
        return Table([], [Reason(1, f": the file is empty; its first line names the columns {wanted}")], {})
    names = [cell.strip() for cell in header]
    read = Table([], list(_against_header(names, columns, lines.line_num)), _places(names))
    whole_header = not read.reasons
    for line in lines:
        if any(cell.strip() for cell in line):
            _take(read, lines.line_num, line, columns)
    if not read.rows and not read.reasons:
        read.reasons.append(Reason(lines.line_num, ": there are no rows"))
    return read if whole_header else Table([], read.reasons, read.at)


def _places(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, start=1)}


def _against_header(names: Sequence[str], columns: Sequence[Column], line: int) -> Iterator[Reason]:
    known = [column.name for column in columns]
    yield from (Reason(line, f": no column {c.name!r}") for c in columns if not c.optional and c.name not in names)
    for number, name in enumerate(names, start=1):
        absent = [other for other in known if other not in names]
        meant = difflib.get_close_matches(name, absent, n=1, cutoff=ALIKE)
        if name in names[: number - 1]:
            yield _at(line, number, name, "is there twice")
        elif name not in known and meant:
            yield _at(line, number, name, f"no such column; did you mean {meant[0]!r}?")


def _take(read: Table, line: int, cells: Sequence[str], columns: Sequence[Column]) -> None:
    """One more row, or the reasons against it."""
    row, known = Row(line, {}), len(read.reasons)
    if len(cells) > max(read.at.values()):
        read.reasons.append(Reason(line, f": has {len(cells)} cells under {max(read.at.values())} columns"))
    for column in columns:
        number = read.at.get(column.name, 0)
        text = cells[number - 1].strip() if 0 < number <= len(cells) else ""
        try:
            row.cells[column.name] = _value(column, text, present=number > 0)
        except ValueError as error:
            read.reasons.append(_at(line, number, column.name, str(error)))
    if len(read.reasons) == known:
        read.rows.append(row)


def _value(column: Column, text: str, present: bool) -> Any:
    if text:
        return column.read(text)
    if present and not column.optional:
        raise ValueError("is empty")
    return column.default


# ---------------------------------------------------------------- what a cell may be


def number(least: float, above: bool = False) -> Callable[[str], float]:
    """A finite number, at least (or above) `least`."""

    def read(text: str) -> float:
        value = _float(text)
        if value < least or (above and value == least):
            raise ValueError(f"{text} is {'not above' if above else 'less than'} {least:g}")
        return value

    return read


def whole(least: int) -> Callable[[str], int]:
    """A whole number, at least `least`."""

    def read(text: str) -> int:
        value = number(least)(text)
        if value != int(value):
            raise ValueError(f"{text} is not a whole number")
        return int(value)

    return read


def label(text: str) -> str:
    """A name as Kubernetes has it."""
    if not re.fullmatch(DNS_LABEL, text):
        raise ValueError(f"{text!r} is no name of small letters, digits and -")
    return text


def amount(text: str) -> int:
    """An amount of work, rounded up to whole samples."""
    return ceil(number(0.0, above=True)(text))


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value
