"""Charts of the report: pauses by phase, epochs, the use of cores, and the job over time.

The chart over time has tasks, throughput, loss, cores and the cluster, one above the other on one
time axis. Pauses are bands through all of it; decisions are numbers below it that link to their row
of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from services.console.board.board import Board
from services.console.board.cluster import Totals
from services.console.board.figures import HOUR_S
from services.console.board.job_history import GenerationSpan, JobHistory, Report
from services.console.report import drawing
from services.console.report.account import Account, DecisionResult, Parts
from services.console.report.drawing import Panel, Point, Scale, Unit, lasting, number, percent

LEFT = 110.0
RIGHT = 90.0
ROW = 24.0
EDGE = 14.0
ROOMY = 600.0
"""Wider drawings have the name of a pause beside its bar, narrower ones above it."""
PHASES = (
    ("drain_s", "sky", "drain"),
    ("save_s", "blue hatched", "save"),
    ("restore_s", "orange", "restore"),
    ("first_step_s", "green hatched", "first step"),
)
PARTS = (
    ("starting", "sky", "before the first update"),
    ("training", "blue", "training"),
    ("beside", "orange hatched", "beside it: preparing, leaving"),
    ("paused", "red", "paused"),
    ("ending", "pale", "after the end"),
)
WAITING = ("pale", "waiting: decision, tasks, connect, trace")
BARS_MOST = 60
TICK, NUMBER = 160.0, 96.0
"""The approximate distance in pixels between two numbers of an axis: seconds of a pause, epochs."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of the rows of pauses. `above`: the part of a row's height that its name takes."""

    left: float
    right: float
    height: float
    above: float = 0.0


def _row_layout(width: float) -> Rows:
    if width >= ROOMY:
        return Rows(left=LEFT, right=width - RIGHT, height=ROW)
    return Rows(left=EDGE, right=width - EDGE, height=ROW + drawing.LINE, above=drawing.LINE)


def draw_pauses(stretches: Sequence[GenerationSpan], width: float = drawing.WIDE) -> str:
    """Draw a row for each pause, from the last update before it (0) to the first update after it.

    Times are those of the ps. The phases of a pause lie one after the other at its end; phases left
    of 0 ran while updates were still applied.
    """
    rows = _row_layout(width)
    paused = [stretch for stretch in stretches if stretch.pause_s is not None][-BARS_MOST:]
    longest = earliest = 0.0
    for stretch in paused:
        longest = max(longest, stretch.pause_s or 0.0)
        earliest = min(earliest, _phases_start_s(stretch))
    x = Scale(earliest, longest or 1.0, rows.left, rows.right)
    entries = [WAITING]
    for _, style, label in PHASES:
        entries.append((style, label))
    legend, last = drawing.key(rows.left, 14, width, entries, filled=True, left=rows.left)
    top = last + 14
    floor = top + len(paused) * rows.height
    drawn = [legend]
    for row, stretch in enumerate(paused):
        drawn += _draw_pause(stretch, x, top + row * rows.height, rows)
    drawn += _pause_axis(x, top - 4, floor, drawing.about(width, TICK))
    title = "pauses by phase, in seconds since the last update"
    return drawing.svg(width, floor + 40, title, drawn)


def _phases_start_s(stretch: GenerationSpan) -> float:
    """Return the start of the phases in seconds since the last update; below 0 if they are longer
    than the pause.
    """
    return min((stretch.pause_s or 0.0) - stretch.phases.total_s(), 0.0)


def _draw_pause(stretch: GenerationSpan, x: Scale, y: float, rows: Rows) -> list[str]:
    spans = [(stretch.phases.waiting_s(stretch.pause_s or 0.0), *WAITING)]
    for name, style, label in PHASES:
        spans.append((float(getattr(stretch.phases, name)), style, label))
    drawn = _pause_label(stretch, x, y, rows)
    reached = _phases_start_s(stretch)
    y += rows.above
    for seconds, style, label in spans:
        left, right = x.at(reached), x.at(reached + seconds)
        title = f"{label}: {lasting(seconds)}"
        drawn.append(drawing.rectangle(left, y, right - left, ROW - 7, f"area {style}", title))
        reached += seconds
    return drawn


def _pause_label(stretch: GenerationSpan, x: Scale, y: float, rows: Rows) -> list[str]:
    """Draw the generation and the length of its pause at both ends of the bar, or above it."""
    name, length = f"generation {stretch.generation}", lasting(stretch.pause_s)
    if rows.above:
        return [drawing.words(rows.left + 4, y + 12, f"{name}: {length}", "key")]
    end = x.at(stretch.pause_s or 0.0)
    before = drawing.words(rows.left - 8, y + 13, name, "tick", "end")
    after = drawing.words(end + 8, y + 13, length, "key")
    return [before, after]


