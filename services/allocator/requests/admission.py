"""May a request become a job?

Valid in itself, its name not in use, its program in the store, its least size within its namespace's quota: accepted,
completed with what the person left open. Requests for one name are answered in the order they were made, the next once
the answer to the one before is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from msgspec.structs import replace

from services.allocator.placing.placement import ROLES
from services.allocator.placing.quota import gang, too_small
from services.allocator.policies.contract import Size
from services.allocator.requests.validate import Wrong, reasons_against
from services.allocator.rules import Rules
from services.allocator.state import Asked, State
from shared.checkpoint_folders import location, new_folder
from shared.messages import LARGEST_PROGRAM, JobAccepted, JobRejected, JobRequested, Resources, RoleResources
from shared.words import counted


def unanswered(state: State) -> dict[int, Asked]:
    """The oldest open request of each name."""
    first: dict[str, int] = {}
    for uid in sorted(state.asked):
        first.setdefault(state.asked[uid].request.key(), uid)
    return {uid: state.asked[uid] for uid in first.values()}


class ProgramFault(Enum):
    """Reasons why the store has no usable program for a request."""

    NO_BUCKET = (
        "namespace: {namespace!r} is not provisioned on the bus; `weir streams create --namespace {namespace}` does it"
    )
    MISSING = (
        "program.digest: the store has no program {digest} that can be read in namespace {namespace!r}; "
        "`weir submit` stores it"
    )
    OTHER = "program.digest: what the store has as {digest} is something else; `weir submit` stores it again"


def answer(state: State, uid: int, program: int | ProgramFault, now: float, rules: Rules) -> JobAccepted | JobRejected:
    """`program`: the size in bytes of what the store has under the program's digest, or why that cannot be used."""
    request = state.asked[uid].request
    whole = completed(_with_whole_roles(request), rules)
    reasons = [*reasons_against(request, rules), *_too_large(whole, rules), *_too_many(state, request.namespace, rules)]
    if request.key() in state.jobs:
        reasons.append(f"job: {request.job!r} is open already in namespace {request.namespace!r}")
    reasons += _folder_in_use(state, request)
    if isinstance(program, ProgramFault):
        reasons.append(program.value.format(namespace=request.namespace, digest=request.program.digest))
    elif program > LARGEST_PROGRAM:
        reasons.append(f"program: it has {program:,} bytes, more than {LARGEST_PROGRAM:,}")
    if reasons:
        return JobRejected(job=request.job, namespace=request.namespace, uid=uid, reasons=tuple(reasons))
    return JobAccepted(
        job=request.job,
        namespace=request.namespace,
        uid=uid,
        request=whole,
        accepted_s=now,
        checkpoint_folder=new_folder(whole, uid, now),
    )


def _folder_in_use(state: State, request: JobRequested) -> Iterator[str]:
    """Refuse to continue from the checkpoints of a job that may still write them."""
    wanted = request.checkpoint.continue_from
    for job in state.jobs.values():
        if wanted is not None and wanted.strip("/") == location(job.request, job.uid, job.checkpoint_folder).strip("/"):
            yield f"checkpoint.continue_from: {wanted!r} belongs to job {job.request.job!r}, which is not finished"


def _too_many(state: State, namespace: str, rules: Rules) -> Iterator[str]:
    count = sum(job.request.namespace == namespace for job in state.jobs.values())
    if rules.open_jobs and count >= rules.open_jobs:
        yield f"namespace: it has {counted(count, 'open job')}; WEIR_ALLOCATOR_OPEN_JOBS allows no more"


def _too_large(request: JobRequested, rules: Rules) -> Iterator[str]:
    """Its least size is beyond its namespace's quota: it would wait for ever."""
    least = Size(request.ps.min, request.workers.min)
    wants = gang(request.resources or RoleResources(), least)
    if why := too_small(rules.quotas.get(request.namespace), request.namespace, wants):
        yield f"{why} (a chief, {least.told()})"


def completed(request: JobRequested, rules: Rules) -> JobRequested:
    """What the person left open, filled in: tasks of Weir's default size, the cluster's policy."""
    return replace(
        request,
        resources=request.resources or RoleResources(),
        policy=request.policy or rules.policy,
    )


def _with_whole_roles(request: JobRequested) -> JobRequested:
    """Of a role given in part, cores and memory that are left out (or 0, with which no pod can live) are the default's.

    Only for people: whoever simulates may well mean that memory does not count.
    """
    if request.resources is None:
        return request
    whole = {role: _or(getattr(request.resources, role), getattr(RoleResources(), role)) for role in ROLES}
    return replace(request, resources=RoleResources(**whole))


def _or(given: Resources, default: Resources) -> Resources:
    return replace(given, cpu=given.cpu or default.cpu, memory_gib=given.memory_gib or default.memory_gib)


def refused(wrong: Wrong, uid: int) -> JobRejected:
    return JobRejected(job=wrong.job, namespace=wrong.namespace, uid=uid, reasons=wrong.reasons)
