"""One stored message, and where and when the server stored it: what people look at."""

from __future__ import annotations

from dataclasses import dataclass

from services.whatif.event_log import LogEntry
from shared.messages import DeadLetter, Message


@dataclass(frozen=True)
class Entry:
    said: Message | DeadLetter
    subject: str
    stream: str
    sequence: int
    stored_s: float

    @property
    def told(self) -> LogEntry | None:
        """As folds hear it; None: a dead letter, which nobody could read."""
        said = self.said
        return (
            None
            if isinstance(said, DeadLetter)
            else LogEntry(self.stored_s, self.stream, self.sequence, said)
        )

    @property
    def order(self) -> tuple[float, str, int]:
        return self.stored_s, self.stream, self.sequence
