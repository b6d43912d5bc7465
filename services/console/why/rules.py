"""What brings a message about: one rule a kind. Pure.

A rule names the messages without which this one would not have been said, out of what was stored
before it. A kind without a rule is a root: a person's wish, or what was seen of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from services.cli.entry import Entry
from services.console.why.before import Before
from services.console.why.known import Known, key_of
from services.console.why.own_pods import comings_and_goings
from shared.messages import (
    AllocationDecided,
    CancelRequested,
    CapacityChanged,
    ChangeRejected,
    ChangeRequested,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobAccepted,
    JobChanged,
    JobFinished,
    JobRejected,
    JobRequested,
    ProgressReported,
    ResumeRequested,
    SuspendRequested,
    TaskExited,
    TaskLeaving,
    TaskReady,
    TaskStarted,
    TaskUpdated,
    TrainingResumed,
)

Found = Iterable[Entry | None]


def because(entry: Entry, known: Known) -> tuple[Entry, ...]:
    """What led to it directly, oldest first; empty: a root, or its cause was not read."""
    rule = RULES.get(type(entry.said))
    found = rule(entry.said, Before(entry, known)) if rule else ()
    return tuple(
        sorted({e.order: e for e in found if e is not None}.values(), key=lambda e: e.order)
    )


# ---------------------------------------------------------------- answers and decisions


def _answer(m: JobAccepted | JobRejected, before: Before) -> Found:
    return [before.last(JobRequested)]


def _change_answer(m: JobChanged | ChangeRejected, before: Before) -> Found:
    number = m.answers if isinstance(m, JobChanged) else m.uid
    kinds = (ChangeRequested, SuspendRequested, ResumeRequested)
    asked = [before.known.newest(kind, m.key(), before.entry.order) for kind in kinds]
    return [each for each in asked if each and each.sequence == number]


def _decision(m: AllocationDecided, before: Before) -> Found:
    """What it names; the first one of a job also that there is such a job."""
    first = before.last(AllocationDecided) is None
    return [_named(m.cause, before), before.last(JobAccepted) if first else None]


def _named(cause: str, before: Before) -> Entry | None:
    """A cause is a message's id; or a pod, of which something was told; or what the last report
    told.
    """
    if cause == "-":
        return None
    if cause in before.known.by_id:
        return before.known.by_id[cause]
    of_pod = [before.last(kind, lambda m: m.pod == cause) for kind in (TaskExited, TaskLeaving)]
    told = before.latest(*of_pod) or before.latest(
        before.last(ProgressReported) if _is_usage(cause, before) else None
    )
    return told[0] if told else None


MEMORY = "memory"
"""What the allocator gives as the cause of more memory for a task."""


def _is_usage(cause: str, before: Before) -> bool:
    """Whether it is about how much the job's tasks use: memory, or a pod of its own that
    starves.
    """
    job = key_of(before.entry).partition(".")[2]
    return cause == MEMORY or cause.startswith(f"{job}-")


# ---------------------------------------------------------------- making it so


def _task(m: TaskStarted | TaskReady, before: Before) -> Found:
    return [before.decision_of(m.role, m.serial)]


def _exited(m: TaskExited, before: Before) -> Found:
    return [before.last(TaskLeaving, lambda told: told.pod_uid == m.pod_uid)]


def _spec(m: ClusterSpecPublished, before: Before) -> Found:
    """The decision, and the last of its tasks that stood ready."""
    pods = {task.pod for task in m.tasks}
    return [_revision(m.revision, before), before.last(TaskReady, lambda told: told.pod in pods)]


def _revision(revision: int, before: Before) -> Entry | None:
    return before.last(AllocationDecided, lambda told: told.revision == revision)


def _prepared(m: GenerationPrepared, before: Before) -> Found:
    return [before.of_generation(ClusterSpecPublished, m.generation)]


def _handover(m: HandOverOrdered, before: Before) -> Found:
    """The last preparation that was still lacking."""
    prepared = before.of_generation(GenerationPrepared, m.generation)
    return [prepared or before.of_generation(ClusterSpecPublished, m.generation)]


def _abandoned(m: GenerationAbandoned, before: Before) -> Found:
    """Its decision; and what came in between: a newer one, a task that ended, one that could not
    prepare, no save.
    """
    decided = before.of_generation(AllocationDecided, m.generation)
    between = before.latest(
        before.last(AllocationDecided, lambda told: told.generation > m.generation),
        before.last(TaskExited),
        before.last(
            GenerationPrepared,
            lambda told: told.generation == m.generation and told.error is not None,
        ),
        before.last(CheckpointFailed, lambda told: told.successor == m.generation),
    )
    return [decided, *(e for e in between if decided is None or e.order > decided.order)]


def _updated(m: TaskUpdated, before: Before) -> Found:
    return [_revision(m.revision, before)]


# ---------------------------------------------------------------- training


def _saved(m: CheckpointSaved | CheckpointFailed, before: Before) -> Found:
    """The hand-over for which it drained; else that it trains, and for a stand-still the notice
    before it.
    """
    if m.successor is not None:
        return [before.of_generation(HandOverOrdered, m.successor)]
    trains = before.of_generation(TrainingResumed, m.generation)
    stood = isinstance(m, CheckpointSaved) and (m.final or m.stood)
    notice = before.last(TaskLeaving) if stood else None
    return [trains, notice if trains is None or (notice and notice.order > trains.order) else None]


def _skipped(m: CheckpointSkipped, before: Before) -> Found:
    return [before.of_generation(HandOverOrdered, m.generation)]


def _resumed(m: TrainingResumed, before: Before) -> Found:
    """The order, and the checkpoint with which the generation before made room for it."""
    saved = before.last(CheckpointSaved, lambda told: told.successor == m.generation)
    return [before.of_generation(HandOverOrdered, m.generation), saved]


def _progress(m: ProgressReported, before: Before) -> Found:
    return [before.of_generation(TrainingResumed, m.generation)]


def _finished(m: JobFinished, before: Before) -> Found:
    """A person's wish; a task that ended, or a generation that never was; or the last example."""
    trains = before.of_generation(TrainingResumed, m.generation)
    if m.outcome == "cancelled":
        return [before.known.newest(CancelRequested, m.key(), before.entry.order)]
    if m.outcome == "succeeded":
        return [before.last(ProgressReported) or trains]
    fault = before.latest(before.last(TaskExited), before.last(GenerationAbandoned))
    return [*(e for e in fault if trains is None or e.order > trains.order), trains]


RULES: dict[type[Any], Callable[[Any, Before], Found]] = {
    JobAccepted: _answer,
    JobRejected: _answer,
    JobChanged: _change_answer,
    ChangeRejected: _change_answer,
    CapacityChanged: comings_and_goings,
    AllocationDecided: _decision,
    TaskReady: _task,
    TaskStarted: _task,
    TaskExited: _exited,
    ClusterSpecPublished: _spec,
    GenerationPrepared: _prepared,
    HandOverOrdered: _handover,
    GenerationAbandoned: _abandoned,
    TaskUpdated: _updated,
    CheckpointSaved: _saved,
    CheckpointFailed: _saved,
    CheckpointSkipped: _skipped,
    TrainingResumed: _resumed,
    ProgressReported: _progress,
    JobFinished: _finished,
}
