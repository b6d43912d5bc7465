"""The state of the allocator: a pure fold over the log.

Law: `apply(state, message, stream, sequence, stored_s) -> state`. The time is the server's. A
message changes nothing if it was applied before, or is about a closed job or a stale generation,
however late or often it comes. Revisions and generations only rise, a pod exits once, and each
stream's sequence only moves forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.state.job import Job, end_of, job_of, summary_of, without_key
from services.allocator.state.job_folds import JOB_FOLDS, with_node_state, with_serial_above
from services.allocator.state.releases import Releases, begin_release, end_releases
from services.allocator.state.tables import NO_MARKS, Marks, Tables
from shared.bounds import add_early_fact, shorten_texts
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
    TaskPlan,
    TaskReady,
    TaskStarted,
    TrainingResumed,
)

CLOSED_KEPT = 200


class OpenRequest(msgspec.Struct, frozen=True):
    """A request that is not answered yet."""

    request: JobRequested
    asked_s: float
    cancelled: bool = False


class ClosedJob(msgspec.Struct, frozen=True):
    """An ended job: its summary, and its end."""

    job: Job
    finished: JobFinished
    removed: bool = False
    """True if its messages on the bus are removed, and its view."""


EarlyMessage = TrainingResumed | CheckpointSaved | TaskLeaving | TaskExited


class EarlyFact(msgspec.Struct, frozen=True):
    """A fact of a job that is not accepted yet: facts and orders come in separate streams."""

    fact: EarlyMessage
    stored_s: float


EVIDENCE = (CheckpointSaved, ClusterSpecPublished, TaskReady, TaskStarted)
"""Facts that show the progress of a decision. They are no cause for another decision."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    asked: dict[int, OpenRequest] = {}
    early: tuple[EarlyFact, ...] = ()
    changes: dict[int, Change] = {}
    """Changes of open jobs without an answer, by sequence."""
    unreadable_requests: dict[int, JobRejected | ChangeRejected] = msgspec.field(
        default_factory=dict, name="refused"
    )
    """By uid: answers to requests that cannot be read, until they are on the bus."""
    jobs: dict[str, Job] = {}
    closed: dict[str, ClosedJob] = {}
    nodes: dict[str, CapacityChanged] = {}
    quotas: dict[str, QuotaChanged] = {}
    """The ResourceQuotas and LimitRanges of each namespace that has any."""
    claims: dict[str, ClaimsChanged] = {}
    """The claims of each namespace that only some nodes can use."""
    releases: Releases = Releases()
    """Pods that are about to end, and the usual duration of that."""
    opened_s: float = 0.0
    """The time (s) at which a node last became ready."""
    sequences: dict[str, int] = {}
    stored_s: dict[str, float] = {}
    """By stream: the time (s) at which the message of that sequence was stored. After the stream
    was set back, another message has that sequence.
    """
    last_decision_seq: dict[str, int] = msgspec.field(default_factory=dict, name="spoken")
    """Sequence of the last `AllocationDecided` on each job's subject."""
    known: tuple[str, ...] = ()
    """In a snapshot: the tags of the messages that its writer reads. Version 0.2.0 did not store
    them.
    """
    cause: str = "-"
    """The id of the newest message that was applied and may be the cause of a decision."""
    models: bytes = b""
    """In a snapshot: the models of its tables (`table_updates.py`)."""
    tables: Tables | None = None
    """Data that is derived from the rest of the state, for passes (`table_updates.py`); not in a
    snapshot.
    """
    marks: Marks = NO_MARKS
    """The parts of the tables that are not up to date."""


def apply(state: State, message: Message, stream: str, sequence: int, stored_s: float) -> State:
    """Return the state after one more message; the very same state if the message is an old one."""
    if sequence <= state.sequences.get(stream, 0):
        return state
    last_decision_seq = state.last_decision_seq
    if isinstance(message, AllocationDecided):
        last_decision_seq = last_decision_seq | {message.key(): sequence}
    after = replace(
        state,
        sequences=state.sequences | {stream: sequence},
        stored_s=state.stored_s | {stream: stored_s},
        last_decision_seq=last_decision_seq,
        cause=state.cause if isinstance(message, EVIDENCE) else message.id(),
    )
    return _with_marks(state, _apply_message(after, message, sequence, stored_s), message)


def _apply_message(state: State, message: Message, sequence: int, stored_s: float) -> State:
    """Return the state after a message of any kind."""
    of_state = STATE_FOLDS.get(type(message))
    if of_state is not None:
        return of_state(state, message, sequence, stored_s)
    return _apply_to_job(state, message, stored_s)


