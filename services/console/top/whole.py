"""The screen: a heading, the nodes, the jobs, the last decisions; as much of each as there is room
for. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from services.allocator.job_views import SILENT
from services.cli.absence import ASK
from services.console.board.board import Board
from services.console.board.derived import over, utilisation
from services.console.board.story import Story
from services.console.top.cells import percent
from services.console.top.decision_table import decision_table
from services.console.top.fitting import ENDLESS
from services.console.top.job_table import WIDEST, in_order, job_table
from services.console.top.node_table import node_table, shown_first, sum_lines
from services.console.top.palette import FREE, OTHERS, Letters
from shared.messages import Resources
from shared.text import format_count, format_duration, headline

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


class Look(NamedTuple):
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


def whole(board: Board, look: Look, letters: Letters, width: int, height: int | None) -> Group:
    """`height` None: everything, however long."""
    jobs = in_order(board.jobs.values())
    space = room(len(board.nodes), len(jobs), len(board.decisions), height)
    return Group(
        *_heading(board, look, width),
        *(
            []
            if look.reading and not board.nodes
            else [sum_lines(board.totals, _held(jobs), letters, width)]
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


def _held(jobs: Iterable[Story]) -> dict[str, Resources]:
    return {job.key: job.holding for job in jobs if job.held}


def _none(look: Look, said: str) -> str:
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


def _heading(board: Board, look: Look, width: int) -> Iterator[Text]:
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


def _state(look: Look) -> Text:
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
    phases = Counter(job.view.shown_phase for job in board.jobs.values() if not over(job.view))
    ended = sum(over(job.view) for job in board.jobs.values())
    told = [f"{number} {phase.lower()}" for phase, number in sorted(phases.items())]
    return ", ".join([*told, *([f"{ended} over"] if ended else [])]) or "none"


def _waits(jobs: Iterable[Story], letters: Letters, width: int) -> str:
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
