"""No more ps than can help: each variable stands whole on one ps, so a ps beyond their number has
nothing to serve.

tensorflow#37100 is about such ps, which train no faster and cost what they cost. How many variables
a model has is known once it has reported; a job is not shrunk for it, but grows no further.
"""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.policies.contract import Size, Want
from services.allocator.seen import size_of
from services.allocator.situation import Situation
from shared.messages import AllocationDecided, Alternative
from shared.text import format_count


def useful(situation: Situation, current: AllocationDecided, target: Want) -> Want:
    """Return the target without ps that have no variable to serve."""
    job = situation.job
    profile = job.progress.profile if job.progress else None
    if profile is None or not profile.variables:
        return target
    now = size_of(current)
    most = max(profile.variables, now.ps, job.request.ps.min)
    if target.ps <= most:
        return target
    why = f"more than {most} ps cannot help: the model has {format_count(profile.variables, 'variable')}"
    return _with_ps(target, most, why, now)


def _with_ps(target: Want, ps: int, why: str, now: Size) -> Want:
    """Return the target with fewer ps. It keeps the speed of the whole target where that of the cut
    is not known.
    """
    lost = Alternative(ps=target.ps, workers=target.workers, batch=target.batch, why=why)
    cut = target.cut(Size(ps, target.workers), target.batch, f"for {why}")
    alternatives = (lost, *target.alternatives)
    reason = why if cut.size == now else cut.reason
    told = cut if cut.faster else target
    return replace(
        cut,
        reason=reason,
        faster=told.faster,
        speed_now=told.speed_now,
        alternatives=alternatives,
    )
