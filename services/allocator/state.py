"""What the allocator knows: a pure fold over the log.

Law: `apply(state, message, stream, sequence, stored_s) -> state`. Time is the server's. What was applied already, what
speaks of a job that is over, and what comes from a stale generation changes nothing, however late or often it comes:
revisions and generations only rise, a pod exits once, and each stream's sequence only moves forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.job import OF_JOB, Job, above_serial, node_seen
from services.allocator.releases import Releases, begin_release, end_releases
from services.allocator.summaries import end_of, summary_of
from shared.early import add_early, brief
from shared.messages import (
    AllocationDecided,
    CancelRequested,
    CapacityChanged,
    CapacityFact,
    Change,
    ChangeRejected,
    ChangeRequested,
    CheckpointSaved,
    ClaimsChanged,
    ClusterSpecPublished,
    ForgetRequested,
    JobAccepted,
    JobChanged,
    JobFinished,
    JobMessage,
    JobRejected,
    JobRequested,
    Message,
    QuotaChanged,
    ResumeRequested,
    SuspendRequested,
    TaskExited,
    TaskLeaving,
    TaskReady,
    TaskStarted,
    TrainingResumed,
)

CLOSED_KEPT = 200
LASTING = ("own", "allocatable")
"""What mostly stays as it is, while a node changes."""


class Asked(msgspec.Struct, frozen=True):
    """A request that is not answered yet."""

    request: JobRequested
    asked_s: float
    cancelled: bool = False


class Closed(msgspec.Struct, frozen=True):
    """A job that is over: a summary of it as it was at the end."""

    job: Job
    finished: JobFinished
    removed: bool = False
    """Whether what it left on the bus is removed, its view among it."""


Waits = TrainingResumed | CheckpointSaved | TaskLeaving | TaskExited


class EarlyFact(msgspec.Struct, frozen=True):
    """A fact of a job that is not accepted yet: facts and orders come in separate streams."""

    fact: Waits
    stored_s: float


EVIDENCE = (CheckpointSaved, ClusterSpecPublished, TaskReady, TaskStarted)
"""Facts that show how far a decision has come, and are no cause for another one."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    asked: dict[int, Asked] = {}
    early: tuple[EarlyFact, ...] = ()
    changes: dict[int, Change] = {}
    """By sequence: what was asked of open jobs, and is not answered yet."""
    refused: dict[int, JobRejected | ChangeRejected] = {}
    """By uid: answers to requests that cannot be read, until they are on the bus."""
    jobs: dict[str, Job] = {}
    closed: dict[str, Closed] = {}
    nodes: dict[str, CapacityChanged] = {}
    quotas: dict[str, QuotaChanged] = {}
    """By namespace: what its ResourceQuotas and LimitRanges say; without those that have none."""
    claims: dict[str, ClaimsChanged] = {}
    """By namespace: its claims that only some nodes can use; without those that have none."""
    releases: Releases = Releases()
    """Pods that are about to go, and how long that usually takes."""
    opened_s: float = 0.0
    """When a node was last seen to be ready that had not been, or had not been there."""
    sequences: dict[str, int] = {}
    stored_s: dict[str, float] = {}
    """By stream: when the message of that sequence was stored. A stream that was set back holds another one there."""
    spoken: dict[str, int] = {}
    """Sequence of the last `AllocationDecided` on each job's subject."""
    known: tuple[str, ...] = ()
    """In a snapshot: the tags of what its writer hears. Version 0.2.0 did not say so."""
    cause: str = "-"
    """The id of the newest message that was applied and may be the cause of a decision."""


def apply(state: State, message: Message, stream: str, sequence: int, stored_s: float) -> State:
    """The state after one more message; the same state if it is an old one."""
    if sequence <= state.sequences.get(stream, 0):
        return state
    cause = state.cause if isinstance(message, EVIDENCE) else message.id()
    heard: dict[str, Any] = {"sequences": state.sequences | {stream: sequence}, "cause": cause}
    heard["stored_s"] = state.stored_s | {stream: stored_s}
    if isinstance(message, AllocationDecided):
        heard["spoken"] = state.spoken | {message.key(): sequence}
    if type(message) in OF_STATE:
        return OF_STATE[type(message)](replace(state, **heard), message, sequence, stored_s)
    return replace(state, **heard, **_of_job(state, message, stored_s))


def missed(state: State, message: Message, sequence: int, stored_s: float) -> State:
    """The state after a message that the writer of a snapshot passed over, because it did not know its kind."""
    if type(message) in OF_STATE:
        return OF_STATE[type(message)](state, message, sequence, stored_s)
    return belated(state, message, stored_s)


def belated(state: State, message: Message, stored_s: float) -> State:
    """The state after a fact that was heard before the order with which its job began, and so changed nothing then."""
    return replace(state, **_of_job(state, message, stored_s))


