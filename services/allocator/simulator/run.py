"""The loop: hear what happens, ask the shipping decision, do what it says; as the live service does, without waiting.

    1 go to the next event, or to the time for which the last decision asked   2 hear its facts
    3 answer requests   4 decide   5 hear and enact what was decided, and decide again until nothing more is said

Decisions are timed with the `clock` that is handed in (seconds); nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from msgspec.structs import replace

from services.allocator.decide import Decisions, decide
from services.allocator.failures import Failure
from services.allocator.requests import admission
from services.allocator.rules import Rules
from services.allocator.simulator.outcome import Run
from services.allocator.simulator.scenario import Scenario
from services.allocator.simulator.world import World
from services.allocator.state import State, apply
from shared.messages import AllocationDecided, JobAccepted, JobFinished, Message

PASSES = 16
"""Decisions at one moment; a policy that still changes its mind is heard again at the next event."""
PATIENCE = 20.0
"""A run is given up after so many times the time that all jobs would need at their least size, one after the other."""
Watch = Callable[[int, float], None]
"""Told after each event: how many jobs are over, and what time it is."""


def simulate(
    scenario: Scenario, rules: Rules, seed: int, clock: Callable[[], float], watch: Watch | None = None
) -> Run:
    """One policy (that of `rules`, for jobs that name none) on one world."""
    loop = Loop(scenario, rules, seed, clock)
    last_s, world = patience_s(scenario), loop.world
    while (now := loop.next_s()) < last_s:
        loop.step(now)
        if watch:
            watch(len(world.records) - world.left, now)
    return Run(
        policy=rules.policy,
        records=tuple(world.records.values()),
        held=tuple(world.held),
        decision_ms=tuple(loop.decision_ms),
        ended_s=loop.now,
        failures=tuple(loop.failures.values()),
    )


def patience_s(scenario: Scenario) -> float:
    """When whoever is not done yet will not be: a policy that resizes for ever would not end by itself."""
    alone_s = 0.0
    for work in scenario.jobs:
        least = scenario.surfaces[work.model].speed(work.ps.min, work.workers.min, work.batch.min)
        alone_s += scenario.restart_s + (work.samples / least if least else 0.0)
    tenants = [tenant.to_s or tenant.from_s for tenant in scenario.cluster.tenants]
    return max([0.0, *(work.submitted_s for work in scenario.jobs), *tenants]) + PATIENCE * alone_s + 1.0


class Loop:
    def __init__(self, scenario: Scenario, rules: Rules, seed: int, clock: Callable[[], float]) -> None:
        self.world, self.clock = World(scenario, seed), clock
        self.rules = replace(rules, quotas=rules.quotas | scenario.cluster.quotas, repeat_max=0)
        self.state, self.decisions = State(), Decisions()
        self.now, self.sequence = 0.0, 0
        self.decision_ms: list[float] = []
        self.failures: dict[tuple[str, str], Failure] = {}

    def next_s(self) -> float:
        wake_s = self.decisions.wake_s
        due_s = wake_s if self.world.left and wake_s is not None and wake_s > self.now else inf
        return max(self.now, min(self.world.next_s(), due_s))

    def step(self, now: float) -> None:
        self.now = now
        self._hear(self.world.happen(now))
        self._answer()
        for _ in range(PASSES):
            if not self._decide():
                break

    def _decide(self) -> bool:
        """One pass; is there more to say?"""
        before = self.clock()
        last = self.decisions
        self.decisions = decide(self.state, self.now, self.rules, last.wishes, last.failures, last.untried)
        self.failures |= {(failure.job, failure.error): failure for failure in self.decisions.failures}
        self.decision_ms.append((self.clock() - before) * 1000.0)
        for action in self.decisions.actions:
            self._hear([action])
            self._enact(action)
        self._hear(self.world.seen(self.now))
        return bool(self.decisions.actions)

    def _enact(self, action: AllocationDecided | JobFinished) -> None:
        if isinstance(action, JobFinished):
            self.world.over(action, self.now)
        else:
            self.world.enact(action, self.now)

    def _answer(self) -> None:
        for uid, asked in admission.unanswered(self.state).items():
            request = admission.completed(asked.request, self.rules)
            accepted = JobAccepted(
                job=request.job, namespace=request.namespace, uid=uid, request=request, accepted_s=self.now
            )
            self._hear([accepted])
            self.world.accepted(accepted)

    def _hear(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.sequence += 1
            self.state = apply(self.state, message, STREAM, self.sequence, self.now)


STREAM = "simulated"
