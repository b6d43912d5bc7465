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
"""Units of width from which a pause's name stands beside its bar, and not above it."""
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
WAITING = ("pale", "waiting: decided, ready, connected, traced")
BARS_MOST = 60
TICK, NUMBER = 160.0, 96.0
"""From one number of an axis to the next, about: seconds of a pause, epochs."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """How pauses lie below each other; `above`: of a row, what its name takes of it."""

    left: float
    right: float
    height: float
    above: float = 0.0


def _rows(width: float) -> Rows:
    if width >= ROOMY:
        return Rows(left=LEFT, right=width - RIGHT, height=ROW)
    return Rows(left=EDGE, right=width - EDGE, height=ROW + drawing.LINE, above=drawing.LINE)


def draw_pauses(stretches: Sequence[GenerationSpan], width: float = drawing.WIDE) -> str:
    """A row each: from 0, the last update before, to the first one after it, by the ps' clocks. Its
    phases lie after each other at its end; those that begin left of 0 began while updates were
    still applied.
    """
    rows = _rows(width)
    paused = [one for one in stretches if one.pause_s is not None][-BARS_MOST:]
    longest = max((one.pause_s or 0.0 for one in paused), default=0.0)
    x = Scale(
        min((_begins(one) for one in paused), default=0.0), longest or 1.0, rows.left, rows.right
    )
    entries = [WAITING, *((style, said) for _, style, said in PHASES)]
    told, last = drawing.key(rows.left, 14, width, entries, filled=True, left=rows.left)
    top, floor = last + 14, last + 14 + len(paused) * rows.height
    drawn = [told]
    for row, one in enumerate(paused):
        drawn += _pause(one, x, top + row * rows.height, rows)
    drawn += _axis(x, top - 4, floor, drawing.about(width, TICK))
    return drawing.svg(
        width, floor + 40, "pauses by phase, in seconds since the last update", drawn
    )


def _begins(stretch: GenerationSpan) -> float:
    """Seconds since the last update; below 0, where the phases together last longer than the
    pause.
    """
    return min((stretch.pause_s or 0.0) - stretch.phases.total_s(), 0.0)


def _pause(one: GenerationSpan, x: Scale, y: float, rows: Rows) -> list[str]:
    waiting_s = one.phases.waiting_s(one.pause_s or 0.0)
    spans = [
        (waiting_s, *WAITING),
        *((float(getattr(one.phases, name)), style, said) for name, style, said in PHASES),
    ]
    drawn, reached = _name(one, x, y, rows), _begins(one)
    y += rows.above
    for seconds, style, said in spans:
        left, right = x.at(reached), x.at(reached + seconds)
        drawn.append(
            drawing.rectangle(
                left, y, right - left, ROW - 7, f"area {style}", f"{said}: {lasting(seconds)}"
            )
        )
        reached += seconds
    return drawn


def _name(one: GenerationSpan, x: Scale, y: float, rows: Rows) -> list[str]:
    """Which it is and how long: at both ends of its bar, or above it."""
    name, long = f"generation {one.generation}", lasting(one.pause_s)
    if rows.above:
        return [drawing.words(rows.left + 4, y + 12, f"{name}: {long}", "key")]
    beside = drawing.words(rows.left - 8, y + 13, name, "tick", "end")
    return [beside, drawing.words(x.at(one.pause_s or 0.0) + 8, y + 13, long, "key")]


def _axis(x: Scale, top: float, y: float, about: int) -> list[str]:
    drawn = [f'<path d="M{x.at(0.0):.1f} {top:.1f}V{y:.1f}" class="rule"/>']
    for value in drawing.ticks(x.high, about, x.low):
        drawn.append(f'<path d="M{x.at(value):.1f} {y:.1f}v5" class="rule"/>')
        drawn.append(drawing.words(x.at(value), y + 18, drawing.label(value), "tick", "middle"))
    return [*drawn, drawing.words(x.to_px, y + 34, "seconds since the last update", "tick", "end")]


def draw_epochs(seconds: Sequence[float], width: float = drawing.WIDE) -> str:
    """A bar each: how long it took."""
    height = 110.0
    left = 62.0
    right = width - EDGE
    high = max(seconds)
    panel = Panel(
        Scale(0.5, len(seconds) + 0.5, left, right), Scale(0.0, high * 1.08, 12 + height, 12)
    )
    drawn = [drawing.grid(panel, drawing.ticks(high, 3))]
    thick = min((right - left) / len(seconds) * 0.7, 40.0)
    for at, each in enumerate(seconds, start=1):
        y = panel.y.at(each)
        box = (panel.x.at(at) - thick / 2, y, thick, panel.y.from_px - y)
        drawn.append(drawing.rectangle(*box, "area blue", f"epoch {at}: {lasting(each)}"))
    for at in _whole_ticks(len(seconds), drawing.about(width, NUMBER)):
        drawn.append(drawing.words(panel.x.at(at), 12 + height + 16, str(at), "tick", "middle"))
    drawn.append(drawing.words(right, 12 + height + 33, "epoch", "tick", "end"))
    return drawing.svg(width, 12 + height + 40, "seconds of each epoch", drawn)


def _whole_ticks(most: int, about: int) -> list[int]:
    return sorted({max(1, round(value)) for value in drawing.ticks(most, about)} | {1})


def draw_core_hours(parts: Parts, width: float = drawing.WIDE) -> str:
    """One bar, all that was held; what each part of it is stands in the list below it."""
    x = Scale(0.0, parts.held_total or 1.0, 0.0, width)
    drawn = list[str]()
    reached = 0.0
    for name, style, said in PARTS:
        amount = float(getattr(parts, name))
        left, right = x.at(reached), x.at(reached + amount)
        title = f"{said}: {number(amount / HOUR_S)} CPU-hours, {percent(amount / (parts.held_total or 1.0))}"
        drawn.append(drawing.rectangle(left, 4, right - left, 30, f"area {style}", title))
        reached += amount
    return drawing.svg(width, 38, "CPU-hours held, by what they were held for", drawn)


TIMELINE_LEFT, TIMELINE_RIGHT = 62.0, 14.0
HEAD = 16.0
UNDER = 10.0
GAP = 20.0
"""Above a heading's first line, below its last, below a panel."""
TIMELINE_TICK = 120.0
"""From one time on the axis to the next, about."""
MARK = 22.0
"""Pixels of a decision's number, at least, and of a row of them."""
ROWS = 4
BOLD = 1.12
"""Of a heading's letters, against others."""
ROOM = 1.08
"""Above the largest value."""


