"""The demo's screen: tasks by node, generation, step, speed, loss, utilisation; from what was
heard.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.cli import figures
from shared.messages import AllocationDecided, CapacityChanged, ProgressReported, TrainingResumed
from shared.text import format_duration

if TYPE_CHECKING:
    from services.cli.trial import Trial

COLOURS = {"chief": "magenta", "ps": "cyan", "worker": "green"}
WIDTH, STEPS = 24, 20
WINDOW_S = 3.0
UTILISATION = f"utilisation, last {WINDOW_S:g} s"


def sizes(decided: list[AllocationDecided], generation: int) -> Counter[str]:
    """How many tasks of each role a generation has."""
    tasks = next((d.tasks for d in reversed(decided) if d.generation == generation), ())
    return Counter(t.role for t in tasks)


def draw(watched: Trial, saying: str) -> Panel:
    reports, resumed = watched.of(ProgressReported), watched.of(TrainingResumed)
    parts = Group(Text(saying, style="bold"), _nodes(watched), _figures(watched, reports, resumed))
    return Panel(parts, title="weir", width=100)


def _nodes(watched: Trial) -> Table:
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
    watched: Trial, reports: list[ProgressReported], resumed: list[TrainingResumed]
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
        f"{figures.utilisation(watched.cpu, time.time() - WINDOW_S, time.time()):.0%}",
        format_duration(pauses[-1], fine=True) if pauses else "",
        ProgressBar(total=last.total_samples, completed=last.samples, width=WIDTH),
    )
    return table