def _with_marks(before: State, after: State, message: Message) -> State:
    """Mark the jobs and nodes with table entries that are no longer up to date."""
    if after.tables is None and not after.models:
        return after

    marks = after.marks
    if isinstance(message, CapacityChanged):
        listed = marks.listed | _listed_jobs(before, message)
        marks = replace(marks, nodes=marks.nodes | {message.node}, listed=listed)
    if after.jobs is not before.jobs:
        marks = replace(marks, jobs=marks.jobs | _changed_jobs(before, after, message))
    if after.closed is not before.closed:
        marks = replace(marks, closed=True)

    if marks is after.marks:
        return after
    return replace(after, marks=marks)


def _listed_jobs(before: State, message: CapacityChanged) -> set[str]:
    """Return the keys of the jobs with pods on a node now or before."""
    listed = _jobs_on(message)
    if message.node in before.nodes:
        listed |= _jobs_on(before.nodes[message.node])
    return listed


def _jobs_on(node: CapacityChanged) -> set[str]:
    """Return the keys of the jobs with pods on a node."""
    return {job_of(pod) for pod in node.own}


def _changed_jobs(before: State, after: State, message: Message) -> set[str]:
    """Return the keys of the jobs that a message changed. A message about a job names it; after any
    other one all jobs are compared.
    """
    if isinstance(message, JobMessage):
        return {message.key()}
    changed = set()
    for key, job in after.jobs.items():
        if before.jobs.get(key) is not job:
            changed.add(key)
    return changed


def tables_of(state: State) -> Tables:
    """Return the tables; raises `ValueError` if they are not up to date."""
    tables = fresh_tables(state)
    if tables is None:
        raise ValueError("the tables of the state are not up to date")
    return tables


def without_tables(state: State) -> State:
    """Return the state without derived data, so that its facts can be changed without the fold."""
    return replace(state, tables=None, marks=NO_MARKS, models=b"")


def fresh_tables(state: State) -> Tables | None:
    """Return the tables, if they are up to date."""
    return state.tables if state.marks == NO_MARKS else None


def apply_missed(state: State, message: Message, sequence: int, stored_s: float) -> State:
    """Return the state after a message that the writer of a snapshot passed over, because it did
    not know its kind.
    """
    return _with_marks(state, _apply_message(state, message, sequence, stored_s), message)


def apply_late(state: State, message: Message, stored_s: float) -> State:
    """Return the state after a fact that was read before its job was accepted, and so changed
    nothing then.
    """
    return _with_marks(state, _apply_to_job(state, message, stored_s), message)


def _apply_to_job(state: State, message: Message, stored_s: float) -> State:
    """Apply a message to its job; change nothing if the job is closed, or if another job has its
    name now.
    """
    if not isinstance(message, JobMessage) or type(message) not in JOB_FOLDS:
        return state
    key = message.key()
    job = state.jobs.get(key)
    if job is None or job.uid != message.uid:
        return _keep_early_fact(state, message, stored_s)

    now = JOB_FOLDS[type(message)](job, message, stored_s)
    if isinstance(message, TaskLeaving):
        now = with_node_state(now, message.node, state.nodes.get(message.node))
    if now is job:
        return state

    # The tasks of dropped decisions begin to release their capacity.
    releases = state.releases
    if now.decided is not job.decided and job.decided.keys() - now.decided.keys():
        releases = begin_release(releases, job, _decided_tasks(now), state.nodes, stored_s)
    return replace(state, jobs=state.jobs | {key: now}, releases=releases)


def _decided_tasks(job: Job) -> list[TaskPlan]:
    """Return the tasks of all generations of a job that may run."""
    tasks: list[TaskPlan] = []
    for decision in job.decided.values():
        tasks += decision.tasks
    return tasks


def _keep_early_fact(state: State, message: JobMessage, stored_s: float) -> State:
    """Keep a fact of a job that is not accepted yet; drop a fact of a closed job."""
    if not isinstance(message, TrainingResumed | CheckpointSaved | TaskLeaving | TaskExited):
        return state

    key = message.key()
    job = state.jobs.get(key)
    before = state.closed.get(key)
    if job is not None and message.uid <= job.uid:
        return state
    if before is not None and message.uid <= before.job.uid:
        return state

    waits = EarlyFact(shorten_texts(message), stored_s)
    return replace(state, early=add_early_fact(state.early, waits, lambda each: each.fact))


def _apply_early_facts(state: State, key: str, uid: int) -> State:
    """Apply the facts that waited for this job, and forget those of earlier jobs of its name."""
    waiting: list[EarlyFact] = []
    others: list[EarlyFact] = []
    for each in state.early:
        if each.fact.key() == key and each.fact.uid <= uid:
            waiting.append(each)
        else:
            others.append(each)
    if not waiting:
        return state
    state = replace(state, early=tuple(others))
    for each in waiting:
        state = _apply_to_job(state, each.fact, each.stored_s)
    return state


