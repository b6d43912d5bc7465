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
    """How many tasks of each role a generation has."""
    tasks = next((d.tasks for d in reversed(decided) if d.generation == generation), ())
    return Counter(t.role for t in tasks)


def draw(watched: WatchedJob, saying: str, now_s: float) -> Panel:
    reports, resumed = watched.of(ProgressReported), watched.of(TrainingResumed)
    parts = Group(
        Text(saying, style="bold"), _nodes(watched), _figures(watched, reports, resumed, now_s)
    )
    return Panel(parts, title="weir", width=100)


def _nodes(watched: WatchedJob) -> Table:
    table = Table("node", "cores held", "tasks", expand=True, box=None)
    nodes = {c.node: c for c in watched.of(CapacityChanged)}
    for name, node in sorted(nodes.items()):
        table.add_row(name, _cores(node), _tasks(node))
    return table


def _cores(node: CapacityChanged) -> Text:
    """A bar: ours green, others' red, free dim."""
    own = sum(p.resources.cpu for p in node.own)
    others = node.allocatable.cpu - node.free.cpu - own
    cells = [round(share / node.allocatable.cpu * STEPS) for share in (own, others)]
    return Text.assemble(
        ("█" * cells[0], "green"),
        ("█" * cells[1], "red"),
        ("·" * max(STEPS - sum(cells), 0), "dim"),
    )


def _tasks(node: CapacityChanged) -> Text:
    text = Text("strangers " if _strangers(node) else "", style="red")
    for pod in sorted(node.own, key=lambda p: p.pod):
        role, serial = pod.pod.rsplit("-", 2)[1:]
        text.append(
            f"{role}-{serial} ",
            style=f"{COLOURS.get(role, '')} {'strike' if pod.terminating else ''}",
        )
    return text


def _strangers(node: CapacityChanged) -> bool:
    own = sum(p.resources.cpu for p in node.own)
    return node.allocatable.cpu - node.free.cpu - own > 1e-6


def _figures(
    watched: WatchedJob,
    reports: list[ProgressReported],
    resumed: list[TrainingResumed],
    now_s: float,
) -> Table:
    table = Table(
        "generation",
        "step",
        "examples/s",
        "loss",
        UTILISATION,
        "last pause",
        "done",
        box=None,
        expand=True,
    )
    if not reports:
        return table
    last = reports[-1]
    pauses = [r.pause_s for r in resumed if r.pause_s is not None]
    table.add_row(
        str(last.generation),
        str(last.step),
        f"{last.samples_per_second:,.0f}",
        "" if last.loss is None else f"{last.loss:.3f}",
        f"{runs.utilisation(watched.cpu, now_s - WINDOW_S, now_s):.0%}",
        format_duration(pauses[-1], fine=True) if pauses else "",
        ProgressBar(total=last.total_samples, completed=last.samples, width=WIDTH),
    )
    return table


REPORT_S, STILL_S = 5.0, 15.0
"""Between two reports; and how long nothing may be said."""


class Turns:
    """The last line and its time."""

    def __init__(self, report_s: float = REPORT_S, still_s: float = STILL_S) -> None:
        self.report_s, self.still_s = report_s, still_s
        self._saying = ""
        self._turned_s = 0.0
        self._said_s = 0.0
        self._report: ProgressReported | None = None

    def line(self, saying: str, report: ProgressReported | None, now_s: float) -> str:
        """Return the next line; empty if there is none. `report`: the newest."""
        line = self._line(saying, report, now_s)
        self._said_s = now_s if line else self._said_s
        return line

    def _line(self, saying: str, report: ProgressReported | None, now_s: float) -> str:
        if self._turns(saying, now_s):
            return saying
        if (
            report is not None
            and report is not self._report
            and now_s >= self._said_s + self.report_s
        ):
            self._report = report
            return sentence(report)
        late = saying and now_s >= self._said_s + self.still_s
        return f"{format_duration(now_s - self._turned_s)} so far: {saying}" if late else ""

    def heading(self, saying: str, now_s: float) -> str:
        """Return the current event and its duration."""
        self._turns(saying, now_s)
        return f"{saying} ({format_duration(now_s - self._turned_s)})" if saying else ""

    def _turns(self, saying: str, now_s: float) -> bool:
        """Return True if the event is new."""
        if saying == self._saying:
            return False
        self._saying, self._turned_s = saying, now_s
        return True
