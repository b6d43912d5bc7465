"""The screen of `weir demo`: tasks by node, generation, step, speed, loss, utilisation.

Progress lines fill the time between events: the progress of the job if it is new; otherwise the
step that the job waits for, and for how long. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.console.report import runs
from services.console.text.sentences import sentence
from shared.messages import AllocationDecided, CapacityChanged, ProgressReported, TrainingResumed
from shared.text import format_duration


class WatchedJob(Protocol):
    """A job that is watched: the messages heard of it, and the CPU time that its cluster used."""

    cpu: list[runs.CpuSample]

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the messages of a kind, in the order in which they were heard."""


COLOURS = {"chief": "magenta", "ps": "cyan", "worker": "green"}
WIDTH, STEPS = 24, 20
WINDOW_S = 3.0
UTILISATION = f"utilisation, last {WINDOW_S:g} s"


def sizes(decided: list[AllocationDecided], generation: int) -> Counter[str]:
    """Return the number of tasks of each role that a generation has."""
    for decision in reversed(decided):
        if decision.generation == generation:
            return Counter(task.role for task in decision.tasks)
    return Counter()


def draw(watched: WatchedJob, event: str, now_s: float) -> Panel:
    reports, resumed = watched.of(ProgressReported), watched.of(TrainingResumed)
    figures = _figures(watched, reports, resumed, now_s)
    parts = Group(Text(event, style="bold"), _nodes(watched), figures)
    return Panel(parts, title="weir", width=100)


def _nodes(watched: WatchedJob) -> Table:
    table = Table("node", "cores held", "tasks", expand=True, box=None)
    nodes = {node.node: node for node in watched.of(CapacityChanged)}
    for name, node in sorted(nodes.items()):
        table.add_row(name, _cores(node), _tasks(node))
    return table


def _cores(node: CapacityChanged) -> Text:
    """Draw a bar: ours green, others' red, free dim."""
    own, others = _held_cores(node)
    own_cells = round(own / node.allocatable.cpu * STEPS)
    other_cells = round(others / node.allocatable.cpu * STEPS)
    free_cells = max(STEPS - own_cells - other_cells, 0)
    return Text.assemble(
        ("█" * own_cells, "green"), ("█" * other_cells, "red"), ("·" * free_cells, "dim")
    )


def _held_cores(node: CapacityChanged) -> tuple[float, float]:
    """Return the cores of our pods and of all others."""
    own = sum(pod.resources.cpu for pod in node.own)
    return own, node.allocatable.cpu - node.free.cpu - own


def _tasks(node: CapacityChanged) -> Text:
    _, others = _held_cores(node)
    text = Text("strangers " if others > 1e-6 else "", style="red")
    for pod in sorted(node.own, key=lambda pod: pod.pod):
        role, serial = pod.pod.rsplit("-", 2)[1:]
        strike = "strike" if pod.terminating else ""
        text.append(f"{role}-{serial} ", style=f"{COLOURS.get(role, '')} {strike}")
    return text


def _figures(
    watched: WatchedJob,
    reports: list[ProgressReported],
    resumed: list[TrainingResumed],
    now_s: float,
) -> Table:
    headings = ("generation", "step", "examples/s", "loss", UTILISATION, "last pause", "done")
    table = Table(*headings, box=None, expand=True)
    if not reports:
        return table
    last = reports[-1]
    pause = ""
    for start in resumed:
        if start.pause_s is not None:
            pause = format_duration(start.pause_s, fine=True)
    table.add_row(
        str(last.generation),
        str(last.step),
        f"{last.samples_per_second:,.0f}",
        "" if last.loss is None else f"{last.loss:.3f}",
        f"{runs.utilisation(watched.cpu, now_s - WINDOW_S, now_s):.0%}",
        pause,
        ProgressBar(total=last.total_samples, completed=last.samples, width=WIDTH),
    )
    return table


REPORT_S, STILL_S = 5.0, 15.0
"""Between two reports; the longest time without a line."""


class ProgressLines:
    """The lines of a job's progress: the last one, its time, and the current event."""

    def __init__(self, report_s: float = REPORT_S, still_s: float = STILL_S) -> None:
        self.report_s, self.still_s = report_s, still_s
        self._event = ""
        self._event_s = 0.0
        self._line_s = 0.0
        self._report: ProgressReported | None = None

    def line(self, event: str, report: ProgressReported | None, now_s: float) -> str:
        """Return the next line; empty if there is none. `report`: the newest."""
        line = self._next_line(event, report, now_s)
        if line:
            self._line_s = now_s
        return line

    def _next_line(self, event: str, report: ProgressReported | None, now_s: float) -> str:
        if self._is_new(event, now_s):
            return event
        silent_s = now_s - self._line_s
        if report is not None and report is not self._report and silent_s >= self.report_s:
            self._report = report
            return sentence(report)
        if event and silent_s >= self.still_s:
            return f"{format_duration(now_s - self._event_s)} so far: {event}"
        return ""

    def heading(self, event: str, now_s: float) -> str:
        """Return the current event and its duration."""
        self._is_new(event, now_s)
        return f"{event} ({format_duration(now_s - self._event_s)})" if event else ""

    def _is_new(self, event: str, now_s: float) -> bool:
        """Return True if the event is new, and note its time."""
        if event == self._event:
            return False
        self._event, self._event_s = event, now_s
        return True
