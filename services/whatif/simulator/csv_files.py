"""The CSV files of a simulation: speeds, loss curves, jobs. All errors are reported at once.

surfaces   model, ps, workers, global_batch, samples_per_second;
           or `gpus` in place of ps and workers (ps = 0)
loss       model, samples, loss
jobs       see `JOBS`; empty or absent optional cells take the defaults named in `_work`

`read_table` uses the standard `csv` module. Readers of typed CSV (pandas, csv-schema tools) stop at
the first error or do not name the column, so the cells are checked here.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil, isfinite
from typing import Any

import msgspec

from services.whatif.simulator.scenario import (
    Curve,
    Measured,
    Point,
    Surface,
    Work,
)
from shared.documents import FileError, InvalidFile
from shared.messages import DNS_LABEL, Span

SIMILAR_NAME = 0.7  # an unknown column at least so similar to a known one is a misspelling


class Column(msgspec.Struct, frozen=True):
    """One column of a file."""

    name: str
    read: Callable[[str], Any]
    """Parses a cell; raises `ValueError`."""
    optional: bool = False
    default: Any = None
    """The value of an empty cell."""


class Row(msgspec.Struct, frozen=True):
    """The values of one line, by column."""

    line: int
    cells: dict[str, Any]


class Table(msgspec.Struct, frozen=True):
    """The rows that could be read, and the errors in the others."""

    rows: list[Row]
    reasons: list[FileError]
    at: dict[str, int]
    """The number of each column, counted from one."""

    def against(self, row: Row, column: str, why: str) -> FileError:
        """Return an error for a cell of a row that could be read."""
        number = self.at.get(column)
        return _error_at(row.line, number, column, why)


def _error_at(line: int, number: int | None, column: str, why: str) -> FileError:
    """Return an error for a cell, with the column's number if the column exists."""
    if number:
        return FileError(line, f", column {number} ({column}): {why}")
    return FileError(line, f", column {column}: {why}")


def read_table(text: str, columns: Sequence[Column]) -> Table:
    """Read a table. Lines without content are skipped.

    Unknown columns are ignored, unless their names look misspelt.
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
            _add_row(read, lines.line_num, line, columns)

    if not whole_header:
        return Table([], read.reasons, read.at)
    if not read.rows and not read.reasons:
        read.reasons.append(FileError(lines.line_num, ": the file has no rows"))
    return read


def _has_content(line: Sequence[str]) -> bool:
    """Return True if any cell of a line is not blank."""
    return "".join(line).strip() != ""


def _no_header(columns: Sequence[Column]) -> FileError:
    """Return the error for a file without a header."""
    wanted = ", ".join(column.name for column in columns if not column.optional)
    return FileError(1, f": the file is empty; its first line names the columns {wanted}")


def _against_header(
    names: Sequence[str], columns: Sequence[Column], line: int
) -> Iterator[FileError]:
    """Yield an error for each column that is missing, that occurs twice, or that looks misspelt."""
    known = [column.name for column in columns]
    absent = [name for name in known if name not in names]
    for column in columns:
        if not column.optional and column.name in absent:
            yield FileError(line, f": no column {column.name!r}")

    for number, name in enumerate(names, start=1):
        if name in names[: number - 1]:
            yield _error_at(line, number, name, "occurs twice")
        elif name not in known:
            meant = _meant_column(name, absent)
            if meant:
                yield _error_at(line, number, name, f"no such column; did you mean {meant!r}?")


def _meant_column(name: str, absent: Sequence[str]) -> str:
    """Return the missing column that a misspelt name means; empty if there is none."""
    close = difflib.get_close_matches(name, absent, n=1, cutoff=SIMILAR_NAME)
    if not close:
        return ""
    return close[0]


def _add_row(read: Table, line: int, cells: Sequence[str], columns: Sequence[Column]) -> None:
    """Add the row of a line, or the errors in it."""
    row = Row(line, {})
    reasons = []
    most = max(read.at.values())
    if len(cells) > most:
        reasons.append(FileError(line, f": has {len(cells)} cells under {most} columns"))

    # Read all cells, so that all errors are reported at once.
    for column in columns:
        number = read.at.get(column.name, 0)
        try:
            row.cells[column.name] = _cell_value(column, cells, number)
        except ValueError as error:
            reasons.append(_error_at(line, number, column.name, str(error)))

    read.reasons.extend(reasons)
    if not reasons:
        read.rows.append(row)


def _cell_value(column: Column, cells: Sequence[str], number: int) -> Any:
    """Return the value of a cell; the default for an empty or absent one.

    `number`: the column's number, counted from one; 0: the file does not have the column.
    """
    text = ""
    if 0 < number <= len(cells):
        text = cells[number - 1].strip()
    if text:
        return column.read(text)
    if number and not column.optional:
        raise ValueError("is empty")
    return column.default


def number_cell(least: float, above: bool = False) -> Callable[[str], float]:
    """Return a parser of finite numbers of at least `least`, or above it."""

    def read(text: str) -> float:
        value = _read_float(text)
        if value < least or (above and value == least):
            relation = "not above" if above else "less than"
            raise ValueError(f"{text} is {relation} {least:g}")
        return value

    return read


def whole_number_cell(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of at least `least`."""

    def read(text: str) -> int:
        value = number_cell(least)(text)
        if value != int(value):
            raise ValueError(f"{text} is not a whole number")
        return int(value)

    return read


