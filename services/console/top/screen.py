"""The whole screen of `weir top`: heading, nodes, jobs and the last decisions, as far as they fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.allocator.job_views import SILENT
from services.console.board.board import Board
from services.console.board.cluster import Node, Totals
from services.console.board.figures import is_ended, utilisation
from services.console.board.job_history import Decision, JobHistory
from services.console.text.cells import (
    ENDLESS,
    FREE,
    MANY,
    OTHERS,
    Letters,
    Part,
    badge,
    bar,
    cap_columns,
    cores,
    gib,
    percent,
    plain_table,
    style,
)
from services.console.text.sentences import ASK
from services.console.top.job_tables import WIDEST, in_order, job_table
from shared.messages import Resources
from shared.text import (
    format_count,
    format_duration,
    format_saving,
    format_size,
    headline,
    pause_preposition,
)

DECISIONS = 8
HEADS = 14
"""Lines that are no rows: the heading, the sums, three titles with their columns, and space."""
READING = "reading what is stored …"
"""Said of what nothing is known of yet: that there is none of it is not known before all is
read.
"""
NO_NODES = "no node is known: is the monitor running?"
WAIT = ("Pending", "Starting")
UNITS = {"nodes": f", in cores (A: that job's, {OTHERS} others', {FREE} free)"}


class ScreenOptions(NamedTuple):
    """What is looked at besides the board. `cut_s`: since when nothing is heard; `zone` None: that
    of this machine.

    `reading`: not all that is stored is in the board yet.
    """

    now_s: float
    where: str
    cut_s: float | None = None
    zone: tzinfo | None = None
    reading: bool = False


class Room(NamedTuple):
    """Rows for each part."""

    nodes: int
    jobs: int
    decisions: int


def draw_screen(
    board: Board, look: ScreenOptions, letters: Letters, width: int, height: int | None
) -> Group:
    """`height` None: everything, however long."""
    jobs = in_order(board.jobs.values())
    space = room(len(board.nodes), len(jobs), len(board.decisions), height)
    return Group(
        *_heading(board, look, width),
        *(
            []
            if look.reading and not board.nodes
            else [sum_lines(board.totals, _held_resources(jobs), letters, width)]
        ),
        *_part("nodes", len(board.nodes), space.nodes, _none(look, NO_NODES)),
        *(
            [node_table(shown_first(board.nodes.values(), space.nodes), letters, width)]
            if board.nodes
            else []
        ),
        *_part(
            "jobs",
            len(jobs),
            space.jobs,
            _none(look, f"there are none; {ASK}"),
            _waits(jobs, letters, width),
        ),
        *([job_table(jobs[: space.jobs], letters, width)] if jobs else []),
        *_part(
            "last decisions", len(board.decisions), space.decisions, _none(look, "there were none")
        ),
        *(
            [
                decision_table(
                    board.decisions[: -space.decisions - 1 : -1], letters, width, look.zone
                )
            ]
            if board.decisions
            else []
        ),
    )


def _held_resources(jobs: Iterable[JobHistory]) -> dict[str, Resources]:
    return {job.key: job.held_resources for job in jobs if job.held}


def _none(look: ScreenOptions, said: str) -> str:
    return READING if look.reading else said


def room(nodes: int, jobs: int, decisions: int, height: int | None) -> Room:
    """Decisions a fifth; of the rest jobs and nodes half each, and what one leaves the other
    takes.
    """
    if height is None:
        return Room(nodes, jobs, min(decisions, DECISIONS))
    left = max(height - HEADS, 3)
    last = min(decisions, DECISIONS, max(left // 5, 1))
    left -= last
    own = min(jobs, max(left // 2, left - nodes))
    return Room(min(nodes, max(left - own, 1)), max(own, 1), max(last, 1))


def _heading(board: Board, look: ScreenOptions, width: int) -> Iterator[Text]:
    at = datetime.fromtimestamp(look.now_s, UTC).astimezone(look.zone)
    left = Text.assemble(("weir top  ", "bold"), _state(look))
    right = Text(f"{at:%Y-%m-%d %H:%M:%S}")
    where = Text(f"  {look.where}", "dim")
    if width < ENDLESS:
        where.truncate(
            max(width - left.cell_len - right.cell_len - 1, 0), overflow="ellipsis", pad=True
        )
    yield Text.assemble(left, where, " ", right)
    used = percent(utilisation(board.totals))
    told = f"{format_count(len(board.nodes), 'node')}, {used} of the cores ours; jobs: {_phases(board)}"
    told = READING if look.reading and not board.nodes and not board.jobs else told
    yield Text(told, no_wrap=True, overflow="ellipsis")


def _state(look: ScreenOptions) -> Text:
    if look.cut_s is None:
        return (
            Text("reads what is stored", "bold yellow")
            if look.reading
            else Text("live", "bold green")
        )
    return Text(
        f" CUT OFF from the bus for {format_duration(max(look.now_s - look.cut_s, 0.0))} ",
        "bold white on red",
    )


def _phases(board: Board) -> str:
    phases = Counter(job.view.shown_phase for job in board.jobs.values() if not is_ended(job.view))
    ended = sum(is_ended(job.view) for job in board.jobs.values())
    told = [f"{number} {phase.lower()}" for phase, number in sorted(phases.items())]
    return ", ".join([*told, *([f"{ended} over"] if ended else [])]) or "none"


def _waits(jobs: Iterable[JobHistory], letters: Letters, width: int) -> str:
    """Why the first silent job is so, else what the first that waits waits for, where the table has
    no room for it.
    """
    told = [job for job in jobs if job.view.shown_phase in (SILENT, *WAIT) and job.view.why]
    first = next(iter(sorted(told, key=lambda job: not job.view.silent)), None)
    return (
        f"; {letters.get(first.key, '')} {headline(first.view.why)}"
        if first and width < WIDEST
        else ""
    )


def _part(
    title: str, there: int, shown: int, none: str, more: str = ""
) -> Iterator[RenderableType]:
    yield Text()
    left = there - shown
    said = (
        f"; {left} more {'is' if left == 1 else 'are'} not shown"
        if left > 0
        else f": {none}"
        if not there
        else ""
    )
    told = (title, "bold"), (f"{UNITS.get(title, '')}{said}{more}", "dim")
    yield Text.assemble(*told, no_wrap=True, overflow="ellipsis")


NAME, FIGURES = 24, 55
"""Columns of a name, at most, and of all numbers and words together; the rest is the bar's."""
WIDEST_BAR = 64
HEADINGS = ("NODE", "HELD BY", "OURS", "OTHERS", "FREE", "ALL", "GIB OURS/ALL", "")


