"""Caps on a policy's target: the quota of the namespace, and the number of variables.

`quota_cap`: a running job that should exceed its quota grows as far as the quota allows; the rest
of the target waits. A change that adds tasks of one role and removes tasks of another waits as a
whole, because the removed tasks become free later.

`ps_cap`: each variable is on one ps, so additional ps have nothing to serve (tensorflow#37100). The
number of variables is known after the first report. The cap never shrinks a job.
"""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.placement.placers import place
from services.allocator.placement.quota import gang_shortage
from services.allocator.placement.resizing import place_all_resized
from services.allocator.placement.trial import quota_grant
from services.allocator.policies.contract import Size, Target
from services.allocator.state.policy_view import size_of
from services.allocator.steps.verdict import Situation
from shared.messages import AllocationDecided, Alternative
from shared.text import format_count


def quota_cap(situation: Situation, current: AllocationDecided, target: Target) -> Target:
    """Return the target of a running job, or as much of its growth as the quota has room for."""
    now = situation.size
    if situation.job.request.namespace not in situation.room.remaining_quotas or not _grows(
        now, target.size
    ):
        return target
    placer = place if target.sizes is None else place_all_resized
    sizes = situation.sizes(target)
    request = situation.request(current.tasks, target.size, now, sizes, placer)
    granted, why = quota_grant(situation.room, request)
    if granted == target.size:
        return target
    return _cut_target(target, granted, now, current.batch, why)


def _grows(now: Size, target: Size) -> bool:
    """Return True if the target has more tasks, and of no role fewer."""
    return target != now and target.ps >= now.ps and target.workers >= now.workers


def floor_shortage(situation: Situation) -> str:
    """Return why the quota has no room for a job's gang floor; empty: it has."""
    request = situation.job.request
    room = situation.room
    if request.namespace not in room.remaining_quotas:
        return ""
    floor = Size(request.ps.min, request.workers.min)
    quota = situation.settings.quotas.get(request.namespace)
    return gang_shortage(room, situation.job.key, floor, situation.sizes(), quota)


def _cut_target(target: Target, size: Size, now: Size, batch: int, why: str) -> Target:
    """Return the target at a smaller size, with the running batch: the wanted one was for more
    workers.
    """
    lost = Alternative(ps=target.ps, workers=target.workers, batch=target.batch, why=why)
    granted = target.shrunk_to(size, batch, "as far as its quota allows")
    reason = why if size == now else granted.reason
    return replace(granted, reason=reason, alternatives=(lost,))


def ps_cap(situation: Situation, current: AllocationDecided, target: Target) -> Target:
    """Return the target without ps that have no variable to serve."""
    job = situation.job
    profile = job.progress.profile if job.progress else None
    if profile is None or not profile.variables:
        return target
    now = size_of(current)
    most = max(profile.variables, now.ps, job.request.ps.min)
    if target.ps <= most:
        return target
    why = (
        f"more than {most} ps cannot help: the model has"
        f" {format_count(profile.variables, 'variable')}"
    )
    return _with_ps(target, most, why, now)


def _with_ps(target: Target, ps: int, why: str, now: Size) -> Target:
    """Return the target with fewer ps. It keeps the speed of the whole target where that of the cut
    is not known.
    """
    lost = Alternative(ps=target.ps, workers=target.workers, batch=target.batch, why=why)
    capped = target.shrunk_to(Size(ps, target.workers), target.batch, f"for {why}")
    alternatives = (lost, *target.alternatives)
    reason = why if capped.size == now else capped.reason
    speeds = capped if capped.speedup else target
    return replace(
        capped,
        reason=reason,
        speedup=speeds.speedup,
        speed_now=speeds.speed_now,
        alternatives=alternatives,
    )
