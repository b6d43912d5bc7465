"""A job as a policy sees it, and how large its tasks are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from services.allocator.exits import OUT_OF_MEMORY
from services.allocator.job import Job
from services.allocator.models.kin import kin_of
from services.allocator.placing.amounts import larger
from services.allocator.policies.contract import ClusterQuota, JobSeen, Kin, Quota, Size
from services.allocator.rules import Rules
from shared.messages import (
    AllocationDecided,
    JobRequested,
    Resources,
    Role,
    RoleResources,
    Span,
    TaskPlan,
)


def seen(job: Job, rules: Rules, kin: Kin | None = None) -> JobSeen:
    """Return a job as a policy sees it."""
    wanted = job.wanted
    size = None
    request = job.request
    if wanted is not None:
        size = size_of(wanted)
        if job.changed:
            request = _with_its_size(request, size)
    return JobSeen(
        key=job.key,
        request=request,
        sizes=task_sizes(job, rules),
        submitted_s=job.asked_s,
        size=size,
        batch=wanted.batch if wanted else 0,
        tasks=wanted.tasks if wanted else (),
        since_s=job.resumed_s,
        busy=job.coming is not None,
        progress=job.progress,
        observed=job.observed,
        tried=job.tried,
        recent=job.recent,
        curve=job.curve,
        quota=rules.quotas.get(job.request.namespace),
        pause_s=sum(job.pauses) / len(job.pauses) if job.pauses else None,
        kin=kin,
    )


def all_seen(jobs: Collection[Job], rules: Rules, kins: Mapping[str, Kin]) -> list[JobSeen]:
    """Return each job as a policy sees it, beside its own kin."""
    return [seen(job, rules, kin_of(kins, job.request)) for job in jobs]


def _with_its_size(request: JobRequested, size: Size) -> JobRequested:
    """Return a request whose bounds include the size that its job still has, though its user has
    excluded that.
    """
    return replace(
        request,
        ps=_including(request.ps, size.ps),
        workers=_including(request.workers, size.workers),
    )


def _including(span: Span, number: int) -> Span:
    return replace(span, min=min(span.min, number), max=max(span.max, number))


def counted_size(tasks: Sequence[TaskPlan]) -> Size:
    roles: list[str] = [task.role for task in tasks]
    return Size(roles.count("ps"), roles.count("worker"))


def size_of(decision: AllocationDecided) -> Size:
    return counted_size(decision.tasks)


def least_of(job: Job, size: Size) -> Size:
    """Return how far a job of this size may shrink: to its gang floor, or as it is where that is less."""
    return Size(min(size.ps, job.request.ps.min), min(size.workers, job.request.workers.min))


def task_sizes(job: Job, rules: Rules) -> RoleResources:
    """As requested (or Weir's default), but no less than the cluster demands, with more memory for
    a role whose tasks ran out of it: never the same again.
    """
    sizes = _at_least(
        job.request.resources or RoleResources(), rules.quotas.get(job.request.namespace)
    )
    if not job.exits:
        return sizes
    return RoleResources(
        chief=_grown(job, "chief", sizes.chief, rules),
        ps=_grown(job, "ps", sizes.ps, rules),
        worker=_grown(job, "worker", sizes.worker, rules),
    )


def _at_least(sizes: RoleResources, quota: Quota | None) -> RoleResources:
    """Return the sizes, raised to what the LimitRanges of the cluster demand of a task."""
    least = quota.tasks.least if isinstance(quota, ClusterQuota) else Resources()
    if least == Resources():
        return sizes
    return RoleResources(
        chief=larger(sizes.chief, least),
        ps=larger(sizes.ps, least),
        worker=larger(sizes.worker, least),
    )


def _grown(job: Job, role: Role, size: Resources, rules: Rules) -> Resources:
    times = sum(e.role == role and e.reason == OUT_OF_MEMORY for e in job.exits.values())
    return replace(size, memory_gib=size.memory_gib * rules.oom_memory_factor**times)
