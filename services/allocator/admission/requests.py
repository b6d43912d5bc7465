"""Answer requests: accept or reject a job, and accept or reject a change of a running job.

A request becomes a job if it is valid, its name is not in use, its program is stored, and its least
size is within its namespace's quota. Defaults complete it. Requests for one name are answered in
order, each one after the answer to the one before is known.

The answer to a change names everything that may change, not a difference: the priority, the bounds
of ps and of workers, and the suspension. So applying an answer twice changes nothing more. The new
bounds may exclude the initial size: `start` stays as it is, because the learning rate was chosen
for it. A job's credentials give its tasks as many readers of the bus as its bounds allowed at
first, so it cannot grow far beyond them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from msgspec.structs import replace

from services.allocator.admission.validation import LONGEST_REASON, InvalidRequest, reasons_against
from services.allocator.placement.placers import ROLES
from services.allocator.placement.quota import gang_resources, quota_too_small
from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.job_folds import reader_blocks
from services.allocator.state.state import OpenRequest, State
from shared.auth.permissions import READERS_BLOCK, READERS_PER_TASK
from shared.bus.subjects import DEFAULT_NAMESPACE, tag_of
from shared.checkpoints import checkpoint_location, new_checkpoint_folder
from shared.messages import (
    FEWEST_VIRTUAL_WORKERS,
    LARGEST_PROGRAM,
    Bounds,
    Change,
    ChangeRejected,
    ChangeRequested,
    JobAccepted,
    JobChanged,
    JobRejected,
    JobRequested,
    Resources,
    ResumeRequested,
    RoleResources,
    Shuffle,
    Span,
    SuspendRequested,
)
from shared.text import format_count

MAX_DEFAULT_VIRTUAL_WORKERS = 16
"""The greatest default of `virtual_workers`. A request may name more."""


def oldest_requests(state: State) -> dict[int, OpenRequest]:
    """Return the oldest open request of each name, by uid."""
    names = set[str]()
    oldest = {}
    for uid in sorted(state.asked):
        open_request = state.asked[uid]
        name = open_request.request.key()
        if name not in names:
            names.add(name)
            oldest[uid] = open_request
    return oldest


class ProgramFault(Enum):
    """Reasons why the store has no usable program for a request."""

    NO_BUCKET = (
        "namespace: {namespace!r} is not provisioned on the bus; "
        "run `weir streams create --namespace {namespace}`"
    )
    MISSING = (
        "program.digest: the store has no program {digest} "
        "that can be read in namespace {namespace!r}; submit the job with `weir submit`"
    )
    OTHER = (
        "program.digest: the store has other content under {digest}; "
        "submit the job again with `weir submit`"
    )


def answer_request(
    state: State, uid: int, program: int | ProgramFault, now: float, rules: Rules
) -> JobAccepted | JobRejected:
    """Return the job as accepted, or every reason against it.

    `program`: the size in bytes of the stored program with the request's digest, or the reason why
    there is none.
    """
    request = state.asked[uid].request
    completed = with_defaults(_with_whole_roles(request), rules)
    completed = _with_consistency(completed, rules)
    reasons = tuple(_reasons_against_job(state, request, completed, program, rules))
    if reasons:
        return JobRejected(
            job=request.job,
            namespace=request.namespace,
            uid=uid,
            reasons=reasons,
        )
    return JobAccepted(
        job=request.job,
        namespace=request.namespace,
        uid=uid,
        request=completed,
        accepted_s=now,
        checkpoint_folder=new_checkpoint_folder(completed, uid, now),
    )


def _with_consistency(request: JobRequested, rules: Rules) -> JobRequested:
    """Return a request with its consistency, and with its virtual workers if it is `exact`.

    More virtual workers than workers cost time, and with fewer some workers have nothing to do.
    Their number is a power of two, so that requests with nearly the same `workers.max` give the same
    bits. It does not change with the bounds of a running job.
    """
    consistency = request.consistency or rules.consistency
    virtual_workers = request.virtual_workers
    if consistency == "exact" and virtual_workers is None:
        virtual_workers = FEWEST_VIRTUAL_WORKERS
        while virtual_workers < min(request.workers.max, MAX_DEFAULT_VIRTUAL_WORKERS):
            virtual_workers *= 2
    return replace(request, consistency=consistency, virtual_workers=virtual_workers)


def _reasons_against_job(
    state: State,
    request: JobRequested,
    completed: JobRequested,
    program: int | ProgramFault,
    rules: Rules,
) -> Iterator[str]:
    """Yield every reason against a job. `completed`: its request, completed."""
    yield from reasons_against(request, rules)
    yield from _quota_reasons(completed, rules)
    yield from _open_job_reasons(state, request.namespace, rules)
    yield from _name_reasons(state, request)
    yield from _folder_reasons(state, request)
    yield from _program_reasons(request, program)


def _name_reasons(state: State, request: JobRequested) -> Iterator[str]:
    """Refuse the name of a job that is open."""
    if request.key() in state.jobs:
        yield f"job: {request.job!r} has not ended yet in namespace {request.namespace!r}"


def _program_reasons(request: JobRequested, program: int | ProgramFault) -> Iterator[str]:
    """Refuse a program that the store does not have, or that is too large."""
    if isinstance(program, ProgramFault):
        digest = request.program.digest
        yield program.value.format(namespace=request.namespace, digest=digest)
    elif program > LARGEST_PROGRAM:
        yield f"program: {program:,} bytes are more than {LARGEST_PROGRAM:,}"


def _folder_reasons(state: State, request: JobRequested) -> Iterator[str]:
    """Refuse to continue from the checkpoints of a job that may still write them."""
    wanted = request.checkpoint.continue_from
    if wanted is None:
        return
    wanted_path = wanted.strip("/")
    for job in state.jobs.values():
        folder = checkpoint_location(job.request, job.uid, job.checkpoint_folder)
        if folder.strip("/") == wanted_path:
            yield (
                f"checkpoint.continue_from: {wanted!r} belongs to job {job.request.job!r}, "
                "which is not finished"
            )


def _open_job_reasons(state: State, namespace: str, rules: Rules) -> Iterator[str]:
    """Refuse a job beyond the number of open ones that a namespace may have."""
    if not rules.open_jobs:
        return
    count = 0
    for job in state.jobs.values():
        if job.request.namespace == namespace:
            count += 1
    if count >= rules.open_jobs:
        jobs = format_count(count, "open job")
        yield f"namespace: has {jobs}, the limit set by WEIR_ALLOCATOR_OPEN_JOBS"


def _quota_reasons(request: JobRequested, rules: Rules) -> Iterator[str]:
    """Refuse a job with a least size beyond its namespace's quota: it would wait for ever."""
    why = excess_of_quota(request, rules)
    if why:
        least = Size(request.ps.min, request.workers.min)
        yield f"{why} (a chief, {least.describe()})"