class Sheet:
    """Panels below each other, each under its heading: all take their height, and say where the
    next begins.
    """

    def __init__(self, account: Account, story: JobHistory, width: float) -> None:
        self.from_s, self.until = account.from_s, max(account.completion_s, 1e-3)
        self.unit: Unit = drawing.unit_of(self.until)
        self.story = story
        self.width = width
        self.top = 4.0
        self.x = Scale(0.0, self.until, TIMELINE_LEFT, width - TIMELINE_RIGHT)
        self.drawn: list[str] = []

    def since(self, at_s: float) -> float:
        """Seconds since submission, within the time that is drawn."""
        return min(max(at_s - self.from_s, 0.0), self.until)

    def heading(
        self, said: str, entries: Sequence[tuple[str, str]] = (), filled: bool = False
    ) -> None:
        """In one line with what its lines and areas are, where there is room."""
        y, lines = self.top + HEAD, drawing.wrap_text(said, self.width, BOLD)
        for row, part in enumerate(lines):
            self.drawn.append(drawing.words(0, y + row * drawing.LINE, part, "name"))
        y += (len(lines) - 1) * drawing.LINE
        told, y = drawing.key(drawing.wide(lines[-1]) * BOLD + 30, y, self.width, entries, filled)
        self.drawn.append(told)
        self.top = y + UNDER

    def panel(self, height: float, high: float, low: float = 0.0, whole: bool = False) -> Panel:
        """The next one, with its pauses and the lines of its grid; `whole`: at whole numbers
        only.
        """
        top = self.top
        high = high if high > low else low + 1.0
        panel = Panel(self.x, Scale(low, low + (high - low) * ROOM, top + height, top))
        self.top = top + height + GAP
        values = [value for value in drawing.ticks(high, 3, low) if not whole or value.is_integer()]
        self.drawn += [drawing.grid(panel, values), *self._pauses(panel)]
        return panel

    def _pauses(self, panel: Panel) -> Iterable[str]:
        for stretch in self.story.stretches:
            if stretch.pause_s is not None:
                at_s = stretch.resumed_s
                title = (
                    f"pause of {lasting(stretch.pause_s)} before generation {stretch.generation}"
                )
                began_s = at_s - stretch.pause_s
                yield drawing.band(panel, self.since(began_s), self.since(at_s), "pause", title)
                yield from self._off(panel, began_s, stretch.off_s)

    def _off(self, panel: Panel, to_s: float, seconds: float) -> Iterable[str]:
        if seconds:
            title = f"the cluster was off for {lasting(seconds)}"
            yield drawing.band(panel, self.since(to_s - seconds), self.since(to_s), "off", title)

    def axis(self) -> None:
        """The times, below what was drawn so far."""
        y = self.top - GAP + 16
        high = self.until / self.unit.seconds
        for value in drawing.ticks(high, drawing.about(self.width, TIMELINE_TICK)):
            x = self.x.at(value * self.unit.seconds)
            self.drawn.append(f'<path d="M{x:.1f} {y - 16:.1f}v5" class="rule"/>')
            self.drawn.append(drawing.words(x, y, drawing.label(value), "tick", "middle"))
        self.drawn.append(
            drawing.words(
                self.width - TIMELINE_RIGHT,
                y + 18,
                f"{self.unit.name} since submission",
                "tick",
                "end",
            )
        )
        self.top = y + 26


