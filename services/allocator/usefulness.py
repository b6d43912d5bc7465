"""No more ps than can help: each variable stands whole on one ps, so a ps beyond their number has nothing to serve.

tensorflow#37100 is about such ps, which train no faster and cost what they cost. How many variables a model has is
known once it has reported; a job is not shrunk for it, but grows no further.
"""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.policies.contract import Size, Want
from services.allocator.seen import size_of
from shared.messages import AllocationDecided, Alternative
from shared.words import counted


def useful(job: Job, runs: AllocationDecided, want: Want) -> Want:
    """The want without the ps that it adds in vain."""
    profile, now = job.progress.profile if job.progress else None, size_of(runs)
    most = max(profile.variables, now.ps, job.request.ps.min) if profile and profile.variables else want.ps
    if want.ps <= most:
        return want
    why = f"more than {most} ps cannot help: the model has {counted(profile.variables, 'variable')}" if profile else ""
    lost = Alternative(ps=want.ps, workers=want.workers, batch=want.batch, why=why)
    cut = want.cut(Size(most, want.workers), want.batch, f"for {why}")
    reason = why if cut.size == now else cut.reason
    told = cut if cut.faster else want
    others = (lost, *want.alternatives)
    return replace(cut, reason=reason, faster=told.faster, speed_now=told.speed_now, alternatives=others)
