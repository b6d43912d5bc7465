"""The allocator's metrics: time to decide, decisions, states of jobs, cost of changes, training.

throughput    rate(weir_training_examples_total)   [examples/s]
utilisation   weir_training_cpu_cores{share="used"} / {share="had"}
              of the cores that jobs hold
              weir_training_cpu_cores{share="used"} / weir_capacity_cpu_cores{share="allocatable"}
              of all
wasted work   rate(weir_training_examples_undone_total) / rate(weir_training_examples_total)
dropped       rate(weir_training_gradients_dropped_total)   [gradients/s]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from services.allocator.job_views import ENDED, Phase, phase_of
from services.allocator.policies.registry import POLICIES
from services.allocator.state.job import Job
from services.allocator.state.state import State
from services.allocator.steps.repetition import count_unanswered
from shared.messages import (
    AllocationDecided,
    JobFinished,
    Message,
    Outcome,
    Phases,
    ProgressReported,
    TrainingResumed,
)
from shared.runtime.metrics import Family, Labels, Measure, Meter

TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
PAUSES = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 40, 80, 160, 320)
DECIDING = Family(
    name="weir_allocator_decision_seconds",
    kind="histogram",
    help="Duration of one pass over all jobs, with or without a decision.",
    bounds=TIMES,
)
REACTION = Family(
    name="weir_allocator_reaction_seconds",
    kind="histogram",
    help=(
        "Time from the storage of a fact to the decision on it, "
        "without decisions that wait for a timer."
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
    help="Jobs whose newest decision was repeated and is still not carried out by the launcher.",
)
PASS = "pass"
"""The label in place of a policy, if a step of the decision raised an error."""
FAILURES = Family(
    name="weir_allocator_failures_total",
    kind="counter",
    help="Jobs set aside in a pass, because their policy (or a step of the `pass`) raised.",
    labels=("policy",),
)
PAUSE = Family(
    name="weir_training_pause_seconds",
    kind="histogram",
    help="Time from the last update of one generation to the first of the next.",
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
        self.work = TrainingWork()

    def count_fact(self, message: Message, before: State, stored_s: float) -> None:
        """Count a fact that is new, and not replayed. `before`: the state before it. `stored_s`:
        the time at which it was stored.
        """
        self.work.count_fact(message, before, stored_s)
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

    def count_decision(
        self,
        action: AllocationDecided | JobFinished,
        before: State,
        default: str,
        waited_s: float | None,
    ) -> None:
        """Count a decision on a state. `default`: the cluster's policy. The end of a job is counted
        when its message is read.
        """
        if waited_s is not None:
            self.reaction.observe(waited_s)
        if not isinstance(action, AllocationDecided):
            return
        policy = action.request.policy
        if policy not in POLICIES:
            policy = default
        job = before.jobs.get(action.key())
        wanted = job.newest_decision if job else None
        self.decisions.count(policy, decision_outcome(action, wanted))

    def measures(self, state: State, now: float) -> Iterable[Measure]:
        """Yield the measures of now."""
        yield self.deciding.measure()
        yield self.reaction.measure()
        yield self.decisions.measure()
        yield self.failures.measure()
        yield self.finished.measure()
        yield self.pause.measure()
        yield self.phase.measure()
        yield jobs_by_state(state)
        yield Measure(UNANSWERED, {(): count_unanswered(state.jobs, state.nodes)})
        yield from self.work.measures(state, now)


def decision_outcome(decision: AllocationDecided, before: AllocationDecided | None) -> str:
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


def jobs_by_state(state: State) -> Measure:
    """Return the number of jobs in each state; states without jobs are named, too."""
    found = Counter(phase_of(job) for job in state.jobs.values())
    numbers: dict[Labels, float] = {("requested",): len(state.asked)}
    for phase in STATES:
        numbers[(phase.lower(),)] = found[phase]
    return Measure(JOBS, numbers)


EXAMPLES = Family(
    name="weir_training_examples_total",
    kind="counter",
    help=(
        "Examples that were applied; one whose update was lost counts again when it is repeated."
    ),
)
UNDONE = Family(
    name="weir_training_examples_undone_total",
    kind="counter",
    help=(
        "Examples whose updates were lost with a ps or a chief, "
        "because the last checkpoint was older."
    ),
)
DROPPED = Family(
    name="weir_training_gradients_dropped_total",
    kind="counter",
    help="Gradients that were dropped, because they were staler than the job's max_staleness.",
)
STALENESS = Family(
    name="weir_training_staleness_updates",
    kind="gauge",
    help=(
        "Updates applied while a gradient was computed: mean of a job's last report, "
        "of the job where it is greatest."
    ),
)
CHANGE = Family(
    name="weir_training_change_seconds",
    kind="histogram",
    help=(
        "Time from a decision to the first update of its generation; "
        "the previous one trains meanwhile."
    ),
    bounds=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600),
)
CORES = Family(
    name="weir_training_cpu_cores",
    kind="gauge",
    help="Cores of all tasks that train: requested (had), or in use when last measured (used).",
    labels=("share",),
)
WAIT = Family(
    name="weir_allocator_longest_wait_seconds",
    kind="gauge",
    help=("The longest time that a job has waited for its first tasks so far; 0 if no job waits."),
)


class TrainingWork:
    """Counts the facts of training. `at`: the number of examples that each running job has applied,
    by key.
    """

    def __init__(self) -> None:
        self.examples = Meter(EXAMPLES)
        self.undone = Meter(UNDONE)
        self.change = Meter(CHANGE)
        self.dropped = Meter(DROPPED)
        self.applied: dict[str, int] = {}

    def count_fact(self, message: Message, before: State, stored_s: float) -> None:
        """Count a fact that is new. `before`: the state before it."""
        if isinstance(message, JobFinished):
            self.applied.pop(message.key(), None)
        if not isinstance(message, ProgressReported | TrainingResumed):
            return
        job = before.jobs.get(message.key())
        if job is None or job.uid != message.uid:
            return
        if isinstance(message, TrainingResumed):
            self._count_change(job, message, stored_s)
        elif message.generation != job.running:
            return  # a late message of an earlier generation
        elif message.staleness is not None:
            self.dropped.count(by=message.staleness.dropped)
        self._count_examples(job, message)

    def _count_change(self, job: Job, message: TrainingResumed, stored_s: float) -> None:
        """Record the seconds from a decision to the resumption of training. A generation that is
        not newer than the running one was counted before.
        """
        if message.generation <= (job.running or 0):
            return
        decision = job.decided.get(message.generation)
        if decision is not None:
            self.change.observe(max(0.0, stored_s - decision.decided_s))

    def _count_examples(self, job: Job, message: ProgressReported | TrainingResumed) -> None:
        """Count the examples since the last fact, or those that were lost by going back to a
        checkpoint.
        """
        reported = job.progress.samples if job.progress else 0
        known = self.applied.get(job.key, reported)
        if message.samples >= known:
            self.examples.count(by=message.samples - known)
        else:
            self.undone.count(by=known - message.samples)
        self.applied[job.key] = message.samples

    def measures(self, state: State, now: float) -> Iterable[Measure]:
        """Yield the measures of now."""
        yield self.examples.measure()
        yield self.undone.measure()
        yield self.change.measure()
        yield self.dropped.measure()
        yield Measure(STALENESS, {(): greatest_staleness(state)})
        yield Measure(CORES, _cores(state))
        yield Measure(WAIT, {(): longest_wait_s(state, now)})


def _cores(state: State) -> dict[Labels, float]:
    """Return the cores that all tasks have and use."""
    requested: float = 0
    used: float = 0
    for job in state.jobs.values():
        if job.active_decision is None:
            continue
        for task in job.active_decision.tasks:
            requested += task.resources.cpu
        used += used_cores(job)
    return {("had",): requested, ("used",): used}


def used_cores(job: Job) -> float:
    """Return the cores of the tasks that train, as their chief last reported; 0 before that."""
    if (
        job.active_decision is None
        or job.progress is None
        or job.progress.generation != job.running
    ):
        return 0.0
    names = {task.name() for task in job.active_decision.tasks}
    return sum(use.cpu for use in job.progress.usage if use.task in names)


def greatest_staleness(state: State) -> float:
    """Return the greatest mean staleness in the last reports of the jobs that train."""
    greatest = 0.0
    for job in state.jobs.values():
        report = job.progress
        if report and report.staleness and report.generation == job.running:
            greatest = max(greatest, report.staleness.mean)
    return greatest


def longest_wait_s(state: State, now: float) -> float:
    """Return the longest time (s) that a job without tasks, or a request without an answer, has
    waited.
    """
    first_s = now
    for job in state.jobs.values():
        if job.running is None and job.pending_generation is None:
            first_s = min(first_s, job.asked_s)
    for request in state.asked.values():
        first_s = min(first_s, request.asked_s)
    return now - first_s