def draw_timeline(
    board: Board,
    story: JobHistory,
    account: Account,
    came: Sequence[DecisionResult],
    width: float = drawing.WIDE,
) -> str:
    sheet = Sheet(account, story, width)
    _tasks(sheet, story)
    _throughput(sheet, story)
    _loss(sheet, story)
    _cores(sheet, story)
    _cluster(sheet, board)
    sheet.axis()
    _decisions(sheet, came)
    return drawing.svg(width, sheet.top, f"job {story.key} over time", sheet.drawn)


# ---------------------------------------------------------------- panels


def _tasks(sheet: Sheet, story: JobHistory) -> None:
    known = [stretch for stretch in story.stretches if stretch.gives]
    if not known:
        return
    sizes = [(s.gives.ps, s.gives.workers) for s in known if s.gives]
    sheet.heading("Tasks that train", [("blue", "workers"), ("orange dashed", "ps")])
    panel = sheet.panel(70, max(max(size) for size in sizes), whole=True)
    for style, index in (("blue", 1), ("orange dashed", 0)):
        points = [
            (sheet.since(s.resumed_s), float(size[index]))
            for s, size in zip(known, sizes, strict=True)
        ]
        sheet.drawn.append(drawing.steps(panel, points, _last(sheet, known), style))


def _last(sheet: Sheet, stretches: Sequence[GenerationSpan]) -> float:
    return sheet.since(stretches[-1].ended_s) if stretches[-1].ended_s else sheet.until


def _throughput(sheet: Sheet, story: JobHistory) -> None:
    if not story.reports:
        return
    sheet.heading("Throughput, examples a second", [("blue", "as each report says")])
    panel = sheet.panel(110, max(report.samples_per_second for report in story.reports))
    for run in _runs(sheet, story, lambda report: report.samples_per_second):
        sheet.drawn.append(drawing.line(panel, run, "blue"))


