"""Lines, steps and bars as SVG: a panel is a box with two scales, and everything in it is given in
its own units. Pure.

Colours are names of the page's style, so that a drawing is right in light and dark; dashes and
patterns say the same once more, for who does not tell colours apart.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from shared.text import MINUS

Point = tuple[float, float]
WIDE, NARROW = 960.0, 320.0
"""Units of a drawing from side to side; of the two that the page has of each, a phone shows the
narrow one.
"""
LETTER = 7.3
"""Pixels of a letter at the size of labels (12 px): the widest usual one; so nothing that is placed
by it overlaps.
"""
LINE = 16.0
"""From one line of labels to the next."""
WHOLE_HOURS, WHOLE_MINUTES = 5 * 3_600, 10 * 60
STEPS = (1, 2, 5, 10)
OF_SIXTY = (1, 2, 5, 10, 15, 30, 60)


class Scale(msgspec.Struct, frozen=True):
    """From values `low` to `high`, to pixels."""

    low: float
    high: float
    from_px: float
    to_px: float

    def at(self, value: float) -> float:
        span = self.high - self.low
        return (
            self.from_px + (value - self.low) / span * (self.to_px - self.from_px)
            if span
            else self.from_px
        )


class Panel(msgspec.Struct, frozen=True):
    """A box of a drawing; `y.from_px` is its floor."""

    x: Scale
    y: Scale


class Unit(msgspec.Struct, frozen=True):
    """Of a time axis: how many seconds one of it has, and its name."""

    seconds: float
    name: str


def unit_of(seconds: float) -> Unit:
    if seconds > WHOLE_HOURS:
        return Unit(3_600.0, "hours")
    return Unit(60.0, "minutes") if seconds > WHOLE_MINUTES else Unit(1.0, "seconds")


def ticks(high: float, wanted: int = 4, low: float = 0.0) -> list[float]:
    """Round values from `low` (included, if it is round) to `high`: about so many."""
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(s * power for s in STEPS if span / (s * power) <= wanted + 0.5 or s == STEPS[-1])
    return [
        round(step * n, 12)
        for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def about(width: float, apart: float) -> int:
    """How many values of an axis have room, where one takes so much; never too few to read
    between.
    """
    return max(round(width / apart), 4)


def label(value: float) -> str:
    return f"{value:,.6g}".replace("-", MINUS) if abs(value) < 1e6 else f"{value / 1e6:,.6g} M"


# ---------------------------------------------------------------- elements


def line(panel: Panel, points: Sequence[Point], style: str) -> str:
    """Through the points; alone, a dot."""
    placed = [f"{panel.x.at(x):.1f},{panel.y.at(y):.1f}" for x, y in points]
    if len(placed) == 1:
        x, y = placed[0].split(",")
        return f'<circle cx="{x}" cy="{y}" r="2.5" class="dot {style}"/>'
    return f'<polyline points="{" ".join(placed)}" class="line {style}"/>' if placed else ""


def steps(panel: Panel, points: Sequence[Point], until: float, style: str) -> str:
    """Each value lasts to the next point, and the last up to `until`."""
    return line(panel, stepped(points, until), style)


def area(panel: Panel, points: Sequence[Point], floor: Sequence[Point], style: str) -> str:
    """Between two lines."""
    placed = [*points, *reversed(floor)]
    told = " ".join(f"{panel.x.at(x):.1f},{panel.y.at(y):.1f}" for x, y in placed)
    return f'<polygon points="{told}" class="area {style}"/>' if points else ""


def stepped(points: Sequence[Point], until: float) -> list[Point]:
    if not points:
        return []
    corners: list[Point] = [points[0]]
    for x, y in points[1:]:
        corners += [(x, corners[-1][1]), (x, y)]
    return [*corners, (until, corners[-1][1])]


def band(panel: Panel, since: float, until: float, style: str, title: str = "") -> str:
    """From the floor to the ceiling; at least so wide that it is seen."""
    left, width = panel.x.at(since), max(panel.x.at(until) - panel.x.at(since), 1.5)
    top, height = panel.y.to_px, panel.y.from_px - panel.y.to_px
    return rectangle(left, top, width, height, style, title)


def rectangle(
    left: float, top: float, width: float, height: float, style: str, title: str = ""
) -> str:
    said = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" class="{style}">'
        f"{said}</rect>"
    )


def words(x: float, y: float, said: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(said)}</text>'


def wide(said: str) -> float:
    """Pixels, at most."""
    return len(said) * LETTER


def folded(said: str, width: float, letters: float = 1.0) -> list[str]:
    """In as many lines as it takes; `letters`: so many times as wide as usual ones."""
    return textwrap.wrap(said, max(int(width / (LETTER * letters)), 1))


def grid(panel: Panel, values: Iterable[float]) -> str:
    """Horizontal lines with their values at the left."""
    drawn = []
    for value in values:
        y = panel.y.at(value)
        drawn.append(f'<path d="M{panel.x.from_px:.1f} {y:.1f}H{panel.x.to_px:.1f}" class="grid"/>')
        drawn.append(words(panel.x.from_px - 8, y + 4, label(value), "tick", "end"))
    return "".join(drawn)


def key(
    x: float,
    y: float,
    until: float,
    entries: Iterable[tuple[str, str]],
    filled: bool = False,
    left: float = 0.0,
) -> tuple[str, float]:
    """What each line or area is, beside each other from `x` on, in further lines from `left` on;
    and the last line.
    """
    drawn = []
    for style, said in entries:
        if x > left and x + 26 + wide(said) > until:
            x, y = left, y + LINE
        if filled:
            drawn.append(rectangle(x, y - 9, 16, 10, f"area {style}"))
        else:
            drawn.append(f'<path d="M{x:.1f} {y - 4:.1f}h20" class="line {style}"/>')
        drawn.append(words(x + 26, y, said, "key"))
        x += 26 + wide(said) + 18
    return "".join(drawn), y


def svg(width: float, height: float, title: str, drawn: Iterable[str]) -> str:
    """`title` is what a screen reader says of it."""
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg>'
