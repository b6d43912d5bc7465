"""Figures and pictures of runs: measured ones (elastic against static) and simulated ones.

The figures are those of the published systems: total time, epoch time, utilisation. Of simulated
runs also: the allocation of each job over time, the spread of completion times, and a table with one
row for each policy. Times are seconds since 1970 unless said otherwise; speeds are examples a
second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from services.console.text.cells import fitting, longest, total_width
from services.whatif.simulator.outcome import (
    Figures,
    JobRecord,
    completion_s,
    held_and_offered,
    run_figures,
)
from services.whatif.simulator.outcome import Run as SimulatedRun
from shared.messages import ProgressReported
from shared.text import format_count


class CpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """All pods of the cluster together: CPU seconds used since it began, and the cores that its
    nodes have.
    """

    at_s: float
    seconds: float
    allocatable: float


def utilisation(samples: Sequence[CpuSample], from_s: float, to_s: float) -> float:
    """Measured CPU seconds over allocatable CPU seconds between two times: as the kernel counts,
    not requests.
    """
    inside = [s for s in samples if from_s <= s.at_s <= to_s]
    if len(inside) < 2 or inside[-1].at_s == inside[0].at_s:
        return 0.0
    used = inside[-1].seconds - inside[0].seconds
    return used / ((inside[-1].at_s - inside[0].at_s) * inside[-1].allocatable)


def utilisation_over_time(
    samples: Sequence[CpuSample], window_s: float = 3.0
) -> list[tuple[float, float]]:
    """(time, utilisation over the `window_s` before it)."""
    return [(s.at_s, utilisation(samples, s.at_s - window_s, s.at_s)) for s in samples[1:]]


def epoch_seconds(reports: Sequence[ProgressReported], began_s: float, epochs: int) -> list[float]:
    """How long each complete epoch took, from the time at which its last example was applied
    (interpolated).
    """
    if not reports:
        return []
    examples = reports[0].total_samples / epochs
    ends = [time_at(reports, began_s, examples * (n + 1)) for n in range(epochs)]
    known = [began_s, *[end for end in ends if end is not None]]
    return [later - earlier for earlier, later in pairwise(known)]


def time_at(reports: Sequence[ProgressReported], began_s: float, samples: float) -> float | None:
    """When so many examples were applied; None where the reports do not reach so far."""
    before_s, before = began_s, 0.0
    for report in reports:
        if report.samples >= samples:
            share = (samples - before) / max(report.samples - before, 1)
            return before_s + share * (report.reported_s - before_s)
        before_s, before = report.reported_s, report.samples
    return None


def samples_at(reports: Sequence[ProgressReported], at_s: float) -> float:
    """Examples applied at a time, interpolated between reports."""
    before_s, before = 0.0, 0.0
    for report in reports:
        if report.reported_s >= at_s:
            span = report.reported_s - before_s
            return (
                before + (at_s - before_s) / span * (report.samples - before) if before_s else 0.0
            )
        before_s, before = report.reported_s, report.samples
    return before


def mean_speed(reports: Sequence[ProgressReported], from_s: float, to_s: float) -> float:
    """Examples a second between two times."""
    return (samples_at(reports, to_s) - samples_at(reports, from_s)) / max(to_s - from_s, 1e-9)


def ideal_cut(busy_share: float, leave_at: float) -> float:
    """How much of the static time a job could save that scales linearly over all cores at once.

    `busy_share` of the cores are somebody else's until `leave_at` (as a share of the static time
    T); the job has the rest. Work = (1 - busy) T; before: leave_at T at (1 - busy); after: what is
    left at 1. Elastic time over T is leave_at + (1 - leave_at) (1 - busy), and the cut is one less
    that.
    """
    return 1.0 - (leave_at + (1.0 - leave_at) * (1.0 - busy_share))


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `utilisation` is (seconds since submission, share of all cores), `hand_overs` in
    those seconds; `basis`: of what a predicted one is made.
    """

    name: str
    total_s: float
    epoch_s: Sequence[float]
    utilisation: Sequence[tuple[float, float]] = ()
    hand_overs: Sequence[float] = ()
    basis: str = ""


