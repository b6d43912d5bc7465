"""What a service says of itself: what it still lacks to be ready, and what it has measured.

Each part of a service adds what it knows, once, at its start; `listener.py` tells it to whoever
asks. Alive and ready are two things: a service whose bus is away is alive, and to end it would help
nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.runtime.metrics import Measure

Condition = Callable[[], bool]
Source = Callable[[], Iterable[Measure]]

STARTED = "having begun"
"""A condition of every service: met once it has started, and while it stands by to start."""


class Health:
    def __init__(self) -> None:
        self.conditions: dict[str, Condition] = {}
        self.sources: dict[str, Source] = {}

    def require(self, what: str, met: Condition) -> None:
        """Not ready, unless `met`. A later one of the same name takes its place."""
        self.conditions[what] = met

    def add_source(self, whose: str, source: Source) -> None:
        """What was measured, asked for at each scrape. No two sources may have a family in
        common.
        """
        self.sources[whose] = source

    def unmet(self) -> list[str]:
        """The conditions that are not met; none: ready."""
        return [what for what, met in self.conditions.items() if not met()]

    def measures(self) -> list[Measure]:
        return [measure for source in self.sources.values() for measure in source()]