# ---------------------------------------------------------------- requests and nodes


def _on_request(state: State, message: JobRequested, sequence: int, stored_s: float) -> State:
    """Add a request to those without an answer, by its sequence. One with a known request id was
    published twice, and changes nothing.
    """
    if message.request_id != "-" and message.request_id in _request_ids(state, message.key()):
        return state
    return replace(state, asked=state.asked | {sequence: OpenRequest(message, stored_s)})


def _request_ids(state: State, key: str) -> set[str]:
    """Return the request ids of all jobs of a name: without an answer, open or ended."""
    found = set()
    for open_request in state.asked.values():
        if open_request.request.key() == key:
            found.add(open_request.request.request_id)
    if key in state.jobs:
        found.add(state.jobs[key].request.request_id)
    if key in state.closed:
        found.add(state.closed[key].job.request.request_id)
    return found


def _on_acceptance(state: State, message: JobAccepted, sequence: int, stored_s: float) -> State:
    """Open an accepted job, and apply the facts that were read before it. Nothing is opened if its
    name has a job already, or if it has ended.
    """
    key = message.key()
    open_request = state.asked.get(message.uid, OpenRequest(message.request, stored_s))

    before = state.closed.get(key)
    state = _without_request(state, message.uid)
    if key in state.jobs or (before and before.job.uid >= message.uid):
        return state

    job = Job(
        uid=message.uid,
        request=message.request,
        asked_s=open_request.asked_s,
        checkpoint_folder=message.checkpoint_folder,
        cancelled=open_request.cancelled,
        serials=before.job.serials if before else 0,
    )
    return _apply_early_facts(replace(state, jobs=state.jobs | {key: job}), key, job.uid)


def _on_rejection(state: State, message: JobRejected, sequence: int, stored_s: float) -> State:
    return _without_request(state, message.uid)


def _without_request(state: State, uid: int) -> State:
    """Remove a request from those without an answer, and from those that could not be read."""
    asked = without_key(state.asked, uid)
    return replace(
        state, asked=asked, unreadable_requests=without_key(state.unreadable_requests, uid)
    )


def add_refusal(state: State, rejected: JobRejected | ChangeRejected) -> State:
    """Remember the answer to a request that cannot be read, so that neither a race nor a restart
    loses it.
    """
    return replace(state, unreadable_requests=state.unreadable_requests | {rejected.uid: rejected})


def _on_forget_request(
    state: State, message: ForgetRequested, sequence: int, stored_s: float
) -> State:
    """Change nothing: the messages of a job stay known until they are removed (`removal.py`)."""
    return state


def _on_cancellation(
    state: State, message: CancelRequested, sequence: int, stored_s: float
) -> State:
    """Mark the job of a name as cancelled, and its requests without an answer, too. The next
    decision finishes it.
    """
    key = message.key()
    asked = dict(state.asked)
    for uid, each in state.asked.items():
        if each.request.key() == key:
            asked[uid] = replace(each, cancelled=True)
    jobs = state.jobs
    if key in jobs:
        jobs = jobs | {key: replace(jobs[key], cancelled=True)}
    return replace(state, asked=asked, jobs=jobs)


def _on_change_request(state: State, message: Change, sequence: int, stored_s: float) -> State:
    """Add a change to those without an answer, by its sequence. One with the id of another such
    change was published twice, and changes nothing.
    """
    if message.request_id != "-":
        for known in state.changes.values():
            if known.id() == message.id():
                return state
    return replace(state, changes=state.changes | {sequence: message})


def _on_job_change(state: State, message: JobChanged, sequence: int, stored_s: float) -> State:
    """Apply a change to its job; it is answered now."""
    return _apply_to_job(_without_change(state, message.answers), message, stored_s)


def _on_change_rejection(
    state: State, message: ChangeRejected, sequence: int, stored_s: float
) -> State:
    """Remove a rejected change, readable or not, from those without an answer."""
    return _without_request(_without_change(state, message.uid), message.uid)


def _without_change(state: State, sequence: int) -> State:
    return replace(state, changes=without_key(state.changes, sequence))


def _on_capacity(state: State, message: CapacityChanged, sequence: int, stored_s: float) -> State:
    """Fold the last fact of a node: add, update or remove it. It also ends releases of pods that
    are gone, and updates jobs with a notice about the node.
    """
    jobs = _with_serials_above(_with_node_state(state.jobs, message), message)
    releases = _releases_after(state, message, stored_s)
    if message.gone:
        nodes = without_key(state.nodes, message.node)
        return replace(state, jobs=jobs, nodes=nodes, releases=releases)

    before = state.nodes.get(message.node)
    opened_s = state.opened_s
    if message.ready and not (before and before.ready):
        opened_s = stored_s
    nodes = state.nodes | {message.node: message}
    return replace(state, jobs=jobs, nodes=nodes, releases=releases, opened_s=opened_s)


