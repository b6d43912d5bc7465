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
    said: Message | DeadLetter
    subject: str
    stream: str
    sequence: int
    stored_s: float

    @property
    def as_log_entry(self) -> LogEntry | None:
        """The entry for folds; None for a dead letter, which is unreadable."""
        said = self.said
        return (
            None
            if isinstance(said, DeadLetter)
            else LogEntry(self.stored_s, self.stream, self.sequence, said)
        )

    @property
    def order(self) -> tuple[float, str, int]:
        return self.stored_s, self.stream, self.sequence


LETTERS = {"o": ORDERS, "f": FACTS, "d": DEAD}
LETTER_OF_STREAM = {stream: letter for letter, stream in LETTERS.items()}
LONGEST_NUMBER = 18  # digits: what fits into the server's number


def event_name(entry: Entry) -> str:
    return f"{LETTER_OF_STREAM[entry.stream]}{entry.sequence}"


def parse_event_name(text: str) -> tuple[str, int] | None:
    """Stream and number; None where this is no such name."""
    found = re.fullmatch(rf"([{''.join(LETTERS)}])([1-9]\d{{0,{LONGEST_NUMBER - 1}}})", text)
    return (LETTERS[found[1]], int(found[2])) if found else None


ANY = "*"
AREAS = {
    ORDERS: ("job", "allocation", "cluster"),
    FACTS: ("task", "training", "capacity", "service"),
}
OF_NO_JOB = ("capacity", "service")
REQUESTS = ("job.requested", "job.cancel", "job.change", "job.suspend", "job.resume", "job.forget")
"""May be said without a namespace: then it is the default one."""


def entry_filters(
    stream: str, job: str | None = None, namespace: str | None = None, kinds: Sequence[str] = ()
) -> list[str]:
    """Return a consumer's filters on one stream: for all messages, one job, or the jobs of a
    namespace. `kinds`: tags of messages; empty: every kind. Empty if the stream has none of these
    kinds.
    """
    if job is None and namespace is None:
        heads = (
            _dead(kinds)
            if stream == DEAD
            else [f"{PREFIX}.{kind}" for kind in _kinds(stream, kinds)]
        )
        return [f"{head}.>" for head in heads]
    tail = f"{namespace or ANY}.{job or ANY}"
    if stream == DEAD:
        return [
            f"{DeadLetter.PREFIX}.{PREFIX}.{kind}.{tail}" for kind in kinds or (f"{ANY}.{ANY}",)
        ]
    return [f"{PREFIX}.{kind}.{tail}" for kind in _of_jobs(stream, kinds)] + _short(
        stream, job, namespace, kinds
    )


def _kinds(stream: str, kinds: Sequence[str]) -> Sequence[str]:
    """Of this stream; whole areas, where no kind is named."""
    return (
        [kind for kind in kinds if kind.partition(".")[0] in AREAS[stream]]
        if kinds
        else AREAS[stream]
    )


def _of_jobs(stream: str, kinds: Sequence[str]) -> list[str]:
    """As two tokens each, and none that is about nodes or services."""
    named = [kind if "." in kind else f"{kind}.{ANY}" for kind in _kinds(stream, kinds)]
    return [kind for kind in named if kind.partition(".")[0] not in OF_NO_JOB]


def _dead(kinds: Sequence[str]) -> list[str]:
    return [f"{DeadLetter.PREFIX}.{PREFIX}.{kind}" for kind in kinds] or [DeadLetter.PREFIX]


def _short(stream: str, job: str | None, namespace: str | None, kinds: Sequence[str]) -> list[str]:
    if stream != ORDERS or namespace not in (None, "default"):
        return []
    return [f"{PREFIX}.{tag}.{job or ANY}" for tag in REQUESTS if tag in (kinds or BY_TAG)]