def excess_of_quota(request: JobRequested, rules: Rules) -> str:
    """Return the reason why no job of the least size fits into the namespace's quota; empty: it
    fits.
    """
    least = Size(request.ps.min, request.workers.min)
    wants = gang_resources(request.resources or RoleResources(), least)
    quota = rules.quotas.get(request.namespace)
    return quota_too_small(quota, request.namespace, wants)


def with_defaults(request: JobRequested, rules: Rules) -> JobRequested:
    """Return the request with defaults filled in: tasks of Weir's default size, the cluster's
    policy, shuffled examples.

    A job that an earlier version accepted has no `shuffle`, and keeps the order of the example
    numbers.
    """
    return replace(
        request,
        resources=request.resources or RoleResources(),
        policy=request.policy or rules.policy,
        shuffle=request.shuffle or Shuffle(),
    )


def _with_whole_roles(request: JobRequested) -> JobRequested:
    """Return the request with default cores and memory for roles that omit them or set them to 0,
    because no pod can run with 0.

    This applies to requests of users only: in a simulation a memory of 0 may mean that memory does
    not count.
    """
    if request.resources is None:
        return request
    defaults = RoleResources()
    completed: dict[str, Resources] = {}
    for role in ROLES:
        requested = getattr(request.resources, role)
        default_size = getattr(defaults, role)
        completed[role] = _with_amounts(requested, default_size)
    return replace(request, resources=RoleResources(**completed))


def _with_amounts(requested: Resources, default_size: Resources) -> Resources:
    """Return the requested resources, with the default cores and memory in place of 0."""
    cpu = requested.cpu or default_size.cpu
    memory_gib = requested.memory_gib or default_size.memory_gib
    return replace(requested, cpu=cpu, memory_gib=memory_gib)


def rejection_of(wrong: InvalidRequest, uid: int) -> JobRejected:
    """Return the answer to a request that cannot be read."""
    return JobRejected(job=wrong.job, namespace=wrong.namespace, uid=uid, reasons=wrong.reasons)


CHANGEABLE_FIELDS = ("priority", "ps", "workers")
UNCHANGEABLE = "priority_class"
CHANGE_TAGS = (tag_of(ChangeRequested), tag_of(SuspendRequested), tag_of(ResumeRequested))


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
    """Return the answer to a change that cannot be read; None: the subject is not that of a change,
    or it names no job.
    """
    tokens = subject.split(".")
    tag = ".".join(tokens[1:3])
    if tag not in CHANGE_TAGS or len(tokens) not in (4, 5):
        return None
    job = tokens[-1]
    namespace = tokens[3] if len(tokens) == 5 else DEFAULT_NAMESPACE
    return change_rejection(job, namespace, sequence, error[:LONGEST_REASON])


def _no_such_job(state: State, change: Change) -> str:
    """Return why a change cannot be applied: the job has ended, or no job of this name is known."""
    name = f"job: {change.job!r} in namespace {change.namespace!r}"
    if change.key() in state.closed:
        return f"{name} has ended"
    return f"{name} does not exist"


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
        if reason.startswith(CHANGEABLE_FIELDS) and not reason.startswith(UNCHANGEABLE):
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
            f"workers.max: more than {format_count(tasks, 'task')} (ps, workers and a chief), "
            "the most that the job's credentials allow"
        )


def _with_start_inside(span: Span) -> Span:
    """Return the span with its start moved into its bounds."""
    start = max(span.min, min(span.start, span.max))
    return replace(span, start=start)
