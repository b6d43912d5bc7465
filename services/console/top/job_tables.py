"""Tables of jobs: size, speed, loss, progress and remaining time; the table of `weir jobs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from services.allocator.job_views import SILENT, JobView
from services.console.board.figures import is_ended, recent_losses, share_done, time_left_s
from services.console.board.job_history import JobHistory
from services.console.text.cells import GAP as CELL_GAP
from services.console.text.cells import (
    MANY,
    UNKNOWN,
    Letters,
    badge,
    cap_columns,
    cores,
    curve,
    fitting,
    gib,
    longest,
    loss,
    percent,
    plain_table,
    progress,
    size,
    speed,
    staleness,
    time_left,
    total_width,
)
from services.console.text.sentences import describe_metrics
from shared.bus.subjects import DEFAULT_NAMESPACE
from shared.text import format_count, format_duration, headline

BADGE = 3
NAME = 12
LONGEST_NAME = 28
PHASE = 9
CURVE = 8
SHORT_CURVE = 5
BAR = 10
LEFT = 10
WHY = 24
YIELDING = ("CURVE", "GEN", "LOSS", "EXAMPLES/S", "WORKERS", "PS")
"""Dropped in this order if even the shortest name leaves too little room."""
Cell = Callable[[JobHistory], Text | str]


def job_table(jobs: Sequence[JobHistory], letters: Letters, width: int) -> Table:
    """Draw the jobs of `weir top`. A wider screen has more columns; long numbers shorten or drop
    the curve.
    """
    cells = {}
    for heading, cell in columns(width).items():
        cells[heading] = [cell(job) for job in jobs]
    needed = {"JOB": NAME} | _column_widths(cells, width)
    widths = fitting(needed, YIELDING, width - BADGE - CELL_GAP, CELL_GAP)
    del widths["JOB"]
    if "CURVE" in widths:
        cells["CURVE"] = [curve(recent_losses(job), widths["CURVE"]) for job in jobs]
    left = width - sum(widths.values()) - len(widths) - BADGE - 2
    name = min(max(left, NAME), _name_width(jobs, width, "WHY" in widths))
    table = plain_table(("", "JOB", *widths), RIGHT, [BADGE, name, *widths.values()], width)
    table.columns[1].max_width = name
    for number, job in enumerate(jobs):
        letter = job_badge(letters.get(job.key, " "))
        shown = [cells[heading][number] for heading in widths]
        table.add_row(letter, Text(_job_name(job), "bold"), *shown)
    return table


def job_badge(letter: str) -> Text:
    """Return the coloured letter of a job; without colour if it has no letter of its own."""
    return Text(f" {letter} ") if letter in (MANY, " ") else badge(letter)


def _name_width(jobs: Sequence[JobHistory], width: int, reasoned: bool) -> int:
    """Return the most columns of a name. Beside reasons names take only the columns they need."""
    needed = longest(_job_name(job) for job in jobs) if reasoned else LONGEST_NAME
    return max(min(needed, cap_columns(LONGEST_NAME, width)), NAME)


def _column_widths(cells: Mapping[str, Sequence[Text | str]], width: int) -> dict[str, int]:
    """Return the columns that each heading and its cells need; the curve takes the rest."""
    widths = {}
    for heading, column in cells.items():
        least = LEAST.get(heading, len(heading))
        widths[heading] = max(least, longest(column))
    if "WHY" in widths:
        widths["WHY"] = WHY
    gaps = CELL_GAP * (len(widths) + 1)
    over = BADGE + NAME + sum(widths.values()) + gaps - width
    widths["CURVE"] = min(max(CURVE - over, SHORT_CURVE), CURVE)
    return widths


def in_order(jobs: Iterable[JobHistory]) -> list[JobHistory]:
    """Return running jobs, oldest first; then ended jobs, the newest end first."""

    def sort_key(job: JobHistory) -> tuple[bool, float, int]:
        if is_ended(job.view):
            return True, -job.view.finished_s, job.uid
        return False, job.view.submitted_s, job.uid

    return sorted(jobs, key=sort_key)


def _job_name(job: JobHistory) -> str:
    namespace, _, name = job.key.partition(".")
    return name if namespace == "default" else f"{namespace}/{name}"


def _phase_text(job: JobHistory) -> Text:
    return Text(job.view.shown_phase, PHASES.get(job.view.shown_phase, ""))


def _loss_curve(job: JobHistory) -> str:
    return curve(recent_losses(job), CURVE)


def _reason(job: JobHistory) -> Text:
    return Text(headline(job.view.why or job.view.reason), "dim")


NARROW: dict[str, Cell] = {
    "PHASE": _phase_text,
    "PS": lambda job: size(job.view.ps, job.view.wanted_ps),
    "WORKERS": lambda job: size(job.view.workers, job.view.wanted_workers),
    "EXAMPLES/S": lambda job: speed(job.view.samples_per_second),
    "LOSS": lambda job: loss(job.view.loss),
    "CURVE": _loss_curve,
    "DONE": lambda job: percent(share_done(job.view)),
    "LEFT": lambda job: time_left(time_left_s(job.view)),
}
MORE: dict[str, Cell] = {
    "GEN": lambda job: str(job.view.generation or UNKNOWN),
    "CORES": lambda job: cores(job.held_cpu),
    "GIB": lambda job: gib(job.held_resources.memory_gib),
}
STALENESS: dict[str, Cell] = {"STALE": lambda job: staleness(job.view.staleness)}
BARS: dict[str, Cell] = {"": lambda job: progress(share_done(job.view), BAR)}
LEAST = {
    "PHASE": PHASE,
    "EXAMPLES/S": 10,
    "LOSS": 6,
    "CURVE": CURVE,
    "DONE": 5,
    "": BAR,
    "LEFT": LEFT,
    "GIB": 5,
    "STALE": 5,
    "WHY": WHY,
}
ALL: dict[str, Cell] = {"WHY": _reason}
WIDE = 104
WIDER = 120
WIDEST = 140
VERY_WIDE = 180
"""Widths from which the table has more columns, a bar, and the reason."""
RIGHT = ("PS", "WORKERS", "EXAMPLES/S", "LOSS", "DONE", "LEFT", "GEN", "CORES", "GIB", "STALE")
ORDER = (
    "PHASE",
    "GEN",
    "PS",
    "WORKERS",
    "CORES",
    "GIB",
    "EXAMPLES/S",
    "LOSS",
    "CURVE",
    "STALE",
    "DONE",
    "",
    "LEFT",
    "WHY",
)


def columns(width: int) -> dict[str, Cell]:
    """Return the columns that a screen of this width has, in their order."""
    cells = dict(NARROW)
    for least, more in ((WIDE, MORE), (WIDER, BARS), (WIDEST, ALL), (VERY_WIDE, STALENESS)):
        if width >= least:
            cells.update(more)
    return {heading: cells[heading] for heading in ORDER if heading in cells}


NUMBERS = ("PS", "WORKERS", "GEN", "EPOCHS", "DONE", "EXAMPLES/S", "LOSS", "PAUSE")
WHY_COLUMN = "WHY"
HEADINGS = ("NAMESPACE", "JOB", "PHASE", *NUMBERS, WHY_COLUMN)
FOLDED = ("NAMESPACE", "JOB", WHY_COLUMN)
DROPPED_FIRST = (
    "GEN",
    "PAUSE",
    "EPOCHS",
    "LOSS",
    "EXAMPLES/S",
    WHY_COLUMN,
    "WORKERS",
    "PS",
    "DONE",
)
"""Dropped in this order if there is too little room. The namespace is dropped before them if all
jobs have the default one.
"""
GAP, LEAST_WHY = 2, 24
"""Columns between two cells; the least columns of a cause that is folded."""
PHASES = {
    "Running": "green",
    "Starting": "yellow",
    "Scaling": "yellow",
    "Resuming": "yellow",
    "Failed": "bold red",
    SILENT: "bold red",
    "Cancelled": "dim",
}
NOTHING = "-"


def jobs_table(views: Iterable[JobView], epochs: Mapping[int, int], width: int) -> Table:
    """Draw the jobs of `weir jobs`, oldest first.

    `epochs`: the epochs of each job by uid, if known. If `width` is too small, the least important
    columns are dropped; names and causes are folded; nothing is cut.
    """
    rows = []
    for view in sorted(views, key=lambda view: (view.submitted_s, view.uid)):
        cells = row(view, epochs.get(view.uid, 0))
        rows.append(dict(zip(HEADINGS, cells, strict=True)))
    shown = jobs_table_columns(rows, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    for heading, wide in shown.items():
        side: Literal["left", "right"] = "right" if heading in NUMBERS else "left"
        fixed = wide if heading == WHY_COLUMN else None
        folded = heading in FOLDED
        table.add_column(heading, justify=side, no_wrap=not folded, overflow="fold", width=fixed)
    for job_cells in rows:
        table.add_row(*map(job_cells.__getitem__, shown))
    return table


def jobs_table_columns(rows: Sequence[Mapping[str, Text]], width: int) -> dict[str, int]:
    """Return the headings that fit, each with its width."""
    widths = {}
    for heading in HEADINGS:
        widths[heading] = longest([heading, *(cells[heading] for cells in rows)])
    widest_why = widths[WHY_COLUMN]
    widths[WHY_COLUMN] = min(widest_why, LEAST_WHY)
    dropped: tuple[str, ...] = DROPPED_FIRST
    if all(cells["NAMESPACE"].plain == DEFAULT_NAMESPACE for cells in rows):
        dropped = ("NAMESPACE", *DROPPED_FIRST)
    kept = fitting(widths, dropped, width, GAP)
    if WHY_COLUMN in kept:
        rest = max(width - total_width(kept, GAP), 0)
        kept[WHY_COLUMN] = min(widest_why, kept[WHY_COLUMN] + rest)
    return kept


def row(view: JobView, epochs: int) -> list[Text]:
    """Return the cells of a job, in the order of `HEADINGS`."""
    done = speed = pause = NOTHING
    if view.total_samples:
        done = f"{100 * view.samples / view.total_samples:.1f} %"
    if view.samples_per_second:
        speed = f"{view.samples_per_second:,.0f}"
    if view.pauses:
        pause = format_duration(view.pauses[-1], fine=True)
    why = _end_text(view) if is_ended(view) else headline(view.why or view.reason)
    return [
        Text(view.namespace),
        Text(view.job, "bold"),
        Text(view.shown_phase, PHASES.get(view.shown_phase, "")),
        Text(_size_text(view.ps, view.wanted_ps)),
        Text(_size_text(view.workers, view.wanted_workers)),
        Text(str(view.generation or NOTHING)),
        Text(_epochs_text(view, epochs)),
        Text(done),
        Text(speed),
        Text(NOTHING if view.loss is None else f"{view.loss:.4f}"),
        Text(pause),
        Text(why),
    ]


def _size_text(now: int, wanted: int) -> str:
    return str(now) if now == wanted else f"{now} -> {wanted}"


def _epochs_text(view: JobView, epochs: int) -> str:
    """Return the complete epochs, and their total if it is known."""
    if not view.total_samples:
        return NOTHING
    return f"{view.epoch}/{epochs}" if epochs else str(view.epoch)


def _end_text(view: JobView) -> str:
    """Return the duration, the result and the cause of the end."""
    parts = [format_count(view.samples, "example"), *describe_metrics(view.metrics)]
    if view.finished_s > view.submitted_s:
        parts.insert(0, f"after {format_duration(view.finished_s - view.submitted_s)}")
    cause = headline(view.why)
    return f"{', '.join(parts)}: {cause}" if cause else ", ".join(parts)
