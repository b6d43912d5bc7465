"""The log up to a moment, as far as an explanation needs it; read once, kept small.

The state is folded some seconds behind: what was heard since then is kept as it came, so that the wishes which the
allocator held at the moment can be rebuilt by deciding again as it did. A wish is granted once it was held for the
window, or once some wish was for the maximum delay; what was wished before the longer of the two makes no difference.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from services.allocator.decide import decide
from services.allocator.rules import Rules
from services.allocator.simulator.log_file import Told
from services.allocator.state import HEARD, State, apply
from services.allocator.timing import Wish
from shared.messages import AllocationDecided, JobAccepted, JobRejected, Message, TaskExited

K = TypeVar("K")
V = TypeVar("V")
EVENTS_KEPT = 50_000
"""Of the newest events is known what they said, should a decision name one as its cause."""
DECISIONS_KEPT = 64
LOOKS_MOST = 200
"""So often, at most, is decided again."""


class Decided(msgspec.Struct, frozen=True):
    """A decision, and the event that led to it, where that is still known."""

    decision: AllocationDecided
    event: Told | None


class Moment(msgspec.Struct, frozen=True):
    """The state at a time, the wishes that were held then, and what is known of one job besides.

    `decided`: its newest decisions, by revision; `rejected`: the newest answer to a request of its name, if it is a no.
    """

    state: State
    at_s: float
    wishes: dict[str, Wish]
    decided: dict[int, Decided]
    rejected: JobRejected | None


class History:
    """Of one job, `<namespace>.<job>`. Messages come in the order in which they were stored.

    `before`: a stored state, where the log's beginning is gone; what is in it already changes nothing.
    """

    def __init__(self, key: str, rules: Rules, before: State | None = None) -> None:
        self.key, self.rules, self.horizon_s = key, rules, max(rules.window_s, rules.max_delay_s)
        self.before, self.recent = before or State(), deque[Told]()
        self.events: dict[str, Told] = {}
        self.decided: dict[int, Decided] = {}
        self.rejected: JobRejected | None = None

    def hear(self, told: Told) -> None:
        if type(told.message) not in HEARD:
            return
        self.recent.append(told)
        while self.recent[0].at_s < told.at_s - self.horizon_s:
            self.before = _after(self.before, self.recent.popleft())
        self._note(told)

    def _note(self, told: Told) -> None:
        said = told.message
        if isinstance(said, AllocationDecided | JobAccepted | JobRejected) and said.key() == self.key:
            self._of_job(said)
        self.events[said.id()] = told
        if isinstance(said, TaskExited) and said.key() == self.key:
            self.events[said.pod] = told  # what is replaced names the pod as its cause
        _forget(self.events, EVENTS_KEPT)

    def _of_job(self, said: AllocationDecided | JobAccepted | JobRejected) -> None:
        if isinstance(said, AllocationDecided):
            self.decided[said.revision] = Decided(said, self.events.get(said.cause))
            _forget(self.decided, DECISIONS_KEPT)
        elif isinstance(said, JobRejected):
            self.rejected = said
        else:
            self.decided, self.rejected = {}, None

    def moment(self, at_s: float) -> Moment:
        """All that was heard is folded; after what came together is decided again, as the allocator did."""
        newest_s = self.recent[-1].at_s if self.recent else at_s
        state, looked_s = self.before, newest_s - self.horizon_s
        wishes = self._wishes(state, looked_s, {})
        later = [*(told.at_s for told in self.recent), math.inf][1:]
        for told, following_s in zip(self.recent, later, strict=True):
            state = _after(state, told)
            if following_s - looked_s >= self.horizon_s / LOOKS_MOST:
                wishes, looked_s = self._wishes(state, told.at_s, wishes), told.at_s
        return Moment(state, at_s, wishes, dict(self.decided), self.rejected)

    def _wishes(self, state: State, now: float, wishes: Mapping[str, Wish]) -> dict[str, Wish]:
        return decide(state, now, self.rules, wishes).wishes


def is_cause(message: Message, cause: str) -> bool:
    """Its id; of what was replaced, the name of the pod."""
    return cause in (message.id(), message.pod if isinstance(message, TaskExited) else "")


def _after(state: State, told: Told) -> State:
    return apply(state, told.message, told.stream, told.sequence, told.at_s)


def _forget(known: dict[K, V], most: int) -> None:
    """The oldest, where there are more."""
    while len(known) > most:
        del known[next(iter(known))]