def _of_job(state: State, message: Message, stored_s: float) -> dict[str, Any]:
    """What the message changes of the one job that it is about; nothing, if that is over or another one."""
    if not isinstance(message, JobMessage) or type(message) not in OF_JOB:
        return {}
    key = message.key()
    job = state.jobs.get(key)
    if job is None or job.uid != message.uid:
        return _kept_early(state, message, stored_s)
    now = OF_JOB[type(message)](job, message, stored_s)
    if isinstance(message, TaskLeaving):
        now = node_seen(now, message.node, state.nodes.get(message.node))
    if now is job:
        return {}
    changed: dict[str, Any] = {"jobs": state.jobs | {key: now}}
    if now.decided is not job.decided and job.decided.keys() - now.decided.keys():
        kept = [task for decision in now.decided.values() for task in decision.tasks]
        changed["releases"] = begin_release(state.releases, job, kept, state.nodes, stored_s)
    return changed


def _kept_early(state: State, message: JobMessage, stored_s: float) -> dict[str, Any]:
    """Keep a fact of a job that is yet to be accepted; drop one of a job that is over."""
    key = message.key()
    job, before = state.jobs.get(key), state.closed.get(key)
    known_uid = max(job.uid if job else -1, before.job.uid if before else -1)
    if message.uid <= known_uid or not isinstance(
        message, TrainingResumed | CheckpointSaved | TaskLeaving | TaskExited
    ):
        return {}
    waits = EarlyFact(brief(message), stored_s)
    return {"early": add_early(state.early, waits, lambda each: each.fact)}


def _apply_early(state: State, key: str, uid: int) -> State:
    """Apply the facts that waited for this job, and forget those of earlier jobs of its name."""
    waiting = [e for e in state.early if e.fact.key() == key and e.fact.uid <= uid]
    if not waiting:
        return state
    state = replace(state, early=tuple(e for e in state.early if e not in waiting))
    for each in waiting:
        state = replace(state, **_of_job(state, each.fact, each.stored_s))
    return state


# ---------------------------------------------------------------- requests and nodes


def _requested(state: State, message: JobRequested, sequence: int, stored_s: float) -> State:
    if message.request_id != "-" and message.request_id in _request_ids(state, message.key()):
        return state
    return replace(state, asked=state.asked | {sequence: Asked(message, stored_s)})


def _request_ids(state: State, key: str) -> set[str]:
    known = [a.request for a in state.asked.values() if a.request.key() == key]
    known += [j.request for j in (state.jobs.get(key),) if j]
    known += [c.job.request for c in (state.closed.get(key),) if c]
    return {request.request_id for request in known}


def _accepted(state: State, message: JobAccepted, sequence: int, stored_s: float) -> State:
    asked, key = state.asked.get(message.uid), message.key()
    state = _answered(state, message.uid)
    before = state.closed.get(key)
    if key in state.jobs or (before and before.job.uid >= message.uid):
        return state
    job = Job(
        uid=message.uid,
        request=message.request,
        asked_s=asked.asked_s if asked else stored_s,
        checkpoint_folder=message.checkpoint_folder,
        cancelled=asked.cancelled if asked else False,
        serials=before.job.serials if before else 0,
    )
    return _apply_early(replace(state, jobs=state.jobs | {key: job}), key, job.uid)


def _rejected(state: State, message: JobRejected, sequence: int, stored_s: float) -> State:
    return _answered(state, message.uid)


def _answered(state: State, uid: int) -> State:
    asked = {u: a for u, a in state.asked.items() if u != uid}
    refused = {u: r for u, r in state.refused.items() if u != uid}
    return replace(state, asked=asked, refused=refused)


def refuse(state: State, rejected: JobRejected | ChangeRejected) -> State:
    """Remember the answer to a request that cannot be read, so that neither a race nor a restart loses it."""
    return replace(state, refused=state.refused | {rejected.uid: rejected})


def _forget(state: State, message: ForgetRequested, sequence: int, stored_s: float) -> State:
    """What was said stays known until it is removed (`removal.py`)."""
    return state


def _cancel(state: State, message: CancelRequested, sequence: int, stored_s: float) -> State:
    key = message.key()
    asked = {u: replace(a, cancelled=True) if a.request.key() == key else a for u, a in state.asked.items()}
    jobs = state.jobs | ({key: replace(state.jobs[key], cancelled=True)} if key in state.jobs else {})
    return replace(state, asked=asked, jobs=jobs)


def _change_asked(state: State, message: Change, sequence: int, stored_s: float) -> State:
    known = (each.id() for each in state.changes.values()) if message.request_id != "-" else ()
    return state if message.id() in known else replace(state, changes=state.changes | {sequence: message})


def _job_changed(state: State, message: JobChanged, sequence: int, stored_s: float) -> State:
    return replace(_change_answered(state, message.answers), **_of_job(state, message, stored_s))


def _change_rejected(state: State, message: ChangeRejected, sequence: int, stored_s: float) -> State:
    return _answered(_change_answered(state, message.uid), message.uid)


