"""A job as its policy sees it, the sizes of its tasks, its wait for capacity, and its downtime.

A job waits if it has no tasks, or if it lost tasks that are not replaced yet, and stands still or
trains below its smallest size without them. It keeps its other tasks; their capacity does not
become free before the job continues.

    downtime = the decision that gives it new tasks
               - the end of the last task that was shut down with the cluster   [s]

Downtime is the time that the whole cluster was off. It is no part of a hand-over's pause. A cluster
that keeps running decides at once, so a job that lost one node of many has nearly no downtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from services.allocator.placement.amounts import larger
from services.allocator.policies.contract import (
    ClusterQuota,
    JobSnapshot,
    ProgramHistory,
    Quota,
    Size,
)
from services.allocator.settings import Rules
from services.allocator.state.job import OUT_OF_MEMORY, SHUT_DOWN, Job, is_completed, is_lost
from shared.messages import (
    AllocationDecided,
    JobRequested,
    Resources,
    Role,
    RoleResources,
    Span,
    TaskPlan,
)


def view_of_job(job: Job, rules: Rules, history: ProgramHistory | None = None) -> JobSnapshot:
    """Return a job as a policy sees it."""
    request = job.request
    size = None
    batch = 0
    tasks: tuple[TaskPlan, ...] = ()
    wanted = job.newest_decision
    if wanted is not None:
        size = size_of(wanted)
        batch = wanted.batch
        tasks = wanted.tasks
        if job.changed:
            request = _with_present_size(request, size)

    return JobSnapshot(
        key=job.key,
        request=request,
        sizes=task_sizes(job, rules),
        submitted_s=job.asked_s,
        size=size,
        batch=batch,
        tasks=tasks,
        since_s=job.resumed_s,
        busy=job.pending_generation is not None,
        progress=job.progress,
        observed=job.observed,
        tried=job.tried,
        recent=job.recent,
        curve=job.curve,
        quota=rules.quotas.get(request.namespace),
        pause_s=_mean_pause_s(job),
        history=history,
    )


def _mean_pause_s(job: Job) -> float | None:
    """Return the mean pause (s) of the job's last hand-overs; None: none was measured."""
    if not job.pauses:
        return None
    return sum(job.pauses) / len(job.pauses)


def _with_present_size(request: JobRequested, size: Size) -> JobRequested:
    """Return the request with bounds that include the job's present size, even if its user has
    excluded it.
    """
    ps = _widened_span(request.ps, size.ps)
    workers = _widened_span(request.workers, size.workers)
    return replace(request, ps=ps, workers=workers)


def _widened_span(span: Span, number: int) -> Span:
    """Return a span that includes the number."""
    lowest = min(span.min, number)
    highest = max(span.max, number)
    return replace(span, min=lowest, max=highest)


def counted_size(tasks: Sequence[TaskPlan]) -> Size:
    """Return the number of ps and of workers among these tasks. The chief does not count."""
    roles: list[str] = [task.role for task in tasks]
    return Size(roles.count("ps"), roles.count("worker"))


def size_of(decision: AllocationDecided) -> Size:
    return counted_size(decision.tasks)


def shrink_floor(job: Job, size: Size) -> Size:
    """Return how far a job of this size may shrink: to its gang floor; not at all if it has
    less.
    """
    ps = min(size.ps, job.request.ps.min)
    workers = min(size.workers, job.request.workers.min)
    return Size(ps, workers)


def task_sizes(job: Job, rules: Rules) -> RoleResources:
    """Return the sizes of tasks: as requested (or Weir's default), raised to the minimum of the
    cluster, with more memory for a role that ran out of it.
    """
    requested = job.request.resources or RoleResources()
    sizes = _raised_to_limits(requested, rules.quotas.get(job.request.namespace))
    if not job.exits:
        return sizes
    return RoleResources(
        chief=_with_oom_memory(job, "chief", sizes.chief, rules),
        ps=_with_oom_memory(job, "ps", sizes.ps, rules),
        worker=_with_oom_memory(job, "worker", sizes.worker, rules),
    )


