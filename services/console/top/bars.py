"""Bars and curves out of characters: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

LEVELS = "▁▂▃▄▅▆▇█"
DONE, TO_DO = "█", "─"


class Part(NamedTuple):
    """So much of a bar, drawn with this character."""

    amount: float
    character: str
    style: str = ""


def bar(parts: Sequence[Part], width: int) -> Text:
    """Parts side by side, each as wide as its share; to a character, so that together they are
    `width`.

    Where each ends is rounded, not how wide it is: so no error adds up.
    """
    whole = sum(part.amount for part in parts)
    drawn = Text()
    before = 0.0
    for part in parts if whole > 0 else ():
        begin, end = (round(at / whole * width) for at in (before, before + part.amount))
        drawn.append(part.character * (end - begin), part.style)
        before += part.amount
    return drawn


def curve(values: Sequence[float], width: int) -> str:
    """The last `width` of them, between the least and the most of those."""
    shown = values[-width:]
    if not shown:
        return ""
    least, span = min(shown), max(shown) - min(shown)
    return "".join(
        LEVELS[round((value - least) / span * (len(LEVELS) - 1)) if span else 0] for value in shown
    )


def progress(share: float | None, width: int) -> str:
    """0 to 1; nothing, where it is not known."""
    if share is None:
        return ""
    done = round(min(max(share, 0.0), 1.0) * width)
    return DONE * done + TO_DO * (width - done)
