"""The last decisions: when, for whom, what, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from rich.table import Table
from rich.text import Text

from services.console.board.story import Decision
from services.console.top.fitting import capped
from services.console.top.palette import MANY, Letters, badge
from services.console.top.plain_table import plain_table
from shared.text import (
    format_count,
    format_duration,
    format_saving,
    format_size,
    headline,
    pause_preposition,
)

NAME, WIDE = 12, 104


def decision_table(
    decisions: Sequence[Decision], letters: Letters, width: int, zone: tzinfo | None
) -> Table:
    """`zone` None: that of this machine."""
    whole = [gives(decision, width >= WIDE) for decision in decisions]
    widths = [3, 8, NAME, max(map(len, whole), default=0)]
    drawn = plain_table(("", "AT", "JOB", "IS TO HAVE", "WHY"), (), widths, width)
    drawn.columns[2].max_width = capped(NAME, width)
    for decision, given in zip(decisions, whole, strict=True):
        key = f"{decision.namespace}.{decision.job}"
        at = datetime.fromtimestamp(decision.at_s, UTC).astimezone(zone)
        letter = letters.get(key, " ")
        first = Text(f" {letter} ") if letter in (MANY, " ") else badge(letter)
        drawn.add_row(first, f"{at:%H:%M:%S}", Text(decision.job, "bold"), given, _why(decision))
    return drawn


def gives(decision: Decision, in_full: bool) -> str:
    g = decision.gives
    if not g.ps and not g.workers:
        return "no tasks"
    told = format_size(g.ps, g.workers)
    return f"{told}, batch {g.batch}, {format_count(len(g.nodes), 'node')}" if in_full else told


def _why(decision: Decision) -> Text:
    """The reason, and what it foresaw; of what did not come to be, why not."""
    if decision.abandoned:
        return Text(f"given up: {headline(decision.abandoned)}", "bold red")
    gain_s, pause = decision.gain_s, format_duration(decision.cost_s, fine=True)
    foreseen = f" ({format_saving(gain_s)}{pause_preposition(gain_s)} {pause})" if gain_s else ""
    return Text(f"{headline(decision.reason)}{foreseen}")
