"""What simulated runs came to: a row a policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.table import Table

from services.console.top.fitting import fitting, longest, taken
from services.whatif.simulator.outcome import Figures, Run, run_figures
from shared.text import format_count

POLICY = "POLICY"
SHOWN = {
    "jct_mean_s": "MEAN s",
    "jct_median_s": "MEDIAN s",
    "jct_p95_s": "P95 s",
    "wait_max_s": "MAX WAIT s",
    "makespan_s": "MAKESPAN s",
    "utilisation": "USED",
    "completed": "DONE",
    "resizes": "RESIZES",
    "paused_s": "PAUSED s",
    "decision_ms_p99": "DECIDES ms",
}
YIELDING = ("DECIDES ms", "PAUSED s", "RESIZES")
"""Left out in this order where a policy's name has too little room."""
GAP, LEAST_NAME = 2, 12
"""Columns between two; and those below which a longer name is not folded before a column is left
out.
"""


def table(runs: Sequence[Run], width: int) -> Table:
    """Names that are too long for `width` are folded; headings and numbers never."""
    told = [run_figures(done) for done in runs]
    cells = {heading: [_cell(name, each) for each in told] for name, heading in SHOWN.items()}
    names = longest([POLICY, *(done.policy for done in runs)])
    wide = {heading: longest([heading, *column]) for heading, column in cells.items()}
    kept = fitting({POLICY: min(names, LEAST_NAME)} | wide, YIELDING, width, GAP)
    room = max(kept[POLICY] + width - taken(kept, GAP), len(POLICY))
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    drawn.add_column(POLICY, overflow="fold", width=min(names, room))
    for heading in [*kept][1:]:
        drawn.add_column(heading, justify="right", no_wrap=True)
    for number, done in enumerate(runs):
        drawn.add_row(done.policy, *(cells[heading][number] for heading in [*kept][1:]))
    return drawn


UNLIKE = "each row's times are of the jobs that are DONE in it, and these are not the same"


def differing(runs: Sequence[Run]) -> str:
    """Where rows have completed other jobs, their means are of other jobs, too: those of what all
    have completed.
    """
    completed = {done.policy: _completed(done) for done in runs}
    alike = [
        job
        for job in next(iter(completed.values()), ())
        if all(job in each for each in completed.values())
    ]
    if all(len(each) == len(alike) for each in completed.values()):
        return ""
    if not alike:
        return UNLIKE
    means = ", ".join(
        f"{name} {fmean(each[job] for job in alike):,.0f}" for name, each in completed.items()
    )
    return f"{UNLIKE}; of the {format_count(len(alike), 'job')} that every row completed, MEAN s: {means}"


def _completed(run: Run) -> dict[str, float]:
    return {
        record.work.job: took_s
        for record in run.records
        if (took_s := record.completion_s) is not None
    }


def _cell(name: str, told: Figures) -> str:
    value = told[name]
    if value is None:
        return "-"
    if name == "utilisation":
        return f"{value:.0%}"
    if name == "completed":
        return f"{value} of {told['submitted']}"
    return f"{value:,.1f}" if "_ms_" in name else f"{value:,.0f}"