def draw_runs(runs: Sequence[Run], path: Path, title: str) -> None:
    """Write a PNG with total time, epoch time and utilisation over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = plot_runs(runs, title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plot_runs(runs: Sequence[Run], title: str) -> Any:
    """The figure. A legend names what is drawn beside it, and no more: of a predicted run no
    utilisation is known.
    """
    from matplotlib import pyplot

    figure, (total, epochs, used) = pyplot.subplots(
        1, 3, figsize=(15, 4.2), width_ratios=(1, 1.6, 2)
    )
    figure.suptitle(title)
    colours = {
        run.name: colour
        for run, colour in zip(runs, ("#3366cc", "#dd8833", "#999999"), strict=False)
    }
    for run in runs:
        bars = total.bar(run.name, run.total_s, color=colours[run.name])
        total.bar_label(bars, fmt="%.0f s")
        epochs.plot(
            range(1, len(run.epoch_s) + 1), run.epoch_s, label=run.name, color=colours[run.name]
        )
        if run.utilisation:
            used.plot(*_columns(run.utilisation), label=run.name, color=colours[run.name])
        for number, moment in enumerate(run.hand_overs):
            named = None if number else f"{run.name}: a new size takes over"
            used.axvline(moment, color=colours[run.name], linestyle=":", linewidth=1.5, label=named)
    total.set(title="total time", ylabel="seconds")
    total.margins(y=0.1)  # room for the number on top of a bar
    epochs.set(title="time of each epoch", xlabel="epoch", ylabel="seconds", ylim=(0, None))
    used.set(
        title="utilisation (CPU seconds / allocatable)",
        xlabel="seconds since submission",
        ylim=(0, 1.05),
    )
    for axes in (epochs, used):
        axes.legend(frameon=False)
    bases = [run.basis for run in runs if run.basis]
    figure.text(0.01, 0.01, "\n".join(bases), fontsize=9)
    figure.tight_layout(rect=(0.0, 0.045 * len(bases), 1.0, 1.0))
    return figure


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


HOURS_FROM_S = 7200.0
PANELS = ("tasks of every job", "utilisation", "how long jobs took, waiting included")
ACROSS = (
    "{unit} of the simulation",
    "{unit} of the simulation",
    "{unit} since the job's own submission",
)
NAMES_MOST = 24
"""So many names stand below one another; of more jobs only some are named."""
SMALL, LEGEND_INCH = "small", 0.4


def draw_simulated_runs(runs: Sequence[SimulatedRun], path: Path) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = plot_simulated_runs(runs)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plot_simulated_runs(runs: Sequence[SimulatedRun]) -> Any:
    """The figure: a row of three panels a policy; the same axes in each column."""
    from matplotlib import pyplot

    size = (15, 1.2 + 3.0 * len(runs))
    figure, rows = pyplot.subplots(
        len(runs), 3, figsize=size, width_ratios=(2, 1.4, 1.2), squeeze=False
    )
    unit_s, unit = _unit(max((run.ended_s for run in runs), default=0.0))
    most = max(
        (_tasks(size) for run in runs for record in run.records for size in record.sizes), default=1
    )
    for run, (jobs, used, times) in zip(runs, rows, strict=True):
        _jobs(jobs, run, unit_s, max(1, most))
        _utilisation(used, run, unit_s)
        _times(times, run, unit_s)
    for column, (title, across) in enumerate(zip(PANELS, ACROSS, strict=True)):
        rows[0][column].set_title(title)
        rows[-1][column].set_xlabel(across.format(unit=unit))
        _same_x([row[column] for row in rows])
    figure.legend(handles=_meanings(max(1, most)), loc="lower left", ncols=3, frameon=False)
    figure.tight_layout(rect=(0.0, LEGEND_INCH / size[1], 1.0, 1.0))
    return figure


def _unit(longest_s: float) -> tuple[float, str]:
    return (3600.0, "hours") if longest_s > HOURS_FROM_S else (1.0, "seconds")


def _tasks(size: tuple[float, int, int, int]) -> int:
    return size[1] + size[2]


def _jobs(axes: Any, run: SimulatedRun, unit_s: float, most: int) -> None:
    """A line of bars a job: waiting in grey, then the darker the more tasks it has."""
    for row, record in enumerate(run.records):
        spans = _spans(record, run.ended_s)
        bars = [(from_s / unit_s, (to_s - from_s) / unit_s) for from_s, to_s, _ in spans]
        axes.broken_barh(bars, (row, 0.9), facecolors=[_shade(tasks / most) for *_, tasks in spans])
    axes.set_ylim(len(run.records), 0)
    axes.set_ylabel(run.policy)
    each = -(-len(run.records) // NAMES_MOST) or 1
    named = range(0, len(run.records), each)
    axes.set_yticks(
        [row + 0.45 for row in named], [run.records[row].work.job for row in named], fontsize=SMALL
    )


def _meanings(most: int) -> list[Any]:
    """What each shade stands for: none, few and as many tasks as any job has."""
    from matplotlib.patches import Patch

    said = {0: "waits", 1: "1 ps or worker"} | (
        {most: f"{most} ps and workers"} if most > 1 else {}
    )
    return [Patch(color=_shade(tasks / most), label=label) for tasks, label in said.items()]


def _shade(share: float) -> tuple[float, float, float, float]:
    return (0.1, 0.3, 0.6, 0.2 + 0.8 * share) if share else (0.85, 0.85, 0.85, 0.6)


def _spans(record: JobRecord, ended_s: float) -> list[tuple[float, float, int]]:
    """(from, to, tasks) from submission to the end."""
    end_s = ended_s if record.finished_s is None else record.finished_s
    starts = [(record.work.submitted_s, 0), *((size[0], _tasks(size)) for size in record.sizes)]
    ends = [start for start, _ in starts[1:]] + [end_s]
    return [
        (start, end, tasks) for (start, tasks), end in zip(starts, ends, strict=True) if end > start
    ]


def _utilisation(axes: Any, run: SimulatedRun, unit_s: float) -> None:
    steps = [
        (start, held / offered if offered else 0.0)
        for start, _, held, offered in held_and_offered(run)
    ]
    axes.step(
        [start / unit_s for start, _ in steps],
        [share for _, share in steps],
        where="post",
        color="#3366cc",
    )
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("held of what jobs may hold")


def _times(axes: Any, run: SimulatedRun, unit_s: float) -> None:
    """The share of all jobs that is completed within so much time of its submission."""
    times, every = sorted(completion_s(run)), max(1, len(run.records))
    steps = [0.0, *((number + 1) / every for number in range(len(times)))]
    axes.step([0.0, *(seconds / unit_s for seconds in times)], steps, where="post", color="#dd8833")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of the jobs that are over")


def _same_x(column: Sequence[Any]) -> None:
    right = max(axes.get_xlim()[1] for axes in column)
    for axes in column:
        axes.set_xlim(0, right)


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


def runs_table(runs: Sequence[SimulatedRun], width: int) -> Table:
    """Names that are too long for `width` are folded; headings and numbers never."""
    told = [run_figures(done) for done in runs]
    cells = {heading: [_cell(name, each) for each in told] for name, heading in SHOWN.items()}
    names = longest([POLICY, *(done.policy for done in runs)])
    wide = {heading: longest([heading, *column]) for heading, column in cells.items()}
    kept = fitting({POLICY: min(names, LEAST_NAME)} | wide, YIELDING, width, GAP)
    room = max(kept[POLICY] + width - total_width(kept, GAP), len(POLICY))
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    drawn.add_column(POLICY, overflow="fold", width=min(names, room))
    for heading in [*kept][1:]:
        drawn.add_column(heading, justify="right", no_wrap=True)
    for number, done in enumerate(runs):
        drawn.add_row(done.policy, *(cells[heading][number] for heading in [*kept][1:]))
    return drawn


UNLIKE = "each row's times are of the jobs that are DONE in it, and these are not the same"


def describe_different_jobs(runs: Sequence[SimulatedRun]) -> str:
    """Where rows have completed other jobs, their means are of other jobs, too: those of what all
    have completed.
    """
    completed = {done.policy: _completion_times(done) for done in runs}
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


def _completion_times(run: SimulatedRun) -> dict[str, float]:
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