def with_last_fact(state: State, fact: CapacityFact, stored_s: float) -> State:
    """Return the state with the last fact of a node or namespace that the log no longer has."""
    return _with_marks(state, STATE_FOLDS[type(fact)](state, fact, 0, stored_s), fact)


def _on_quota(state: State, message: QuotaChanged, sequence: int, stored_s: float) -> State:
    """Store the quota of a namespace; a fact without any bounds removes it."""
    if message.bounds or message.task_bounds:
        return replace(state, quotas=state.quotas | {message.namespace: message})
    return replace(state, quotas=without_key(state.quotas, message.namespace))


def _on_claims(state: State, message: ClaimsChanged, sequence: int, stored_s: float) -> State:
    """Store the nodes of a namespace's volume claims; a fact without any removes them."""
    if message.placements:
        return replace(state, claims=state.claims | {message.namespace: message})
    return replace(state, claims=without_key(state.claims, message.namespace))


def _releases_after(state: State, message: CapacityChanged, stored_s: float) -> Releases:
    """Return the releases without the pods that a node no longer lists."""
    if not state.releases.open:
        return state.releases
    return end_releases(state.releases, message, stored_s)


def _with_node_state(jobs: dict[str, Job], message: CapacityChanged) -> dict[str, Job]:
    """Return the jobs with the present state of a node in their notices; the very same jobs if no
    notice is about it.
    """
    node = None if message.gone else message
    changed = {}
    for key, job in jobs.items():
        if job.leaving:
            updated = with_node_state(job, message.node, node)
            if updated is not job:
                changed[key] = updated
    if not changed:
        return jobs
    return jobs | changed


def _with_serials_above(jobs: dict[str, Job], message: CapacityChanged) -> dict[str, Job]:
    """Return the jobs with serials above those of listed pods, because the bus may have lost a
    decision; the very same jobs if all serials are above.
    """
    for pod in message.own:
        key = job_of(pod)
        job = jobs.get(key)
        if job is None:
            continue
        updated = with_serial_above(job, pod.pod)
        if updated is not job:
            jobs = jobs | {key: updated}
    return jobs


def _on_finish(state: State, message: JobFinished, sequence: int, stored_s: float) -> State:
    """Fold the end of a job: its pods begin to release their capacity, and it is closed."""
    job = state.jobs.get(message.key())
    if job is not None and job.uid == message.uid:
        releases = begin_release(state.releases, job, (), state.nodes, stored_s)
        state = replace(state, releases=releases)
    return close_job(state, message)


def close_job(state: State, message: JobFinished) -> State:
    """Move an ended job to the closed ones. Later jobs of its program learn from it."""
    job = state.jobs.get(message.key())
    if job is None or job.uid != message.uid:
        return state
    closed = without_key(state.closed, job.key)
    closed[job.key] = ClosedJob(summary_of(job), end_of(message))
    while len(closed) > CLOSED_KEPT:
        oldest = next(iter(closed))
        del closed[oldest]
    return replace(state, jobs=without_key(state.jobs, job.key), closed=closed)


def forget_messages(state: State, key: str) -> State:
    """Return the state after all messages of a name were removed from the bus."""
    closed = state.closed
    if key in closed:
        closed = closed | {key: replace(closed[key], removed=True)}
    return replace(
        state, last_decision_seq=without_key(state.last_decision_seq, key), closed=closed
    )


def with_summaries(state: State) -> State:
    """Return the state with summaries of the closed jobs. Earlier versions stored complete jobs."""
    closed = {}
    for key, end in state.closed.items():
        closed[key] = replace(end, job=summary_of(end.job))
    return replace(state, closed=closed)


STATE_FOLDS: dict[type[Message], Callable[[State, Any, int, float], State]] = {
    JobRequested: _on_request,
    JobAccepted: _on_acceptance,
    JobRejected: _on_rejection,
    CancelRequested: _on_cancellation,
    ForgetRequested: _on_forget_request,
    ChangeRequested: _on_change_request,
    SuspendRequested: _on_change_request,
    ResumeRequested: _on_change_request,
    JobChanged: _on_job_change,
    ChangeRejected: _on_change_rejection,
    CapacityChanged: _on_capacity,
    QuotaChanged: _on_quota,
    ClaimsChanged: _on_claims,
    JobFinished: _on_finish,
}

CONSUMED: tuple[type[Message], ...] = tuple(dict.fromkeys((*STATE_FOLDS, *JOB_FOLDS)))
