"""One document in, one out: the whole wanted state of every job, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.decide import Decisions, decide
from services.allocator.job import Job
from services.allocator.kept import Kept
from services.allocator.outside.document import Document, Wrong, document, names_against, request_against
from services.allocator.outside.mirror import Mirror
from services.allocator.rules import Rules
from services.allocator.state import apply
from shared.messages import AllocationDecided

STREAM = "documents"


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What a job should have; no ps and no workers: it waits, or stops. `gain`: seconds saved, for `cost_s`."""

    job: str
    chief: str | None = None
    ps: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    batch: int
    reason: str
    gain: float = 0.0
    cost_s: float = 0.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`decision_ms`: from the document, read, to the decisions; without reading and writing JSON."""

    decisions: tuple[Decided, ...]
    decision_ms: float


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a line could not be used. Nothing of it was taken."""

    line: int
    errors: tuple[str, ...]


class Desk:
    """Answers line after line. The picture of a line is complete and settled, so no wish has to stand the test of time.

    `clock` (seconds) only measures.
    """

    def __init__(self, rules: Rules, clock: Callable[[], float]) -> None:
        self.rules = replace(rules, window_s=0.0, max_delay_s=0.0, repeat_max=0)
        self.mirror, self.decisions, self.clock = Mirror(self.rules), Decisions(), clock
        self.lines, self.sequence, self.now = 0, 0, 0.0
        self.checked: dict[str, dict[str, Any]] = {}

    def answer(self, line: bytes) -> Answer | Refusal:
        self.lines += 1
        try:
            said = document(line)
            self._check(said)
        except Wrong as wrong:
            return Refusal(line=self.lines, errors=tuple(wrong.reasons))
        before = self.clock()
        self._decide(said)
        decided = tuple(self._decided(one.job, key) for key, one in self.mirror.said.items())
        return Answer(decisions=decided, decision_ms=(self.clock() - before) * 1000.0)

    def _check(self, said: Document) -> None:
        """Raises `Wrong`. A request that was checked is not checked again."""
        reasons = list(names_against(said))
        for number, one in enumerate(said.jobs):
            if self.checked.get(one.job) != one.request:
                reasons += request_against(number, one.job, one.request)
        if reasons:
            raise Wrong(reasons)
        self.checked = {one.job: one.request for one in said.jobs}

    def _decide(self, said: Document) -> None:
        wishes = self.decisions.wishes if said.now >= self.now else {}
        last = self.decisions
        self.now = said.now
        if said.quotas != self.rules.quotas:
            self.rules = replace(self.rules, quotas=said.quotas)
        self.mirror.look(said)
        self.decisions = decide(self.mirror.state, said.now, self.rules, wishes, last.failures, last.untried)
        for action in self.decisions.actions:
            if isinstance(action, AllocationDecided):
                self.sequence += 1
                self.mirror.state = apply(self.mirror.state, action, STREAM, self.sequence, said.now)

    def _decided(self, name: str, key: str) -> Decided:
        job = self.mirror.state.jobs[key]
        return decided(name, job, self.decisions.why.get(key, ""))


def decided(name: str, job: Job, why: str) -> Decided:
    wanted, flies = job.wanted, job.flies
    if wanted is None:
        return Decided(job=name, batch=job.request.batch.start, reason=why)
    chief, ps, workers = _nodes(wanted)
    return Decided(
        job=name,
        chief=chief,
        ps=ps,
        workers=workers,
        batch=wanted.batch,
        reason=why or wanted.reason,
        gain=flies.gain_s if flies else 0.0,
        cost_s=flies.cost_s if flies else 0.0,
    )


def _by_role(wanted: AllocationDecided) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """Where the chief is, the ps and the workers."""
    nodes: dict[str, list[str]] = {"chief": [], "ps": [], "worker": []}
    for task in wanted.tasks:
        nodes[task.role].append(task.node)
    return next(iter(nodes["chief"]), None), tuple(nodes["ps"]), tuple(nodes["worker"])


_nodes = Kept(_by_role)
