"""Grow running jobs whenever resources are free: Config Manager (Surya & Kistijantoro, ICoDSE 2019).

The paper's: a component that knows the cluster's resources adds ps and worker nodes to a running TensorFlow
parameter-server job once free resources exist; it only ever adds. Its pseudocode was not at hand.

Our reconstruction: free resources are counted per node, and each addition must fit on one; jobs are served in the
order of their registration; a step is one worker, and with it one ps where there would be more than `r` workers a ps,
r being the job's initial ratio; a job grows until nothing fits or `max` is reached. Ours, too: jobs that wait to start
come before jobs that grow, ps stay at their maximum while workers go on to theirs, and the allocator's payback test
and timers, which the paper does not mention, stand behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.allocator.placing.placement import Room, place_most
from services.allocator.policies.contract import JobSeen, Node, Size, Want, at_start
from shared.messages import Alternative


def config_manager(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    room, wants = Room(cluster), []
    for job in jobs:
        if job.size is None:
            place_most(room, job.key, (), job.start, job.least, job.sizes, serial=0)
            wants.append(at_start(job, "the first size"))
    for job in jobs:
        if job.size is not None and not job.busy:
            wants.append(_grown(job, job.size, room))
    return wants


def _grown(job: JobSeen, size: Size, room: Room) -> Want:
    """Add step after step, as long as each fits."""
    while True:
        step = _next(job, size)
        stop = _why_not(job, size, step, room)
        if stop:
            break
        size = step
    reason = "free resources exist" if size != job.size else stop
    larger = Alternative(ps=step.ps, workers=step.workers, batch=job.batch, why=stop)
    return Want(job=job.key, ps=size.ps, workers=size.workers, batch=job.batch, reason=reason, alternatives=(larger,))


def _next(job: JobSeen, size: Size) -> Size:
    """One worker more, and one ps where the ratio asks for it; none where there are none."""
    more_ps = (size.workers + 1) * job.start.ps > job.start.workers * size.ps and size.ps < job.most.ps
    return Size(size.ps + more_ps, size.workers + 1)


def _why_not(job: JobSeen, size: Size, step: Size, room: Room) -> str:
    """Take a step's tasks from the room; or say why it cannot be."""
    if step.workers > job.most.workers:
        return f"workers.max is {job.most.workers}"
    mark = room.mark()
    if step.ps > size.ps and room.put(job.key, job.sizes.ps) is None:
        return "no node has room for another ps"
    if room.put(job.key, job.sizes.worker) is None:
        room.undo(mark)
        return "no node has room for another worker"
    return ""