def _change_answered(state: State, sequence: int) -> State:
    return replace(state, changes={number: each for number, each in state.changes.items() if number != sequence})


def _capacity(state: State, message: CapacityChanged, sequence: int, stored_s: float) -> State:
    """A node's pods and size are the very same ones, while they are equal: what is known of them is kept by that."""
    state = replace(state, jobs=_above_serials(_aware(state.jobs, message), message))
    if message.gone:
        left = {n: c for n, c in state.nodes.items() if n != message.node}
        return replace(state, nodes=left, releases=_after(state, message, stored_s))
    before = state.nodes.get(message.node)
    if message.ready and not (before and before.ready):
        state = replace(state, opened_s=stored_s)
    if before is not None:
        alike = {of: was for of in LASTING if (was := getattr(before, of)) == getattr(message, of)}
        message = replace(message, **alike)
    return replace(state, nodes=state.nodes | {message.node: message}, releases=_after(state, message, stored_s))


def with_last_fact(state: State, fact: CapacityFact, stored_s: float) -> State:
    """The state with the last fact of a node or namespace that the log does not tell any more."""
    return OF_STATE[type(fact)](state, fact, 0, stored_s)


def _quota(state: State, message: QuotaChanged, sequence: int, stored_s: float) -> State:
    if message.bounds or message.task_bounds:
        return replace(state, quotas=state.quotas | {message.namespace: message})
    return replace(state, quotas={space: q for space, q in state.quotas.items() if space != message.namespace})


def _claims(state: State, message: ClaimsChanged, sequence: int, stored_s: float) -> State:
    if message.placements:
        return replace(state, claims=state.claims | {message.namespace: message})
    return replace(state, claims={space: c for space, c in state.claims.items() if space != message.namespace})


def _after(state: State, message: CapacityChanged, stored_s: float) -> Releases:
    return end_releases(state.releases, message, stored_s) if state.releases.open else state.releases


def _aware(jobs: dict[str, Job], message: CapacityChanged) -> dict[str, Job]:
    """The very same jobs, unless the node is one of which something was said to them."""
    told = {key: job for key, job in jobs.items() if job.leaving}
    now = {key: node_seen(job, message.node, None if message.gone else message) for key, job in told.items()}
    changed = {key: job for key, job in now.items() if job is not told[key]}
    return jobs | changed if changed else jobs


def _above_serials(jobs: dict[str, Job], message: CapacityChanged) -> dict[str, Job]:
    """The very same jobs, unless one has a pod of which no decision is known: the bus may have lost that decision."""
    for own in message.own:
        key = f"{own.namespace}.{own.job}"
        job = jobs.get(key)
        if job is not None and (above := above_serial(job, own.pod)) is not job:
            jobs = jobs | {key: above}
    return jobs


def _finished(state: State, message: JobFinished, sequence: int, stored_s: float) -> State:
    job = state.jobs.get(message.key())
    if job is not None and job.uid == message.uid:
        state = replace(state, releases=begin_release(state.releases, job, (), state.nodes, stored_s))
    return over(state, message)


def over(state: State, message: JobFinished) -> State:
    """Its job is among the closed ones from now on, whose kin learn from it."""
    job = state.jobs.get(message.key())
    if job is None or job.uid != message.uid:
        return state
    jobs = {k: j for k, j in state.jobs.items() if k != job.key}
    closed = {k: c for k, c in state.closed.items() if k != job.key} | {job.key: _closed(job, message)}
    return replace(state, jobs=jobs, closed=dict(list(closed.items())[-CLOSED_KEPT:]))


def forget_messages(state: State, key: str) -> State:
    """The state after all that was said under a name is removed from the bus."""
    spoken = {other: sequence for other, sequence in state.spoken.items() if other != key}
    end = state.closed.get(key)
    closed = state.closed | {key: replace(end, removed=True)} if end else state.closed
    return replace(state, spoken=spoken, closed=closed)


def _closed(job: Job, finished: JobFinished) -> Closed:
    return Closed(summary_of(job), end_of(finished))


def summarised(state: State) -> State:
    """The state with summaries alone of the jobs that are over: earlier versions stored such jobs whole."""
    closed = {key: replace(end, job=summary_of(end.job)) for key, end in state.closed.items()}
    return replace(state, closed=closed)


OF_STATE: dict[type[Message], Callable[[State, Any, int, float], State]] = {
    JobRequested: _requested,
    JobAccepted: _accepted,
    JobRejected: _rejected,
    CancelRequested: _cancel,
    ForgetRequested: _forget,
    ChangeRequested: _change_asked,
    SuspendRequested: _change_asked,
    ResumeRequested: _change_asked,
    JobChanged: _job_changed,
    ChangeRejected: _change_rejected,
    CapacityChanged: _capacity,
    QuotaChanged: _quota,
    ClaimsChanged: _claims,
    JobFinished: _finished,
}

HEARD: tuple[type[Message], ...] = tuple(dict.fromkeys((*OF_STATE, *OF_JOB)))
