"""Bars: each pause by its phases, each epoch, and where the cores that were held went. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from services.console.board.derived import HOUR_S
from services.console.board.story import Stretch
from services.console.report import drawing
from services.console.report.account import Parts
from services.console.report.drawing import Panel, Scale
from services.console.report.words import lasting, number, percent

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


def pauses(stretches: Sequence[Stretch], width: float = drawing.WIDE) -> str:
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


def _begins(stretch: Stretch) -> float:
    """Seconds since the last update; below 0, where the phases together last longer than the
    pause.
    """
    return min((stretch.pause_s or 0.0) - stretch.phases.total_s(), 0.0)


def _pause(one: Stretch, x: Scale, y: float, rows: Rows) -> list[str]:
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


def _name(one: Stretch, x: Scale, y: float, rows: Rows) -> list[str]:
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


def epochs(seconds: Sequence[float], width: float = drawing.WIDE) -> str:
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


def cores(parts: Parts, width: float = drawing.WIDE) -> str:
    """One bar, all that was held; what each part of it is stands in the list below it."""
    x = Scale(0.0, parts.held or 1.0, 0.0, width)
    drawn = list[str]()
    reached = 0.0
    for name, style, said in PARTS:
        amount = float(getattr(parts, name))
        left, right = x.at(reached), x.at(reached + amount)
        title = (
            f"{said}: {number(amount / HOUR_S)} CPU-hours, {percent(amount / (parts.held or 1.0))}"
        )
        drawn.append(drawing.rectangle(left, 4, right - left, 30, f"area {style}", title))
        reached += amount
    return drawing.svg(width, 38, "CPU-hours held, by what they were held for", drawn)
