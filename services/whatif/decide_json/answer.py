"""One document in, one out: the whole wanted state of every job, and why."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from services.allocator.decide import Decisions, decide
from services.allocator.job import Job
from services.allocator.rules import Rules
from services.allocator.state import apply
from services.allocator.timing import Wish
from services.whatif.decide_json.document import (
    Document,
    Wrong,
    document,
    names_against,
    request_against,
)
from services.whatif.decide_json.mirror import Mirror
from shared.messages import AllocationDecided, Role

STREAM = "documents"


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a job should have. Without ps and workers it waits, or stops.

    `gain` is the time that a change saves, `cost_s` the time that it takes, both in seconds.
    """

    job: str
    chief: str | None = None
    ps: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    batch: int
    reason: str
    gain: float = 0.0
    cost_s: float = 0.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions for one document.

    `decision_ms` is the time from the document, read, to the decisions. Reading and writing of JSON
    are not counted.
    """

    decisions: tuple[Decided, ...]
    decision_ms: float


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons against a line. Nothing of it was taken."""

    line: int
    errors: tuple[str, ...]


class Desk:
    """Answers line after line.

    The picture of a line is complete and settled, so no wish has to stand the test of time.
    `clock` (seconds) only measures.
    """

    def __init__(self, rules: Rules, clock: Callable[[], float]) -> None:
        self.rules = replace(rules, window_s=0.0, max_delay_s=0.0, repeat_max=0)
        self.mirror = Mirror(self.rules)
        self.decisions = Decisions()
        self.clock = clock
        self.lines = 0
        self.sequence = 0
        self.now = 0.0

    def answer(self, line: bytes) -> Answer | Refusal:
        """Return the decisions for one line, or the reasons why it cannot be used."""
        self.lines += 1
        try:
            said = document(line)
            self._check(said)
        except Wrong as wrong:
            return Refusal(line=self.lines, errors=tuple(wrong.reasons))
        before = self.clock()
        self._decide(said)
        decisions = self._decisions_of_jobs()
        passed_s = self.clock() - before
        return Answer(decisions=decisions, decision_ms=passed_s * 1000.0)

    def _decisions_of_jobs(self) -> tuple[Decided, ...]:
        """Return the newest decision about each job of the last document."""
        found = []
        for key, said in self.mirror.said.items():
            job = self.mirror.state.jobs[key]
            why = self.decisions.why.get(key, "")
            found.append(decided(said.job, job, why))
        return tuple(found)

    def _check(self, said: Document) -> None:
        """Raise `Wrong` with every reason against the document.

        A request that is the same as in the last document was checked there.
        """
        reasons = list(names_against(said))
        for number, one in enumerate(said.jobs):
            if not self.mirror.has_request(one):
                reasons += request_against(number, one.job, one.request)
        if reasons:
            raise Wrong(reasons)

    def _decide(self, said: Document) -> None:
        """Take the document for the state of the world, and fold the decisions about it."""
        last = self.decisions
        # Where the clock goes back, wishes of a later time are void.
        wishes: dict[str, Wish] = {}
        if said.now >= self.now:
            wishes = last.wishes
        self.now = said.now
        if said.quotas != self.rules.quotas:
            self.rules = replace(self.rules, quotas=said.quotas)

        self.mirror.look(said)
        state = self.mirror.state
        self.decisions = decide(
            state,
            self.now,
            self.rules,
            wishes,
            last.failures,
            last.untried,
        )
        for action in self.decisions.actions:
            if isinstance(action, AllocationDecided):
                self._fold(action)

    def _fold(self, action: AllocationDecided) -> None:
        """Apply a decision to the mirrored state, as the allocator reads its own decisions from the
        log.
        """
        self.sequence += 1
        self.mirror.state = apply(self.mirror.state, action, STREAM, self.sequence, self.now)


def decided(name: str, job: Job, why: str) -> Decided:
    """Return the newest decision about a job, by the job's name in the document."""
    wanted = job.wanted
    if wanted is None:
        return Decided(job=name, batch=job.request.batch.start, reason=why)

    chiefs = _nodes_of(wanted, "chief")
    pending = job.flies
    return Decided(
        job=name,
        chief=chiefs[0] if chiefs else None,
        ps=_nodes_of(wanted, "ps"),
        workers=_nodes_of(wanted, "worker"),
        batch=wanted.batch,
        reason=why or wanted.reason,
        gain=pending.gain_s if pending else 0.0,
        cost_s=pending.cost_s if pending else 0.0,
    )


def _nodes_of(wanted: AllocationDecided, role: Role) -> tuple[str, ...]:
    """Return the nodes of the tasks of one role, in their order."""
    return tuple(task.node for task in wanted.tasks if task.role == role)
