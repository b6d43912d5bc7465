"""The causes of a message: one rule for each kind, over what was stored before it.

A rule names the messages without which this one would not exist. A kind without a rule is a root: a
request of a person, or an observation. A change of a node is ours if pods of ours came or went.
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
    """`entries`: in the order in which they were stored; what was read twice is there once."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        there = {(entry.stream, entry.sequence): entry for entry in entries}
        self.entries = sorted(there.values(), key=lambda entry: entry.order)
        self.by_id: dict[str, Entry] = {}
        self.uids: dict[str, list[int]] = defaultdict(list)
        self._told: dict[tuple[type[Message], str], list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if isinstance(entry.said, Message):
                self._note(entry, entry.said)

    def _note(self, entry: Entry, said: Message) -> None:
        self.by_id.setdefault(said.id(), entry)  # the first of what was said twice
        self._told[type(said), said.key()].append(entry)
        if uid := uid_of(entry):
            self._told[type(said), str(uid)].append(entry)
            self.uids[said.key()].append(uid)

    def of(self, kind: type[Message], whose: str | int) -> list[Entry]:
        """Every message of a kind about a job (`<namespace>.<name>`, or its uid), or about a
        node.
        """
        return self._told.get((kind, str(whose)), [])

    def newest(
        self, kind: type[Message], whose: str | int, before: Order, holds: Holds = lambda _: True
    ) -> Entry | None:
        """The last that was stored before, of those that it holds for."""
        told = self.of(kind, whose)
        end = bisect_left(told, before, key=lambda entry: entry.order)
        return next((told[i] for i in range(end - 1, -1, -1) if holds(told[i].said)), None)

    def first(
        self, kind: type[Message], whose: str | int, after: Order, holds: Holds = lambda _: True
    ) -> Entry | None:
        """The first that was stored at or after."""
        told = self.of(kind, whose)
        begin = bisect_left(told, after, key=lambda entry: entry.order)
        return next((told[i] for i in range(begin, len(told)) if holds(told[i].said)), None)


def uid_of(entry: Entry) -> int:
    """Of the job that a message is about; a request's own number is the uid that its job will have.
    0: of none.
    """
    return (
        entry.sequence
        if isinstance(entry.said, JobRequested)
        else int(getattr(entry.said, "uid", 0))
    )


def key_of(entry: Entry) -> str:
    """`<namespace>.<job>`; empty for what is about a node or a service, or is a dead letter."""
    return (
        entry.said.key()
        if isinstance(entry.said, JobNameMessage | JobRejected | ChangeRejected)
        else ""
    )


class Before(NamedTuple):
    entry: Entry
    known: Known

    def last(self, kind: type[Message], holds: Holds = lambda _: True) -> Entry | None:
        """The newest of a kind about the same job."""
        return self.known.newest(kind, uid_of(self.entry), self.entry.order, holds)

    def of_generation(self, kind: type[Message], generation: int) -> Entry | None:
        return self.last(kind, lambda said: said.generation == generation)

    def latest(self, *found: Entry | None) -> list[Entry]:
        """The newest of several, if there is any."""
        return sorted((e for e in found if e is not None), key=lambda e: e.order)[-1:]

    def decision_of(self, role: str, serial: int) -> Entry | None:
        """The decision that first wants a task: its pod is made for it."""
        told = self.known.of(AllocationDecided, uid_of(self.entry))
        return next(
            (
                e
                for e in told
                if e.order < self.entry.order and needed_entries(e.said, role, serial)
            ),
            None,
        )


def needed_entries(decision: Any, role: str, serial: int) -> bool:
    """Whether a decision has this task."""
    return any((t.role, t.serial) == (role, serial) for t in decision.tasks)


Pod = tuple[str, str, str]
"""Namespace, job, name."""


def comings_and_goings(m: CapacityChanged, before: Before) -> Iterable[Entry | None]:
    """What made, or ended, each of them; of strangers' pods nothing is said."""
    seen = before.known.newest(CapacityChanged, m.key(), before.entry.order)
    if seen is None or not isinstance(seen.said, CapacityChanged):
        return []
    was, now = _pods(seen.said), _pods(m)
    return [_maker(pod, before) for pod in now - was] + [_ender(pod, before) for pod in was - now]


def _pods(m: CapacityChanged) -> set[Pod]:
    return {(pod.namespace, pod.job, pod.pod) for pod in m.own}


def _maker(pod: Pod, before: Before) -> Entry | None:
    """The decision that first wants it."""
    task = task_of(pod)
    told = before.known.of(AllocationDecided, _uid(pod, before))
    return next(
        (e for e in told if e.order < before.entry.order and needed_entries(e.said, *task)), None
    )


def _ender(pod: Pod, before: Before) -> Entry | None:
    """The decision that first did without it; else the end of its job."""
    task = task_of(pod)
    uid = _uid(pod, before)
    made = _maker(pod, before)
    dropped = None
    if made is not None:
        dropped = before.known.first(
            AllocationDecided, uid, made.order, lambda said: not needed_entries(said, *task)
        )
    if dropped is not None and dropped.order < before.entry.order:
        return dropped
    return before.known.newest(JobFinished, uid, before.entry.order)


def _uid(pod: Pod, before: Before) -> int:
    """Of the job that last bore this name."""
    namespace, job, _ = pod
    last = before.known.newest(AllocationDecided, f"{namespace}.{job}", before.entry.order)
    return uid_of(last) if last else 0


def task_of(pod: Pod) -> tuple[str, int]:
    """Role and serial of a pod that is called `<job>-<role>-<serial>`."""
    _, job, name = pod
    role, _, serial = name.removeprefix(f"{job}-").rpartition("-")
    return role, int(serial) if serial.isdecimal() else -1


Found = Iterable[Entry | None]


def cause_of(entry: Entry, known: Known) -> tuple[Entry, ...]:
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
    return [_entry_of_cause(m.cause, before), before.last(JobAccepted) if first else None]


def _entry_of_cause(cause: str, before: Before) -> Entry | None:
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


def _causes_of_exit(m: TaskExited, before: Before) -> Found:
    return [before.last(TaskLeaving, lambda told: told.pod_uid == m.pod_uid)]


def _spec(m: ClusterSpecPublished, before: Before) -> Found:
    """The decision, and the last of its tasks that stood ready."""
    pods = {task.pod for task in m.tasks}
    return [_revision(m.revision, before), before.last(TaskReady, lambda told: told.pod in pods)]


def _revision(revision: int, before: Before) -> Entry | None:
    return before.last(AllocationDecided, lambda told: told.revision == revision)


def _causes_of_prepared(m: GenerationPrepared, before: Before) -> Found:
    return [before.of_generation(ClusterSpecPublished, m.generation)]


def _handover(m: HandOverOrdered, before: Before) -> Found:
    """The last preparation that was still lacking."""
    prepared = before.of_generation(GenerationPrepared, m.generation)
    return [prepared or before.of_generation(ClusterSpecPublished, m.generation)]


def _causes_of_abandoned(m: GenerationAbandoned, before: Before) -> Found:
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


def _causes_of_update(m: TaskUpdated, before: Before) -> Found:
    return [_revision(m.revision, before)]


# ---------------------------------------------------------------- training


def _causes_of_checkpoint(m: CheckpointSaved | CheckpointFailed, before: Before) -> Found:
    """The hand-over for which it drained; else that it trains, and for a stand-still the notice
    before it.
    """
    if m.successor is not None:
        return [before.of_generation(HandOverOrdered, m.successor)]
    trains = before.of_generation(TrainingResumed, m.generation)
    stood = isinstance(m, CheckpointSaved) and (m.final or m.stood)
    notice = before.last(TaskLeaving) if stood else None
    return [trains, notice if trains is None or (notice and notice.order > trains.order) else None]


def _causes_of_skipped(m: CheckpointSkipped, before: Before) -> Found:
    return [before.of_generation(HandOverOrdered, m.generation)]


def _causes_of_resumed(m: TrainingResumed, before: Before) -> Found:
    """The order, and the checkpoint with which the generation before made room for it."""
    saved = before.last(CheckpointSaved, lambda told: told.successor == m.generation)
    return [before.of_generation(HandOverOrdered, m.generation), saved]


def _progress(m: ProgressReported, before: Before) -> Found:
    return [before.of_generation(TrainingResumed, m.generation)]


def _causes_of_finish(m: JobFinished, before: Before) -> Found:
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
    TaskExited: _causes_of_exit,
    ClusterSpecPublished: _spec,
    GenerationPrepared: _causes_of_prepared,
    HandOverOrdered: _handover,
    GenerationAbandoned: _causes_of_abandoned,
    TaskUpdated: _causes_of_update,
    CheckpointSaved: _causes_of_checkpoint,
    CheckpointFailed: _causes_of_checkpoint,
    CheckpointSkipped: _causes_of_skipped,
    TrainingResumed: _causes_of_resumed,
    ProgressReported: _progress,
    JobFinished: _causes_of_finish,
}