def _loss(sheet: Sheet, story: JobHistory) -> None:
    told = [report.loss for report in story.reports if report.loss is not None]
    if not told:
        return
    sheet.heading("Loss, mean of the examples since the report before")
    panel = sheet.panel(90, max(told), min(0.0, *told))
    for run in _runs(sheet, story, lambda report: report.loss):
        sheet.drawn.append(drawing.line(panel, run, "green"))


def _runs(
    sheet: Sheet, story: JobHistory, value: Callable[[Report], float | None]
) -> Iterable[list[Point]]:
    """A line for each generation, so that none goes through a pause."""
    for generation in dict.fromkeys(report.generation for report in story.reports):
        own = [report for report in story.reports if report.generation == generation]
        yield [
            (sheet.since(report.at_s), number)
            for report in own
            if (number := value(report)) is not None
        ]


def _cores(sheet: Sheet, story: JobHistory) -> None:
    held = [(sheet.since(point.at_s), point.cpu) for point in story.held]
    if not held:
        return
    sheet.heading(
        "Cores of this job",
        [("sky", "held: requests of its pods"), ("green dashed", "used, as measured")],
    )
    panel = sheet.panel(90, max(cpu for _, cpu in held))
    corners = drawing.step_points(held, sheet.until)
    sheet.drawn.append(drawing.area(panel, corners, [(x, 0.0) for x, _ in corners], "sky"))
    sheet.drawn.append(drawing.line(panel, corners, "sky"))
    for run in _runs(sheet, story, lambda report: report.cpu):
        sheet.drawn.append(drawing.line(panel, run, "green dashed"))


def _cluster(sheet: Sheet, board: Board) -> None:
    """Stacked from the floor; between two facts all is as the earlier one says."""
    end_s = sheet.from_s + sheet.until
    before = [t for t in board.cluster if t.at_s < sheet.from_s][-1:]
    shown = [*before, *(t for t in board.cluster if sheet.from_s <= t.at_s <= end_s)]
    if not shown:
        return
    parts = [("blue", "jobs of Weir"), ("orange hatched", "others"), ("pale", "free")]
    sheet.heading("Cores of the cluster", parts, filled=True)
    panel = sheet.panel(90, max(total.ours + total.others + total.free for total in shown))
    floor = [0.0] * len(shown)
    for style, part in (("blue", "ours"), ("orange hatched", "others"), ("pale", "free")):
        ceiling = [low + getattr(total, part) for low, total in zip(floor, shown, strict=True)]
        sheet.drawn.append(
            drawing.area(panel, _steps(sheet, shown, ceiling), _steps(sheet, shown, floor), style)
        )
        floor = ceiling


def _steps(sheet: Sheet, shown: Sequence[Totals], values: Sequence[float]) -> list[Point]:
    times = [sheet.since(total.at_s) for total in shown]
    return drawing.step_points(list(zip(times, values, strict=True)), sheet.until)


def _decisions(sheet: Sheet, came: Sequence[DecisionResult]) -> None:
    """A number each, in the first row that has room; what finds none is in the table alone."""
    sheet.drawn.append(drawing.words(0, sheet.top + 12, "Decisions", "name"))
    sheet.top += 20
    taken = [TIMELINE_LEFT - MARK] * ROWS
    for one in came:
        x = sheet.x.at(sheet.since(one.outcome.decision.at_s))
        row = next((row for row, until in enumerate(taken) if x - MARK / 2 >= until), None)
        if row is not None:
            taken[row] = x + MARK / 2
            sheet.drawn.append(_mark(x, sheet.top + row * MARK, one))
    sheet.top += (
        MARK
        * max(
            (row + 1 for row, until in enumerate(taken) if until > TIMELINE_LEFT - MARK), default=1
        )
        + 6
    )


def _mark(x: float, y: float, one: DecisionResult) -> str:
    said = one.outcome.decision
    shape = drawing.rectangle(x - 10, y, 20, 18, "mark", f"{said.reason}")
    return f'<a href="#decision-{one.number}">{shape}{drawing.words(x, y + 13, str(one.number), "number", "middle")}</a>'
