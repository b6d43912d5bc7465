"""A policy of one's own: the job with the fewest workers gets the next one, if a node has room.

    weir simulate --policies static,deploy.policies.fewest_first:fewest_first --jobs ...
    WEIR_ALLOCATOR_POLICY=deploy.policies.fewest_first:fewest_first weir up

A pure function: nodes, jobs and the time (seconds since 1970) in, a `Target` for each job out.
Types: `services/allocator/policies/contract.py`. The allocator decides when a change is worth it.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.allocator.placement.room import Room
from services.allocator.policies.contract import JobSnapshot, Node, Target, start_target


def fewest_first(cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
    room = Room(cluster)  # to try things on: what is put there is taken nowhere else
    starting = [job for job in jobs if job.size is None]
    workers = {job.key: job.size.workers for job in jobs if job.size is not None and not job.busy}
    running = [job for job in jobs if job.key in workers]
    while hungry := [job for job in running if workers[job.key] < job.most.workers]:
        poorest = min(hungry, key=lambda job: workers[job.key])
        if room.put(poorest.key, poorest.sizes.worker) is None:
            running.remove(poorest)  # no node has room for another worker of this job
        else:
            workers[poorest.key] += 1
    wants = [start_target(job, "its first size") for job in starting]
    for job in jobs:
        if job.size is not None and not job.busy:
            more, reason = workers[job.key], "the job with the fewest workers gets the next"
            size = {"ps": job.size.ps, "workers": more, "batch": job.batch}
            wants.append(Target(job=job.key, reason=reason, **size))
    return wants
