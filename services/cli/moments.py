"""A point in time as people write it. Pure: `now` is an argument.

2026-11-21T13:45:02, 2026-11-21 13:45, with Z or +01:00 behind it     else in this machine's time zone
13:45, 13:45:02                                                       of today
10m ago, -10m, 10m, now                                               so long before now
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import datetime, tzinfo

from services.cli.words import duration

Moment = Callable[[float], float]
"""Seconds since 1970, from now."""
CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
SAID = "a time (2026-11-21T13:45:02, 13:45) or an age (10m ago, -10m)"
NEGATIVE = re.compile(r"-\d")


def allow_ages(parser: argparse.ArgumentParser) -> None:
    """So that `-10m` behind an option is its value, and no option itself."""
    parser._negative_number_matcher = NEGATIVE


def moment(text: str, zone: tzinfo | None = None) -> Moment:
    """`zone` None: that of this machine. Raises `ArgumentTypeError`."""
    words = text.strip()
    if words == "now":
        return lambda now: now
    return _age(words) or _clock(words, zone) or _date(words, zone)


def _age(words: str) -> Moment | None:
    try:
        seconds = duration(words.removesuffix("ago").strip().removeprefix("-"))
    except argparse.ArgumentTypeError:
        return None
    return lambda now: now - seconds


def _clock(words: str, zone: tzinfo | None) -> Moment | None:
    """Of the day that it is in that zone."""
    if not CLOCK.fullmatch(words):
        return None
    hour, minute, second = ([*map(int, words.split(":")), 0])[:3]
    if hour > 23 or minute > 59 or second > 59:
        raise argparse.ArgumentTypeError(f"{words!r} is no time of day")

    def today(now: float) -> float:
        day = datetime.fromtimestamp(now, zone)
        return day.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp()

    return today


def _date(words: str, zone: tzinfo | None) -> Moment:
    try:
        at = datetime.fromisoformat(words)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{words!r} is not {SAID}") from None
    at_s = (at if at.tzinfo else at.replace(tzinfo=zone)).timestamp()
    return lambda now: at_s
