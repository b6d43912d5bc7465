"""The nodes, each with its cores by who holds them: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from services.board.nodes import Node, Totals
from services.cli.screen.bars import Part, bar
from services.cli.screen.cells import cores
from services.cli.screen.palette import FREE, MANY, OTHERS, Letters, style
from services.cli.screen.plain_table import plain_table

NAME, FIGURES = 24, 42
"""Columns of a name, at most, and of all numbers and words together; the rest is the bar's."""
WIDEST_BAR = 64
HEADINGS = ("NODE", "HELD BY", "OURS", "OTHERS", "FREE", "ALL", "")


def node_table(nodes: Sequence[Node], letters: Letters, width: int) -> Table:
    name = min(max((len(node.name) for node in nodes), default=0), NAME)
    room = bar_width(width - name)
    drawn = plain_table(HEADINGS, HEADINGS[2:6], [name])
    drawn.columns[0].max_width = max(name, len(HEADINGS[0]))
    for node in nodes:
        amounts = (node.ours_cpu, node.others.cpu, node.free.cpu, node.allocatable.cpu)
        load = {job: held.cpu for job, held in node.load.items()}
        shown = load_bar(load, node.others.cpu, node.free.cpu, letters, room)
        drawn.add_row(Text(node.name, "bold"), shown, *map(cores, amounts), Text(node.closed, "bold red"))
    return drawn


def bar_width(width: int) -> int:
    return min(max(width - FIGURES, 8), WIDEST_BAR)


def load_bar(load: Mapping[str, float], others: float, free: float, letters: Letters, width: int) -> Text:
    """Cores by job, then somebody else's, then nobody's."""
    held = sorted((letters.get(job, MANY), amount) for job, amount in load.items())
    ours = [Part(amount, letter, style(letter)) for letter, amount in held]
    return bar([*ours, Part(others, OTHERS), Part(free, FREE, "dim")], width)


def shown_first(nodes: Iterable[Node], most: int) -> list[Node]:
    """All by name; of too many those of which our jobs hold most, and those that are closed."""
    known = sorted(nodes, key=_by_name)
    if len(known) <= most:
        return known
    chosen = sorted(known, key=lambda node: (-node.ours_cpu, not node.closed))[:most]
    return sorted(chosen, key=_by_name)


def _by_name(node: Node) -> tuple[str | int, ...]:
    """node-2 before node-10."""
    parts: list[str | int] = [int(part) if part.isdecimal() else part for part in re.split(r"(\d{1,18})", node.name)]
    return tuple(parts)


def sum_line(totals: Totals, load: Mapping[str, float], letters: Letters, width: int) -> Table:
    """All nodes together. `load`: cores by job."""
    drawn = plain_table(("", "", ""))
    held = f"ours {cores(totals.ours)}, others {cores(totals.others)}, free {cores(totals.free)}"
    told = f"{held} of {cores(totals.allocatable)} cores"
    used = f"; used {cores(totals.used)}" if totals.used else ""
    room = max(min(width - len(told + used) - 12, WIDEST_BAR), 8)
    drawn.add_row(Text("all nodes", "bold"), load_bar(load, totals.others, totals.free, letters, room), told + used)
    return drawn
