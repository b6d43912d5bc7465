"""The nodes, each with its cores by who holds them, and its memory: pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from services.console.board.nodes import Node, Totals
from services.console.top.bars import Part, bar
from services.console.top.cells import cores, gib
from services.console.top.fitting import capped
from services.console.top.palette import FREE, MANY, OTHERS, Letters, style
from services.console.top.plain_table import plain_table
from shared.messages import Resources

NAME, FIGURES = 24, 55
"""Columns of a name, at most, and of all numbers and words together; the rest is the bar's."""
WIDEST_BAR = 64
HEADINGS = ("NODE", "HELD BY", "OURS", "OTHERS", "FREE", "ALL", "GIB OURS/ALL", "")


def node_table(nodes: Sequence[Node], letters: Letters, width: int) -> Table:
    name = min(max((len(node.name) for node in nodes), default=0), capped(NAME, width))
    room = bar_width(width - name)
    drawn = plain_table(HEADINGS, HEADINGS[2:7], [name])
    drawn.columns[0].max_width = max(name, len(HEADINGS[0]))
    for node in nodes:
        amounts = (node.ours.cpu, node.others.cpu, node.free.cpu, node.allocatable.cpu)
        memory = f"{gib(node.ours.memory_gib)}/{gib(node.allocatable.memory_gib)}"
        load = {job: held.cpu for job, held in node.load.items()}
        shown = load_bar(load, node.others.cpu, node.free.cpu, letters, room)
        drawn.add_row(
            Text(node.name, "bold"),
            shown,
            *map(cores, amounts),
            memory,
            Text(node.closed, "bold red"),
        )
    return drawn


def bar_width(width: int) -> int:
    return min(max(width - FIGURES, 8), WIDEST_BAR)


def load_bar(
    load: Mapping[str, float], others: float, free: float, letters: Letters, width: int
) -> Text:
    """Cores by job, then somebody else's, then nobody's."""
    held = sorted((letters.get(job, MANY), amount) for job, amount in load.items())
    ours = [Part(amount, letter, style(letter)) for letter, amount in held]
    return bar([*ours, Part(others, OTHERS), Part(free, FREE, "dim")], width)


def shown_first(nodes: Iterable[Node], most: int) -> list[Node]:
    """All by name; of too many those of which our jobs hold most, and those that are closed."""
    known = sorted(nodes, key=_by_name)
    if len(known) <= most:
        return known
    chosen = sorted(known, key=lambda node: (-node.ours.cpu, not node.closed))[:most]
    return sorted(chosen, key=_by_name)


def _by_name(node: Node) -> tuple[str | int, ...]:
    """node-2 before node-10."""
    parts: list[str | int] = [
        int(part) if part.isdecimal() else part for part in re.split(r"(\d{1,18})", node.name)
    ]
    return tuple(parts)


def sum_lines(totals: Totals, load: Mapping[str, Resources], letters: Letters, width: int) -> Table:
    """All nodes together: cores, and memory. `load`: what each job holds."""
    t, drawn = totals, plain_table(("", "", ""))
    told = {
        "all nodes": _shares(cores, (t.ours, t.others, t.free, t.allocatable, t.used), "cores"),
        "memory": _shares(
            gib, (t.ours_gib, t.others_gib, t.free_gib, t.allocatable_gib, t.used_gib), "GiB"
        ),
    }
    room = max(min(width - max(map(len, told.values())) - 12, WIDEST_BAR), 8)
    by_cores = load_bar(
        {job: held.cpu for job, held in load.items()}, t.others, t.free, letters, room
    )
    by_gib = {job: held.memory_gib for job, held in load.items()}
    bars = (by_cores, load_bar(by_gib, t.others_gib, t.free_gib, letters, room))
    for (name, figures), bar_ in zip(told.items(), bars, strict=True):
        drawn.add_row(Text(name, "bold"), bar_, figures)
    return drawn


def _shares(written: Callable[[float], str], amounts: Sequence[float], unit: str) -> str:
    ours, others, free, whole, used = amounts
    held = f"ours {written(ours)}, others {written(others)}, free {written(free)} of {written(whole)} {unit}"
    return f"{held}; used {written(used)}" if used else held
