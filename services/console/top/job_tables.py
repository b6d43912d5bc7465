"""Tables of jobs: size, speed, loss, progress and remaining time; the table of `weir jobs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from services.allocator.job_views import ENDED, SILENT, JobView
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
"""Left out in this order where even the shortest name leaves too little room."""
Cell = Callable[[JobHistory], Text | str]


def job_table(jobs: Sequence[JobHistory], letters: Letters, width: int) -> Table:
    """More columns where there is more room; the curve is shorter, or not there, where numbers are
    long.
    """
    cells = {heading: [cell(job) for job in jobs] for heading, cell in columns(width).items()}
    least = fitting(
        {"JOB": NAME} | _least(cells, width), YIELDING, width - BADGE - CELL_GAP, CELL_GAP
    )
    del least["JOB"]
    name = min(
        max(width - sum(least.values()) - len(least) - BADGE - 2, NAME),
        _most(jobs, width, "WHY" in least),
    )
    drawn = plain_table(("", "JOB", *least), RIGHT, [BADGE, name, *least.values()], width)
    drawn.columns[1].max_width = name
    for number, job in enumerate(jobs):
        letter = letters.get(job.key)
        first = badge(letter) if letter and letter != MANY else Text(f" {letter or ' '} ")
        shown = {heading: cells[heading][number] for heading in least}
        if "CURVE" in shown:
            shown["CURVE"] = curve(recent_losses(job), least["CURVE"])
        drawn.add_row(first, Text(_name(job), "bold"), *shown.values())
    return drawn


def _most(jobs: Sequence[JobHistory], width: int, reasoned: bool) -> int:
    """Columns that names may take. Beside a reason no more than they need: what is left is the
    reason's.
    """
    needed = longest(_name(job) for job in jobs) if reasoned else LONGEST_NAME
    return max(min(needed, cap_columns(LONGEST_NAME, width)), NAME)


def _least(cells: Mapping[str, Sequence[Text | str]], width: int) -> dict[str, int]:
    """What each column needs for its heading and all that stands in it; the curve has of its own
    what is left.
    """
    least = {
        heading: max(LEAST.get(heading, len(heading)), longest(cells[heading])) for heading in cells
    }
    least |= {"WHY": WHY} if "WHY" in least else {}
    over = BADGE + NAME + sum(least.values()) + CELL_GAP * (len(least) + 1) - width
    return least | {"CURVE": min(max(CURVE - over, SHORT_CURVE), CURVE)}


def in_order(jobs: Iterable[JobHistory]) -> list[JobHistory]:
    """Those that are not over, oldest first; then those that are, the newest end first."""
    return sorted(
        jobs,
        key=lambda j: (
            is_ended(j.view),
            -j.view.finished_s if is_ended(j.view) else j.view.submitted_s,
            j.uid,
        ),
    )


def _name(job: JobHistory) -> str:
    namespace, _, name = job.key.partition(".")
    return name if namespace == "default" else f"{namespace}/{name}"


def _phase(job: JobHistory) -> Text:
    return Text(job.view.shown_phase, PHASES.get(job.view.shown_phase, ""))


def _curve(job: JobHistory) -> str:
    return curve(recent_losses(job), CURVE)


def _why(job: JobHistory) -> Text:
    return Text(headline(job.view.why or job.view.reason), "dim")


NARROW: dict[str, Cell] = {
    "PHASE": _phase,
    "PS": lambda job: size(job.view.ps, job.view.wanted_ps),
    "WORKERS": lambda job: size(job.view.workers, job.view.wanted_workers),
    "EXAMPLES/S": lambda job: speed(job.view.samples_per_second),
    "LOSS": lambda job: loss(job.view.loss),
    "CURVE": _curve,
    "DONE": lambda job: percent(share_done(job.view)),
    "LEFT": lambda job: time_left(time_left_s(job.view)),
}
MORE: dict[str, Cell] = {
    "GEN": lambda job: str(job.view.generation or UNKNOWN),
    "CORES": lambda job: cores(job.held_cpu),
    "GIB": lambda job: gib(job.held_resources.memory_gib),
}
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
    "WHY": WHY,
}
ALL: dict[str, Cell] = {"WHY": _why}
WIDE = 104
WIDER = 120
WIDEST = 140
"""Columns from which on there is more, a bar, and the reason."""
RIGHT = ("PS", "WORKERS", "EXAMPLES/S", "LOSS", "DONE", "LEFT", "GEN", "CORES", "GIB")
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
    "DONE",
    "",
    "LEFT",
    "WHY",
)


def columns(width: int) -> dict[str, Cell]:
    known = NARROW | (MORE if width >= WIDE else {}) | (BARS if width >= WIDER else {})
    known |= ALL if width >= WIDEST else {}
    return {heading: known[heading] for heading in ORDER if heading in known}


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
"""Left out in this order where there is too little room; before them the namespace, where all have
the usual one.
"""
GAP, LEAST_WHY = 2, 24
"""Columns between two; and those below which a longer cause is not worth folding."""
UNDER_WAY = dict.fromkeys(("Starting", "Scaling", "Resuming"), "yellow")
PHASES = {
    "Running": "green",
    **UNDER_WAY,
    "Failed": "bold red",
    SILENT: "bold red",
    "Cancelled": "dim",
}
NOTHING = "-"


def jobs_table(views: Iterable[JobView], epochs: Mapping[int, int], width: int) -> Table:
    """`epochs`: how many each job (by uid) has, where known. Oldest first. Where `width` is too
    small for all columns those that say least are left out; names and causes are folded, and
    nothing is cut.
    """
    oldest = sorted(views, key=lambda v: (v.submitted_s, v.uid))
    rows = [dict(zip(HEADINGS, row(view, epochs.get(view.uid, 0)), strict=True)) for view in oldest]
    shown = jobs_table_columns(rows, width)
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    for heading, wide in shown.items():
        side: Literal["left", "right"] = "right" if heading in NUMBERS else "left"
        fixed = wide if heading == WHY_COLUMN else None
        drawn.add_column(
            heading, justify=side, no_wrap=heading not in FOLDED, overflow="fold", width=fixed
        )
    for cells in rows:
        drawn.add_row(*(cells[heading] for heading in shown))
    return drawn


def jobs_table_columns(rows: Sequence[Mapping[str, Text]], width: int) -> dict[str, int]:
    """The headings that are shown, each with the columns it takes."""
    wide = {
        heading: longest([heading, *(cells[heading] for cells in rows)]) for heading in HEADINGS
    }
    usual = all(cells["NAMESPACE"].plain == DEFAULT_NAMESPACE for cells in rows)
    least = wide | {WHY_COLUMN: min(wide[WHY_COLUMN], LEAST_WHY)}
    kept = fitting(least, ("NAMESPACE", *DROPPED_FIRST) if usual else DROPPED_FIRST, width, GAP)
    return kept | (
        {
            WHY_COLUMN: min(
                wide[WHY_COLUMN],
                max(kept[WHY_COLUMN], kept[WHY_COLUMN] + width - total_width(kept, GAP)),
            )
        }
        if WHY_COLUMN in kept
        else {}
    )


def row(view: JobView, epochs: int) -> list[Text]:
    return [
        Text(view.namespace),
        Text(view.job, "bold"),
        Text(view.shown_phase, PHASES.get(view.shown_phase, "")),
        Text(_size(view.ps, view.wanted_ps)),
        Text(_size(view.workers, view.wanted_workers)),
        Text(str(view.generation or NOTHING)),
        Text(_epochs(view, epochs)),
        Text(f"{100 * view.samples / view.total_samples:.1f} %" if view.total_samples else NOTHING),
        Text(f"{view.samples_per_second:,.0f}" if view.samples_per_second else NOTHING),
        Text(NOTHING if view.loss is None else f"{view.loss:.4f}"),
        Text(format_duration(view.pauses[-1], fine=True) if view.pauses else NOTHING),
        Text(_end(view) if view.phase in ENDED.values() else headline(view.why or view.reason)),
    ]


def _size(now: int, wanted: int) -> str:
    return str(now) if now == wanted else f"{now} -> {wanted}"


def _epochs(view: JobView, epochs: int) -> str:
    """How many are complete; of how many, where that is known."""
    if not view.total_samples:
        return NOTHING
    return f"{view.epoch}/{epochs}" if epochs else str(view.epoch)


def _end(view: JobView) -> str:
    """How long it took, what came of it, and its cause."""
    took = (
        [f"after {format_duration(view.finished_s - view.submitted_s)}"]
        if view.finished_s > view.submitted_s
        else []
    )
    came = [format_count(view.samples, "example"), *describe_metrics(view.metrics)]
    cause = headline(view.why)
    return ", ".join([*took, *came]) + (f": {cause}" if cause else "")
