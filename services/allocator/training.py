"""Training in numbers, of all jobs together: examples applied and lost, cores held and used, time
waited.

throughput    rate(weir_training_examples_total)   [examples/s]
utilisation   weir_training_cpu_cores{share="used"} / {share="had"}
              of the cores that jobs hold
              weir_training_cpu_cores{share="used"} / weir_capacity_cpu_cores{share="allocatable"}
              of all
wasted work   rate(weir_training_examples_undone_total) / rate(weir_training_examples_total)
"""

from __future__ import annotations

from collections.abc import Iterable

from services.allocator.job import Job
from services.allocator.state import State
from shared.messages import JobFinished, Message, ProgressReported, TrainingResumed
from shared.runtime.metrics import Family, Labels, Measure, Meter

EXAMPLES = Family(
    name="weir_training_examples_total",
    kind="counter",
    help=(
        "Examples that were applied; one whose update was lost counts again when it is done again."
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
CHANGE = Family(
    name="weir_training_change_seconds",
    kind="histogram",
    help=(
        "From a decision to the first update of the generation that it wanted; "
        "the one before trains on meanwhile."
    ),
    bounds=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600),
)
CORES = Family(
    name="weir_training_cpu_cores",
    kind="gauge",
    help=(
        "Cores of all tasks that train: "
        "requested for them (had), or last measured to be in use (used)."
    ),
    labels=("share",),
)
WAIT = Family(
    name="weir_allocator_longest_wait_seconds",
    kind="gauge",
    help=(
        "How long the job that has waited longest for its first tasks has waited so far; "
        "0 where none waits."
    ),
)


class Work:
    """Counts the facts of training. `at`: the number of examples that each running job has applied,
    by key.
    """

    def __init__(self) -> None:
        self.examples = Meter(EXAMPLES)
        self.undone = Meter(UNDONE)
        self.change = Meter(CHANGE)
        self.at: dict[str, int] = {}

    def heard(self, message: Message, before: State, stored_s: float) -> None:
        """Count a fact that is new. `before`: the state before it."""
        if isinstance(message, JobFinished):
            self.at.pop(message.key(), None)
        if not isinstance(message, ProgressReported | TrainingResumed):
            return
        job = before.jobs.get(message.key())
        if job is None or job.uid != message.uid:
            return
        if isinstance(message, TrainingResumed):
            self._count_change(job, message, stored_s)
        elif message.generation != job.running:
            return  # a late word of a generation that is over
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
        known = self.at.get(job.key, reported)
        if message.samples >= known:
            self.examples.count(by=message.samples - known)
        else:
            self.undone.count(by=known - message.samples)
        self.at[job.key] = message.samples

    def measures(self, state: State, now: float) -> Iterable[Measure]:
        """Yield the measures of now."""
        yield self.examples.measure()
        yield self.undone.measure()
        yield self.change.measure()
        yield Measure(CORES, _cores(state))
        yield Measure(WAIT, {(): longest_wait_s(state, now)})


def _cores(state: State) -> dict[Labels, float]:
    """Return the cores that all tasks have and use."""
    had: float = 0
    used: float = 0
    for job in state.jobs.values():
        if job.runs is None:
            continue
        for task in job.runs.tasks:
            had += task.resources.cpu
        used += used_cores(job)
    return {("had",): had, ("used",): used}


def used_cores(job: Job) -> float:
    """Return the cores of the tasks that train, as their chief last reported; 0 before that."""
    if job.runs is None or job.progress is None or job.progress.generation != job.running:
        return 0.0
    names = {task.name() for task in job.runs.tasks}
    return sum(use.cpu for use in job.progress.usage if use.task in names)


def longest_wait_s(state: State, now: float) -> float:
    """Return the longest time (s) that a job without tasks, or a request without an answer, has
    waited.
    """
    first_s = now
    for job in state.jobs.values():
        if job.running is None and job.coming is None:
            first_s = min(first_s, job.asked_s)
    for asked in state.asked.values():
        first_s = min(first_s, asked.asked_s)
    return now - first_s
