"""How long a task may take to end: as long as its job was seen to need to move a task elsewhere.
Pure.

    grace = max(asked, min(MARGIN * change, most))

asked: `grace_s` of the request; change: the longest of the last measured times from a decision to
the first update of the generation that it wanted (pods, preparation, drain, save, restore); most: a
bound that somebody else sets.
"""

from __future__ import annotations

from collections.abc import Sequence

MARGIN = 1.5
KEPT = 3
"""Measurements that count."""


def needed_s(asked_s: float, changes_s: Sequence[float], most_s: float) -> float:
    """Seconds; what was asked for where nothing was measured."""
    return max(asked_s, min(MARGIN * max(changes_s, default=0.0), most_s))


def added(changes_s: Sequence[float], change_s: float) -> tuple[float, ...]:
    """The measurements with one more; 0 is none."""
    return (*changes_s, *((change_s,) if change_s > 0 else ()))[-KEPT:]