def _pause_axis(x: Scale, top: float, y: float, about: int) -> list[str]:
    drawn = [f'<path d="M{x.at(0.0):.1f} {top:.1f}V{y:.1f}" class="rule"/>']
    for value in drawing.ticks(x.high, about, x.low):
        at = x.at(value)
        drawn.append(f'<path d="M{at:.1f} {y:.1f}v5" class="rule"/>')
        drawn.append(drawing.words(at, y + 18, drawing.label(value), "tick", "middle"))
    drawn.append(drawing.words(x.to_px, y + 34, "seconds since the last update", "tick", "end"))
    return drawn


def draw_epochs(seconds: Sequence[float], width: float = drawing.WIDE) -> str:
    """Draw a bar for the seconds of each epoch."""
    top, floor = 12.0, 122.0
    left, right = 62.0, width - EDGE
    most = len(seconds)
    high = max(seconds)
    x = Scale(0.5, most + 0.5, left, right)
    y = Scale(0.0, high * 1.08, floor, top)
    drawn = [drawing.grid(Panel(x, y), drawing.ticks(high, 3))]
    thick = min((right - left) / most * 0.7, 40.0)
    for epoch, epoch_s in enumerate(seconds, start=1):
        title = f"epoch {epoch}: {lasting(epoch_s)}"
        start, end = x.at(epoch) - thick / 2, y.at(epoch_s)
        drawn.append(drawing.rectangle(start, end, thick, floor - end, "area blue", title))
    for epoch in _epoch_ticks(most, drawing.about(width, NUMBER)):
        drawn.append(drawing.words(x.at(epoch), floor + 16, str(epoch), "tick", "middle"))
    drawn.append(drawing.words(right, floor + 33, "epoch", "tick", "end"))
    return drawing.svg(width, floor + 40, "seconds of each epoch", drawn)


def _epoch_ticks(most: int, about: int) -> list[int]:
    epochs = [max(1, round(value)) for value in drawing.ticks(most, about)]
    return sorted({1, *epochs})


def draw_core_hours(parts: Parts, width: float = drawing.WIDE) -> str:
    """Draw all CPU-hours held as one bar, divided by purpose. The list below it has the figures."""
    total = parts.held_total or 1.0
    x = Scale(0.0, total, 0.0, width)
    drawn = list[str]()
    reached = 0.0
    for name, style, label in PARTS:
        amount = float(getattr(parts, name))
        left, right = x.at(reached), x.at(reached + amount)
        title = f"{label}: {number(amount / HOUR_S)} CPU-hours, {percent(amount / total)}"
        drawn.append(drawing.rectangle(left, 4, right - left, 30, f"area {style}", title))
        reached += amount
    return drawing.svg(width, 38, "CPU-hours held, by purpose", drawn)


TIMELINE_LEFT, TIMELINE_RIGHT = 62.0, 14.0
HEAD = 16.0
UNDER = 10.0
GAP = 20.0
"""Pixels above the first line of a heading, below its last line, and below a panel."""
TIMELINE_TICK = 120.0
"""The approximate distance in pixels between two numbers of the time axis."""
MARK = 22.0
"""The least width of a decision's number and the height of a row of numbers, in pixels."""
ROWS = 4
BOLD = 1.12
"""The width of a heading's letters in relation to labels."""
ROOM = 1.08
"""The height of a panel in relation to its largest value."""


