"""The whole screen of `weir top`: heading, nodes, jobs and the last decisions, cut to its
height.
"""

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
    bar,
    cap_columns,
    cores,
    gib,
    percent,
    plain_table,
    style,
)
from services.console.text.sentences import HOW_TO_SUBMIT
from services.console.top.job_tables import WIDEST, in_order, job_badge, job_table
from shared.messages import (
    Resources,
)
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
"""Lines other than rows: the heading, the sums, three titles with column headings, and space."""
READING = "reading the log …"
"""Shown in place of an empty part until the whole log is read."""
NO_NODES = "no node is known: is the monitor running?"
WAIT = ("Pending", "Starting")
UNITS = {"nodes": f", in cores (A: that job's, {OTHERS} others', {FREE} free)"}


class ScreenOptions(NamedTuple):
    """The state of the program beside the board.

    `cut_s`: the time at which the connection was lost; `zone` None: the zone of this machine;
    `reading`: the board does not have all stored messages yet.
    """

    now_s: float
    where: str
    cut_s: float | None = None
    zone: tzinfo | None = None
    reading: bool = False


class Room(NamedTuple):
    """The number of rows of each part."""

    nodes: int
    jobs: int
    decisions: int


def draw_screen(
    board: Board, look: ScreenOptions, letters: Letters, width: int, height: int | None
) -> Group:
    """Draw the screen. `height` None: all rows."""
    jobs = in_order(board.jobs.values())
    decisions = board.decisions
    space = room(len(board.nodes), len(jobs), len(decisions), height)
    parts: list[RenderableType] = [*_heading(board, look, width)]
    if board.nodes or not look.reading:
        held = {job.key: job.held_resources for job in jobs if job.held}
        parts.append(sum_lines(board.totals, held, letters, width))
    no_nodes = _empty_text(look, NO_NODES)
    parts += _title("nodes", len(board.nodes), space.nodes, no_nodes)
    if board.nodes:
        nodes = shown_first(board.nodes.values(), space.nodes)
        parts.append(node_table(nodes, letters, width))
    no_jobs = _empty_text(look, f"none; {HOW_TO_SUBMIT}")
    reason = _first_reason(jobs, letters, width)
    parts += _title("jobs", len(jobs), space.jobs, no_jobs, reason)
    if jobs:
        parts.append(job_table(jobs[: space.jobs], letters, width))
    no_decisions = _empty_text(look, "none")
    parts += _title("last decisions", len(decisions), space.decisions, no_decisions)
    if decisions:
        newest = decisions[: -space.decisions - 1 : -1]
        parts.append(decision_table(newest, letters, width, look.zone))
    return Group(*parts)


def _empty_text(look: ScreenOptions, text: str) -> str:
    return READING if look.reading else text


