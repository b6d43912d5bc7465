"""How much of a want the quota of the job's namespace allows.

Where a running job should grow beyond it, it grows as far as the quota has room for, and the rest of the want waits. A
change that adds tasks of one role and gives up some of another waits as a whole, because what it gives up is free only
when it is seen free.
"""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.placing.placement import ROLES, Room, ladder
from services.allocator.placing.quota import gang, growth, shortage, too_large, too_small
from services.allocator.placing.resizing import wanted_sizes
from services.allocator.policies.contract import Size, Want
from services.allocator.rules import Rules
from services.allocator.seen import size_of
from shared.messages import AllocationDecided, Alternative, Resources, RoleResources


def allowed(job: Job, runs: AllocationDecided, want: Want, room: Room, rules: Rules) -> Want:
    """The want of a running job, or as much of its growth as the quota has room for."""
    now = size_of(runs)
    grows = want.size != now and want.ps >= now.ps and want.workers >= now.workers
    if not grows or job.request.namespace not in room.purses:
        return want
    steps = ladder(want.size, now)
    granted = (step for step in steps if _is_granted(job, runs, want, step, room, rules))
    size = next(granted, now)
    return want if size == want.size else _cut(want, size, now, runs.batch, short(job, runs, want, room, rules))


def short(job: Job, runs: AllocationDecided, want: Want, room: Room, rules: Rules) -> str:
    """Why the quota has no room for what a running job should have; empty where it has."""
    if job.request.namespace not in room.purses:
        return ""
    return shortage(room, job.key, _more(job, runs, want, want.size, rules), new_tasks(size_of(runs), want.size))


def short_of_floor(job: Job, room: Room, rules: Rules) -> str:
    """Why it has no room for even the gang floor of a job; empty where it has."""
    if job.request.namespace not in room.purses:
        return ""
    floor = Size(job.request.ps.min, job.request.workers.min)
    return short_at_start(job, floor, wanted_sizes(job, None, rules), room, rules)


def short_at_start(job: Job, size: Size, sizes: RoleResources, room: Room, rules: Rules) -> str:
    """Why it has no room for a job of this size, now or ever; empty where it has."""
    if job.request.namespace not in room.purses:
        return ""
    whole, namespace, tasks = gang(sizes, size), job.request.namespace, 1 + size.ps + size.workers
    quota, roles = rules.quotas.get(namespace), [role for role in ROLES if size.of(role)]
    never = too_large(quota, namespace, roles, sizes) or too_small(quota, namespace, whole, tasks)
    return never or shortage(room, job.key, whole, tasks)


def new_tasks(now: Size, size: Size) -> int:
    """Return how many tasks a job needs beyond those that it has."""
    return max(0, size.ps - now.ps) + max(0, size.workers - now.workers)


def _is_granted(job: Job, runs: AllocationDecided, want: Want, size: Size, room: Room, rules: Rules) -> bool:
    return room.grants(job.key, _more(job, runs, want, size, rules), new_tasks(size_of(runs), size))


def _more(job: Job, runs: AllocationDecided, want: Want, size: Size, rules: Rules) -> Resources:
    return growth(runs.tasks, size, wanted_sizes(job, want.sizes, rules), stretched=want.sizes is not None)


def _cut(want: Want, size: Size, now: Size, batch: int, why: str) -> Want:
    """At a smaller size; with the batch that runs, because the one that is wanted was for more workers."""
    lost = Alternative(ps=want.ps, workers=want.workers, batch=want.batch, why=why)
    cut = want.cut(size, batch, "as far as its quota allows")
    return replace(cut, reason=why if size == now else cut.reason, alternatives=(lost,))
