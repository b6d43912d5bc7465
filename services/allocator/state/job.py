"""One job: its request, its decisions, the facts about it, the exits of its tasks, and its summary
after its end.

A job's decisions are stored by generation, from the one that runs to the newest. `running` is the
generation that trains; `pending_generation` is decided, and neither resumed nor abandoned. A
generation that was overtaken stays in `decided`, because it may still resume. So may an abandoned
generation; it is in `given_up`. `job_folds.py` has the change that each message makes.

Law: a summary gives the same history of the program (`models/`), the same view and the same uid,
serials and request as its job.

Law of exits: a task that was taken away (evicted, deleted, killed by a signal, node lost) is
replaced and costs the job nothing; a task that failed by itself (1-127) or ran out of memory is
replaced too, but counts against `max_failures`. Exit code 0 is completion, unless somebody took the
pod away.

The cause of a kill may be unknown: too little memory in the process or on the machine, broken code,
a person. A trainer with a killed child, or with another task lost, ends as if it had been killed,
too. Such an end counts as long as the job gets no further, unless the lost task had been taken
away. A trainer that the bus failed says so by an exit code of its own, `BUS_LOST`. It is replaced
and counts nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from services.allocator.policies.contract import BEGINNING_SHARE, LossPoint, Observed, Reading
from services.allocator.state.observations import role_count
from shared.messages import (
    CORDONED,
    OF_NODE,
    AllocationDecided,
    JobFinished,
    JobRequested,
    OwnPod,
    ProgressReported,
    Resources,
    Seconds,
    TaskPlan,
    TrainingResumed,
)
from shared.text import cut_middle

COMPLETED = 0
OUT_OF_MEMORY, UNSCHEDULABLE = "OOMKilled", "Unschedulable"
TAKEN = frozenset(
    {
        "Evicted",
        "NodeLost",
        "Deleted",
        "Preempting",
        "Preempted",
        "Terminated",
        "NodeShutdown",
        "Shutdown",
    }
)
SHUT_DOWN = frozenset({"Terminated", "NodeShutdown", "Shutdown"})
"""Reasons of exits in an orderly shutdown of the node or of the whole cluster."""
SIGNALS = range(128, 256)
TERMINATED = 128 + 15  # SIGTERM: the task was asked to end
LOST_ANOTHER = 128 + 10  # the trainer's `EXIT_RETRY`
BUS_LOST = 128 + 12  # the trainer's `EXIT_BUS_LOST`


class Exit(msgspec.Struct, frozen=True, gc=False):
    """The end of one pod."""

    role: str
    code: int | None
    reason: str = ""
    message: str = ""
    at_s: float = 0.0


# ---------------------------------------------------------------- exits


def was_taken_away(ended: Exit) -> bool:
    """Return True if the task was taken away."""
    return ended.reason in TAKEN or ended.code is None or ended.code in SIGNALS


def is_completed(ended: Exit | None) -> bool:
    """Return True if the task ended with exit code 0 and its pod was not taken away."""
    return ended is not None and ended.code == COMPLETED and ended.reason not in TAKEN


def is_lost(ended: Exit | None) -> bool:
    """Return True if the task must be replaced."""
    return ended is not None and not is_completed(ended)


def is_own_fault(ended: Exit) -> bool:
    return ended.reason == OUT_OF_MEMORY or (is_lost(ended) and not was_taken_away(ended))


def is_unexplained(ended: Exit) -> bool:
    """Return True if the task was killed for an unknown cause."""
    if ended.code not in SIGNALS or ended.code in (TERMINATED, BUS_LOST):
        return False
    return ended.reason not in TAKEN and ended.reason != OUT_OF_MEMORY


def describe_exit(ended: Exit) -> str:
    """Return the exit in one line, with the last line of the task's log."""
    parts = []
    if ended.reason:
        parts.append(ended.reason)
    if ended.code == BUS_LOST:
        parts.append(f"exit code {ended.code} (lost the connection to the bus)")
    elif ended.code is not None:
        parts.append(f"exit code {ended.code}")
    last_line = _last_line(ended.message)
    if last_line:
        parts.append(last_line)
    return ", ".join(parts) or "gone"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


# ---------------------------------------------------------------- the job


K = TypeVar("K")
V = TypeVar("V")
GENERATIONS_LOST = 100_000
"""More decisions of one job than a bus that was set back can have lost."""


