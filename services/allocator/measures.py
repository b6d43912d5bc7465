"""The allocator in numbers: its time to decide, its decisions, the states of jobs, and the cost of
changing them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from services.allocator.policies.registry import POLICIES
from services.allocator.state import State
from services.allocator.training import Work
from services.allocator.unanswered import count_unanswered
from services.allocator.view import ENDED, Phase, phase_of
from shared.messages import (
    AllocationDecided,
    JobFinished,
    Message,
    Outcome,
    Phases,
    TrainingResumed,
)
from shared.runtime.metrics import Family, Labels, Measure, Meter

TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
PAUSES = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 40, 80, 160, 320)
DECIDING = Family(
    name="weir_allocator_decision_seconds",
    kind="histogram",
    help="How long one look at all jobs took, whether anything came of it or not.",
    bounds=TIMES,
)
REACTION = Family(
    name="weir_allocator_reaction_seconds",
    kind="histogram",
    help=(
        "From when a fact was stored to when the decision that it led to at once was; "
        "what waits for a timer is not."
    ),
    bounds=(*TIMES, 30),
)
DECISIONS = Family(
    name="weir_allocator_decisions_total",
    kind="counter",
    help=(
        "Decisions, by policy and by what they do to a job: "
        "start, pause, grow, shrink, move, or resize in place."
    ),
    labels=("policy", "outcome"),
)
FINISHED = Family(
    name="weir_allocator_jobs_finished_total",
    kind="counter",
    help="Jobs that ended, by outcome.",
    labels=("outcome",),
)
JOBS = Family(
    name="weir_allocator_jobs",
    kind="gauge",
    help="Jobs that are not over, by state; requested: not yet answered.",
    labels=("state",),
)
UNANSWERED = Family(
    name="weir_allocator_decisions_unanswered",
    kind="gauge",
    help=(
        "Jobs whose newest decision was repeated, "
        "because the launcher did not act on it, and still does not."
    ),
)
PASS = "pass"
"""In place of a policy, where a step of the decision raised."""
FAILURES = Family(
    name="weir_allocator_failures_total",
    kind="counter",
    help="Jobs set aside in a pass, because their policy (or a step of the `pass`) raised.",
    labels=("policy",),
)
PAUSE = Family(
    name="weir_training_pause_seconds",
    kind="histogram",
    help="From the last update of one generation to the first of the next.",
    bounds=PAUSES,
)
PHASE = Family(
    name="weir_training_pause_phase_seconds",
    kind="histogram",
    help=(
        "The parts of a pause: "
        "drain, save, waiting (decided, ready, connected, traced), restore, first_step."
    ),
    labels=("phase",),
    bounds=PAUSES,
)
STATES = [phase for phase in get_args(Phase) if phase not in ENDED.values()]


class Meters:
    """The meters of one process."""

    def __init__(self) -> None:
        self.deciding = Meter(DECIDING)
        self.reaction = Meter(REACTION)
        self.decisions = Meter(DECISIONS)
        self.failures = Meter(FAILURES, [(name,) for name in (PASS, *POLICIES)])
        self.finished = Meter(FINISHED, [(outcome,) for outcome in get_args(Outcome)])
        self.pause = Meter(PAUSE)
        self.phase = Meter(PHASE)
        self.work = Work()

    def heard(self, message: Message, before: State, stored_s: float) -> None:
        """Count a fact that is new, and not replayed. `before`: the state before it. `stored_s`:
        the time at which it was stored.
        """
        self.work.heard(message, before, stored_s)
        if isinstance(message, JobFinished):
            self.finished.count(message.outcome)
        elif isinstance(message, TrainingResumed) and message.pause_s is not None:
            self._observe_pause(message.phases, message.pause_s)

    def _observe_pause(self, phases: Phases, pause_s: float) -> None:
        """Record the seconds of one pause, in all and by phase. The time outside of any phase is
        recorded as `waiting`.
        """
        self.pause.observe(pause_s)
        for field in Phases.__struct_fields__:
            seconds = getattr(phases, field)
            self.phase.observe(seconds, field.removesuffix("_s"))
        self.phase.observe(phases.waiting_s(pause_s), "waiting")

    def said(
        self,
        action: AllocationDecided | JobFinished,
        before: State,
        default: str,
        waited_s: float | None,
    ) -> None:
        """Count a decision on a state. `default`: the cluster's policy. A job's end is counted when
        it is heard.
        """
        if waited_s is not None:
            self.reaction.observe(waited_s)
        if not isinstance(action, AllocationDecided):
            return
        policy = action.request.policy
        if policy not in POLICIES:
            policy = default
        job = before.jobs.get(action.key())
        wanted = job.wanted if job else None
        self.decisions.count(policy, outcome(action, wanted))

    def measures(self, state: State, now: float) -> Iterable[Measure]:
        """Yield the measures of now."""
        yield self.deciding.measure()
        yield self.reaction.measure()
        yield self.decisions.measure()
        yield self.failures.measure()
        yield self.finished.measure()
        yield self.pause.measure()
        yield self.phase.measure()
        yield standing(state)
        yield Measure(UNANSWERED, {(): count_unanswered(state.jobs, state.nodes)})
        yield from self.work.measures(state, now)


def outcome(decision: AllocationDecided, before: AllocationDecided | None) -> str:
    """Return a word for the change that a decision makes to a job. `before`: the decision before
    it.
    """
    tasks = len(decision.tasks)
    if tasks == 0:
        return "pause"
    if before is None or not before.tasks:
        return "start"
    if tasks > len(before.tasks):
        return "grow"
    if tasks < len(before.tasks):
        return "shrink"
    return "resize" if decision.generation == before.generation else "move"


def standing(state: State) -> Measure:
    """Return the number of jobs in each state; states without jobs are named, too."""
    found = Counter(phase_of(job) for job in state.jobs.values())
    numbers: dict[Labels, float] = {("requested",): len(state.asked)}
    for phase in STATES:
        numbers[(phase.lower(),)] = found[phase]
    return Measure(JOBS, numbers)
