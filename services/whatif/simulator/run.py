"""The loop: hear the facts, ask the shipping decision, enact it; as the live service, without
waiting.

    1  go to the next event, or to the time for which the last decision asked
    2  hear its facts
    3  answer requests
    4  decide
    5  hear and enact the decisions, and decide again until nothing more is said

Decisions are timed with the `clock` that is handed in (seconds); nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from msgspec.structs import replace

from services.allocator.decide import Decisions, decide, prepared
from services.allocator.failures import Failure
from services.allocator.requests import admission
from services.allocator.rules import Rules
from services.allocator.state import State, apply
from services.whatif.simulator.outcome import Run
from services.whatif.simulator.scenario import Scenario, Work
from services.whatif.simulator.world import World
from shared.messages import AllocationDecided, JobAccepted, JobFinished, Message

STREAM = "simulated"
PASSES = 16
"""Decisions at one moment; a policy that still changes its mind is heard again at the next
event.
"""
PATIENCE = 20.0
"""Multiple of the time that all jobs would need at their least size, one after the other, after
which a run is given up.
"""
Clock = Callable[[], float]
"""Returns seconds from any time on."""
Watch = Callable[[int, float], None]
"""Called after each event with the number of jobs that are over, and the time."""


def simulate(
    scenario: Scenario,
    rules: Rules,
    seed: int,
    clock: Clock,
    watch: Watch | None = None,
) -> Run:
    """Run one policy (that of `rules`, for jobs that name none) on one world."""
    loop = Loop(scenario, rules, seed, clock)
    world = loop.world
    last_s = patience_s(scenario)
    while (now := loop.next_s()) < last_s:
        loop.step(now)
        if watch:
            over = len(world.records) - world.left
            watch(over, now)

    return Run(
        policy=rules.policy,
        records=tuple(world.records.values()),
        held=tuple(world.held),
        decision_ms=tuple(loop.decision_ms),
        ended_s=loop.now,
        failures=tuple(loop.failures.values()),
    )


def patience_s(scenario: Scenario) -> float:
    """Return the time at which a run is given up.

    A policy that resizes for ever would not end by itself.
    """
    alone_s = 0.0
    last_s = 0.0
    for work in scenario.jobs:
        alone_s += scenario.restart_s + _longest_training_s(scenario, work)
        last_s = max(last_s, work.submitted_s)

    for tenant in scenario.cluster.tenants:
        last_s = max(last_s, tenant.to_s or tenant.from_s)
    return last_s + PATIENCE * alone_s + 1.0


def _longest_training_s(scenario: Scenario, work: Work) -> float:
    """Return the time that a job trains at its least size; 0 if it cannot train there."""
    surface = scenario.surfaces[work.model]
    slowest = surface.speed(work.ps.min, work.workers.min, work.batch.min)
    if not slowest:
        return 0.0
    return work.samples / slowest


class Loop:
    """The state of one run: the world, and the allocator's knowledge of it."""

    def __init__(self, scenario: Scenario, rules: Rules, seed: int, clock: Clock) -> None:
        self.world = World(scenario, seed)
        self.clock = clock

        quotas = rules.quotas | scenario.cluster.quotas
        self.rules = replace(rules, quotas=quotas, repeat_max=0)

        self.state = State()
        self.decisions = Decisions()
        self.now = 0.0
        self.sequence = 0
        self.decision_ms: list[float] = []
        self.failures: dict[tuple[str, str], Failure] = {}

    def next_s(self) -> float:
        """Return the time of the next event, or of the last decision's wake; infinite: none."""
        due_s = inf
        wake_s = self.decisions.wake_s
        if self.world.left and wake_s is not None and wake_s > self.now:
            due_s = wake_s
        event_s = self.world.next_s()
        return max(self.now, min(event_s, due_s))

    def step(self, now: float) -> None:
        """Hear the facts of a moment, and decide until nothing more is said."""
        self.now = now
        self._hear(self.world.happen(now))
        self._answer()
        for _ in range(PASSES):
            if not self._decide():
                break

    def _decide(self) -> bool:
        """Decide once; return true if anything was decided."""
        self.decisions = self._next_decisions()
        actions = self.decisions.actions
        for action in actions:
            self._hear([action])
            self._enact(action)

        self._hear(self.world.seen(self.now))
        return bool(actions)

    def _next_decisions(self) -> Decisions:
        """Ask the allocator; note the time that it takes, and its failures."""
        last = self.decisions
        before_s = self.clock()
        self.state = prepared(self.state, self.rules)
        decisions = decide(
            self.state, self.now, self.rules, last.wishes, last.failures, last.untried
        )
        for failure in decisions.failures:
            self.failures[failure.job, failure.error] = failure

        took_s = self.clock() - before_s
        self.decision_ms.append(took_s * 1000.0)
        return decisions

    def _enact(self, action: AllocationDecided | JobFinished) -> None:
        """Let the world follow a decision."""
        if isinstance(action, JobFinished):
            self.world.over(action, self.now)
        else:
            self.world.enact(action, self.now)

    def _answer(self) -> None:
        """Accept every request that has no answer."""
        unanswered = admission.unanswered(self.state)
        for uid, asked in unanswered.items():
            request = admission.completed(asked.request, self.rules)
            accepted = JobAccepted(
                job=request.job,
                namespace=request.namespace,
                uid=uid,
                request=request,
                accepted_s=self.now,
            )
            self._hear([accepted])
            self.world.accepted(accepted)

    def _hear(self, messages: Iterable[Message]) -> None:
        """Fold messages into the allocator's state."""
        for message in messages:
            self.sequence += 1
            self.state = apply(self.state, message, STREAM, self.sequence, self.now)
