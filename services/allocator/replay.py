"""The order of a replay.

The streams are read one after the other; what they hold happened side by side. While the later one is read, the earlier
one's messages wait here, and each is let go when its time has come, so that a restart tells the story as it happened.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Stored(Protocol):
    """Something with the stream that holds it, and when it was stored there."""

    @property
    def stream(self) -> str: ...
    @property
    def stored_s(self) -> float: ...


S = TypeVar("S", bound=Stored)


class Merge(Generic[S]):
    """Messages of one `early` stream, held back until the others have reached their time."""

    def __init__(self, early: str) -> None:
        self.early = early
        self.held: deque[S] = deque()

    def add(self, heard: S) -> list[S]:
        """What may be told now that this one was read."""
        if heard.stream == self.early:
            self.held.append(heard)
            return []
        return [*self._until(heard.stored_s), heard]

    def rest(self) -> list[S]:
        told = list(self.held)
        self.held.clear()
        return told

    def _until(self, time_s: float) -> list[S]:
        told = []
        while self.held and self.held[0].stored_s <= time_s:
            told.append(self.held.popleft())
        return told
