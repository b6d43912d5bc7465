"""Simulated runs as a picture: each job's allocation over time, utilisation, and how completion
times spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.whatif.simulator.outcome import JobRecord, Run, completion_s, held_and_offered

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


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = plotted(runs)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plotted(runs: Sequence[Run]) -> Any:
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


def _jobs(axes: Any, run: Run, unit_s: float, most: int) -> None:
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


def _utilisation(axes: Any, run: Run, unit_s: float) -> None:
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


def _times(axes: Any, run: Run, unit_s: float) -> None:
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
