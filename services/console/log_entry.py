"""A stored message with its place in the log, its short name, and the filters that select messages.

The short name is the letter of the stream and the number in it: `o12` is order 12, `f345` is fact
345, `d3` is dead letter 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from services.whatif.event_log import LogEntry
from shared.bus.subjects import BY_TAG, DEAD, FACTS, ORDERS, PREFIX
from shared.messages import DeadLetter, Message


@dataclass(frozen=True)
class Entry:
    message: Message | DeadLetter
    subject: str
    stream: str
    sequence: int
    stored_s: float

    @property
    def as_log_entry(self) -> LogEntry | None:
        """The entry for folds; None for a dead letter."""
        if isinstance(self.message, DeadLetter):
            return None
        return LogEntry(self.stored_s, self.stream, self.sequence, self.message)

    @property
    def order(self) -> tuple[float, str, int]:
        return self.stored_s, self.stream, self.sequence


LETTERS = {"o": ORDERS, "f": FACTS, "d": DEAD}
LETTER_OF_STREAM = {stream: letter for letter, stream in LETTERS.items()}
EVENT_NAME = re.compile(r"([ofd])([1-9]\d{0,17})")
"""A letter and at most 18 digits: sequences of the server are not longer."""


def event_name(entry: Entry) -> str:
    return f"{LETTER_OF_STREAM[entry.stream]}{entry.sequence}"


def parse_event_name(text: str) -> tuple[str, int] | None:
    """Return stream and sequence; None if the text is not the name of an event."""
    found = EVENT_NAME.fullmatch(text)
    return (LETTERS[found[1]], int(found[2])) if found else None


ANY = "*"
DEAD_PREFIX = f"{DeadLetter.PREFIX}.{PREFIX}"
AREAS = {
    ORDERS: ("job", "allocation", "cluster"),
    FACTS: ("task", "training", "capacity", "service"),
}
OF_NO_JOB = ("capacity", "service")
REQUESTS = ("job.requested", "job.cancel", "job.change", "job.suspend", "job.resume", "job.forget")
"""The requests that may have no namespace in their subject; then it is the default one."""


def entry_filters(
    stream: str, job: str | None = None, namespace: str | None = None, kinds: Sequence[str] = ()
) -> list[str]:
    """Return a consumer's filters on one stream: for all messages, one job, or the jobs of a
    namespace.

    `kinds`: tags of messages; empty: every kind. Empty if the stream has none of these kinds.
    """
    if job is None and namespace is None:
        if stream == DEAD and not kinds:
            return [f"{DeadLetter.PREFIX}.>"]
        if stream == DEAD:
            return [f"{DEAD_PREFIX}.{kind}.>" for kind in kinds]
        return [f"{PREFIX}.{kind}.>" for kind in _kinds_of_stream(stream, kinds)]
    tail = f"{namespace or ANY}.{job or ANY}"
    if stream == DEAD:
        return [f"{DEAD_PREFIX}.{kind}.{tail}" for kind in kinds or (f"{ANY}.{ANY}",)]
    filters = [f"{PREFIX}.{kind}.{tail}" for kind in _job_kinds(stream, kinds)]
    if stream == ORDERS and namespace in (None, "default"):
        for tag in REQUESTS:
            if tag in (kinds or BY_TAG):
                filters.append(f"{PREFIX}.{tag}.{job or ANY}")
    return filters


def _kinds_of_stream(stream: str, kinds: Sequence[str]) -> Sequence[str]:
    """Return the named kinds that the stream has; all areas of the stream if no kind is named."""
    areas = AREAS[stream]
    if not kinds:
        return areas
    return [kind for kind in kinds if kind.partition(".")[0] in areas]


def _job_kinds(stream: str, kinds: Sequence[str]) -> list[str]:
    """Return the kinds about jobs as two tokens each, without those about nodes and services."""
    found = []
    for kind in _kinds_of_stream(stream, kinds):
        if kind.partition(".")[0] not in OF_NO_JOB:
            found.append(kind if "." in kind else f"{kind}.{ANY}")
    return found
