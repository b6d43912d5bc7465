"""Parse the values on the command line: names, durations, numbers, policies, times, parameters and
kinds of events. Each function raises `ValueError` with the reason. `shared/text.py` formats values.

A policy `module:function` is a custom one, and is imported. A time is a function of now:

    2026-11-21T13:45:02, 2026-11-21 13:45      in this machine's time zone, or with Z or +01:00
    13:45, 13:45:02                            of today
    10m ago, -10m, 10m, now                    before now

A kind is named `training.resumed`; `training` names all of its area, `resumed` is enough too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Any

from shared.bus.subjects import BY_TAG, LONGEST_NAME, is_name
from shared.runtime.config import BadSettings

SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_name(text: str) -> str:
    if not is_name(text):
        from services.allocator.admission.validation import NAME

        raise ValueError(f"{text!r} is not {NAME}, at most {LONGEST_NAME} characters")
    return text


def parse_duration(text: str) -> float:
    """Return the seconds of `90`, `90s`, `10m`, `2h` or `1.5d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not found:
        raise ValueError(f"{text!r} is not a duration such as 90s, 10m, 2h or 1d")
    return float(found[1]) * SECONDS[found[2] or "s"]


def at_least_zero(text: str) -> float:
    return _parse_number(text, lambda value: 0 <= value < float("inf"), "a number of at least 0")


def above_zero(text: str) -> float:
    return _parse_number(text, lambda value: 0 < value < float("inf"), "a number above 0")


def _parse_number(text: str, is_valid: Callable[[float], bool], description: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not is_valid(value):
        raise ValueError(f"{text!r} is not {description}")
    return value


def parse_policies(text: str) -> tuple[str, ...]:
    """Parse names of policies with commas between them. Import the custom ones."""
    from services.allocator.custom_policies import register_policies

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    try:
        register_policies(names or (text,))
    except BadSettings as bad:
        raise ValueError(str(bad)) from bad
    return names


def parse_policy(text: str) -> str:
    return parse_policies(text)[0]


Moment = Callable[[float], float]
"""A function from now to a point in time; both are seconds since 1970."""
CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
MOMENT_FORMATS = "a time (2026-11-21T13:45:02, 13:45) or an age (10m ago, -10m)"


def parse_moment(text: str, zone: tzinfo | None = None) -> Moment:
    """Parse a point in time. `zone`: the time zone of texts without one; None: this machine's."""
    words = text.strip()
    if words == "now":
        return lambda now: now
    return _parse_age(words) or _parse_clock(words, zone) or _parse_date(words, zone)


def _parse_age(words: str) -> Moment | None:
    try:
        seconds = parse_duration(words.removesuffix("ago").strip().removeprefix("-"))
    except ValueError:
        return None
    return lambda now: now - seconds


def _parse_clock(words: str, zone: tzinfo | None) -> Moment | None:
    """Parse a time of today, in this zone."""
    if not CLOCK.fullmatch(words):
        return None
    hour, minute, second = ([*map(int, words.split(":")), 0])[:3]
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{words!r} is no time of day")

    def today(now: float) -> float:
        day = datetime.fromtimestamp(now, zone)
        return day.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp()

    return today


def _parse_date(words: str, zone: tzinfo | None) -> Moment:
    try:
        at = datetime.fromisoformat(words)
    except ValueError:
        raise ValueError(f"{words!r} is not {MOMENT_FORMATS}") from None
    at_s = (at if at.tzinfo else at.replace(tzinfo=zone)).timestamp()
    return lambda now: at_s


def parse_param(text: str) -> tuple[str, Any]:
    """Parse `NAME=VALUE` of a job's parameter. The value is read as in a job's file: a number, true
    or false, null, a text; a list in brackets and an object in braces.
    """
    name, equals, written = text.partition("=")
    if not equals or not name.isidentifier() or not name.isascii():
        raise ValueError(f"{text!r} is not NAME=VALUE, where NAME is that of a Python argument")
    return name, _yaml_value(written)


def _yaml_value(written: str) -> Any:
    """Return a value as YAML reads it; a text if it is none, or many lines or fields of YAML."""
    import yaml

    from shared.documents import load_yaml

    try:
        value = load_yaml(written) if written.strip() else written
    except yaml.YAMLError:
        return written
    is_part = isinstance(value, dict | list)
    return written if is_part and not written.lstrip().startswith(("{", "[")) else value


AREAS, LAST_WORDS = ([tag.split(".")[word] for tag in BY_TAG] for word in (0, 1))
NAMED: dict[str, tuple[str, ...]] = {
    **{last: tuple(tag for tag in BY_TAG if tag.endswith(f".{last}")) for last in LAST_WORDS},
    **{area: tuple(tag for tag in BY_TAG if tag.startswith(f"{area}.")) for area in AREAS},
    **{tag: (tag,) for tag in BY_TAG},
}
"""The tags that a name means: the second word (`changed`: of a job and of capacity), the first, or
both.
"""


def parse_kinds(text: str) -> tuple[str, ...]:
    """Return the tags of kinds, separated by commas. Raise `ValueError` with all known tags."""
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in NAMED]
    if unknown or not named:
        raise ValueError(f"{', '.join(unknown) or text!r}: there are {', '.join(BY_TAG)}")
    return tuple(dict.fromkeys(tag for name in named for tag in NAMED[name]))


KIND_WORDS = tuple(dict.fromkeys(word for tag in BY_TAG for word in (tag.partition(".")[0], tag)))
"""The words that name kinds without doubt: each area, and each whole tag."""
