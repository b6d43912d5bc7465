"""The state of one job, from the messages about it.

`heard` are the messages about one job in the order in which they were stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from shared.bus.consumer import StoredMessage
from shared.messages import (
    AllocationDecided,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    JobFinished,
    JobMessage,
    Message,
    ProgressReported,
    TaskAddress,
    TaskExited,
    TrainingResumed,
)

M = TypeVar("M", bound=Message)


def of_job(heard: Iterable[StoredMessage], uid: int) -> list[StoredMessage]:
    """Return each message about the job once: repetitions with the same id are left out."""
    found: dict[str, StoredMessage] = {}
    for each in heard:
        if isinstance(each.message, JobMessage) and each.message.uid == uid:
            found.setdefault(each.message.id(), each)
    return sorted(found.values(), key=lambda each: (each.stored_s, each.sequence))


def of(heard: Iterable[StoredMessage], kind: type[M]) -> list[M]:
    return [h.message for h in heard if isinstance(h.message, kind)]


def running(heard: Sequence[StoredMessage]) -> int | None:
    """Return the newest generation that has resumed."""
    return max((m.generation for m in of(heard, TrainingResumed)), default=None)


def newest(heard: Sequence[StoredMessage]) -> int:
    return max((m.generation for m in of(heard, AllocationDecided)), default=0)


def finished(heard: Sequence[StoredMessage]) -> JobFinished | None:
    return next(iter(of(heard, JobFinished)), None)


def spec(heard: Sequence[StoredMessage], generation: int | None) -> ClusterSpecPublished | None:
    return next((m for m in of(heard, ClusterSpecPublished) if m.generation == generation), None)


def tasks(heard: Sequence[StoredMessage], role: str = "") -> list[TaskAddress]:
    """Return the tasks of the running generation, sorted by pod; of one role, or all."""
    published = spec(heard, running(heard))
    found = published.tasks if published else ()
    return sorted((t for t in found if role in ("", t.role)), key=lambda t: t.pod)


def rests(heard: Sequence[StoredMessage]) -> bool:
    """Return whether no hand-over is in progress and no running task has exited."""
    runs, wanted = running(heard), newest(heard)
    if runs is None:
        return False
    settled = wanted <= runs or wanted in {m.generation for m in of(heard, GenerationAbandoned)}
    return settled and not {m.pod for m in of(heard, TaskExited)} & {t.pod for t in tasks(heard)}


def applies_again_s(heard: Sequence[StoredMessage], since_s: float) -> float | None:
    """Return the first time after `since_s` at which further updates were applied; None if not yet.

    Training that has resumed has applied an update. Otherwise two reports after `since_s` are
    needed, because the first one may be about updates before it.
    """
    steps: dict[int, int] = {}
    for each in heard:
        if each.stored_s <= since_s:
            continue
        if isinstance(each.message, TrainingResumed):
            return each.stored_s
        if isinstance(each.message, ProgressReported):
            generation, step = each.message.generation, each.message.step
            if step > steps.setdefault(generation, step):
                return each.stored_s
    return None


def saved_s(heard: Sequence[StoredMessage], since_s: float) -> float | None:
    """Return when the first checkpoint after `since_s` was saved; None if not yet."""
    return next(
        (
            h.stored_s
            for h in heard
            if h.stored_s > since_s and isinstance(h.message, CheckpointSaved)
        ),
        None,
    )


def samples(heard: Sequence[StoredMessage]) -> tuple[int, int]:
    """Return the examples applied and in total, as last reported; (0, 1) before any report."""
    last: Any = next(
        (h.message for h in reversed(heard) if isinstance(h.message, ProgressReported)), None
    )
    return (last.samples, last.total_samples) if last else (0, 1)
