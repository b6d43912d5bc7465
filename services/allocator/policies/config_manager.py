"""Grow running jobs whenever resources are free: Config Manager (Surya & Kistijantoro, ICoDSE
2019).

From the paper: a component that knows the cluster's resources adds ps and worker nodes to a running
TensorFlow parameter-server job once free resources exist; it only ever adds. Its pseudocode was not
available.

Our reconstruction: free resources are counted per node, and each addition must fit on one. Jobs are
served in the order of their registration. A step is one worker, and with it one ps if there would
be more than `r` workers a ps otherwise; r is the job's initial ratio. A job grows until nothing
fits or `max` is reached. Also ours: waiting jobs come before growing ones; workers still grow when
ps are at their maximum; and the payback test and the timers of the allocator, which the paper does
not mention, apply afterwards.

`static` is the baseline: each job keeps the requested size.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.allocator.placement.placers import place_most
from services.allocator.placement.room import Room
from services.allocator.policies.contract import JobSnapshot, Node, Size, Target, start_target
from shared.messages import Alternative


def config_manager(
    cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float
) -> list[Target]:
    """Return the desired size of each job, except those with a pending decision. Waiting jobs get
    their first size; running ones grow one after the other, as far as nodes have room.
    """
    room = Room(cluster)
    wants = []
    # Jobs that wait take their room before any other job grows.
    for job in jobs:
        if job.size is None:
            place_most(room, job.key, (), job.start, job.least, job.sizes, serial=0)
            wants.append(start_target(job, "the first size"))
    for job in jobs:
        if job.size is not None and not job.busy:
            wants.append(_grown_as_far_as_fits(job, job.size, room))
    return wants


def _grown_as_far_as_fits(job: JobSnapshot, size: Size, room: Room) -> Target:
    """Add step after step, as long as each fits."""
    while True:
        step = _next_step(job, size)
        obstacle = _take_step(job, size, step, room)
        if obstacle:
            break
        size = step
    return Target(
        job=job.key,
        ps=size.ps,
        workers=size.workers,
        batch=job.batch,
        reason="free resources exist" if size != job.size else obstacle,
        alternatives=(
            Alternative(ps=step.ps, workers=step.workers, batch=job.batch, why=obstacle),
        ),
    )


def _next_step(job: JobSnapshot, size: Size) -> Size:
    """Return the size with one more worker, and with one more ps if the ratio requires it and the
    maximum allows it.
    """
    workers = size.workers + 1
    too_few_ps = workers * job.start.ps > job.start.workers * size.ps
    if too_few_ps and size.ps < job.most.ps:
        return Size(size.ps + 1, workers)
    return Size(size.ps, workers)


def _take_step(job: JobSnapshot, size: Size, step: Size, room: Room) -> str:
    """Take a step's tasks from the room; return the obstacle if that is not possible."""
    if step.workers > job.most.workers:
        return f"workers.max is {job.most.workers}"
    mark = room.mark()
    if step.ps > size.ps and room.put(job.key, job.sizes.ps) is None:
        return "no node has room for another ps"
    if room.put(job.key, job.sizes.worker) is None:
        room.undo(mark)
        return "no node has room for another worker"
    return ""


def static(cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
    """Start waiting jobs at the requested size, and leave the others unchanged."""
    return [start_target(job, "the requested size") for job in jobs if job.size is None]
