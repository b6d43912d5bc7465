"""The allocator in numbers: how long it decides, what it decided, how jobs stand, and what changing cost them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from services.allocator.policies.registry import POLICIES
from services.allocator.state import State
from services.allocator.training import Work
from services.allocator.unanswered import count_unanswered
from services.allocator.view import ENDED, Phase, phase_of
from shared.messages import AllocationDecided, JobFinished, Message, Outcome, Phases, TrainingResumed
from shared.metrics import Family, Measure, Meter

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
    help="From when a fact was stored to when the decision that it led to at once was; what waits for a timer is not.",
    bounds=(*TIMES, 30),
)
DECISIONS = Family(
    name="weir_allocator_decisions_total",
    kind="counter",
    help="Decisions, by policy and by what they do to a job: start, pause, grow, shrink, move, or resize in place.",
    labels=("policy", "outcome"),
)
FINISHED = Family(
    name="weir_allocator_jobs_finished_total", kind="counter", help="Jobs that ended, by outcome.", labels=("outcome",)
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
    help="Jobs whose newest decision was repeated, because the launcher did not act on it, and still does not.",
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
    help="The parts of a pause: drain, save, waiting (decided, ready, connected, traced), restore, first_step.",
    labels=("phase",),
    bounds=PAUSES,
)
STATES = [phase for phase in get_args(Phase) if phase not in ENDED.values()]


class Meters:
    def __init__(self) -> None:
        self.deciding, self.reaction, self.decisions = Meter(DECIDING), Meter(REACTION), Meter(DECISIONS)
        self.failures = Meter(FAILURES, [(name,) for name in (PASS, *POLICIES)])
        self.finished = Meter(FINISHED, [(outcome,) for outcome in get_args(Outcome)])
        self.pause, self.phase, self.work = Meter(PAUSE), Meter(PHASE), Work()

    def heard(self, message: Message, before: State, stored_s: float) -> None:
        """A fact that is new, and not replayed; the state before it, and when it was stored."""
        self.work.heard(message, before, stored_s)
        if isinstance(message, JobFinished):
            self.finished.count(message.outcome)
        if isinstance(message, TrainingResumed) and message.pause_s is not None:
            self.pause.observe(message.pause_s)
            for field in Phases.__struct_fields__:
                self.phase.observe(getattr(message.phases, field), field.removesuffix("_s"))
            self.phase.observe(message.phases.waiting_s(message.pause_s), "waiting")

    def said(
        self, action: AllocationDecided | JobFinished, before: State, default: str, waited_s: float | None
    ) -> None:
        """What was decided on a state; `default`: the cluster's policy. A job's end is counted when it is heard."""
        if waited_s is not None:
            self.reaction.observe(waited_s)
        if isinstance(action, AllocationDecided):
            name = action.request.policy
            job = before.jobs.get(action.key())
            self.decisions.count(name if name in POLICIES else default, outcome(action, job.wanted if job else None))

    def measures(self, state: State, now: float) -> Iterable[Measure]:
        meters = (self.deciding, self.reaction, self.decisions, self.failures, self.finished, self.pause)
        counted = (meter.measure() for meter in (*meters, self.phase))
        unanswered = Measure(UNANSWERED, {(): count_unanswered(state.jobs, state.nodes)})
        return (*counted, standing(state), unanswered, *self.work.measures(state, now))


def outcome(decision: AllocationDecided, before: AllocationDecided | None) -> str:
    """What a decision does to a job, against the one before it."""
    tasks, had = len(decision.tasks), len(before.tasks) if before else 0
    if tasks == 0 or had == 0:
        return "start" if tasks else "pause"
    if tasks == had:
        return "move" if before and decision.generation != before.generation else "resize"
    return "grow" if tasks > had else "shrink"


def standing(state: State) -> Measure:
    """How many jobs are in each state; a state that none is in is told, too."""
    found = Counter(phase_of(job) for job in state.jobs.values())
    return Measure(JOBS, {("requested",): len(state.asked), **{(s.lower(),): found[s] for s in STATES}})
