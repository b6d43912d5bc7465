"""Text for people: counts, durations, and foreign text as one clean line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
"""The seconds of each unit, its name, and the next smaller unit."""
MINUS = "\N{MINUS SIGN}"  # as wide as a plus
COUNTS_KEPT = 1024
"""The size of the cache: thousands of reasons have the same few counts."""


@lru_cache(COUNTS_KEPT)
def format_count(number: int, noun: str) -> str:
    """Return `1 worker`, `1,200 workers`, `3 batches`. `noun`: the singular. `ps` is both."""
    return f"{number:,} {plural_form(noun) if number != 1 else noun}"


def plural_form(noun: str) -> str:
    return noun if noun.endswith("ps") else f"{noun}{'es' if noun.endswith('tch') else 's'}"


def format_names(names: Sequence[str], most: int) -> str:
    """Return the first `most` names, and the count of the others: `a`, `a, b`, `a, b and 3
    more`.
    """
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{rest}"


def format_some_names(names: Sequence[str], noun: str, most: int = 2) -> str:
    """Return names as `format_names` does. If there are more than `most`, the count of all comes
    first: `5 pods: a, b and 3 more`.
    """
    listed = format_names(names, most)
    return f"{format_count(len(names), noun)}: {listed}" if len(names) > most else listed


def format_size(ps: int, workers: int) -> str:
    """Return the size of a job, without its one chief."""
    return f"{format_count(ps, 'ps')}, {format_count(workers, 'worker')}"


def format_duration(seconds: float, fine: bool = False) -> str:
    """Return a duration in its two largest units: `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d`.

    `fine`: below a minute with hundredths or tenths, `0.62 s`, `42.1 s`. Infinity and NaN stay
    as they are.
    """
    if not math.isfinite(seconds):
        return f"{seconds:g} s"
    if fine and abs(seconds) < 60:
        return f"{seconds:.2f} s" if abs(seconds) < 10 else f"{seconds:.1f} s"
    if seconds < 0:
        return f"{MINUS}{format_duration(-seconds, fine)}"
    whole = round(seconds)
    for unit, name, smaller, below in UNITS:
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {below}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def format_saving(seconds: float, fine: bool = False) -> str:
    """Return the gain of a change: `saves 3 min 20 s`, or the loss of one that makes room for other
    jobs: `costs 9 s`.
    """
    return (
        f"saves {format_duration(seconds, fine)}"
        if seconds >= 0
        else f"costs {format_duration(-seconds, fine)}"
    )


def pause_preposition(seconds: float) -> str:
    """Return the words between the gain, or the loss, of a change and its pause."""
    return " for" if seconds >= 0 else ", beside"


def format_payback(saved_s: float, pause_s: float, fine: bool = False) -> str:
    """Return the gain of a change with its pause: `saves 3 min 20 s for a pause of 1.10 s`."""
    return (
        f"{format_saving(saved_s, fine)}{pause_preposition(saved_s)} a pause of"
        f" {format_duration(pause_s, fine=True)}"
    )


# ---------------------------------------------------------------- foreign text


def single_line(text: str) -> str:
    """Return foreign text as one line without control characters, because a terminal interprets
    them.
    """
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def headline(text: str) -> str:
    """Return the line of a cause that is enough alone: the first, or the last of a traceback."""
    first = next((line for line in map(single_line, text.splitlines()) if line), "")
    return last_line(text) if first.startswith("Traceback") else first


def cut_middle(text: str, longest: int, head: float = 0.25, gap: str = "\n[...]\n") -> str:
    """Return a long text without its middle. It begins with the kind of fault and ends with the
    place. `head`: the share of `longest` before the cut.
    """
    if len(text) <= longest:
        return text
    kept = int(head * longest)
    return f"{text[:kept]}{gap}{text[len(text) - (longest - kept - len(gap)) :]}"


def last_line(text: str) -> str:
    """Return the last line of a traceback."""
    lines = [line for line in map(single_line, text.splitlines()) if line]
    return lines[-1] if lines else ""
