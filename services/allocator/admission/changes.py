"""Decide if a running job may be changed as its user asks. Pure.

An answer names all that may change, not a difference: the priority, the bounds of ps and of
workers, and the suspension. So an answer that is applied twice, or a change that is asked for
twice, does nothing more. Requests about one job are answered in the order in which they were made.

The bounds may exclude the start: the learning rate was chosen for it, and it stays. A job's
credentials give its tasks so many readers of the bus as its bounds allowed when they were made, so
it cannot grow far beyond them.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from services.allocator.admission.requests import excess_of_quota
from services.allocator.admission.validation import LONGEST_REASON, reasons_against
from services.allocator.settings import Rules
from services.allocator.state.job import Job, reader_blocks
from services.allocator.state.state import State
from shared.auth.permissions import READERS_BLOCK, READERS_PER_TASK
from shared.bus.subjects import DEFAULT_NAMESPACE, tag_of
from shared.messages import (
    Bounds,
    Change,
    ChangeRejected,
    ChangeRequested,
    JobChanged,
    JobRequested,
    ResumeRequested,
    Span,
    SuspendRequested,
)

FIELDS = ("priority", "ps", "workers")
TAGS = (tag_of(ChangeRequested), tag_of(SuspendRequested), tag_of(ResumeRequested))


def unanswered_changes(state: State) -> dict[int, Change]:
    """Return the oldest open change of each job by sequence, without those for a name with an older
    request that is not answered.
    """
    oldest_request = _oldest_requests(state)
    unanswered = {}
    for key, sequence in _oldest_changes(state).items():
        if oldest_request.get(key, sequence) >= sequence:
            unanswered[sequence] = state.changes[sequence]
    return unanswered


def _oldest_changes(state: State) -> dict[str, int]:
    """Return the sequence of each job's oldest open change."""
    oldest: dict[str, int] = {}
    for sequence in sorted(state.changes):
        key = state.changes[sequence].key()
        oldest.setdefault(key, sequence)
    return oldest


def _oldest_requests(state: State) -> dict[str, int]:
    """Return the uid of the oldest open request of each name."""
    oldest: dict[str, int] = {}
    for uid in sorted(state.asked):
        name = state.asked[uid].request.key()
        oldest.setdefault(name, uid)
    return oldest


def answer_change(state: State, sequence: int, rules: Rules) -> JobChanged | ChangeRejected:
    """Return the job's fields from now on, or every reason against the change."""
    change = state.changes[sequence]
    job = state.jobs.get(change.key())
    if job is None:
        reason = _no_such_job(state, change)
        return change_rejection(change.job, change.namespace, sequence, reason)

    request = _changed_request(job.request, change)
    reasons = tuple(_reasons_against_change(job, request, change, rules))
    if reasons:
        return change_rejection(change.job, change.namespace, sequence, *reasons)

    return JobChanged(
        job=change.job,
        namespace=change.namespace,
        uid=job.uid,
        answers=sequence,
        priority=request.priority,
        ps=request.ps,
        workers=request.workers,
        suspended=_is_suspended(job, change),
    )


def change_rejection(job: str, namespace: str, sequence: int, *reasons: str) -> ChangeRejected:
    return ChangeRejected(job=job, namespace=namespace, uid=sequence, reasons=reasons)


def refusal_of_change(subject: str, sequence: int, error: str) -> ChangeRejected | None:
    """Return the answer to a change that cannot be read; None: the subject is of something else, or
    of no job.
    """
    tokens = subject.split(".")
    tag = ".".join(tokens[1:3])
    if tag not in TAGS or len(tokens) not in (4, 5):
        return None
    job = tokens[-1]
    namespace = tokens[3] if len(tokens) == 5 else DEFAULT_NAMESPACE
    return change_rejection(job, namespace, sequence, error[:LONGEST_REASON])


def _no_such_job(state: State, change: Change) -> str:
    """Return why a change finds no job to change: it has ended, or none of this name is known."""
    name = f"job: {change.job!r} in namespace {change.namespace!r}"
    if change.key() in state.closed:
        return f"{name} is over"
    return f"{name} is not known"


def _changed_request(request: JobRequested, change: Change) -> JobRequested:
    """Return the request with the priority and bounds that the user asks for. Suspending or
    resuming a job leaves it as it is.
    """
    if not isinstance(change, ChangeRequested):
        return request
    if change.priority is not None:
        request = replace(request, priority=change.priority)
    if change.ps is not None:
        ps = _with_bounds(request.ps, change.ps)
        request = replace(request, ps=ps)
    if change.workers is not None:
        workers = _with_bounds(request.workers, change.workers)
        request = replace(request, workers=workers)
    return request


def _with_bounds(span: Span, bounds: Bounds) -> Span:
    return replace(span, min=bounds.min, max=bounds.max)


def _is_suspended(job: Job, change: Change) -> bool:
    if isinstance(change, ChangeRequested):
        return job.suspended_by_user
    return isinstance(change, SuspendRequested)


def _reasons_against_change(
    job: Job, request: JobRequested, change: Change, rules: Rules
) -> Iterator[str]:
    """Yield the reasons against a change. `request`: the job's request, changed by it."""
    if job.cancelled:
        yield f"job: {change.job!r} is being cancelled"
    if isinstance(change, ResumeRequested) and not job.suspended_by_user:
        yield f"job: {change.job!r} is not suspended by its user"
    if not isinstance(change, ChangeRequested):
        return
    if change.priority is None and change.ps is None and change.workers is None:
        yield "priority, ps or workers: one of them is required"
    reasons = _reasons_against_fields(request, rules)
    yield from reasons
    if not reasons:
        why = excess_of_quota(request, rules)
        if why:
            yield why
    yield from _reader_reasons(job, request)


def _reasons_against_fields(request: JobRequested, rules: Rules) -> list[str]:
    """Return the reasons against the fields that a change can name."""
    startable = replace(
        request,
        ps=_with_start_inside(request.ps),
        workers=_with_start_inside(request.workers),
    )
    found = []
    for reason in reasons_against(startable, rules):
        if reason.startswith(FIELDS):
            found.append(reason)
    return found


def _reader_reasons(job: Job, request: JobRequested) -> Iterator[str]:
    """Refuse more tasks than the job's credentials have readers of the bus for."""
    blocks = job.reader_blocks
    if not blocks and job.decided:
        blocks = reader_blocks(job.request)
    if blocks and reader_blocks(request) > blocks:
        tasks = blocks * READERS_BLOCK // READERS_PER_TASK
        yield (
            f"workers.max: ps, workers and a chief may be {tasks} at most, "
            "for the job's credentials give no more"
        )


def _with_start_inside(span: Span) -> Span:
    """Return the span with the start that its bounds allow."""
    start = max(span.min, min(span.start, span.max))
    return replace(span, start=start)
