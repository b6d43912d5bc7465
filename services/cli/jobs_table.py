"""The jobs' views as a table: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from services.allocator.job_views import ENDED, SILENT, JobView
from services.cli.words import evaluated
from services.console.top.fitting import fitting, longest, taken
from shared.bus.subjects import DEFAULT_NAMESPACE
from shared.text import format_count, format_duration, headline

NUMBERS = ("PS", "WORKERS", "GEN", "EPOCHS", "DONE", "EXAMPLES/S", "LOSS", "PAUSE")
WHY = "WHY"
HEADINGS = ("NAMESPACE", "JOB", "PHASE", *NUMBERS, WHY)
FOLDED = ("NAMESPACE", "JOB", WHY)
YIELDING = ("GEN", "PAUSE", "EPOCHS", "LOSS", "EXAMPLES/S", WHY, "WORKERS", "PS", "DONE")
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


def table(views: Iterable[JobView], epochs: Mapping[int, int], width: int) -> Table:
    """`epochs`: how many each job (by uid) has, where known. Oldest first. Where `width` is too
    small for all columns those that say least are left out; names and causes are folded, and
    nothing is cut.
    """
    oldest = sorted(views, key=lambda v: (v.submitted_s, v.uid))
    rows = [dict(zip(HEADINGS, row(view, epochs.get(view.uid, 0)), strict=True)) for view in oldest]
    shown = columns(rows, width)
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    for heading, wide in shown.items():
        side: Literal["left", "right"] = "right" if heading in NUMBERS else "left"
        fixed = wide if heading == WHY else None
        drawn.add_column(
            heading, justify=side, no_wrap=heading not in FOLDED, overflow="fold", width=fixed
        )
    for cells in rows:
        drawn.add_row(*(cells[heading] for heading in shown))
    return drawn


def columns(rows: Sequence[Mapping[str, Text]], width: int) -> dict[str, int]:
    """The headings that are shown, each with the columns it takes."""
    wide = {
        heading: longest([heading, *(cells[heading] for cells in rows)]) for heading in HEADINGS
    }
    usual = all(cells["NAMESPACE"].plain == DEFAULT_NAMESPACE for cells in rows)
    least = wide | {WHY: min(wide[WHY], LEAST_WHY)}
    kept = fitting(least, ("NAMESPACE", *YIELDING) if usual else YIELDING, width, GAP)
    return kept | (
        {WHY: min(wide[WHY], max(kept[WHY], kept[WHY] + width - taken(kept, GAP)))}
        if WHY in kept
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
    came = [format_count(view.samples, "example"), *evaluated(view.metrics)]
    cause = headline(view.why)
    return ", ".join([*took, *came]) + (f": {cause}" if cause else "")