def node_table(nodes: Sequence[Node], letters: Letters, width: int) -> Table:
    name = min(max((len(node.name) for node in nodes), default=0), cap_columns(NAME, width))
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


DECISION_NAME_WIDTH, WIDE = 12, 104


def decision_table(
    decisions: Sequence[Decision], letters: Letters, width: int, zone: tzinfo | None
) -> Table:
    """`zone` None: that of this machine."""
    whole = [gives(decision, width >= WIDE) for decision in decisions]
    widths = [3, 8, DECISION_NAME_WIDTH, max(map(len, whole), default=0)]
    drawn = plain_table(("", "AT", "JOB", "IS TO HAVE", "WHY"), (), widths, width)
    drawn.columns[2].max_width = cap_columns(DECISION_NAME_WIDTH, width)
    for decision, given in zip(decisions, whole, strict=True):
        key = f"{decision.namespace}.{decision.job}"
        at = datetime.fromtimestamp(decision.at_s, UTC).astimezone(zone)
        letter = letters.get(key, " ")
        first = Text(f" {letter} ") if letter in (MANY, " ") else badge(letter)
        drawn.add_row(first, f"{at:%H:%M:%S}", Text(decision.job, "bold"), given, _why(decision))
    return drawn


def gives(decision: Decision, in_full: bool) -> str:
    g = decision.gives
    if not g.ps and not g.workers:
        return "no tasks"
    told = format_size(g.ps, g.workers)
    return f"{told}, batch {g.batch}, {format_count(len(g.nodes), 'node')}" if in_full else told


def _why(decision: Decision) -> Text:
    """The reason, and what it foresaw; of what did not come to be, why not."""
    if decision.abandoned:
        return Text(f"given up: {headline(decision.abandoned)}", "bold red")
    gain_s, pause = decision.gain_s, format_duration(decision.cost_s, fine=True)
    foreseen = f" ({format_saving(gain_s)}{pause_preposition(gain_s)} {pause})" if gain_s else ""
    return Text(f"{headline(decision.reason)}{foreseen}")
