"""Training in numbers, of all jobs together: what was applied, what was lost, what it has and uses, how long it waits.

throughput    rate(weir_training_examples_total)                                            [examples/s]
utilisation   weir_training_cpu_cores{share="used"} / {share="had"}                         of what jobs hold
              weir_training_cpu_cores{share="used"} / weir_capacity_cpu_cores{share="allocatable"}    of all
wasted work   rate(weir_training_examples_undone_total) / rate(weir_training_examples_total)
"""

from __future__ import annotations

from collections.abc import Iterable

from services.allocator.job import Job
from services.allocator.state import State
from shared.messages import JobFinished, Message, ProgressReported, TrainingResumed
from shared.metrics import Family, Labels, Measure, Meter

EXAMPLES = Family(
    name="weir_training_examples_total",
    kind="counter",
    help="Examples that were applied; one whose update was lost counts again when it is done again.",
)
UNDONE = Family(
    name="weir_training_examples_undone_total",
    kind="counter",
    help="Examples whose updates were lost with a ps or a chief, because the last checkpoint was older.",
)
CHANGE = Family(
    name="weir_training_change_seconds",
    kind="histogram",
    help="From a decision to the first update of the generation that it wanted; the one before trains on meanwhile.",
    bounds=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600),
)
CORES = Family(
    name="weir_training_cpu_cores",
    kind="gauge",
    help="Cores of all tasks that train: requested for them (had), or last measured to be in use (used).",
    labels=("share",),
)
WAIT = Family(
    name="weir_allocator_longest_wait_seconds",
    kind="gauge",
    help="How long the job that has waited longest for its first tasks has waited so far; 0 where none waits.",
)


class Work:
    """Counts what the log tells of training. `at`: how many examples each running job has applied, by key."""

    def __init__(self) -> None:
        self.examples, self.undone, self.change = Meter(EXAMPLES), Meter(UNDONE), Meter(CHANGE)
        self.at: dict[str, int] = {}

    def heard(self, message: Message, before: State, stored_s: float) -> None:
        """A fact that is new, and the state before it."""
        if isinstance(message, JobFinished):
            self.at.pop(message.key(), None)
        if not isinstance(message, ProgressReported | TrainingResumed):
            return
        job = before.jobs.get(message.key())
        if job is None or job.uid != message.uid:
            return
        if isinstance(message, TrainingResumed):
            self._changed(job, message, stored_s)
        elif message.generation != job.running:
            return  # a late word of a generation that is over
        self._moved(job, message)

    def _changed(self, job: Job, message: TrainingResumed, stored_s: float) -> None:
        decision = job.decided.get(message.generation)
        if decision is not None and message.generation > (job.running or 0):
            self.change.observe(max(0.0, stored_s - decision.decided_s))

    def _moved(self, job: Job, message: ProgressReported | TrainingResumed) -> None:
        """On, by what was applied; or back, to a checkpoint."""
        known = self.at.get(job.key, job.progress.samples if job.progress else 0)
        if message.samples >= known:
            self.examples.count(by=message.samples - known)
        else:
            self.undone.count(by=known - message.samples)
        self.at[job.key] = message.samples

    def measures(self, state: State, now: float) -> Iterable[Measure]:
        counted = (meter.measure() for meter in (self.examples, self.undone, self.change))
        return (*counted, Measure(CORES, _cores(state)), Measure(WAIT, {(): longest_wait_s(state, now)}))


def _cores(state: State) -> dict[Labels, float]:
    jobs = [job for job in state.jobs.values() if job.runs is not None]
    had = sum(task.resources.cpu for job in jobs if job.runs for task in job.runs.tasks)
    return {("had",): had, ("used",): sum(used_cores(job) for job in jobs)}


def used_cores(job: Job) -> float:
    """Of the tasks that train, as their chief last said; 0 as long as it has said nothing."""
    if job.runs is None or job.progress is None or job.progress.generation != job.running:
        return 0.0
    names = {task.name() for task in job.runs.tasks}
    return sum(use.cpu for use in job.progress.usage if use.task in names)


def longest_wait_s(state: State, now: float) -> float:
    """Of jobs that were never given a task, and of requests that nobody has answered."""
    since = [job.asked_s for job in state.jobs.values() if job.running is None and job.coming is None]
    since += [asked.asked_s for asked in state.asked.values()]
    return max(0.0, now - min(since)) if since else 0.0