def room(nodes: int, jobs: int, decisions: int, height: int | None) -> Room:
    """Divide the rows: a fifth for decisions, the rest in halves for jobs and nodes. A part takes
    the rows that the other one does not need.
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
    left = Text.assemble(("weir top  ", "bold"), _connection_state(look))
    right = Text(f"{at:%Y-%m-%d %H:%M:%S}")
    where = Text(f"  {look.where}", "dim")
    if width < ENDLESS:
        space = max(width - left.cell_len - right.cell_len - 1, 0)
        where.truncate(space, overflow="ellipsis", pad=True)
    yield Text.assemble(left, where, " ", right)
    summary = READING
    if board.nodes or board.jobs or not look.reading:
        nodes, held = format_count(len(board.nodes), "node"), percent(utilisation(board.totals))
        summary = f"{nodes}, {held} of the cores held by jobs; jobs: {_phase_counts(board)}"
    yield Text(summary, no_wrap=True, overflow="ellipsis")


def _connection_state(look: ScreenOptions) -> Text:
    if look.cut_s is not None:
        lasted = format_duration(max(look.now_s - look.cut_s, 0.0))
        return Text(f" NO CONNECTION to the bus for {lasted} ", "bold white on red")
    if look.reading:
        return Text("reading the log", "bold yellow")
    return Text("live", "bold green")


def _phase_counts(board: Board) -> str:
    """Return the number of jobs in each phase; all ended jobs are counted together."""
    phases = Counter[str]()
    ended = 0
    for job in board.jobs.values():
        if is_ended(job.view):
            ended += 1
        else:
            phases[job.view.shown_phase.lower()] += 1
    counts = [f"{number} {phase}" for phase, number in sorted(phases.items())]
    if ended:
        counts.append(f"{ended} ended")
    return ", ".join(counts) or "none"


def _first_reason(jobs: Iterable[JobHistory], letters: Letters, width: int) -> str:
    """Return the reason of the first silent job, otherwise of the first waiting job; empty if the
    table has a column for reasons.
    """
    explained = [job for job in jobs if job.view.shown_phase in (SILENT, *WAIT) and job.view.why]
    if not explained or width >= WIDEST:
        return ""
    first = min(explained, key=lambda job: not job.view.silent)
    return f"; {letters.get(first.key, '')} {headline(first.view.why)}"


def _title(
    title: str, total: int, shown: int, none: str, more: str = ""
) -> Iterator[RenderableType]:
    """Yield a blank line and the title. It has the number of rows that are not shown, or `none`."""
    yield Text()
    left = total - shown
    note = "" if total else f": {none}"
    if left > 0:
        are = "is" if left == 1 else "are"
        note = f"; {left} more {are} not shown"
    notes = f"{UNITS.get(title, '')}{note}{more}"
    yield Text.assemble((title, "bold"), (notes, "dim"), no_wrap=True, overflow="ellipsis")


NAME, FIGURES = 24, 55
"""The most columns of a name; the columns of all numbers and words. The bar has the rest."""
WIDEST_BAR = 64
HEADINGS = ("NODE", "HELD BY", "JOBS", "OTHERS", "FREE", "ALL", "GIB JOBS/ALL", "")


def node_table(nodes: Sequence[Node], letters: Letters, width: int) -> Table:
    longest_name = max((len(node.name) for node in nodes), default=0)
    name = min(longest_name, cap_columns(NAME, width))
    table = plain_table(HEADINGS, HEADINGS[2:7], [name])
    table.columns[0].max_width = max(name, len(HEADINGS[0]))
    for node in nodes:
        table.add_row(*_node_cells(node, letters, bar_width(width - name)))
    return table


def _node_cells(node: Node, letters: Letters, width: int) -> Iterator[Text | str]:
    """Yield the cells of a node, in the order of `HEADINGS`. `width`: of its bar."""
    load = {job: held.cpu for job, held in node.load.items()}
    yield Text(node.name, "bold")
    yield load_bar(load, node.others.cpu, node.free.cpu, letters, width)
    for amount in (node.ours, node.others, node.free, node.allocatable):
        yield cores(amount.cpu)
    yield f"{gib(node.ours.memory_gib)}/{gib(node.allocatable.memory_gib)}"
    yield Text(node.closed, "bold red")


def bar_width(width: int) -> int:
    return min(max(width - FIGURES, 8), WIDEST_BAR)


def load_bar(
    load: Mapping[str, float], others: float, free: float, letters: Letters, width: int
) -> Text:
    """Draw the cores of our jobs, then those of others, then the free ones."""
    parts = []
    for job, amount in load.items():
        letter = letters.get(job, MANY)
        parts.append(Part(amount, letter, style(letter)))
    parts.sort(key=lambda part: (part.character, part.amount))
    return bar([*parts, Part(others, OTHERS), Part(free, FREE, "dim")], width)


def shown_first(nodes: Iterable[Node], most: int) -> list[Node]:
    """Return all nodes by name. If there are too many, those with most cores of ours, then the
    closed ones.
    """
    by_name = sorted(nodes, key=_by_name)
    by_use = sorted(by_name, key=lambda node: (-node.ours.cpu, not node.closed))
    return sorted(by_use[:most], key=_by_name)


def _by_name(node: Node) -> tuple[str | int, ...]:
    """Return a key that sorts node-2 before node-10."""
    parts = re.split(r"(\d{1,18})", node.name)
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def sum_lines(totals: Totals, load: Mapping[str, Resources], letters: Letters, width: int) -> Table:
    """Draw the sums of all nodes: a line for cores, a line for memory. `load`: held by each job."""
    t = totals
    cpu = (t.ours, t.others, t.free, t.allocatable, t.used)
    memory = (t.ours_gib, t.others_gib, t.free_gib, t.allocatable_gib, t.used_gib)
    cores_text = _sum_text(cores, cpu, "cores")
    gib_text = _sum_text(gib, memory, "GiB")
    left = width - max(len(cores_text), len(gib_text)) - 12
    room = max(min(left, WIDEST_BAR), 8)
    by_cores = {job: held.cpu for job, held in load.items()}
    cores_bar = load_bar(by_cores, t.others, t.free, letters, room)
    by_gib = {job: held.memory_gib for job, held in load.items()}
    gib_bar = load_bar(by_gib, t.others_gib, t.free_gib, letters, room)
    table = plain_table(("", "", ""))
    table.add_row(Text("all nodes", "bold"), cores_bar, cores_text)
    table.add_row(Text("memory", "bold"), gib_bar, gib_text)
    return table


def _sum_text(number: Callable[[float], str], amounts: Sequence[float], unit: str) -> str:
    ours, others, free, whole, used = map(number, amounts)
    held = f"jobs {ours}, others {others}, free {free} of {whole} {unit}"
    return f"{held}; used {used}" if amounts[-1] else held


DECISION_NAME_WIDTH, WIDE = 12, 104


def decision_table(
    decisions: Sequence[Decision], letters: Letters, width: int, zone: tzinfo | None
) -> Table:
    """Draw the decisions. `zone` None: the zone of this machine."""
    sizes = [decided_size(decision, width >= WIDE) for decision in decisions]
    widths = [3, 8, DECISION_NAME_WIDTH, max(map(len, sizes), default=0)]
    table = plain_table(("", "AT", "JOB", "NEW SIZE", "WHY"), (), widths, width)
    table.columns[2].max_width = cap_columns(DECISION_NAME_WIDTH, width)
    for decision, size in zip(decisions, sizes, strict=True):
        at = datetime.fromtimestamp(decision.at_s, UTC).astimezone(zone)
        letter = job_badge(letters.get(f"{decision.namespace}.{decision.job}", " "))
        name = Text(decision.job, "bold")
        table.add_row(letter, f"{at:%H:%M:%S}", name, size, _reason(decision))
    return table


def decided_size(decision: Decision, in_full: bool) -> str:
    gives = decision.gives
    if not gives.ps and not gives.workers:
        return "no tasks"
    size = format_size(gives.ps, gives.workers)
    if not in_full:
        return size
    return f"{size}, batch {gives.batch}, {format_count(len(gives.nodes), 'node')}"


def _reason(decision: Decision) -> Text:
    """Return the reason and the forecast; for an abandoned generation the cause of that."""
    if decision.abandoned:
        return Text(f"abandoned: {headline(decision.abandoned)}", "bold red")
    gain_s = decision.gain_s
    forecast = ""
    if gain_s:
        pause = format_duration(decision.cost_s, fine=True)
        forecast = f" ({format_saving(gain_s)}{pause_preposition(gain_s)} {pause})"
    return Text(f"{headline(decision.reason)}{forecast}")
