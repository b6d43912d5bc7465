"""Figures and pictures of runs: measured ones (elastic against static) and simulated ones.

The figures are those of the published systems: total time, epoch time, utilisation. Of simulated
runs also: the allocation of each job over time, the spread of completion times, and a table with
one row for each policy. Times are seconds since 1970 unless said otherwise; speeds are examples a
second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from math import ceil
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
    """The CPU seconds that all pods of the cluster have used so far, and the cores of its nodes."""

    at_s: float
    seconds: float
    allocatable: float


def utilisation(samples: Sequence[CpuSample], from_s: float, to_s: float) -> float:
    """Return measured CPU seconds over allocatable CPU seconds between two times.

    The kernel counts these seconds; requests do not matter.
    """
    inside = [sample for sample in samples if from_s <= sample.at_s <= to_s]
    if not inside:
        return 0.0
    first, last = inside[0], inside[-1]
    if last.at_s == first.at_s:
        return 0.0
    used = last.seconds - first.seconds
    return used / ((last.at_s - first.at_s) * last.allocatable)


def utilisation_over_time(
    samples: Sequence[CpuSample], window_s: float = 3.0
) -> list[tuple[float, float]]:
    """Return (time, utilisation over the `window_s` before it)."""
    points = []
    for sample in samples[1:]:
        share = utilisation(samples, sample.at_s - window_s, sample.at_s)
        points.append((sample.at_s, share))
    return points


def epoch_seconds(reports: Sequence[ProgressReported], began_s: float, epochs: int) -> list[float]:
    """Return the seconds of each complete epoch. Its end is interpolated between two reports."""
    if not reports:
        return []
    examples = reports[0].total_samples / epochs
    seconds = []
    start_s = began_s
    for number in range(1, epochs + 1):
        end_s = time_at(reports, began_s, examples * number)
        if end_s is not None:
            seconds.append(end_s - start_s)
            start_s = end_s
    return seconds


def time_at(reports: Sequence[ProgressReported], began_s: float, samples: float) -> float | None:
    """Return the time at which so many examples were applied; None if the last report has fewer."""
    before_s, before = began_s, 0.0
    for report in reports:
        if report.samples >= samples:
            share = (samples - before) / max(report.samples - before, 1)
            return before_s + share * (report.reported_s - before_s)
        before_s, before = report.reported_s, report.samples
    return None


def samples_at(reports: Sequence[ProgressReported], at_s: float) -> float:
    """Return the examples applied at a time, interpolated between reports; 0 before the first."""
    before_s, before = 0.0, 0.0
    for report in reports:
        if report.reported_s >= at_s:
            if not before_s:
                return 0.0
            share = (at_s - before_s) / (report.reported_s - before_s)
            return before + share * (report.samples - before)
        before_s, before = report.reported_s, report.samples
    return before


def mean_speed(reports: Sequence[ProgressReported], from_s: float, to_s: float) -> float:
    """Return the examples a second between two times."""
    applied = samples_at(reports, to_s) - samples_at(reports, from_s)
    return applied / max(to_s - from_s, 1e-9)


def ideal_cut(busy_share: float, leave_at: float) -> float:
    """Return the share of the static time that a job saves if it scales linearly over all cores at
    once.

    Others hold `busy_share` of the cores until `leave_at` (as a share of the static time T); the
    job has the rest. Work = (1 - busy) T; before: leave_at T at (1 - busy); after: the rest at 1.
    Elastic time over T is leave_at + (1 - leave_at) (1 - busy), and the cut is one less that.
    """
    return 1.0 - (leave_at + (1.0 - leave_at) * (1.0 - busy_share))


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `utilisation`: (seconds since submission, share of all cores); `hand_overs`: seconds
    since submission; `basis`: the source of a predicted run.
    """

    name: str
    total_s: float
    epoch_s: Sequence[float]
    utilisation: Sequence[tuple[float, float]] = ()
    hand_overs: Sequence[float] = ()
    basis: str = ""


