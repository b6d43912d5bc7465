"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from html import escape

from services.cli.words import plain

NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
"""Where a number is not known; and the sign that is as wide as a plus."""


def lasting(seconds: float | None) -> str:
    """`0.62 s`, `42.1 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return NOTHING
    if abs(seconds) < 60:
        return f"{seconds:.2f} s" if abs(seconds) < 10 else f"{seconds:.1f} s"
    if seconds < 0:
        return f"{MINUS}{lasting(-seconds)}"
    whole = round(seconds)
    for unit, name, smaller, below in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {below}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def number(value: float | None, digits: int = 3) -> str:
    """So many digits that count, thousands apart: `0.0213`, `118`, `12,300`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    behind = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{behind}f}".replace("-", MINUS)


def whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def clock(at_s: float) -> str:
    """In UTC, because who reads it may sit elsewhere than where it was written."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1 and noun != 'ps')}"


def text(said: object) -> str:
    """Foreign text as part of a page: one line, without what a browser would obey."""
    return escape(plain(str(said)))


def lines(said: str) -> str:
    """Foreign text of several lines, as it was indented."""
    return escape("\n".join("".join(c for c in line if c.isprintable()) for line in said.splitlines()))
