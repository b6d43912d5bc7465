"""Cells of text tables: numbers, bars, curves, job colours, the choice of columns that fit; and the
terminal that a command prints them to.

A number that is not known is a dash. Cells are cut and never wrapped. Without a terminal, lines
have no maximum width, so that other programs can cut and count them.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from shared.messages import Staleness
from shared.text import format_duration

UNKNOWN = "-"
TEN_MINUTES_S, TEN_HOURS_S = 600.0, 36_000.0


def cores(amount: float) -> str:
    """Return cores to a hundredth, without trailing zeros."""
    return f"{amount:.2f}".rstrip("0").rstrip(".") or "0"


def gib(amount: float) -> str:
    """Return GiB to a tenth, without a trailing zero."""
    return f"{amount:,.1f}".removesuffix(".0")


def speed(per_second: float) -> str:
    if per_second >= 10:
        return f"{per_second:,.0f}"
    return f"{per_second:.1f}" if per_second else UNKNOWN


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def time_left(seconds: float | None) -> str:
    """Return an estimate: no seconds above ten minutes, no minutes above ten hours."""
    if seconds is None:
        return UNKNOWN
    if seconds < TEN_MINUTES_S:
        return format_duration(seconds)
    if seconds < TEN_HOURS_S:
        return format_duration(round(seconds / 60) * 60).removesuffix(" 0 s")
    return f"{seconds / 3600:,.0f} h"


def loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def staleness(value: Staleness | None) -> str:
    """Return the mean staleness of gradients, and the number of those that were dropped."""
    if value is None:
        return UNKNOWN
    dropped = f" -{value.dropped}" if value.dropped else ""
    return f"{value.mean:.1f}{dropped}"


def size(now: int, wanted: int) -> str:
    return str(now) if now == wanted else f"{now}→{wanted}"


LEVELS = "▁▂▃▄▅▆▇█"
DONE, TO_DO = "█", "─"


class Part(NamedTuple):
    """A part of a bar: its amount, and the character that draws it."""

    amount: float
    character: str
    style: str = ""


def bar(parts: Sequence[Part], width: int) -> Text:
    """Draw parts side by side, each as wide as its share, `width` characters together.

    The ends are rounded, not the widths, so that errors do not add up.
    """
    total = sum(part.amount for part in parts)
    drawn = Text()
    if total <= 0:
        return drawn
    before = 0.0
    for part in parts:
        begin = round(before / total * width)
        end = round((before + part.amount) / total * width)
        drawn.append(part.character * (end - begin), part.style)
        before += part.amount
    return drawn


def curve(values: Sequence[float], width: int) -> str:
    """Draw the last `width` values on a scale from their minimum to their maximum."""
    shown = values[-width:]
    if not shown:
        return ""
    least, span = min(shown), max(shown) - min(shown)
    if not span:
        return LEVELS[0] * len(shown)
    top = len(LEVELS) - 1
    return "".join(LEVELS[round((value - least) / span * top)] for value in shown)


def progress(share: float | None, width: int) -> str:
    """Draw a share of 0 to 1; empty if it is unknown."""
    if share is None:
        return ""
    done = round(min(max(share, 0.0), 1.0) * width)
    return DONE * done + TO_DO * (width - done)


OKABE_ITO = (
    ("#000000", "#56B4E9"),
    ("#000000", "#E69F00"),
    ("#000000", "#009E73"),
    ("#000000", "#F0E442"),
    ("#FFFFFF", "#0072B2"),
    ("#000000", "#CC79A7"),
    ("#000000", "#D55E00"),
)
"""Colours of a letter and its background; each pair has a contrast above 4.5 to 1."""
OTHERS = "░"
FREE = "·"
MANY = "+"
"""The marks of cores that others hold, of free cores, and of a job that has no letter."""

Letters = Mapping[str, str]
"""The letter of each job, by `<namespace>.<name>`."""


def letters(before: Letters, jobs: Iterable[str]) -> dict[str, str]:
    """Return the letter of each job: its previous one, else the first free one or `MANY`."""
    wanted = list(jobs)
    kept = {job: before[job] for job in wanted if job in before}
    free = iter(sorted(set(ascii_uppercase) - set(kept.values())))
    return {job: kept[job] if job in kept else next(free, MANY) for job in wanted}


def style(letter: str) -> str:
    ink, ground = OKABE_ITO[(ord(letter) - ord("A")) % len(OKABE_ITO)]
    return f"{ink} on {ground}"


def badge(letter: str) -> Text:
    return Text(f" {letter} ", style(letter))


ENDLESS = 1 << 16
"""The number of columns without a terminal: nothing is folded or cut."""


def cap_columns(most: int, width: int) -> int:
    """Return at most `most` columns; no limit if there is no terminal."""
    return most if width < ENDLESS else ENDLESS


def longest(cells: Iterable[Text | str]) -> int:
    """Return the width of the widest cell."""
    widths = (cell.cell_len if isinstance(cell, Text) else cell_len(cell) for cell in cells)
    return max(widths, default=0)


def fitting(
    wide: Mapping[str, int], yielding: Sequence[str], width: int, gap: int
) -> dict[str, int]:
    """Return the columns that fit into `width`, with `gap` between two.

    `wide`: the width of each. `yielding`: the columns that may be dropped, in this order. All
    others stay, even if they are too wide.
    """
    kept = {heading: needed for heading, needed in wide.items() if heading not in yielding}
    for heading in reversed(yielding):
        if heading in wide and total_width(kept | {heading: wide[heading]}, gap) <= width:
            kept[heading] = wide[heading]
    return {heading: needed for heading, needed in wide.items() if heading in kept}


def total_width(wide: Mapping[str, int], gap: int) -> int:
    """Return the width of all columns side by side."""
    return sum(wide.values()) + gap * (len(wide) - 1)


GAP = 1


def plain_table(
    headings: Sequence[str],
    right: Container[str] = (),
    least: Sequence[int] = (),
    width: int | None = None,
) -> Table:
    """Return a table without lines. `least`: the widths below which columns are not cut; otherwise
    that of the heading. `width`: of the whole table; the last column takes the rest.
    """
    drawn = Table(
        box=None,
        pad_edge=False,
        show_header=any(headings),
        header_style="dim",
        padding=(0, GAP, 0, 0),
    )
    widths = []
    for number, heading in enumerate(headings):
        needed = max(least[number] if number < len(least) else 0, len(heading))
        side: Literal["left", "right"] = "right" if heading in right else "left"
        drawn.add_column(heading, justify=side, no_wrap=True, overflow="ellipsis", min_width=needed)
        widths.append(needed)
    if width is not None:
        rest = width - sum(widths[:-1]) - GAP * (len(widths) - 1)
        drawn.columns[-1].max_width = max(rest, widths[-1], 1)
    return drawn


# ---------------------------------------------------------------- the terminal


class Terminal(Console):
    """The terminal of a command. Like `print`, it raises an error when the pipe is closed."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def put(self, drawn: RenderableType) -> None:
        """Print without the blanks at the ends of lines."""
        with self.capture() as captured:
            self.print(drawn)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)


def table_console() -> Terminal:
    """Return a console as wide as the terminal; without a width limit if there is no terminal."""
    return Terminal(width=None if sys.stdout.isatty() else ENDLESS)
