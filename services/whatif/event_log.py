"""A recorded event log, as `weir events --json` prints it: one JSON object a line, with the whole
message.

`History` is the log up to a moment, as far as an explanation needs it. It folds the state with a
delay and keeps the later messages unfolded. From these, `moment` repeats the allocator's decisions
and so rebuilds its pending changes (`wishes`). The allocator grants a change once it has been
wanted for the window, or once some change has been wanted for the maximum delay. So changes from
before the longer of the two times make no difference.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

from services.allocator.decide import decide
from services.allocator.settings import Rules
from services.allocator.state.state import CONSUMED, State, apply
from services.allocator.steps.resize_conditions import PendingChange
from shared.bus.subjects import UnreadableMessage, decode_message, kind_of
from shared.documents import FileError, InvalidFile
from shared.messages import AllocationDecided, JobAccepted, JobRejected, Message, TaskExited


class LogLine(msgspec.Struct, frozen=True):
    """The fields of a line that are needed."""

    time: datetime
    stream: str
    sequence: int
    subject: str
    message: msgspec.Raw


class LogEntry(msgspec.Struct, frozen=True):
    """A message, with its stream and sequence, and its time of storing (seconds since 1970)."""

    at_s: float
    stream: str
    sequence: int
    message: Message


def read_log(text: str) -> list[LogEntry]:
    """Return every message of a known kind, by time. Raise `InvalidFile` for an unusable log. Dead
    letters are left out.
    """
    reasons: list[FileError] = []
    entries: list[LogEntry] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            entry = _entry(line)
        except (msgspec.DecodeError, UnreadableMessage, RecursionError) as error:
            reasons.append(FileError(number, f": {error}"))
            continue
        if entry is not None:
            entries.append(entry)

    if not entries and not reasons:
        reasons.append(FileError(1, ": the log is empty"))
    if reasons:
        raise InvalidFile(reasons)
    entries.sort(key=lambda entry: (entry.at_s, entry.stream, entry.sequence))
    return entries


def _entry(line: str) -> LogEntry | None:
    """Return the message of a line; None for an empty line or an unknown kind."""
    if not line.strip():
        return None
    said = msgspec.json.decode(line, type=LogLine)
    if not _is_known(said.subject):
        return None
    message = decode_message(said.subject, bytes(said.message))
    return LogEntry(said.time.timestamp(), said.stream, said.sequence, message)


def _is_known(subject: str) -> bool:
    try:
        kind_of(subject)
    except UnreadableMessage:
        return False
    return True


K = TypeVar("K")
V = TypeVar("V")
EVENTS_KEPT = 50_000
"""The number of the newest events that are kept, because a decision may name one as its cause."""
DECISIONS_KEPT = 64
LOOKS_MOST = 200
"""The largest number of decisions that are repeated."""


class LoggedDecision(msgspec.Struct, frozen=True):
    """A decision, and the event that led to it; None if that event is unknown."""

    decision: AllocationDecided
    event: LogEntry | None


class Moment(msgspec.Struct, frozen=True):
    """The state at a time, the pending changes (`wishes`) at that time, and the past of one job.

    `decided`: the job's newest decisions, by revision; `rejected`: the newest answer to a request
    of its name, if that answer is a rejection.
    """

    state: State
    at_s: float
    wishes: dict[str, PendingChange]
    decided: dict[int, LoggedDecision]
    rejected: JobRejected | None


class History:
    """The history of one job, `<namespace>.<job>`. Messages are added in the order of storing.

    `before`: a stored state, if the beginning of the log is gone. Messages that this state already
    contains change nothing.
    """

    def __init__(self, key: str, rules: Rules, before: State | None = None) -> None:
        self.key = key
        self.rules = rules
        self.horizon_s = max(rules.window_s, rules.max_delay_s)
        self.before = before or State()
        self.recent = deque[LogEntry]()
        self.events: dict[str, LogEntry] = {}
        self.decided: dict[int, LoggedDecision] = {}
        self.rejected: JobRejected | None = None

    def hear(self, told: LogEntry) -> None:
        """Add one message; fold the messages that are now older than the horizon."""
        if type(told.message) not in CONSUMED:
            return
        self.recent.append(told)
        while self.recent[0].at_s < told.at_s - self.horizon_s:
            self.before = _entries_after(self.before, self.recent.popleft())
        self._note(told)

    def _note(self, told: LogEntry) -> None:
        """Store a message of the job, and every message as a possible cause."""
        said = told.message
        if isinstance(said, AllocationDecided | JobAccepted | JobRejected):
            self._note_about(said)
        self.events[said.id()] = told
        if isinstance(said, TaskExited) and said.key() == self.key:
            self.events[said.pod] = told  # a replacement names the pod as its cause
        _forget_oldest(self.events, EVENTS_KEPT)

    def _note_about(self, said: AllocationDecided | JobAccepted | JobRejected) -> None:
        """Store a decision or an answer, if it is about the job."""
        if said.key() != self.key:
            return
        if isinstance(said, AllocationDecided):
            event = self.events.get(said.cause)
            self.decided[said.revision] = LoggedDecision(said, event)
            _forget_oldest(self.decided, DECISIONS_KEPT)
        elif isinstance(said, JobRejected):
            self.rejected = said
        else:
            self.decided = {}
            self.rejected = None

    def moment(self, at_s: float) -> Moment:
        """Fold all messages, and decide again after each group of them, as the allocator did."""
        newest_s = self.recent[-1].at_s if self.recent else at_s
        state = self.before
        looked_s = newest_s - self.horizon_s
        wishes = self._wishes(state, looked_s, {})
        for told, next_s in self._recent_and_next_s():
            state = _entries_after(state, told)
            # Decide after a message only if the next one comes long enough after the last decision.
            if next_s - looked_s >= self.horizon_s / LOOKS_MOST:
                wishes = self._wishes(state, told.at_s, wishes)
                looked_s = told.at_s
        return Moment(state, at_s, wishes, dict(self.decided), self.rejected)

    def _recent_and_next_s(self) -> Iterator[tuple[LogEntry, float]]:
        """Yield each recent message with the time of the next one."""
        times = [told.at_s for told in self.recent]
        times.append(math.inf)
        yield from zip(self.recent, times[1:], strict=True)

    def _wishes(
        self, state: State, now: float, wishes: Mapping[str, PendingChange]
    ) -> dict[str, PendingChange]:
        """Decide as the allocator did at this time. Return the pending changes by job, from which
        the next decision starts.
        """
        return decide(state, now, self.rules, wishes).pending_changes


def is_cause(message: Message, cause: str) -> bool:
    """Return True if the cause is the id of the message, or the name of its pod."""
    pod = message.pod if isinstance(message, TaskExited) else ""
    return cause in (message.id(), pod)


def _entries_after(state: State, told: LogEntry) -> State:
    return apply(state, told.message, told.stream, told.sequence, told.at_s)


def _forget_oldest(known: dict[K, V], most: int) -> None:
    """Drop the oldest entries if there are more than `most`."""
    while len(known) > most:
        oldest = next(iter(known))
        del known[oldest]
