"""The state of one job: its generations and the facts about its pods, folded from the messages on
the bus one at a time.

Law: to fold the same message twice is the same as to fold it once, and a message about a generation
that is over changes nothing. So a repeated, late or known message is harmless, and a restarted
launcher reaches the same state from the log. Facts and orders come in two streams. The result does
not depend on the order in which these are read, and the allocator comes to the same result
(`services/allocator/state/job_folds.py`). A fact that is read before its decision waits
(`is_early`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from shared.kube import objects
from shared.messages import (
    ABANDONED_KEPT,
    AllocationDecided,
    CheckpointFailed,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobMessage,
    ProgressReported,
    TaskExited,
    TaskLeaving,
    TaskPlan,
    TaskReady,
    TaskStarted,
    TaskUpdated,
    TrainingResumed,
)


class Notice(msgspec.Struct, frozen=True):
    """When a reason was first published, and the earliest deadline published with it (0: none)."""

    at_s: float
    leaves_s: float = 0.0


class LeavingNotices(msgspec.Struct, frozen=True, kw_only=True):
    """The published notices about a pod that has to leave, by reason."""

    pod: str
    notices: dict[str, Notice] = {}


def is_earlier(leaves_s: float, published_s: float) -> bool:
    """Return True if a deadline (0: unknown) is earlier than the published one, by a second or
    more.
    """
    if not leaves_s:
        return False
    return not published_s or round(leaves_s) < round(published_s)


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one generation. Times are those at which the server stored the message.

    `prepared`: by pod uid. `drains`: the generation that was ordered to drain. `unsaved`: the
    reason why the generation before could not save a checkpoint for this one.
    """

    decision: AllocationDecided
    decided_s: float
    spec: ClusterSpecPublished | None = None
    spec_s: float = 0.0
    prepared: dict[str, GenerationPrepared] = {}
    ordered_s: float | None = None
    drains: int | None = None
    abandoned: bool = False
    unsaved: str = ""

    @property
    def tasks(self) -> dict[str, TaskPlan]:
        """The tasks by pod name."""
        return {task.pod(self.decision.job): task for task in self.decision.tasks}

    @property
    def chief(self) -> str:
        """The pod name of the chief; empty if there is none."""
        for name, task in self.tasks.items():
            if task.role == "chief":
                return name
        return ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job that is not finished. Facts about tasks are by pod uid.

    `running`: the generation that resumed last.
    `drained`: the generation that has saved its final checkpoint, and applies no more updates.
    `drained_for`: its successor. `drained_step`: the step of that checkpoint; a checkpoint of a
    later step shows that the generation has gone on.
    `settled_s`: when a generation last resumed or was abandoned.
    `changes_s`: the durations of the last changes, from the decision to the first update.
    `model_bytes`: of its parameters and divided tables; 0: not known.
    """

    namespace: str
    job: str
    uid: int
    generations: dict[int, Generation] = {}
    running: int | None = None
    drained: int | None = None
    drained_for: int | None = None
    drained_step: int = 0
    settled_s: float = 0.0
    ready: dict[str, TaskReady] = {}
    started: dict[str, TaskStarted] = {}
    leaving: dict[str, LeavingNotices] = {}
    exited: dict[str, TaskExited] = {}
    updated: dict[str, TaskUpdated] = {}
    changes_s: tuple[float, ...] = ()
    model_bytes: int = 0

    @property
    def key(self) -> str:
        """The name of the job in messages: `namespace.job`."""
        return f"{self.namespace}.{self.job}"

    @property
    def newest(self) -> int | None:
        return max(self.generations, default=None)

    def pods_seen_alive(self) -> set[str]:
        """Return the names of the pods that have been alive at some time."""
        facts = [*self.ready.values(), *self.started.values(), *self.exited.values()]
        return {fact.pod for fact in facts}


def locked_generation(job: Job) -> int | None:
    """Return the generation that must keep its chance to resume: it was handed over to, and the
    generation before it has stopped for it.
    """
    for number, generation in job.generations.items():
        if generation.ordered_s is None or generation.abandoned or not is_ahead(job, number):
            continue
        before = generation.spec.previous if generation.spec else None
        if before is not None and before == job.drained:
            return number
    return None


def is_ahead(job: Job, number: int) -> bool:
    """Return True if a generation is newer than the running one."""
    return job.running is None or number > job.running


def is_paused(job: Job) -> bool:
    """Return True if the newest decision has no tasks and no generation is locked."""
    newest = job.newest
    if newest is None or job.generations[newest].decision.tasks:
        return False
    return locked_generation(job) is None


UNKNOWN_PODS_KEPT = 128
"""Maximum number of facts about pods that no generation wants. They are kept because a later
decision may want these pods. The number is limited because a job can send facts about any pod name.
"""
UIDS_OF_POD_KEPT = 4
"""Maximum number of facts about one pod name: a pod that is created again has another uid."""
NOTICES_KEPT = 16
"""Maximum number of notices about one pod."""
P = TypeVar(
    "P", GenerationPrepared, LeavingNotices, TaskReady, TaskStarted, TaskExited, TaskUpdated
)

GENERATION_FACTS = (TrainingResumed, CheckpointSaved, CheckpointFailed, GenerationPrepared)
"""Facts about a generation, which change nothing before its decision is known."""
TASK_FACTS = (TaskReady, TaskStarted, TaskLeaving, TaskExited, TaskUpdated)


def fold(job: Job, message: JobMessage, at_s: float) -> Job:
    """Return the job after a message. `at_s`: when the server stored it."""
    return _FOLDS[type(message)](job, message, at_s)


def is_early(job: Job | None, message: JobMessage) -> bool:
    """Return True if a fact has to wait for a decision that has not been read yet."""
    if job is None or job.newest is None:
        return isinstance(message, (*GENERATION_FACTS, *TASK_FACTS))
    return isinstance(message, GENERATION_FACTS) and message.generation > job.newest


# ---------------------------------------------------------------- decisions and orders


def _fold_decision(job: Job, message: AllocationDecided, at_s: float) -> Job:
    number = message.generation
    if not is_ahead(job, number) and number != job.running:
        return job
    if job.newest is not None and number < job.newest:
        return job
    known = job.generations.get(number)
    if known is None:
        generation = Generation(decision=message, decided_s=at_s)
        return _with_generation(_end_pause(job), number, generation)
    if message.revision > known.decision.revision:
        return _with_generation(job, number, replace(known, decision=message))
    return job


def _end_pause(job: Job) -> Job:
    """Return a paused job without its generations.

    None of them can run any more, and the next one has no predecessor.
    """
    return replace(job, running=None, drained=None, generations={}) if is_paused(job) else job


def _fold_spec(job: Job, message: ClusterSpecPublished, at_s: float) -> Job:
    known = job.generations.get(message.generation)
    if known is None or known.spec is not None:
        return job
    return _with_generation(job, message.generation, replace(known, spec=message, spec_s=at_s))


def _fold_prepared(job: Job, message: GenerationPrepared, at_s: float) -> Job:
    """Record that a pod has prepared a generation, or failed to.

    A failure replaces an earlier success and is final.
    """
    known = job.generations.get(message.generation)
    if known is None:
        return job
    before = known.prepared.get(message.pod_uid)
    if before is not None and (before.error is not None or message.error is None):
        return job
    if message.profile is not None:
        model_bytes = message.profile.bytes + message.profile.table_bytes
        job = replace(job, model_bytes=model_bytes)
    prepared = _drop_oldest({**known.prepared, message.pod_uid: message}, [known])
    return _with_generation(job, message.generation, replace(known, prepared=prepared))


def _fold_hand_over(job: Job, message: HandOverOrdered, at_s: float) -> Job:
    known = job.generations.get(message.generation)
    if known is None or known.ordered_s is not None:
        return job
    ordered = replace(known, ordered_s=at_s, drains=message.previous)
    return _with_generation(job, message.generation, ordered)


def _fold_abandoned(job: Job, message: GenerationAbandoned, at_s: float) -> Job:
    number = message.generation
    known = job.generations.get(number)
    if known is None or known.abandoned or not is_ahead(job, number):
        return job
    follows_drained = known.spec is not None and known.spec.previous == job.drained
    if follows_drained or number == job.drained_for:
        job = replace(job, drained=None)  # the generation that had drained for it goes on
    job = _with_generation(job, number, replace(known, abandoned=True))
    return _drop_past_generations(replace(job, settled_s=at_s))


# ---------------------------------------------------------------- facts about a generation


def _fold_resumed(job: Job, message: TrainingResumed, at_s: float) -> Job:
    if message.generation in job.generations and is_ahead(job, message.generation):
        job = replace(job, changes_s=objects.add_measurement(job.changes_s, message.change_s))
    return _set_running(job, message.generation, at_s)


def _set_running(job: Job, number: int, at_s: float) -> Job:
    if number not in job.generations or not is_ahead(job, number):
        return job
    return _drop_past_generations(replace(job, running=number, drained=None, settled_s=at_s))


def _fold_saved(job: Job, message: CheckpointSaved, at_s: float) -> Job:
    """Fold a checkpoint. It shows that its generation trains, even without `TrainingResumed`."""
    job = _set_running(job, message.generation, at_s)
    if _has_stopped(job, message):
        return replace(
            job,
            drained=message.generation,
            drained_for=message.successor,
            drained_step=message.step,
        )
    is_drained = message.generation == job.drained
    if is_drained and not message.final and message.step > job.drained_step:
        return replace(job, drained=None)
    return job


def _has_stopped(job: Job, message: CheckpointSaved) -> bool:
    """Return True for the final checkpoint of the running generation. If its successor has been
    abandoned meanwhile, the generation goes on.
    """
    if not message.final or message.generation != job.running:
        return False
    successor = job.generations.get(message.successor or 0)
    return successor is None or not successor.abandoned


def _fold_progress(job: Job, message: ProgressReported, at_s: float) -> Job:
    """Fold a report. It shows that its generation trains, even without `TrainingResumed`.

    Reports come every few seconds, so none waits for its decision.
    """
    return _set_running(job, message.generation, at_s)


def _fold_unsaved(job: Job, message: CheckpointFailed, at_s: float) -> Job:
    """Record why a successor has no checkpoint: the running generation could not save one."""
    number = message.successor or 0
    known = job.generations.get(number)
    if known is None or message.generation != job.running:
        return job
    reason = f"{message.cause}; {message.remedy}"
    return _with_generation(job, number, replace(known, unsaved=reason))


# ---------------------------------------------------------------- facts about a task


def _fold_updated(job: Job, message: TaskUpdated, at_s: float) -> Job:
    known = job.updated.get(message.pod_uid)
    if known is not None and known.revision >= message.revision:
        return job
    return replace(job, updated={**job.updated, message.pod_uid: message})


def _fold_leaving(job: Job, message: TaskLeaving, at_s: float) -> Job:
    known = job.leaving.get(message.pod_uid) or LeavingNotices(pod=message.pod)
    before = known.notices.get(message.why)
    if before is not None and not is_earlier(message.leaves_s, before.leaves_s):
        return job
    first_s = before.at_s if before else at_s
    notices = {**known.notices, message.why: Notice(first_s, message.leaves_s)}
    latest = dict(list(notices.items())[-NOTICES_KEPT:])
    leaving = {**job.leaving, message.pod_uid: replace(known, notices=latest)}
    return replace(job, leaving=_drop_oldest(leaving, job.generations.values()))


def _fold_first(field: str) -> Callable[[Job, Any, float], Job]:
    """Return a fold that keeps the first fact about each pod in this field."""

    def fold_fact(job: Job, message: Any, at_s: float) -> Job:
        facts = getattr(job, field)
        if message.pod_uid in facts:
            return job
        facts = _drop_oldest({**facts, message.pod_uid: message}, job.generations.values())
        changed: Job = replace(job, **{field: facts})
        return changed

    return fold_fact


# ---------------------------------------------------------------- bounds


def _drop_oldest(facts: dict[str, P], generations: Iterable[Generation]) -> dict[str, P]:
    """Return facts by pod uid, without the oldest ones if there are too many.

    All are kept up to `UNKNOWN_PODS_KEPT` plus the number of tasks of these generations. Above
    that, `UIDS_OF_POD_KEPT` are kept for each pod name of these generations, and
    `UNKNOWN_PODS_KEPT` for all other names together.
    """
    generations = list(generations)
    if len(facts) <= UNKNOWN_PODS_KEPT + sum(len(each.decision.tasks) for each in generations):
        return facts
    names = {name for each in generations for name in each.tasks}
    counts = Counter[str]()
    latest = []
    for pod_uid, fact in reversed(facts.items()):
        name = fact.pod if fact.pod in names else ""
        counts[name] += 1
        if counts[name] <= (UIDS_OF_POD_KEPT if name else UNKNOWN_PODS_KEPT):
            latest.append((pod_uid, fact))
    return dict(reversed(latest))


def _with_generation(job: Job, number: int, generation: Generation) -> Job:
    return replace(job, generations={**job.generations, number: generation})


def _drop_past_generations(job: Job) -> Job:
    """Drop the generations that are over, and the facts about pods that no other one wants."""
    current = {}
    for number, generation in job.generations.items():
        if job.running is None or number >= job.running:
            current[number] = generation
    abandoned = [n for n, each in current.items() if each.abandoned and n != job.running]
    for number in sorted(abandoned)[:-ABANDONED_KEPT]:
        del current[number]
    names = {name for generation in current.values() for name in generation.tasks}
    facts = {}
    for field in ("ready", "started", "leaving", "exited", "updated"):
        by_uid = getattr(job, field)
        facts[field] = {uid: fact for uid, fact in by_uid.items() if fact.pod in names}
    return replace(job, generations=current, **facts)


_FOLDS: dict[type[JobMessage], Callable[[Job, Any, float], Job]] = {
    AllocationDecided: _fold_decision,
    ClusterSpecPublished: _fold_spec,
    GenerationPrepared: _fold_prepared,
    HandOverOrdered: _fold_hand_over,
    GenerationAbandoned: _fold_abandoned,
    TrainingResumed: _fold_resumed,
    CheckpointSaved: _fold_saved,
    CheckpointFailed: _fold_unsaved,
    ProgressReported: _fold_progress,
    TaskReady: _fold_first("ready"),
    TaskStarted: _fold_first("started"),
    TaskLeaving: _fold_leaving,
    TaskExited: _fold_first("exited"),
    TaskUpdated: _fold_updated,
}