class Sheet:
    """Panels one below the other, each under its heading. `top`: the y of the next one."""

    def __init__(self, account: Account, story: JobHistory, width: float) -> None:
        self.from_s, self.until = account.from_s, max(account.completion_s, 1e-3)
        self.unit: Unit = drawing.unit_of(self.until)
        self.story = story
        self.width = width
        self.top = 4.0
        self.x = Scale(0.0, self.until, TIMELINE_LEFT, width - TIMELINE_RIGHT)
        self.drawn: list[str] = []

    def since(self, at_s: float) -> float:
        """Return the seconds since submission, limited to the time that is drawn."""
        return min(max(at_s - self.from_s, 0.0), self.until)

    def heading(
        self, text: str, entries: Sequence[tuple[str, str]] = (), filled: bool = False
    ) -> None:
        """Draw a heading; its legend is on the last line if there is room, otherwise below."""
        y = self.top + HEAD
        lines = drawing.wrap_text(text, self.width, BOLD)
        for row, line in enumerate(lines):
            self.drawn.append(drawing.words(0, y + row * drawing.LINE, line, "name"))
        y += (len(lines) - 1) * drawing.LINE
        indent = drawing.wide(lines[-1]) * BOLD + 30
        legend, y = drawing.key(indent, y, self.width, entries, filled)
        self.drawn.append(legend)
        self.top = y + UNDER

    def panel(self, height: float, high: float, low: float = 0.0, whole: bool = False) -> Panel:
        """Draw the next panel with its grid and the pauses. `whole`: grid lines at whole
        numbers.
        """
        top = self.top
        high = high if high > low else low + 1.0
        panel = Panel(self.x, Scale(low, low + (high - low) * ROOM, top + height, top))
        self.top = top + height + GAP
        values = drawing.ticks(high, 3, low)
        if whole:
            values = [value for value in values if value.is_integer()]
        self.drawn.append(drawing.grid(panel, values))
        for stretch in self.story.generation_spans:
            self._draw_pause(panel, stretch)
        return panel

    def _draw_pause(self, panel: Panel, stretch: GenerationSpan) -> None:
        """Draw the pause before a generation, and the time before it while the cluster was off."""
        if stretch.pause_s is None:
            return
        end_s = stretch.resumed_s
        start_s = end_s - stretch.pause_s
        title = f"pause of {lasting(stretch.pause_s)} before generation {stretch.generation}"
        self._draw_band(panel, start_s, end_s, "pause", title)
        if stretch.off_s:
            title = f"the cluster was off for {lasting(stretch.off_s)}"
            self._draw_band(panel, start_s - stretch.off_s, start_s, "off", title)

    def _draw_band(self, panel: Panel, from_s: float, to_s: float, style: str, title: str) -> None:
        band = drawing.band(panel, self.since(from_s), self.since(to_s), style, title)
        self.drawn.append(band)

    def axis(self) -> None:
        """Draw the axis of time below the last panel."""
        y = self.top - GAP + 16
        high = self.until / self.unit.seconds
        for value in drawing.ticks(high, drawing.about(self.width, TIMELINE_TICK)):
            x = self.x.at(value * self.unit.seconds)
            self.drawn.append(f'<path d="M{x:.1f} {y - 16:.1f}v5" class="rule"/>')
            self.drawn.append(drawing.words(x, y, drawing.label(value), "tick", "middle"))
        right = self.width - TIMELINE_RIGHT
        label = f"{self.unit.name} since submission"
        self.drawn.append(drawing.words(right, y + 18, label, "tick", "end"))
        self.top = y + 26


def draw_timeline(
    board: Board,
    story: JobHistory,
    account: Account,
    results: Sequence[DecisionResult],
    width: float = drawing.WIDE,
) -> str:
    sheet = Sheet(account, story, width)
    _draw_tasks(sheet, story)
    _draw_throughput(sheet, story)
    _draw_loss(sheet, story)
    _draw_cores(sheet, story)
    _draw_cluster(sheet, board)
    sheet.axis()
    _draw_decisions(sheet, results)
    return drawing.svg(width, sheet.top, f"job {story.key} over time", sheet.drawn)


# ---------------------------------------------------------------- panels


def _draw_tasks(sheet: Sheet, story: JobHistory) -> None:
    workers, ps = list[Point](), list[Point]()
    most = 0
    ended_s: float | None = None
    for stretch in story.generation_spans:
        if stretch.gives:
            x = sheet.since(stretch.resumed_s)
            workers.append((x, float(stretch.gives.workers)))
            ps.append((x, float(stretch.gives.ps)))
            most = max(most, stretch.gives.workers, stretch.gives.ps)
            ended_s = stretch.ended_s
    if not workers:
        return
    sheet.heading("Tasks that train", [("blue", "workers"), ("orange dashed", "ps")])
    panel = sheet.panel(70, float(most), whole=True)
    end = sheet.since(ended_s) if ended_s else sheet.until
    sheet.drawn.append(drawing.steps(panel, workers, end, "blue"))
    sheet.drawn.append(drawing.steps(panel, ps, end, "orange dashed"))


def _draw_throughput(sheet: Sheet, story: JobHistory) -> None:
    if not story.reports:
        return
    sheet.heading("Throughput, examples a second", [("blue", "as reported")])
    panel = sheet.panel(110, max(report.samples_per_second for report in story.reports))
    for line in _generation_lines(sheet, story, lambda report: report.samples_per_second):
        sheet.drawn.append(drawing.line(panel, line, "blue"))


