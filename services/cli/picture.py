"""A run as a picture: the three figures of the published systems, elastic against static."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec


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


def draw(runs: Sequence[Run], path: Path, title: str) -> None:
    """Write a PNG with total time, epoch time and utilisation over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = plotted(runs, title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plotted(runs: Sequence[Run], title: str) -> Any:
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
