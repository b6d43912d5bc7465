"""A table without lines, whose cells are cut and never folded: pure."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Literal

from rich.table import Table

GAP = 1


def plain_table(
    headings: Sequence[str],
    right: Container[str] = (),
    least: Sequence[int] = (),
    width: int | None = None,
) -> Table:
    """`least`: widths below which columns are not cut; without one that of the heading. `width`: of
    the whole; what is left of it is the last column's.
    """
    drawn = Table(
        box=None,
        pad_edge=False,
        show_header=any(headings),
        header_style="dim",
        padding=(0, GAP, 0, 0),
    )
    known = [*least, *([0] * (len(headings) - len(least)))]
    wide = [max(each, len(heading)) for heading, each in zip(headings, known, strict=True)]
    for heading, each in zip(headings, wide, strict=True):
        side: Literal["left", "right"] = "right" if heading in right else "left"
        drawn.add_column(heading, justify=side, no_wrap=True, overflow="ellipsis", min_width=each)
    if width is not None:
        drawn.columns[-1].max_width = max(
            width - sum(wide[:-1]) - GAP * (len(wide) - 1), wide[-1], 1
        )
    return drawn