def _draw_loss(sheet: Sheet, story: JobHistory) -> None:
    losses = [report.loss for report in story.reports if report.loss is not None]
    if not losses:
        return
    sheet.heading("Loss, mean of the examples since the report before")
    panel = sheet.panel(90, max(losses), min(0.0, *losses))
    for line in _generation_lines(sheet, story, lambda report: report.loss):
        sheet.drawn.append(drawing.line(panel, line, "green"))


def _generation_lines(
    sheet: Sheet, story: JobHistory, value: Callable[[Report], float | None]
) -> Iterable[list[Point]]:
    """Return a line for each generation, so that no line crosses a pause."""
    lines: dict[int, list[Point]] = {}
    for report in story.reports:
        line = lines.setdefault(report.generation, [])
        number = value(report)
        if number is not None:
            line.append((sheet.since(report.at_s), number))
    return lines.values()


def _draw_cores(sheet: Sheet, story: JobHistory) -> None:
    if not story.held:
        return
    held = [(sheet.since(point.at_s), point.cpu) for point in story.held]
    entries = [("sky", "held: requests of its pods"), ("green dashed", "used, as measured")]
    sheet.heading("Cores of this job", entries)
    panel = sheet.panel(90, max(point.cpu for point in story.held))
    corners = drawing.step_points(held, sheet.until)
    floor = [(x, 0.0) for x, _ in corners]
    sheet.drawn.append(drawing.area(panel, corners, floor, "sky"))
    sheet.drawn.append(drawing.line(panel, corners, "sky"))
    for line in _generation_lines(sheet, story, lambda report: report.cpu):
        sheet.drawn.append(drawing.line(panel, line, "green dashed"))


CLUSTER_PARTS = (
    ("ours", "blue", "jobs of Weir"),
    ("others", "orange hatched", "others"),
    ("free", "pale", "free"),
)


def _draw_cluster(sheet: Sheet, board: Board) -> None:
    """Draw the cores of the cluster, stacked. A fact counts until the next one."""
    end_s = sheet.from_s + sheet.until
    before, shown = list[Totals](), list[Totals]()
    for total in board.cluster:
        if total.at_s < sheet.from_s:
            before = [total]
        elif total.at_s <= end_s:
            shown.append(total)
    shown = before + shown
    if not shown:
        return
    entries = [(style, label) for _, style, label in CLUSTER_PARTS]
    sheet.heading("Cores of the cluster", entries, filled=True)
    panel = sheet.panel(90, max(total.ours + total.others + total.free for total in shown))
    sums = [0.0] * len(shown)
    floor = _steps(sheet, shown, sums)
    for part, style, _ in CLUSTER_PARTS:
        for index, total in enumerate(shown):
            sums[index] += getattr(total, part)
        ceiling = _steps(sheet, shown, sums)
        sheet.drawn.append(drawing.area(panel, ceiling, floor, style))
        floor = ceiling


def _steps(sheet: Sheet, shown: Sequence[Totals], values: Sequence[float]) -> list[Point]:
    times = [sheet.since(total.at_s) for total in shown]
    return drawing.step_points(list(zip(times, values, strict=True)), sheet.until)


def _draw_decisions(sheet: Sheet, results: Sequence[DecisionResult]) -> None:
    """Draw a number for each decision in the first row with room. Decisions without room are only
    in the table.
    """
    sheet.drawn.append(drawing.words(0, sheet.top + 12, "Decisions", "name"))
    sheet.top += 20
    occupied = [TIMELINE_LEFT - MARK] * ROWS
    rows_used = 1
    for result in results:
        x = sheet.x.at(sheet.since(result.outcome.decision.at_s))
        for row, until in enumerate(occupied):
            if x - MARK / 2 >= until:
                occupied[row] = x + MARK / 2
                rows_used = max(rows_used, row + 1)
                sheet.drawn.append(_draw_decision(x, sheet.top + row * MARK, result))
                break
    sheet.top += MARK * rows_used + 6


def _draw_decision(x: float, y: float, result: DecisionResult) -> str:
    """Draw the number of a decision as a link to its row of the table."""
    shape = drawing.rectangle(x - 10, y, 20, 18, "mark", result.outcome.decision.reason)
    text = drawing.words(x, y + 13, str(result.number), "number", "middle")
    return f'<a href="#decision-{result.number}">{shape}{text}</a>'