COLOURS = ("#3366cc", "#dd8833", "#999999", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")
"""One colour for each run; further runs use them again from the first on."""


def draw_runs(runs: Sequence[Run], path: Path, title: str) -> None:
    """Write a PNG with total time, epoch time and utilisation over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = plot_runs(runs, title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plot_runs(runs: Sequence[Run], title: str) -> Any:
    """Return the figure. A predicted run has no utilisation, and no entry in that legend."""
    from matplotlib import pyplot

    figure, (total, epochs, used) = pyplot.subplots(
        1, 3, figsize=(15, 4.2), width_ratios=(1, 1.6, 2)
    )
    figure.suptitle(title)
    for run, colour in zip(runs, cycle(COLOURS), strict=False):
        bars = total.bar(run.name, run.total_s, color=colour)
        total.bar_label(bars, fmt="%.0f s")
        numbers = range(1, len(run.epoch_s) + 1)
        epochs.plot(numbers, run.epoch_s, label=run.name, color=colour)
        if run.utilisation:
            seconds, shares = zip(*run.utilisation, strict=True)
            used.plot(seconds, shares, label=run.name, color=colour)
        label: str | None = f"{run.name}: a new size takes over"
        for at_s in run.hand_overs:
            used.axvline(at_s, color=colour, linestyle=":", linewidth=1.5, label=label)
            label = None
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


HOURS_FROM_S = 7200.0
PANELS = ("tasks of every job", "utilisation", "completion times, waiting included")
ACROSS = (
    "{unit} of the simulation",
    "{unit} of the simulation",
    "{unit} since the job's own submission",
)
NAMES_MOST = 24
"""The most names of jobs below one another; of more jobs only every second, third, ... is named."""
SMALL, LEGEND_INCH = "small", 0.4


def draw_simulated_runs(runs: Sequence[SimulatedRun], path: Path) -> None:
    """Write a PNG of simulated runs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = plot_simulated_runs(runs)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plot_simulated_runs(runs: Sequence[SimulatedRun]) -> Any:
    """Return the figure: three panels in a row for each policy, with the same axes in a column."""
    from matplotlib import pyplot

    size = (15, 1.2 + 3.0 * len(runs))
    figure, rows = pyplot.subplots(
        len(runs), 3, figsize=size, width_ratios=(2, 1.4, 1.2), squeeze=False
    )
    unit_s, unit = _time_unit(max((run.ended_s for run in runs), default=0.0))
    most = 1
    for run in runs:
        for record in run.records:
            most = max(most, *map(_task_count, record.sizes))
    for run, (jobs, used, times) in zip(runs, rows, strict=True):
        _plot_jobs(jobs, run, unit_s, most)
        _plot_utilisation(used, run, unit_s)
        _plot_completion_times(times, run, unit_s)
    for column, (title, across) in enumerate(zip(PANELS, ACROSS, strict=True)):
        rows[0][column].set_title(title)
        rows[-1][column].set_xlabel(across.format(unit=unit))
        _share_x_range([row[column] for row in rows])
    figure.legend(handles=_shade_legend(most), loc="lower left", ncols=3, frameon=False)
    figure.tight_layout(rect=(0.0, LEGEND_INCH / size[1], 1.0, 1.0))
    return figure


def _time_unit(longest_s: float) -> tuple[float, str]:
    return (3600.0, "hours") if longest_s > HOURS_FROM_S else (1.0, "seconds")


def _task_count(size: tuple[float, int, int, int]) -> int:
    return size[1] + size[2]


def _plot_jobs(axes: Any, run: SimulatedRun, unit_s: float, most: int) -> None:
    """Draw a row of bars for each job: grey while it waits, darker with more tasks."""
    for row, record in enumerate(run.records):
        bars, shades = [], []
        for from_s, to_s, tasks in _task_spans(record, run.ended_s):
            bars.append((from_s / unit_s, (to_s - from_s) / unit_s))
            shades.append(_shade(tasks / most))
        axes.broken_barh(bars, (row, 0.9), facecolors=shades)
    jobs = len(run.records)
    axes.set_ylim(jobs, 0)
    axes.set_ylabel(run.policy)
    every = ceil(jobs / NAMES_MOST) or 1
    middles, names = [], []
    for row in range(0, jobs, every):
        middles.append(row + 0.45)
        names.append(run.records[row].work.job)
    axes.set_yticks(middles, names, fontsize=SMALL)


def _shade_legend(most: int) -> list[Any]:
    """Return the legend of the shades: no task, one, and the most tasks of any job."""
    from matplotlib.patches import Patch

    labels = {0: "waits", 1: "1 ps or worker"}
    if most > 1:
        labels[most] = f"{most} ps and workers"
    return [Patch(color=_shade(tasks / most), label=label) for tasks, label in labels.items()]


def _shade(share: float) -> tuple[float, float, float, float]:
    return (0.1, 0.3, 0.6, 0.2 + 0.8 * share) if share else (0.85, 0.85, 0.85, 0.6)


def _task_spans(record: JobRecord, ended_s: float) -> list[tuple[float, float, int]]:
    """Return (from, to, tasks) from submission to the end."""
    end_s = ended_s if record.finished_s is None else record.finished_s
    from_s, tasks = record.work.submitted_s, 0
    spans = []
    for size in record.sizes:
        if size[0] > from_s:
            spans.append((from_s, size[0], tasks))
        from_s, tasks = size[0], _task_count(size)
    if end_s > from_s:
        spans.append((from_s, end_s, tasks))
    return spans


def _plot_utilisation(axes: Any, run: SimulatedRun, unit_s: float) -> None:
    times, shares = [], []
    for start_s, _, held, offered in held_and_offered(run):
        times.append(start_s / unit_s)
        shares.append(held / offered if offered else 0.0)
    axes.step(times, shares, where="post", color="#3366cc")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of the usable cores held")


def _plot_completion_times(axes: Any, run: SimulatedRun, unit_s: float) -> None:
    """Draw the share of all jobs that completes within a time since submission."""
    times, shares = [0.0], [0.0]
    for number, seconds in enumerate(sorted(completion_s(run)), start=1):
        times.append(seconds / unit_s)
        shares.append(number / max(1, len(run.records)))
    axes.step(times, shares, where="post", color="#dd8833")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of the jobs that ended")


def _share_x_range(column: Sequence[Any]) -> None:
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
"""Dropped in this order if a policy's name has too little room."""
GAP, LEAST_NAME = 2, 12
"""Columns between two cells; names are folded down to this width before a column is dropped."""


def runs_table(runs: Sequence[SimulatedRun], width: int) -> Table:
    """Return a row for each run. Names longer than `width` permits are folded; headings and numbers
    never.
    """
    figures = [run_figures(run) for run in runs]
    columns = {}
    names = longest([POLICY, *(run.policy for run in runs)])
    widths = {POLICY: min(names, LEAST_NAME)}
    for name, heading in SHOWN.items():
        columns[heading] = [_figure_cell(name, each) for each in figures]
        widths[heading] = longest([heading, *columns[heading]])
    kept = fitting(widths, YIELDING, width, GAP)
    room = max(kept[POLICY] + width - total_width(kept, GAP), len(POLICY))
    del kept[POLICY]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    table.add_column(POLICY, overflow="fold", width=min(names, room))
    for heading in kept:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, run in enumerate(runs):
        cells = [columns[heading][number] for heading in kept]
        table.add_row(run.policy, *cells)
    return table


UNLIKE = "the rows have completed different jobs, and each row's times are of its own jobs"


def describe_different_jobs(runs: Sequence[SimulatedRun]) -> str:
    """Return a note that the means are of different jobs; empty if all rows completed the same
    jobs.

    The note has the means of the jobs that all rows completed.
    """
    completed = {run.policy: _completion_times(run) for run in runs}
    if not completed:
        return ""
    common = set.intersection(*(set(times) for times in completed.values()))
    if all(len(times) == len(common) for times in completed.values()):
        return ""
    if not common:
        return UNLIKE
    means = []
    for policy, times in completed.items():
        mean = fmean(seconds for job, seconds in times.items() if job in common)
        means.append(f"{policy} {mean:,.0f}")
    jobs = format_count(len(common), "job")
    return f"{UNLIKE}; of the {jobs} that every row completed, MEAN s: {', '.join(means)}"


def _completion_times(run: SimulatedRun) -> dict[str, float]:
    """Return the completion time in seconds of each job that completed."""
    times = {}
    for record in run.records:
        if record.completion_s is not None:
            times[record.work.job] = record.completion_s
    return times


def _figure_cell(name: str, figures: Figures) -> str:
    value = figures[name]
    if value is None:
        return "-"
    if name == "utilisation":
        return f"{value:.0%}"
    if name == "completed":
        return f"{value} of {figures['submitted']}"
    return f"{value:,.1f}" if "_ms_" in name else f"{value:,.0f}"
