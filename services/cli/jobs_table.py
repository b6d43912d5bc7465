"""The jobs' views as a table: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from services.allocator.view import ENDED, JobView
from services.cli.words import evaluated
from shared.words import counted, headline, lasting

NUMBERS = ("PS", "WORKERS", "GEN", "EPOCHS", "DONE", "SAMPLES/S", "LOSS", "PAUSE")
HEADINGS = ("NAMESPACE", "JOB", "PHASE", *NUMBERS, "WHY")
PHASES = {"Running": "green", "Scaling": "yellow", "Starting": "yellow", "Failed": "bold red", "Cancelled": "dim"}
NOTHING = "-"


def table(views: Iterable[JobView], epochs: Mapping[int, int]) -> Table:
    """`epochs`: how many each job (by uid) has, where known. Oldest first."""
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in HEADINGS:
        drawn.add_column(heading, justify="right" if heading in NUMBERS else "left", no_wrap=heading != "WHY")
    for view in sorted(views, key=lambda v: (v.submitted_s, v.uid)):
        drawn.add_row(*row(view, epochs.get(view.uid, 0)))
    return drawn


def row(view: JobView, epochs: int) -> list[Text]:
    return [
        Text(view.namespace),
        Text(view.job, "bold"),
        Text(view.phase, PHASES.get(view.phase, "")),
        Text(_size(view.ps, view.wanted_ps)),
        Text(_size(view.workers, view.wanted_workers)),
        Text(str(view.generation)),
        Text(_epochs(view, epochs)),
        Text(f"{100 * view.samples / view.total_samples:.1f} %" if view.total_samples else NOTHING),
        Text(f"{view.samples_per_second:,.0f}" if view.samples_per_second else NOTHING),
        Text(NOTHING if view.loss is None else f"{view.loss:.4f}"),
        Text(f"{view.pauses[-1]:.2f} s" if view.pauses else NOTHING),
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
    took = [f"after {lasting(view.finished_s - view.submitted_s)}"] if view.finished_s > view.submitted_s else []
    came = [counted(view.samples, "sample"), *evaluated(view.metrics)]
    cause = headline(view.why)
    return ", ".join([*took, *came]) + (f": {cause}" if cause else "")
