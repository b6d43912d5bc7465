"""Which columns of a table there is room for: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

ENDLESS = 1 << 16
"""Columns, where no terminal says how many there are: nothing is folded and nothing cut."""


def capped(most: int, width: int) -> int:
    """So many columns of `width` at most; without a limit where that has no end."""
    return most if width < ENDLESS else ENDLESS


def longest(cells: Iterable[Text | str]) -> int:
    """Columns that the widest of them takes."""
    return max(
        (cell.cell_len if isinstance(cell, Text) else cell_len(cell) for cell in cells), default=0
    )


def fitting(
    wide: Mapping[str, int], yielding: Sequence[str], width: int, gap: int
) -> dict[str, int]:
    """Those that stand side by side in `width`, `gap` apart: of the `yielding` as many as there is
    room for, the last ones first. `wide`: what each needs. What does not yield stays, even where
    that is too wide.
    """
    kept = {heading for heading in wide if heading not in yielding}
    for heading in reversed(yielding):
        if heading in wide and taken({each: wide[each] for each in {*kept, heading}}, gap) <= width:
            kept.add(heading)
    return {heading: needed for heading, needed in wide.items() if heading in kept}


def taken(wide: Mapping[str, int], gap: int) -> int:
    """By all of them, side by side."""
    return sum(wide.values()) + gap * (len(wide) - 1)
