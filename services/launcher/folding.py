"""Remembering what the bus says of one job, one message at a time.

Law: folding the same message twice is folding it once, and a message about a generation that is
over changes nothing. So a repeated, late or already remembered message is harmless, and a restarted
launcher reads its way to the same state. Facts and orders come in two streams: in whatever order
these are read, the result is the same, and the allocator (`services/allocator/state/job_folds.py`) comes
to the same one. A fact that is read before its decision waits (`is_early`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from services.launcher.jobs import (
    Generation,
    Job,
    LeavingNotices,
    Notice,
    is_ahead,
    is_earlier,
    is_paused,
)
from shared.kube import eviction
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
    TaskReady,
    TaskStarted,
    TaskUpdated,
    TrainingResumed,
)

UNKNOWN_PODS_KEPT = 128
"""Facts about pods that no generation wants: one may yet be decided that does. A job can name any
pod.
"""
UIDS_OF_POD_KEPT = 4
"""A pod that is made again has another uid."""
NOTICES_KEPT = 16
"""Reasons for which one pod has to go."""
P = TypeVar(
    "P", GenerationPrepared, LeavingNotices, TaskReady, TaskStarted, TaskExited, TaskUpdated
)

GENERATION_FACTS = (TrainingResumed, CheckpointSaved, CheckpointFailed, GenerationPrepared)
"""Facts about a generation, which change nothing before its decision is known."""


def fold(job: Job, message: JobMessage, at_s: float) -> Job:
    return _FOLDS[type(message)](job, message, at_s)


def is_early(job: Job | None, message: JobMessage) -> bool:
    """Return whether a fact has to wait for a decision that is not read yet."""
    if job is None or job.newest is None:
        return isinstance(
            message,
            (*GENERATION_FACTS, TaskReady, TaskStarted, TaskLeaving, TaskExited, TaskUpdated),
        )
    return isinstance(message, GENERATION_FACTS) and message.generation > job.newest


def _fold_decision(job: Job, message: AllocationDecided, at_s: float) -> Job:
    newest = job.newest
    if not is_ahead(job, message.generation) and message.generation != job.running:
        return job
    if newest is not None and message.generation < newest:
        return job
    known = job.generations.get(message.generation)
    if known is not None:
        later = message.revision > known.decision.revision
        return _with(job, message.generation, replace(known, decision=message)) if later else job
    return _with(_fold_pause(job), message.generation, Generation(decision=message, decided_s=at_s))


def _fold_pause(job: Job) -> Job:
    """After a pause nothing runs, and the next generation has none before it; none of them can run
    any more.
    """
    return replace(job, running=None, drained=None, generations={}) if is_paused(job) else job


def _fold_spec(job: Job, message: ClusterSpecPublished, at_s: float) -> Job:
    known = job.generations.get(message.generation)
    if known is None or known.spec is not None:
        return job
    return _with(job, message.generation, replace(known, spec=message, spec_s=at_s))


def _fold_prepared(job: Job, message: GenerationPrepared, at_s: float) -> Job:
    known = job.generations.get(message.generation)
    before = known.prepared.get(message.pod_uid) if known else None
    if known is None or (
        before is not None and (before.error is not None or message.error is None)
    ):
        return job  # who was prepared may still fail; who has failed has failed
    prepared = _drop_oldest({**known.prepared, message.pod_uid: message}, [known])
    return _with(job, message.generation, replace(known, prepared=prepared))


def _fold_order(job: Job, message: HandOverOrdered, at_s: float) -> Job:
    known = job.generations.get(message.generation)
    if known is None or known.ordered_s is not None:
        return job
    return _with(job, message.generation, replace(known, ordered_s=at_s, drains=message.previous))


def _fold_abandoned(job: Job, message: GenerationAbandoned, at_s: float) -> Job:
    known = job.generations.get(message.generation)
    if known is None or known.abandoned or not is_ahead(job, message.generation):
        return job
    left = replace(_with(job, message.generation, replace(known, abandoned=True)), settled_s=at_s)
    follows = known.spec is not None and known.spec.previous == job.drained
    if follows or message.generation == job.drained_for:
        left = replace(left, drained=None)  # what had drained for it goes on
    return _tidy(left)


def _fold_resumed(job: Job, message: TrainingResumed, at_s: float) -> Job:
    if message.generation in job.generations and is_ahead(job, message.generation):
        job = replace(job, changes_s=eviction.add_measurement(job.changes_s, message.change_s))
    return _running(job, message.generation, at_s)


def _running(job: Job, number: int, at_s: float) -> Job:
    if number not in job.generations or not is_ahead(job, number):
        return job
    return _tidy(replace(job, running=number, drained=None, settled_s=at_s))


def _fold_saved(job: Job, message: CheckpointSaved, at_s: float) -> Job:
    job = _running(
        job, message.generation, at_s
    )  # it trains, though nobody has heard it say so: old facts may go
    if _has_stopped(job, message):
        return replace(
            job,
            drained=message.generation,
            drained_for=message.successor,
            drained_step=message.step,
        )
    goes_on = (
        not message.final and message.generation == job.drained and message.step > job.drained_step
    )
    return replace(job, drained=None) if goes_on else job


def _fold_progress(job: Job, message: ProgressReported, at_s: float) -> Job:
    """A generation that reports trains, even where its `TrainingResumed` is gone. A report comes
    every few seconds, so none waits for its decision.
    """
    return _running(job, message.generation, at_s)


def _fold_unsaved(job: Job, message: CheckpointFailed, at_s: float) -> Job:
    """The one for which it had drained has nothing to begin from."""
    known = job.generations.get(message.successor or 0)
    if known is None or message.generation != job.running:
        return job
    return _with(
        job, message.successor or 0, replace(known, unsaved=f"{message.cause}; {message.remedy}")
    )


def _has_stopped(job: Job, message: CheckpointSaved) -> bool:
    """Unless that for which it stopped was given up meanwhile: then it goes on."""
    successor = job.generations.get(message.successor or 0)
    return (
        message.final
        and message.generation == job.running
        and not (successor and successor.abandoned)
    )


def _fold_update(job: Job, message: TaskUpdated, at_s: float) -> Job:
    known = job.updated.get(message.pod_uid)
    if known is not None and known.revision >= message.revision:
        return job
    return replace(job, updated={**job.updated, message.pod_uid: message})


def _leaving(job: Job, message: TaskLeaving, at_s: float) -> Job:
    known = job.leaving.get(message.pod_uid) or LeavingNotices(pod=message.pod)
    before = known.notices.get(message.why)
    if before is not None and not is_earlier(message.leaves_s, before.leaves_s):
        return job
    notice = Notice(before.at_s if before else at_s, message.leaves_s)
    notices = dict(list({**known.notices, message.why: notice}.items())[-NOTICES_KEPT:])
    leaving = {**job.leaving, message.pod_uid: replace(known, notices=notices)}
    return replace(job, leaving=_drop_oldest(leaving, job.generations.values()))


def _task_fact(field: str) -> Callable[[Job, Any, float], Job]:
    def fold_one(job: Job, message: Any, at_s: float) -> Job:
        facts = getattr(job, field)
        if message.pod_uid in facts:
            return job
        facts = _drop_oldest({**facts, message.pod_uid: message}, job.generations.values())
        changed: Job = replace(job, **{field: facts})
        return changed

    return fold_one


def _drop_oldest(facts: dict[str, P], generations: Iterable[Generation]) -> dict[str, P]:
    """Return facts by pod uid without the oldest, if there are more than the pods of these
    generations explain.
    """
    generations = list(generations)
    if len(facts) <= UNKNOWN_PODS_KEPT + sum(len(each.decision.tasks) for each in generations):
        return facts
    names = {name for each in generations for name in each.tasks}
    kept, counts = [], Counter[str]()
    for pod_uid, fact in reversed(facts.items()):
        name = fact.pod if fact.pod in names else ""
        counts[name] += 1
        if counts[name] <= (UIDS_OF_POD_KEPT if name else UNKNOWN_PODS_KEPT):
            kept.append((pod_uid, fact))
    return dict(reversed(kept))


def _with(job: Job, number: int, generation: Generation) -> Job:
    return replace(job, generations={**job.generations, number: generation})


def _tidy(job: Job) -> Job:
    """Forget the generations that are over, and what was said of pods that none of the rest
    wants.
    """
    left = {n: g for n, g in job.generations.items() if job.running is None or n >= job.running}
    over = sorted(n for n, g in left.items() if g.abandoned and n != job.running)[:-ABANDONED_KEPT]
    left = {n: g for n, g in left.items() if n not in over}
    names = {name for generation in left.values() for name in generation.tasks}
    fields = ("ready", "started", "leaving", "exited", "updated")
    facts = {f: {u: m for u, m in getattr(job, f).items() if m.pod in names} for f in fields}
    return replace(job, generations=left, **facts)


_FOLDS: dict[type[JobMessage], Callable[[Job, Any, float], Job]] = {
    AllocationDecided: _fold_decision,
    ClusterSpecPublished: _fold_spec,
    GenerationPrepared: _fold_prepared,
    HandOverOrdered: _fold_order,
    GenerationAbandoned: _fold_abandoned,
    TrainingResumed: _fold_resumed,
    CheckpointSaved: _fold_saved,
    CheckpointFailed: _fold_unsaved,
    ProgressReported: _fold_progress,
    TaskReady: _task_fact("ready"),
    TaskStarted: _task_fact("started"),
    TaskLeaving: _leaving,
    TaskExited: _task_fact("exited"),
    TaskUpdated: _fold_update,
}
