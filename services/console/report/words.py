"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from html import escape

from shared import text as text_module
from shared.text import MINUS, single_line

NOTHING = "\N{EN DASH}"  # where a number is not known


def lasting(seconds: float | None) -> str:
    """`0.62 s`, `42.1 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    return NOTHING if seconds is None else text_module.format_duration(seconds, fine=True)


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


def text(said: object) -> str:
    """Foreign text as part of a page: one line, without what a browser would obey."""
    return escape(single_line(str(said)))


def lines(said: str) -> str:
    """Foreign text of several lines, as it was indented."""
    return escape(
        "\n".join("".join(c for c in line if c.isprintable()) for line in said.splitlines())
    )