def _raised_to_limits(sizes: RoleResources, quota: Quota | None) -> RoleResources:
    """Return the sizes, raised to the minimum in the cluster's LimitRanges."""
    if not isinstance(quota, ClusterQuota):
        return sizes
    least = quota.tasks.least
    if least == Resources():
        return sizes
    return RoleResources(
        chief=larger(sizes.chief, least),
        ps=larger(sizes.ps, least),
        worker=larger(sizes.worker, least),
    )


def _with_oom_memory(job: Job, role: Role, size: Resources, rules: Rules) -> Resources:
    """Return the size of a role's tasks, with more memory for each time that one ran out of it."""
    times = 0
    for ended in job.exits.values():
        if ended.role == role and ended.reason == OUT_OF_MEMORY:
            times += 1
    return replace(size, memory_gib=size.memory_gib * rules.oom_memory_factor**times)


def is_waiting(job: Job) -> bool:
    """Return True if a job waits for capacity."""
    if job.cancelled or job.suspended_by_user:
        return False
    if job.running is None and job.pending_generation is None:
        return True
    return has_lost_tasks(job)


def has_lost_tasks(job: Job) -> bool:
    """Return True if a job lost tasks that no decision replaces yet, and stands still or trains
    below its smallest size without them.
    """
    current = job.active_decision
    if not job.exits or current is None or job.pending_generation is not None:
        return False
    chiefs = [task for task in current.tasks if task.role == "chief"]
    if any(is_completed(job.exit_of(chief)) for chief in chiefs):
        return False
    if job.stands_still:
        return True
    training = [task for task in current.tasks if not is_lost(job.exit_of(task))]
    return counted_size(training).workers < shrink_floor(job, size_of(current)).workers


def waits_since_s(job: Job) -> float:
    """Return when (s) a job began to wait: at its submission or suspension, or when its last lost
    task ended.
    """
    if not job.exits or job.newest_decision is None:
        return job.waiting_since_s
    ends_s = []
    for task in job.newest_decision.tasks:
        ended = job.exit_of(task)
        if ended:
            ends_s.append(ended.at_s)
    return max(ends_s, default=job.waiting_since_s)


def remaining_tasks(job: Job) -> tuple[TaskPlan, ...]:
    """Return the tasks of a job that have not ended."""
    wanted = job.newest_decision
    if wanted is None:
        return ()
    if not job.exits:
        return wanted.tasks
    return tuple([task for task in wanted.tasks if job.exit_of(task) is None])


def smallest_size(job: Job) -> Size:
    """Return the smallest size of a job: its gang floor, or less if it runs with less."""
    if job.newest_decision is None:
        return Size(job.request.ps.min, job.request.workers.min)
    return shrink_floor(job, size_of(job.newest_decision))


def downtime_s(job: Job, now: float) -> float:
    """Return the time (s) that a decision of now names. A decision that overtakes one in flight
    names the same time.
    """
    if job.pending_decision is not None and job.pending_decision.off_s:
        return job.pending_decision.off_s
    if job.suspended_s:
        return max(now - job.suspended_s, 0.0)
    if job.active_decision is None or not job.stands_still:
        return 0.0
    shut_down_s = _last_shut_down_s(job, job.active_decision.tasks)
    if shut_down_s is None:
        return 0.0
    return max(now - shut_down_s, 0.0)


def _last_shut_down_s(job: Job, tasks: Iterable[TaskPlan]) -> float | None:
    """Return when (s) the last of the tasks was shut down with the cluster; None: none was."""
    last_s = None
    for task in tasks:
        end = job.exit_of(task)
        if end is not None and end.reason in SHUT_DOWN:
            last_s = end.at_s if last_s is None else max(last_s, end.at_s)
    return last_s
