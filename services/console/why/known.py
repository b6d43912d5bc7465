"""What was read of the log, by what one asks of it: pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from services.cli.entry import Entry
from shared.messages import ChangeRejected, JobNameMessage, JobRejected, JobRequested, Message

M = TypeVar("M", bound=Message)
Holds = Callable[[Any], bool]
Order = tuple[float, str, int]


class Known:
    """`entries`: in the order in which they were stored; what was read twice is there once."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        there = {(entry.stream, entry.sequence): entry for entry in entries}
        self.entries = sorted(there.values(), key=lambda entry: entry.order)
        self.by_id: dict[str, Entry] = {}
        self.uids: dict[str, list[int]] = defaultdict(list)
        self._told: dict[tuple[type[Message], str], list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if isinstance(entry.said, Message):
                self._note(entry, entry.said)

    def _note(self, entry: Entry, said: Message) -> None:
        self.by_id.setdefault(said.id(), entry)  # the first of what was said twice
        self._told[type(said), said.key()].append(entry)
        if uid := uid_of(entry):
            self._told[type(said), str(uid)].append(entry)
            self.uids[said.key()].append(uid)

    def of(self, kind: type[Message], whose: str | int) -> list[Entry]:
        """Every message of a kind about a job (`<namespace>.<name>`, or its uid), or about a
        node.
        """
        return self._told.get((kind, str(whose)), [])

    def newest(
        self, kind: type[Message], whose: str | int, before: Order, holds: Holds = lambda _: True
    ) -> Entry | None:
        """The last that was stored before, of those that it holds for."""
        told = self.of(kind, whose)
        end = bisect_left(told, before, key=lambda entry: entry.order)
        return next((told[i] for i in range(end - 1, -1, -1) if holds(told[i].said)), None)

    def first(
        self, kind: type[Message], whose: str | int, after: Order, holds: Holds = lambda _: True
    ) -> Entry | None:
        """The first that was stored at or after."""
        told = self.of(kind, whose)
        begin = bisect_left(told, after, key=lambda entry: entry.order)
        return next((told[i] for i in range(begin, len(told)) if holds(told[i].said)), None)


def uid_of(entry: Entry) -> int:
    """Of the job that a message is about; a request's own number is the uid that its job will have.
    0: of none.
    """
    return (
        entry.sequence
        if isinstance(entry.said, JobRequested)
        else int(getattr(entry.said, "uid", 0))
    )


def key_of(entry: Entry) -> str:
    """`<namespace>.<job>`; empty for what is about a node or a service, or is a dead letter."""
    return (
        entry.said.key()
        if isinstance(entry.said, JobNameMessage | JobRejected | ChangeRejected)
        else ""
    )
