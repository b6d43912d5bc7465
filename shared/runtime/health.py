"""The health of a service: conditions that it needs to be ready, and sources of metrics.

Each part of a service adds its own at the start; `http_server.py` publishes them. A service is
alive also while its bus is away: to restart it would not help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.runtime.metrics import Measure

Condition = Callable[[], bool]
Source = Callable[[], Iterable[Measure]]

STARTED = "having begun"
"""A condition of every service: met after its start, and while it stands by."""


class Health:
    def __init__(self) -> None:
        self.conditions: dict[str, Condition] = {}
        self.sources: dict[str, Source] = {}

    def require(self, what: str, met: Condition) -> None:
        """Add a condition for readiness. It replaces an earlier one of the same name."""
        self.conditions[what] = met

    def add_source(self, whose: str, source: Source) -> None:
        """Add a source of metrics, read at each scrape. No two sources may share a family."""
        self.sources[whose] = source

    def unmet(self) -> list[str]:
        """Return the conditions that are not met; the service is ready if there are none."""
        return [what for what, met in self.conditions.items() if not met()]

    def measures(self) -> list[Measure]:
        return [measure for source in self.sources.values() for measure in source()]