def label_cell(text: str) -> str:
    """Parse a name that is valid in Kubernetes."""
    if not re.fullmatch(DNS_LABEL, text):
        raise ValueError(f"{text!r} is not a name of lower-case letters, digits and -")
    return text


def amount_cell(text: str) -> int:
    """Parse an amount of work; it is rounded up to whole samples."""
    value = number_cell(0.0, above=True)(text)
    return ceil(value)


def _read_float(text: str) -> float:
    """Parse a finite number."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


SERVED = (Column("ps", whole_number_cell(0)), Column("workers", whole_number_cell(1)))
ALONE = (Column("gpus", whole_number_cell(1)),)
SPEEDS = (
    Column("model", str),
    Column("global_batch", whole_number_cell(1)),
    Column("samples_per_second", number_cell(0.0, above=True)),
    Column("mode", str, optional=True),
)
LOSSES = (
    Column("model", str),
    Column("samples", number_cell(0.0)),
    Column("loss", number_cell(float("-inf"))),
)
COUNT_0 = whole_number_cell(0)
COUNT_1 = whole_number_cell(1)
JOBS = (
    Column("job", str),
    Column("submitted_s", number_cell(0.0)),
    Column("model", str),
    Column("samples", amount_cell),
    Column("global_batch", COUNT_1),
    Column("ps", COUNT_0, optional=True),
    Column("min_ps", COUNT_0, optional=True),
    Column("max_ps", COUNT_0, optional=True),
    Column("workers", COUNT_1, optional=True),
    Column("min_workers", COUNT_1, optional=True),
    Column("max_workers", COUNT_1, optional=True),
    Column("batch_min", COUNT_1, optional=True),
    Column("batch_max", COUNT_1, optional=True),
    Column("device_batch_max", COUNT_1, optional=True),
    Column("ps_cpu", number_cell(0.0), optional=True),
    Column("worker_cpu", number_cell(0.0), optional=True),
    Column("worker_gpu", COUNT_0, optional=True),
    Column("priority", whole_number_cell(-1_000_000), optional=True, default=0),
    Column("namespace", label_cell, optional=True, default="default"),
)
Cells = Mapping[str, Any]
Speeds = Mapping[str, Surface]


def read_surfaces(text: str) -> dict[str, Surface]:
    """Return each model's true speeds; raise `InvalidFile`."""
    read = read_table(text, (*_speed_columns(text), *SPEEDS))
    _raise_errors(read, _mixed_mode_errors(read))
    points: dict[str, list[Measured]] = {}
    for row in read.rows:
        of_model = points.setdefault(row.cells["model"], [])
        of_model.append(_measured_row(row.cells))
    return {model: Surface(known) for model, known in points.items()}


def _speed_columns(text: str) -> tuple[Column, ...]:
    """Return the columns of the size: with ps, or devices alone."""
    content = text.removeprefix("\ufeff").lstrip()
    first_line, _, _ = content.partition("\n")
    header = [cell.strip(' "') for cell in first_line.split(",")]
    if "gpus" in header and "workers" not in header:
        return ALONE
    return SERVED


def _measured_row(cells: Cells) -> Measured:
    """Return the measured speed in a row."""
    batch = cells["global_batch"]
    speed = cells["samples_per_second"]
    if "gpus" in cells:
        return Measured(0, cells["gpus"], batch, speed)
    return Measured(cells["ps"], cells["workers"], batch, speed)


def _mixed_mode_errors(read: Table) -> Iterator[FileError]:
    """Yield an error for each row whose model has another mode in an earlier row."""
    modes: dict[str, str | None] = {}
    for row in read.rows:
        model = row.cells["model"]
        mode = row.cells["mode"]
        first = modes.setdefault(model, mode)
        if first != mode:
            why = f"{model} has mode {first!r} in an earlier row; a model has one mode"
            yield read.against(row, "mode", why)


def read_losses(text: str) -> dict[str, Curve]:
    """Return each model's loss curve; raise `InvalidFile`."""
    read = read_table(text, LOSSES)
    _raise_errors(read, ())
    points: dict[str, list[Point]] = {}
    for row in read.rows:
        cells = row.cells
        of_model = points.setdefault(cells["model"], [])
        of_model.append((cells["samples"], cells["loss"]))
    return {model: Curve(known) for model, known in points.items()}


