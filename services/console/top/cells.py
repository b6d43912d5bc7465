"""Numbers as they stand in a table: pure. What is not known is a dash."""

from __future__ import annotations

from shared.text import format_duration

UNKNOWN = "-"
TEN_MINUTES_S, TEN_HOURS_S = 600.0, 36_000.0


def cores(amount: float) -> str:
    """To a hundredth; without zeros that say nothing."""
    return f"{amount:.2f}".rstrip("0").rstrip(".") or "0"


def gib(amount: float) -> str:
    """To a tenth; without zeros that say nothing."""
    return f"{amount:,.1f}".removesuffix(".0")


def speed(per_second: float) -> str:
    return (
        f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}" if per_second else UNKNOWN
    )


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def time_left(seconds: float | None) -> str:
    """As exact as a guess is worth: no seconds above ten minutes, no minutes above ten hours."""
    if seconds is None:
        return UNKNOWN
    if seconds < TEN_MINUTES_S:
        return format_duration(seconds)
    return (
        format_duration(round(seconds / 60) * 60).removesuffix(" 0 s")
        if seconds < TEN_HOURS_S
        else f"{seconds / 3600:,.0f} h"
    )


def loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def size(now: int, wanted: int) -> str:
    return str(now) if now == wanted else f"{now}→{wanted}"
