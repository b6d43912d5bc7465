"""SVG drawing, style and number formats of the report.

A panel is a box with two scales; everything in it is given in its own units. Drawings use the
colours by the names in the style, which has values for light and dark pages. They are the colours
of Okabe and Ito, which people with any kind of colour vision can distinguish. Dashes and patterns
repeat the distinction.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

import msgspec

from shared import text as text_module
from shared.text import MINUS, single_line

Point = tuple[float, float]
WIDE, NARROW = 960.0, 320.0
"""The widths of the two versions of each drawing, in its units; a phone shows the narrow one."""
LETTER = 7.3
"""The width in pixels of the widest usual letter at the size of labels (12 px). Labels that are
placed with it do not overlap.
"""
LINE = 16.0
"""The distance between two lines of labels, in pixels."""
WHOLE_HOURS, WHOLE_MINUTES = 5 * 3_600, 10 * 60
STEPS = (1, 2, 5, 10)
OF_SIXTY = (1, 2, 5, 10, 15, 30, 60)


class Scale(msgspec.Struct, frozen=True):
    """A linear scale from the values `low` to `high` to pixels."""

    low: float
    high: float
    from_px: float
    to_px: float

    def at(self, value: float) -> float:
        span = self.high - self.low
        if not span:
            return self.from_px
        return self.from_px + (value - self.low) / span * (self.to_px - self.from_px)


class Panel(msgspec.Struct, frozen=True):
    """A box of a drawing; `y.from_px` is its lower edge."""

    x: Scale
    y: Scale


class Unit(msgspec.Struct, frozen=True):
    """The unit of a time axis: its length in seconds, and its name."""

    seconds: float
    name: str


def unit_of(seconds: float) -> Unit:
    if seconds > WHOLE_HOURS:
        return Unit(3_600.0, "hours")
    return Unit(60.0, "minutes") if seconds > WHOLE_MINUTES else Unit(1.0, "seconds")


def ticks(high: float, wanted: int = 4, low: float = 0.0) -> list[float]:
    """Return about `wanted` round values from `low` (included if it is round) to `high`."""
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = power
    for factor in STEPS:
        step = factor * power
        if span / step <= wanted + 0.5:
            break
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * number, 12) for number in range(first, last + 1)]


def about(width: float, apart: float) -> int:
    """Return how many values have room on an axis if each takes `apart` pixels; at least 4, so that
    one can interpolate.
    """
    return max(round(width / apart), 4)


def label(value: float) -> str:
    text = f"{value:,.6g}" if abs(value) < 1e6 else f"{value / 1e6:,.6g} M"
    return text.replace("-", MINUS)


# ---------------------------------------------------------------- elements


def line(panel: Panel, points: Sequence[Point], style: str) -> str:
    """Draw a line through the points; a single point is a dot."""
    if len(points) == 1:
        x, y = points[0]
        place = f'cx="{panel.x.at(x):.1f}" cy="{panel.y.at(y):.1f}"'
        return f'<circle {place} r="2.5" class="dot {style}"/>'
    return f'<polyline points="{_place(panel, points)}" class="line {style}"/>' if points else ""


def _place(panel: Panel, points: Iterable[Point]) -> str:
    return " ".join(f"{panel.x.at(x):.1f},{panel.y.at(y):.1f}" for x, y in points)


def steps(panel: Panel, points: Sequence[Point], until: float, style: str) -> str:
    """Draw steps: each value lasts to the next point, and the last one up to `until`."""
    return line(panel, step_points(points, until), style)


def area(panel: Panel, points: Sequence[Point], floor: Sequence[Point], style: str) -> str:
    """Draw the area between two lines."""
    if not points:
        return ""
    corners = _place(panel, [*points, *reversed(floor)])
    return f'<polygon points="{corners}" class="area {style}"/>'


def step_points(points: Sequence[Point], until: float) -> list[Point]:
    if not points:
        return []
    corners: list[Point] = [points[0]]
    for x, y in points[1:]:
        corners += [(x, corners[-1][1]), (x, y)]
    return [*corners, (until, corners[-1][1])]


def band(panel: Panel, since: float, until: float, style: str, title: str = "") -> str:
    """Draw a band over the whole height of the panel; at least 1.5 pixels wide, so that it is
    visible.
    """
    left = panel.x.at(since)
    width = max(panel.x.at(until) - left, 1.5)
    top = panel.y.to_px
    return rectangle(left, top, width, panel.y.from_px - top, style, title)


def rectangle(
    left: float, top: float, width: float, height: float, style: str, title: str = ""
) -> str:
    tooltip = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}"'
        f' class="{style}">{tooltip}</rect>'
    )


def words(x: float, y: float, label: str, style: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{style}"'
        f' text-anchor="{anchor}">{escape(label)}</text>'
    )


def wide(label: str) -> float:
    """Return the largest width of a label in pixels."""
    return len(label) * LETTER


def wrap_text(label: str, width: float, scale: float = 1.0) -> list[str]:
    """Return the lines of a label. `scale`: the width of its letters in relation to usual ones."""
    return textwrap.wrap(label, max(int(width / (LETTER * scale)), 1))


def grid(panel: Panel, values: Iterable[float]) -> str:
    """Draw horizontal lines with their values on the left."""
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
    """Draw a legend from `x` on; further lines begin at `left`. Return it with the y of its last
    line.
    """
    drawn = []
    for style, name in entries:
        if x > left and x + 26 + wide(name) > until:
            x, y = left, y + LINE
        if filled:
            drawn.append(rectangle(x, y - 9, 16, 10, f"area {style}"))
        else:
            drawn.append(f'<path d="M{x:.1f} {y - 4:.1f}h20" class="line {style}"/>')
        drawn.append(words(x + 26, y, name, "key"))
        x += 26 + wide(name) + 18
    return "".join(drawn), y


def svg(width: float, height: float, title: str, drawn: Iterable[str]) -> str:
    """Return the SVG element. `title`: the text for screen readers."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
        f' aria-label="{escape(title)}">{"".join(drawn)}</svg>'
    )


STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --paper: #ffffff; --card: #f5f7f9; --edge: #d5dbe1;
  --blue: #0072b2; --sky: #56b4e9; --green: #009e73; --orange: #e69f00; --red: #d55e00; --pale: #d5dbe1; --veil: .45 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf0; --soft: #a3adb8; --paper: #14181d; --card: #1d232a; --edge: #39424c;
    --blue: #56b4e9; --sky: #2f7fb0; --green: #2fc79a; --orange: #f0b533; --red: #f0813a; --pale: #39424c;
    --veil: .5 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1040px; margin: 0 auto; padding: 24px 20px 60px }
h1 { font-size: 26px; margin: 0 0 2px } h2 { font-size: 18px; margin: 38px 0 6px } p { margin: 6px 0 12px }
.soft, caption, footer { color: var(--soft) } a { color: var(--blue) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(172px, 1fr)); gap: 12px; margin: 18px 0 }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 12px 14px }
.card b { display: block; font-size: 25px; line-height: 1.25; font-weight: 650; margin: 2px 0 }
.card span { color: var(--soft); font-size: 13px; display: block }
.note { border-left: 4px solid var(--orange); background: var(--card); padding: 8px 12px; margin: 12px 0 }
.note.bad { border-color: var(--red) } .note.good { border-color: var(--green) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.4 ui-monospace, monospace; margin: 4px 0 }
.drawing { margin: 8px 0 } .drawing.narrow { display: none; max-width: 480px }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; overflow: visible }
svg text { fill: var(--ink) } svg .tick { fill: var(--soft) } svg .name { font-weight: 650; font-size: 12px }
svg .number { font-size: 11px; font-weight: 600 }
.grid { stroke: var(--edge); stroke-width: 1 } .rule { stroke: var(--soft); stroke-width: 1 }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round } .dot { fill: currentColor }
.area { fill: currentColor; stroke: none } .pause { fill: var(--red); fill-opacity: var(--veil) }
.off { fill: var(--pale); fill-opacity: var(--veil) }
.mark { fill: var(--card); stroke: var(--soft) } a:hover .mark, a:focus .mark { stroke: var(--blue); stroke-width: 2 }
.blue { color: var(--blue) } .sky { color: var(--sky) } .green { color: var(--green) } .orange { color: var(--orange) }
.red { color: var(--red) } .pale { color: var(--pale) } .area.sky { fill-opacity: .55 }
.dashed { stroke-dasharray: 6 4 }
.area.hatched { fill: url(#hatch); stroke: currentColor; stroke-width: .6 }
.area.green.hatched { fill: url(#hatch-green) } .area.blue.hatched { fill: url(#hatch-blue) }
table { border-collapse: collapse; width: 100%; margin: 8px 0; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--edge) }
td { overflow-wrap: anywhere } .amounts td { overflow-wrap: normal }
th { font-weight: 600; color: var(--soft); font-size: 13px; white-space: nowrap } td.n { white-space: nowrap }
tr:target { background: var(--card); outline: 2px solid var(--blue) }
details { margin: 2px 0 } summary { cursor: pointer; color: var(--blue) }
i.swatch { display: inline-block; width: 14px; height: 14px; border-radius: 2px; margin-right: 8px;
  vertical-align: -2px; background: currentColor }
i.swatch.hatched { background: repeating-linear-gradient(45deg, currentColor 0 3px, transparent 3px 6px);
  border: 1px solid currentColor }
footer { margin-top: 44px; border-top: 1px solid var(--edge); padding-top: 10px; font-size: 13px }
@media screen and (max-width: 860px) { .drawing.wide { display: none } .drawing.narrow { display: block } }
@media screen and (max-width: 620px) {
  main { padding: 18px 12px 40px }
  th { white-space: normal } th, td { padding-right: 8px } .amounts td { font-size: 14px }
  .stacked thead { position: absolute; clip-path: inset(50%); height: 1px; overflow: hidden }
  .stacked, .stacked tbody { display: block }
  .stacked tr { display: grid; grid-template-columns: 2.2em 1fr; padding: 6px 0; border-bottom: 1px solid var(--edge) }
  .stacked td { border: 0; padding: 1px 0; grid-column: 2 } .stacked td:first-child { grid-column: 1 }
  .stacked td[data-label]::before { content: attr(data-label) ": "; color: var(--soft) } }
@media print { main { max-width: none; padding: 0 } h2 { break-after: avoid } .card, tr, svg { break-inside: avoid } }
"""
HATCHES = "".join(
    f'<pattern id="{name}" class="{colour}" width="6" height="6" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><path d="M0 0V6" stroke="currentColor"'
    ' stroke-width="5.5"/></pattern>'
    for name, colour in (("hatch", "orange"), ("hatch-green", "green"), ("hatch-blue", "blue"))
)
"""Diagonal stripes. They are on the page once; its drawings use them by name."""

NOTHING = "\N{EN DASH}"  # shown in place of an unknown number


def lasting(seconds: float | None) -> str:
    """Return a duration as `0.62 s`, `42.1 s`, `3 min 20 s`, `2 h 5 min` or `3 d 4 h`."""
    return NOTHING if seconds is None else text_module.format_duration(seconds, fine=True)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with its significant digits and separated thousands: `0.0213`, `12,300`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    behind = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{behind}f}".replace("-", MINUS)


def whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    if share is None:
        return NOTHING
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def clock(at_s: float) -> str:
    """Return a time in UTC, because the reader may be in another time zone."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def text(foreign: object) -> str:
    """Return foreign text for a page: as one line, escaped."""
    return escape(single_line(str(foreign)))


def lines(foreign: str) -> str:
    """Return foreign text of several lines for a page: with its indentation, escaped."""
    shown = ["".join(filter(str.isprintable, line)) for line in foreign.splitlines()]
    return escape("\n".join(shown))