def read_jobs(text: str, measured: Speeds | None) -> tuple[Work, ...]:
    """Return the jobs in the order of their submission; raise `InvalidFile`.

    `measured` is None if the speeds could not be read: then the models are not checked.
    """
    read = read_table(text, JOBS)
    surface_of = measured or {}
    works = []
    reasons = list(_duplicate_name_errors(read))
    for row in read.rows:
        surface = surface_of.get(row.cells["model"])
        work = _work(row.cells, surface)
        reasons += _row_errors(read, row, work, measured)
        works.append(work)

    _raise_errors(read, reasons)
    works.sort(key=lambda work: work.submitted_s)
    return tuple(works)


def _work(cells: Cells, surface: Surface | None) -> Work:
    """Return the job in a row.

    Defaults: 1 ps if the model was measured with ps, and 1 worker. The minimum is 1 (0 ps for a job
    without ps); the maximum is the largest measured number, or the start if that is larger. The
    batch is fixed. Each ps and each worker gets one core; without ps, each worker gets one device
    and no core.
    """
    given = {name: value for name, value in cells.items() if value is not None}
    batch = cells["global_batch"]
    ps = given.get("ps", _default_ps(surface))
    most_ps = ps
    workers = given.get("workers", 1)
    most_workers = workers
    if surface is not None:
        most_workers = max(workers, surface.most_workers)
        if ps:
            most_ps = max(ps, surface.most_ps)
    worker_cpu = 1.0 if ps else 0.0
    worker_gpu = 0 if ps else 1

    return Work(
        job=cells["job"],
        model=cells["model"],
        samples=cells["samples"],
        submitted_s=cells["submitted_s"],
        batch=_span(given, batch, ("batch_min", batch), ("batch_max", batch)),
        ps=_span(given, ps, ("min_ps", min(1, ps)), ("max_ps", most_ps)),
        workers=_span(given, workers, ("min_workers", 1), ("max_workers", most_workers)),
        device_batch_max=cells["device_batch_max"],
        ps_cpu=given.get("ps_cpu", 1.0),
        worker_cpu=given.get("worker_cpu", worker_cpu),
        worker_gpu=given.get("worker_gpu", worker_gpu),
        priority=cells["priority"],
        namespace=cells["namespace"],
    )


def _default_ps(surface: Surface | None) -> int:
    """Return 1; 0 if the model was only measured without ps."""
    if surface is None or surface.served is not None:
        return 1
    return 0


def _span(
    given: Mapping[str, int], start: int, least: tuple[str, int], most: tuple[str, int]
) -> Span:
    """Return a span. `least` and `most` are each the name of a column and its default."""
    return Span(start=start, min=given.get(*least), max=given.get(*most))


def _row_errors(read: Table, row: Row, work: Work, measured: Speeds | None) -> Iterator[FileError]:
    """Yield the errors in one job."""
    yield from _span_errors(read, row, "global_batch", work.batch)
    yield from _span_errors(read, row, "ps", work.ps)
    yield from _span_errors(read, row, "workers", work.workers)
    if work.ps.min == 0 < work.ps.max:
        why = f"min 0 means a job without ps, but up to {work.ps.max} are allowed"
        yield read.against(row, "ps", why)
    if measured is not None:
        yield from _model_errors(read, row, work, measured)


def _span_errors(read: Table, row: Row, column: str, span: Span) -> Iterator[FileError]:
    """Yield an error if a start is not between the minimum and the maximum."""
    if not span.min <= span.start <= span.max:
        why = f"min {span.min} <= {span.start} <= max {span.max} does not hold"
        yield read.against(row, column, why)


def _model_errors(read: Table, row: Row, work: Work, measured: Speeds) -> Iterator[FileError]:
    """Yield an error if the model was not measured, or not in this form (with ps, or without)."""
    surface = measured.get(work.model)
    if surface is None:
        yield read.against(row, "model", f"the speeds of {work.model!r} were not measured")
        return
    ps = work.ps.start
    if surface.speed(ps, work.workers.start, work.batch.start) == 0:
        form = "with" if ps else "without"
        yield read.against(row, "ps", f"{work.model!r} was not measured {form} ps")


def _duplicate_name_errors(read: Table) -> Iterator[FileError]:
    """Yield an error for each row with a job name that occurs in another row."""
    rows_of = Counter(row.cells["job"] for row in read.rows)
    for row in read.rows:
        job = row.cells["job"]
        times = rows_of[job]
        if times > 1:
            yield read.against(row, "job", f"{job!r} occurs {times} times")


def _raise_errors(read: Table, more: Iterable[FileError]) -> None:
    """Raise `InvalidFile` if there is any error in the file."""
    reasons = [*read.reasons, *more]
    if reasons:
        raise InvalidFile(reasons)
