"""The causes of a message: one rule for each kind, over the messages before it.

A rule names the messages without which this one would not exist. A kind without a rule is a root: a
request of a person, or an observation. Weir caused the change of a node if pods of Weir came or
went.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from services.console.log_entry import Entry
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
    JobNameMessage,
    JobRejected,
    JobRequested,
    Message,
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

M = TypeVar("M", bound=Message)
Holds = Callable[[Any], bool]
Order = tuple[float, str, int]


class Known:
    """The entries that were read, in the order of storing, each once."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        by_place = {(entry.stream, entry.sequence): entry for entry in entries}
        self.entries = sorted(by_place.values(), key=_order)
        self.by_id: dict[str, Entry] = {}
        self.uids: dict[str, list[int]] = defaultdict(list)
        self._by_subject: dict[tuple[type[Message], str], list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if isinstance(entry.message, Message):
                self._add(entry, entry.message)

    def _add(self, entry: Entry, message: Message) -> None:
        self.by_id.setdefault(message.id(), entry)  # of a message stored twice the first counts
        self._by_subject[type(message), message.key()].append(entry)
        uid = uid_of(entry)
        if uid:
            self._by_subject[type(message), str(uid)].append(entry)
            self.uids[message.key()].append(uid)

    def of(self, kind: type[Message], subject: str | int) -> list[Entry]:
        """Return every message of a kind about a job (`<namespace>.<name>`, or its uid) or a
        node.
        """
        return self._by_subject.get((kind, str(subject)), [])

    def newest(
        self, kind: type[Message], subject: str | int, before: Order, holds: Holds = lambda _: True
    ) -> Entry | None:
        """Return the last one stored before, of those for which `holds` is true."""
        entries = self.of(kind, subject)
        for number in reversed(range(bisect_left(entries, before, key=_order))):
            if holds(entries[number].message):
                return entries[number]
        return None

    def first(
        self, kind: type[Message], subject: str | int, after: Order, holds: Holds = lambda _: True
    ) -> Entry | None:
        """Return the first one stored at or after, of those for which `holds` is true."""
        entries = self.of(kind, subject)
        for number in range(bisect_left(entries, after, key=_order), len(entries)):
            if holds(entries[number].message):
                return entries[number]
        return None


def _order(entry: Entry) -> Order:
    return entry.order


def uid_of(entry: Entry) -> int:
    """Return the uid of the job that a message is about; 0 if it is about no job.

    The number of a request in its stream becomes the uid of its job.
    """
    if isinstance(entry.message, JobRequested):
        return entry.sequence
    return int(getattr(entry.message, "uid", 0))


def key_of(entry: Entry) -> str:
    """Return `<namespace>.<job>`; empty for a message about a node or a service, and a dead
    letter.
    """
    if isinstance(entry.message, JobNameMessage | JobRejected | ChangeRejected):
        return entry.message.key()
    return ""


class Before(NamedTuple):
    """An entry, and everything that was read: its causes are among the entries before it."""

    entry: Entry
    known: Known

    def last(self, kind: type[Message], holds: Holds = lambda _: True) -> Entry | None:
        """Return the newest one of a kind about the same job."""
        return self.known.newest(kind, uid_of(self.entry), self.entry.order, holds)

    def of_generation(self, kind: type[Message], generation: int) -> Entry | None:
        return self.last(kind, lambda message: message.generation == generation)

    def decision_of(self, role: str, serial: int, uid: int | None = None) -> Entry | None:
        """Return the first decision that has a task: its pod was created because of it."""
        if uid is None:
            uid = uid_of(self.entry)
        for decision in self.known.of(AllocationDecided, uid):
            if decision.order >= self.entry.order:
                return None
            if has_task(decision.message, role, serial):
                return decision
        return None


def latest(*entries: Entry | None) -> Entry | None:
    """Return the newest of several; None if there is none."""
    return max(filter(None, entries), key=_order, default=None)


def has_task(decision: Any, role: str, serial: int) -> bool:
    return any((task.role, task.serial) == (role, serial) for task in decision.tasks)


Pod = tuple[str, str, str]
"""Namespace, job, name."""


def causes_of_capacity_change(m: CapacityChanged, before: Before) -> Iterable[Entry | None]:
    """Return the cause of each pod of ours that came or went. Pods of others have none."""
    previous = before.known.newest(CapacityChanged, m.key(), before.entry.order)
    if previous is None or not isinstance(previous.message, CapacityChanged):
        return []
    was, now = _own_pods(previous.message), _own_pods(m)
    created = [_creating_decision(pod, before) for pod in now - was]
    removed = [_removing_entry(pod, before) for pod in was - now]
    return created + removed


def _own_pods(m: CapacityChanged) -> set[Pod]:
    return {(pod.namespace, pod.job, pod.pod) for pod in m.own}


def _creating_decision(pod: Pod, before: Before) -> Entry | None:
    """Return the first decision that has the pod's task."""
    return before.decision_of(*task_of(pod), uid=_uid_of_pod(pod, before))


def _removing_entry(pod: Pod, before: Before) -> Entry | None:
    """Return the first decision without the pod's task; otherwise the end of its job."""
    task = task_of(pod)
    uid = _uid_of_pod(pod, before)
    created = _creating_decision(pod, before)
    if created is not None:
        dropped = before.known.first(
            AllocationDecided, uid, created.order, lambda said: not has_task(said, *task)
        )
        if dropped is not None and dropped.order < before.entry.order:
            return dropped
    return before.known.newest(JobFinished, uid, before.entry.order)


def _uid_of_pod(pod: Pod, before: Before) -> int:
    """Return the uid of the newest job with the name of the pod's job."""
    namespace, job, _ = pod
    last = before.known.newest(AllocationDecided, f"{namespace}.{job}", before.entry.order)
    return uid_of(last) if last else 0


def task_of(pod: Pod) -> tuple[str, int]:
    """Return role and serial of a pod with the name `<job>-<role>-<serial>`."""
    _, job, name = pod
    role, _, serial = name.removeprefix(f"{job}-").rpartition("-")
    return role, int(serial) if serial.isdecimal() else -1


Found = Iterable[Entry | None]


def cause_of(entry: Entry, known: Known) -> tuple[Entry, ...]:
    """Return the direct causes, oldest first; none for a root, or if the cause was not read."""
    rule = RULES.get(type(entry.message))
    if rule is None:
        return ()
    causes = {cause.order: cause for cause in rule(entry.message, Before(entry, known)) if cause}
    return tuple(sorted(causes.values(), key=_order))


# ---------------------------------------------------------------- answers and decisions


def _causes_of_answer(m: JobAccepted | JobRejected, before: Before) -> Found:
    return [before.last(JobRequested)]


def _causes_of_change_answer(m: JobChanged | ChangeRejected, before: Before) -> Found:
    number = m.answers if isinstance(m, JobChanged) else m.uid
    requests = []
    for kind in (ChangeRequested, SuspendRequested, ResumeRequested):
        request = before.known.newest(kind, m.key(), before.entry.order)
        if request and request.sequence == number:
            requests.append(request)
    return requests


def _causes_of_decision(m: AllocationDecided, before: Before) -> Found:
    """Return the cause that the decision names; for the first decision of a job also its
    acceptance.
    """
    first = before.last(AllocationDecided) is None
    return [_entry_of_cause(m.cause, before), before.last(JobAccepted) if first else None]


def _entry_of_cause(cause: str, before: Before) -> Entry | None:
    """Return the entry that a decision names as its cause.

    A cause is the id of a message, a pod with a report about it, or the use of a task in the last
    progress report.
    """
    if cause == "-":
        return None
    if cause in before.known.by_id:
        return before.known.by_id[cause]
    exited = before.last(TaskExited, lambda m: m.pod == cause)
    leaving = before.last(TaskLeaving, lambda m: m.pod == cause)
    report = latest(exited, leaving)
    if report is None and _is_usage(cause, before):
        return before.last(ProgressReported)
    return report


MEMORY = "memory"
"""The cause that the allocator names if a task gets more memory because of its use."""


def _is_usage(cause: str, before: Before) -> bool:
    """Return True if a cause is the use of the job's tasks: their memory, or a starved pod."""
    job = key_of(before.entry).partition(".")[2]
    return cause == MEMORY or cause.startswith(f"{job}-")


# ---------------------------------------------------------------- tasks and generations


def _causes_of_task(m: TaskStarted | TaskReady, before: Before) -> Found:
    return [before.decision_of(m.role, m.serial)]


def _causes_of_exit(m: TaskExited, before: Before) -> Found:
    return [before.last(TaskLeaving, lambda leaving: leaving.pod_uid == m.pod_uid)]


def _causes_of_spec(m: ClusterSpecPublished, before: Before) -> Found:
    """Return the decision, and the last of its tasks that became ready."""
    pods = {task.pod for task in m.tasks}
    ready = before.last(TaskReady, lambda task: task.pod in pods)
    return [_decision_of_revision(m.revision, before), ready]


def _decision_of_revision(revision: int, before: Before) -> Entry | None:
    return before.last(AllocationDecided, lambda decision: decision.revision == revision)


def _causes_of_prepared(m: GenerationPrepared, before: Before) -> Found:
    return [before.of_generation(ClusterSpecPublished, m.generation)]


def _causes_of_hand_over(m: HandOverOrdered, before: Before) -> Found:
    """Return the last preparation for which the hand-over waited."""
    prepared = before.of_generation(GenerationPrepared, m.generation)
    return [prepared or before.of_generation(ClusterSpecPublished, m.generation)]


def _causes_of_abandoned(m: GenerationAbandoned, before: Before) -> Found:
    """Return the decision, and the newest event after it that stopped the generation: a newer
    decision, a task that ended, a failed preparation or a failed save.
    """

    def is_failure(prepared: GenerationPrepared) -> bool:
        return prepared.generation == m.generation and prepared.error is not None

    decided = before.of_generation(AllocationDecided, m.generation)
    newer = before.last(AllocationDecided, lambda decision: decision.generation > m.generation)
    failed = before.last(GenerationPrepared, is_failure)
    unsaved = before.last(CheckpointFailed, lambda save: save.successor == m.generation)
    stopped_by = latest(newer, before.last(TaskExited), failed, unsaved)
    return [decided, _if_after(stopped_by, decided)]


def _if_after(entry: Entry | None, start: Entry | None) -> Entry | None:
    """Return the entry; None if it was stored before the start, if that is known."""
    if entry and start and entry.order <= start.order:
        return None
    return entry


def _causes_of_update(m: TaskUpdated, before: Before) -> Found:
    return [_decision_of_revision(m.revision, before)]


# ---------------------------------------------------------------- training


def _causes_of_checkpoint(m: CheckpointSaved | CheckpointFailed, before: Before) -> Found:
    """Return the hand-over because of which the generation drained. Otherwise return the start of
    the generation, and for a final save or a stop of training also the notice before it.
    """
    if m.successor is not None:
        return [before.of_generation(HandOverOrdered, m.successor)]
    trains = before.of_generation(TrainingResumed, m.generation)
    if not isinstance(m, CheckpointSaved) or not (m.final or m.stood):
        return [trains]
    return [trains, _if_after(before.last(TaskLeaving), trains)]


def _causes_of_skipped(m: CheckpointSkipped, before: Before) -> Found:
    return [before.of_generation(HandOverOrdered, m.generation)]


def _causes_of_resumed(m: TrainingResumed, before: Before) -> Found:
    """Return the order, and the checkpoint of the generation before."""
    saved = before.last(CheckpointSaved, lambda save: save.successor == m.generation)
    return [before.of_generation(HandOverOrdered, m.generation), saved]


def _causes_of_progress(m: ProgressReported, before: Before) -> Found:
    return [before.of_generation(TrainingResumed, m.generation)]


def _causes_of_finish(m: JobFinished, before: Before) -> Found:
    """Return the request to cancel, the last report of a success, or the fault of a failure."""
    trains = before.of_generation(TrainingResumed, m.generation)
    if m.outcome == "cancelled":
        return [before.known.newest(CancelRequested, m.key(), before.entry.order)]
    if m.outcome == "succeeded":
        return [before.last(ProgressReported) or trains]
    fault = latest(before.last(TaskExited), before.last(GenerationAbandoned))
    return [_if_after(fault, trains), trains]


RULES: dict[type[Any], Callable[[Any, Before], Found]] = {
    JobAccepted: _causes_of_answer,
    JobRejected: _causes_of_answer,
    JobChanged: _causes_of_change_answer,
    ChangeRejected: _causes_of_change_answer,
    CapacityChanged: causes_of_capacity_change,
    AllocationDecided: _causes_of_decision,
    TaskReady: _causes_of_task,
    TaskStarted: _causes_of_task,
    TaskExited: _causes_of_exit,
    ClusterSpecPublished: _causes_of_spec,
    GenerationPrepared: _causes_of_prepared,
    HandOverOrdered: _causes_of_hand_over,
    GenerationAbandoned: _causes_of_abandoned,
    TaskUpdated: _causes_of_update,
    CheckpointSaved: _causes_of_checkpoint,
    CheckpointFailed: _causes_of_checkpoint,
    CheckpointSkipped: _causes_of_skipped,
    TrainingResumed: _causes_of_resumed,
    ProgressReported: _causes_of_progress,
    JobFinished: _causes_of_finish,
}
