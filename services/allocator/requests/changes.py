"""May a running job be changed as its user asks? Pure.

A change is answered with the whole of what may change, not with a difference: the priority, the bounds of ps and of
workers, and whether the job is suspended. So an answer that is applied twice, or a change that is asked for twice,
does nothing more. Requests about one job are answered in the order in which they were made.

The bounds may exclude the start: that stays what the learning rate was chosen for. A job's credentials give its tasks
so many readers of the bus as its bounds allowed when they were made, so it cannot grow far beyond them.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from services.allocator.job import Job, reader_blocks
from services.allocator.placing.quota import gang, too_small
from services.allocator.policies.contract import Size
from services.allocator.requests.validate import LONGEST_REASON, reasons_against
from services.allocator.rules import Rules
from services.allocator.state import State
from shared.messages import (
    Bounds,
    Change,
    ChangeRejected,
    ChangeRequested,
    JobChanged,
    JobRequested,
    ResumeRequested,
    RoleResources,
    Span,
    SuspendRequested,
)
from shared.permissions import READERS_BLOCK, READERS_PER_TASK
from shared.subjects import DEFAULT_NAMESPACE, tag_of

FIELDS = ("priority", "ps", "workers")
TAGS = (tag_of(ChangeRequested), tag_of(SuspendRequested), tag_of(ResumeRequested))


def unanswered_changes(state: State) -> dict[int, Change]:
    """Return the oldest open change of each job, unless a job of that name was asked for before and is not answered."""
    first: dict[str, int] = {}
    for sequence in sorted(state.changes):
        first.setdefault(state.changes[sequence].key(), sequence)
    oldest_request: dict[str, int] = {}
    for uid in sorted(state.asked):
        oldest_request.setdefault(state.asked[uid].request.key(), uid)
    return {
        sequence: state.changes[sequence]
        for key, sequence in first.items()
        if oldest_request.get(key, sequence) >= sequence
    }


def answer_change(state: State, sequence: int, rules: Rules) -> JobChanged | ChangeRejected:
    """Return what the job is from now on, or every reason why not."""
    change = state.changes[sequence]
    job = state.jobs.get(change.key())
    if job is None:
        return rejected(change.job, change.namespace, sequence, _no_job(state, change))
    request = _changed_request(job.request, change)
    if reasons := list(_reasons(job, request, change, rules)):
        return rejected(change.job, change.namespace, sequence, *reasons)
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


def rejected(job: str, namespace: str, sequence: int, *reasons: str) -> ChangeRejected:
    return ChangeRejected(job=job, namespace=namespace, uid=sequence, reasons=reasons)


def refusal(subject: str, sequence: int, error: str) -> ChangeRejected | None:
    """Return the answer to a change that cannot be read; None: the subject is of something else, or of no job."""
    tokens = subject.split(".")
    if ".".join(tokens[1:3]) not in TAGS or len(tokens) not in (4, 5):
        return None
    namespace = tokens[3] if len(tokens) == 5 else DEFAULT_NAMESPACE
    return rejected(tokens[-1], namespace, sequence, error[:LONGEST_REASON])


def _no_job(state: State, change: Change) -> str:
    name = f"job: {change.job!r} in namespace {change.namespace!r}"
    return f"{name} is over" if change.key() in state.closed else f"{name} is not known"


def _changed_request(request: JobRequested, change: Change) -> JobRequested:
    if not isinstance(change, ChangeRequested):
        return request
    return replace(
        request,
        priority=request.priority if change.priority is None else change.priority,
        ps=_with_bounds(request.ps, change.ps),
        workers=_with_bounds(request.workers, change.workers),
    )


def _with_bounds(span: Span, bounds: Bounds | None) -> Span:
    return span if bounds is None else replace(span, min=bounds.min, max=bounds.max)


def _is_suspended(job: Job, change: Change) -> bool:
    if isinstance(change, ChangeRequested):
        return job.suspended_by_user
    return isinstance(change, SuspendRequested)


def _reasons(job: Job, request: JobRequested, change: Change, rules: Rules) -> Iterator[str]:
    if job.cancelled:
        yield f"job: {change.job!r} is being cancelled"
    if isinstance(change, ResumeRequested) and not job.suspended_by_user:
        yield f"job: {change.job!r} is not suspended by its user"
    if not isinstance(change, ChangeRequested):
        return
    if change.priority is None and change.ps is None and change.workers is None:
        yield "priority, ps or workers: one of them is required"
    startable = replace(request, ps=_with_start_inside(request.ps), workers=_with_start_inside(request.workers))
    reasons = [each for each in reasons_against(startable, rules) if each.startswith(FIELDS)]
    yield from reasons
    wants = gang(request.resources or RoleResources(), Size(request.ps.min, request.workers.min))
    if not reasons and (why := too_small(rules.quotas.get(request.namespace), request.namespace, wants)):
        yield why
    blocks = job.reader_blocks or (reader_blocks(job.request) if job.decided else 0)
    if blocks and reader_blocks(request) > blocks:
        tasks = blocks * READERS_BLOCK // READERS_PER_TASK
        yield f"workers.max: ps, workers and a chief may be {tasks} at most, for the job's credentials give no more"


def _with_start_inside(span: Span) -> Span:
    """Return the span as if it had been asked for like that."""
    return replace(span, start=max(span.min, min(span.start, span.max)))
