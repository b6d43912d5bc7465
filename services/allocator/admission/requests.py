"""Decide if a request becomes a job.

A request that is valid in itself, with a name that is not in use, a program in the store, and a
least size within its namespace's quota, is accepted; defaults complete it. Requests for one name
are answered in the order they were made, the next once the answer to the one before is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from msgspec.structs import replace

from services.allocator.admission.validation import Wrong, reasons_against
from services.allocator.placement.quota import gang_resources, quota_too_small
from services.allocator.placement.room import ROLES
from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.allocator.state.state import OpenRequest, State
from shared.checkpoints import checkpoint_location, new_checkpoint_folder
from shared.messages import (
    LARGEST_PROGRAM,
    JobAccepted,
    JobRejected,
    JobRequested,
    Resources,
    RoleResources,
)
from shared.text import format_count


def oldest_requests(state: State) -> dict[int, OpenRequest]:
    """Return the oldest open request of each name, by uid."""
    names = set[str]()
    oldest = {}
    for uid in sorted(state.asked):
        asked = state.asked[uid]
        name = asked.request.key()
        if name not in names:
            names.add(name)
            oldest[uid] = asked
    return oldest


class ProgramFault(Enum):
    """Reasons why the store has no usable program for a request."""

    NO_BUCKET = (
        "namespace: {namespace!r} is not provisioned on the bus; "
        "`weir streams create --namespace {namespace}` does it"
    )
    MISSING = (
        "program.digest: the store has no program {digest} "
        "that can be read in namespace {namespace!r}; `weir submit` stores it"
    )
    OTHER = (
        "program.digest: what the store has as {digest} is something else; "
        "`weir submit` stores it again"
    )


def answer_request(
    state: State, uid: int, program: int | ProgramFault, now: float, rules: Rules
) -> JobAccepted | JobRejected:
    """Return the job as accepted, or every reason against it.

    `program`: the size in bytes of the stored program with the request's digest, or the reason why
    there is none.
    """
    request = state.asked[uid].request
    whole = with_defaults(_with_whole_roles(request), rules)
    reasons = tuple(_reasons_against_job(state, request, whole, program, rules))
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
        request=whole,
        accepted_s=now,
        checkpoint_folder=new_checkpoint_folder(whole, uid, now),
    )


def _reasons_against_job(
    state: State,
    request: JobRequested,
    whole: JobRequested,
    program: int | ProgramFault,
    rules: Rules,
) -> Iterator[str]:
    """Yield every reason against a job. `whole`: its request, completed."""
    yield from reasons_against(request, rules)
    yield from _too_large(whole, rules)
    yield from _too_many(state, request.namespace, rules)
    yield from _name_in_use(state, request)
    yield from _folder_in_use(state, request)
    yield from _program_reasons(request, program)


def _name_in_use(state: State, request: JobRequested) -> Iterator[str]:
    """Refuse the name of a job that is open."""
    if request.key() in state.jobs:
        yield f"job: {request.job!r} is open already in namespace {request.namespace!r}"


def _program_reasons(request: JobRequested, program: int | ProgramFault) -> Iterator[str]:
    """Refuse a program that the store does not have, or that is too large."""
    if isinstance(program, ProgramFault):
        digest = request.program.digest
        yield program.value.format(namespace=request.namespace, digest=digest)
    elif program > LARGEST_PROGRAM:
        yield f"program: it has {program:,} bytes, more than {LARGEST_PROGRAM:,}"


def _folder_in_use(state: State, request: JobRequested) -> Iterator[str]:
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


def _too_many(state: State, namespace: str, rules: Rules) -> Iterator[str]:
    """Refuse a job beyond the number of open ones that a namespace may have."""
    if not rules.open_jobs:
        return
    count = 0
    for job in state.jobs.values():
        if job.request.namespace == namespace:
            count += 1
    if count >= rules.open_jobs:
        jobs = format_count(count, "open job")
        yield f"namespace: it has {jobs}; WEIR_ALLOCATOR_OPEN_JOBS allows no more"


def _too_large(request: JobRequested, rules: Rules) -> Iterator[str]:
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
    policy.
    """
    return replace(
        request,
        resources=request.resources or RoleResources(),
        policy=request.policy or rules.policy,
    )


def _with_whole_roles(request: JobRequested) -> JobRequested:
    """Return the request with default cores and memory where a role leaves them out (or says 0,
    with which no pod can live).

    Only for people: in a simulation a memory of 0 may well mean that memory does not count.
    """
    if request.resources is None:
        return request
    default = RoleResources()
    whole: dict[str, Resources] = {}
    for role in ROLES:
        given = getattr(request.resources, role)
        usual = getattr(default, role)
        whole[role] = _with_amounts(given, usual)
    return replace(request, resources=RoleResources(**whole))


def _with_amounts(given: Resources, usual: Resources) -> Resources:
    """Return the given resources, with the usual cores and memory in place of none."""
    cpu = given.cpu or usual.cpu
    memory_gib = given.memory_gib or usual.memory_gib
    return replace(given, cpu=cpu, memory_gib=memory_gib)


def rejection_of(wrong: Wrong, uid: int) -> JobRejected:
    """Return the answer to a request that cannot be read."""
    return JobRejected(job=wrong.job, namespace=wrong.namespace, uid=uid, reasons=wrong.reasons)