class LeavingNotice(msgspec.Struct, frozen=True, gc=False):
    """A task has to leave its node. `leaves_s`: the time (s) at which it is killed; 0: not known.

    `closed`: why its `node` takes no tasks now; empty: it takes tasks, or takes them again.
    """

    why: str
    leaves_s: float = 0.0
    node: str = ""
    closed: str = ""

    @property
    def current_reason(self) -> str:
        """The present reason. A notice about a node counts while the node takes no tasks."""
        if self.why not in OF_NODE:
            return self.why
        if self.closed and CORDONED in (self.why, self.closed):
            return CORDONED
        return self.closed

    @property
    def rank(self) -> tuple[int, float]:
        """The order of notices; the lower one counts: first a notice that nobody can withdraw, then
        the earlier one.
        """
        leaves_s = self.leaves_s or math.inf
        if self.why in OF_NODE:
            return OF_NODE.index(self.why), leaves_s
        return -1, leaves_s


class EarlyResumption(msgspec.Struct, frozen=True, gc=False):
    """A resumption that was read before its decision: facts and orders come in separate streams."""

    resumed: TrainingResumed
    stored_s: float


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One accepted job. `observed` has one entry per size, `tried` one per size and cores of a task
    (the last ones); `recent` has its last reports; `curve` spans its whole life, and loses every
    other point when it is full.
    """

    uid: int
    request: JobRequested
    asked_s: float
    checkpoint_folder: str = ""
    decided: dict[int, AllocationDecided] = {}
    given_up: dict[int, AllocationDecided] = {}
    """Abandoned generations above the running one. One that was already handed over to may still
    resume.
    """
    running: int | None = None
    pending_generation: int | None = msgspec.field(default=None, name="coming")
    sent_s: float = 0.0
    """The time (s) at which the newest decision was stored."""
    repeats: int = 0
    """Number of repetitions of the newest decision, because the launcher did not act on it
    (`steps/repetition.py`).
    """
    acted_on: int = 0
    """The newest pending generation with a sign that the launcher acts on it."""
    revision: int = 0
    generation: int = 0
    serials: int = 0
    resumed_s: float = 0.0
    pauses: tuple[Seconds, ...] = ()
    """The pauses of its last hand-overs, from which the cost of the next change is estimated."""
    abandonments: int = 0
    """Number of abandoned generations in a row, since training last resumed."""
    unprepared: int = 0
    """Number of these abandoned generations with all tasks ready."""
    abandoned_s: float = 0.0
    abandoned_why: str = ""
    exits: dict[str, Exit] = {}
    leaving: dict[str, LeavingNotice] = {}
    """By pod: the notice that counts."""
    failed_generations: tuple[int, ...] = ()
    failed_s: dict[int, float] = {}
    """By failed generation: when a task of it last failed by its own fault."""
    killed_generations: tuple[int, ...] = ()
    """Generations with a killed task and no known cause, since the job last got further."""
    furthest: int = 0
    """The most samples that were ever reported."""
    progress: ProgressReported | None = None
    starving: dict[str, float] = {}
    """By task: the time (s) since which it has had far less CPU than promised
    (`state/observations.py`).
    """
    starved: dict[str, float] = {}
    """By node: the time (s) at which a starving task was last moved away."""
    crowded: bool = False
    """True if a ps or worker is near its memory limit."""
    observed: tuple[Observed, ...] = ()
    tried: tuple[Observed, ...] = ()
    recent: tuple[Reading, ...] = ()
    curve: tuple[LossPoint, ...] = ()
    early: EarlyResumption | None = None
    cancelled: bool = False
    changed: bool = False
    """True if its user has changed it since it was accepted."""
    suspended_by_user: bool = False
    reader_blocks: int = 0
    """Blocks of readers that its credentials allow, fixed by its first decision; 0: there is none
    yet.
    """
    started_s: float = 0.0
    """The time (s) of its last decision to start without tasks."""
    suspended_s: float = 0.0
    """The time (s) at which its tasks were taken away for a job of higher priority; 0: it does not
    wait because of that.
    """
    suspension: AllocationDecided | None = None
    """The decision that took them away."""
    resized_from: dict[str, tuple[Resources, ...]] = {}
    """By pod of the running generation: its resources before each of its last changes in place."""

    @property
    def key(self) -> str:
        return self.request.key()

    @property
    def active_decision(self) -> AllocationDecided | None:
        return None if self.running is None else self.decided[self.running]

    @property
    def pending_decision(self) -> AllocationDecided | None:
        return None if self.pending_generation is None else self.decided[self.pending_generation]

    @property
    def newest_decision(self) -> AllocationDecided | None:
        """The newest decision: of the generation in flight, else of the one that runs."""
        newest = self.running if self.pending_generation is None else self.pending_generation
        return None if newest is None else self.decided[newest]

    def recent_failures(self, now: float, window_s: float) -> int:
        """Return how many generations failed by their own fault within the window."""
        count = 0
        for failed_s in self.failed_s.values():
            if failed_s > now - window_s:
                count += 1
        return count

    @property
    def waiting_since_s(self) -> float:
        """The time (s) at which it began to wait, if it has no tasks."""
        return self.suspended_s or self.asked_s

    @property
    def is_trained(self) -> bool:
        """Return True if the last report has all samples. Such a job is about to finish, so its
        size is left alone.
        """
        return (
            self.progress is not None and 0 < self.progress.total_samples <= self.progress.samples
        )

    def pod(self, task: TaskPlan) -> str:
        return task.pod(self.request.job)

    def pods(self, decision: AllocationDecided | None) -> set[str]:
        """Return the pods of a decision; None: no pods."""
        if decision is None:
            return set()
        return {self.pod(task) for task in decision.tasks}

    def new_pods(self, decision: AllocationDecided) -> set[str]:
        """The pods of a decision that the running generation does not have."""
        return self.pods(decision) - self.pods(self.active_decision)

    def exit_of(self, task: TaskPlan) -> Exit | None:
        return self.exits.get(self.pod(task))

    @property
    def next_generation(self) -> int:
        """A number above that of every generation that was decided, or that reports of the job
        name.

        After the bus has lost decisions, pods may train a generation that no known decision has. A
        job can report any number; one that is further ahead than `GENERATIONS_LOST` is ignored.
        """
        newest = self.generation
        if self.early is not None:
            claimed = self.early.resumed.generation
            if claimed <= newest + GENERATIONS_LOST:
                newest = max(newest, claimed)
        return newest + 1

    @property
    def stands_still(self) -> bool:
        """Return True if no generation can be training: none ever did, or it has lost its chief, a
        ps or every worker.
        """
        if self.active_decision is None:
            return True
        roles = []
        for task in self.active_decision.tasks:
            if not is_lost(self.exit_of(task)):
                roles.append(task.role)
        if "chief" not in roles or "worker" not in roles:
            return True
        return roles.count("ps") < role_count(self.active_decision, "ps")


def job_of(pod: OwnPod) -> str:
    """Return the key of the job of a listed pod."""
    return f"{pod.namespace}.{pod.job}"


def without_key(table: Mapping[K, V], key: K) -> dict[K, V]:
    """Return a copy of a table without this key."""
    left = dict(table)
    left.pop(key, None)
    return left


# ---------------------------------------------------------------- summary

SIZES_KEPT = 64
"""Sizes with a speed that is kept: the ones that ran last."""
LONGEST_CAUSE = 4_000
"""Characters of the cause of an end."""


def summary_of(job: Job) -> Job:
    """Return the job without the fields that only a running one needs."""
    decided = {}
    for generation in (job.running, job.pending_generation):
        if generation is not None:
            decided[generation] = replace(job.decided[generation], alternatives=())
    progress = job.progress
    total_samples = 0
    if progress is not None:
        total_samples = progress.total_samples
        progress = replace(progress, usage=())
    return replace(
        job,
        decided=decided,
        given_up={},
        exits={},
        leaving={},
        failed_generations=(),
        failed_s={},
        killed_generations=(),
        starving={},
        starved={},
        resized_from={},
        early=None,
        suspension=None,
        progress=progress,
        observed=job.observed[-SIZES_KEPT:],
        recent=_informative_reports(job.recent, total_samples),
        curve=(),
    )


def end_of(finished: JobFinished) -> JobFinished:
    """Return the end without the middle of a long cause."""
    return replace(finished, cause=cut_middle(finished.cause, LONGEST_CAUSE))


def _informative_reports(reports: Sequence[Reading], total_samples: int) -> tuple[Reading, ...]:
    """Return the last report, and those with the most memory of all ps (early on) and of a worker.

    Where no early report has the memory of the ps, the first that has it is taken.
    """
    if not reports:
        return ()
    ps = _with_most_ps_memory(reports, BEGINNING_SHARE * total_samples)
    worker = _with_most_worker_memory(reports)
    numbers = {ps, worker, len(reports) - 1}
    return tuple([report for number, report in enumerate(reports) if number in numbers])


def _with_most_ps_memory(reports: Sequence[Reading], early_samples: float) -> int | None:
    """Return the index of the report that gives the memory of all ps; None: none has it."""
    first: int | None = None
    most: int | None = None
    most_gib = 0.0
    for number, report in enumerate(reports):
        if not report.ps_gib:
            continue
        if first is None:
            first = number
        gib = report.ps_gib * report.ps
        if report.samples <= early_samples and (most is None or gib > most_gib):
            most = number
            most_gib = gib
    return first if most is None else most


def _with_most_worker_memory(reports: Sequence[Reading]) -> int | None:
    """Return the index of the report with the most memory of a worker; None: none has it."""
    most: int | None = None
    most_gib = 0.0
    for number, report in enumerate(reports):
        if report.worker_gib and report.worker_gib > most_gib:
            most = number
            most_gib = report.worker_gib
    return most
