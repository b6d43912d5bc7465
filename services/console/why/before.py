"""The log as it was when one message was stored: pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from services.cli.entry import Entry
from services.console.why.known import Holds, Known, uid_of
from shared.messages import AllocationDecided, Message


class Before(NamedTuple):
    entry: Entry
    known: Known

    def last(self, kind: type[Message], holds: Holds = lambda _: True) -> Entry | None:
        """The newest of a kind about the same job."""
        return self.known.newest(kind, uid_of(self.entry), self.entry.order, holds)

    def of_generation(self, kind: type[Message], generation: int) -> Entry | None:
        return self.last(kind, lambda said: said.generation == generation)

    def latest(self, *found: Entry | None) -> list[Entry]:
        """The newest of several, if there is any."""
        return sorted((e for e in found if e is not None), key=lambda e: e.order)[-1:]

    def decision_of(self, role: str, serial: int) -> Entry | None:
        """The decision that first wants a task: its pod is made for it."""
        told = self.known.of(AllocationDecided, uid_of(self.entry))
        return next(
            (e for e in told if e.order < self.entry.order and wants(e.said, role, serial)), None
        )


def wants(decision: Any, role: str, serial: int) -> bool:
    """Whether a decision has this task."""
    return any((t.role, t.serial) == (role, serial) for t in decision.tasks)
