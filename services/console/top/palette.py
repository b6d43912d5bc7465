"""Which letter and colour a job has, for as long as it is shown: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import ascii_uppercase

from rich.text import Text

OKABE_ITO = (
    ("#000000", "#56B4E9"),
    ("#000000", "#E69F00"),
    ("#000000", "#009E73"),
    ("#000000", "#F0E442"),
    ("#FFFFFF", "#0072B2"),
    ("#000000", "#CC79A7"),
    ("#000000", "#D55E00"),
)
"""Letter on ground; each pair has a contrast above 4.5 to 1."""
OTHERS = "░"
FREE = "·"
MANY = "+"
"""Somebody else's; nobody's; a job of ours beyond the last letter."""

Letters = Mapping[str, str]
"""By job, `<namespace>.<name>`."""


def letters(before: Letters, jobs: Iterable[str]) -> dict[str, str]:
    """Who had a letter keeps it; others get the first that is free; where there is none, `MANY`."""
    wanted = list(jobs)
    kept = {job: before[job] for job in wanted if job in before}
    free = iter(sorted(set(ascii_uppercase) - set(kept.values())))
    return {job: kept[job] if job in kept else next(free, MANY) for job in wanted}


def style(letter: str) -> str:
    ink, ground = OKABE_ITO[(ord(letter) - ord("A")) % len(OKABE_ITO)]
    return f"{ink} on {ground}"


def badge(letter: str) -> Text:
    return Text(f" {letter} ", style(letter))
