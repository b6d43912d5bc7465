"""A policy of one's own: whoever has the fewest workers gets the next one, as long as a node has
room for it.

    weir simulate --policies static,deploy.policies.fewest_first:fewest_first --jobs ... --surfaces
    ... --cluster ... WEIR_ALLOCATOR_POLICY=deploy.policies.fewest_first:fewest_first weir up

A pure function: which nodes there are, which jobs, what time it is (seconds since 1970); for each
job that it has an opinion on, a `Want`. `services/allocator/policies/contract.py` says all that a
policy sees and may want; whether the change pays, and when it comes, is the allocator's affair.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.allocator.placing.placement import Node, Room
from services.allocator.policies.contract import JobSeen, Want, at_start


def fewest_first(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
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
    wants = [at_start(job, "its first size") for job in starting]
    for job in jobs:
        if job.size is not None and not job.busy:
            more, reason = workers[job.key], "whoever has the fewest workers gets the next"
            wants.append(
                Want(job=job.key, ps=job.size.ps, workers=more, batch=job.batch, reason=reason)
            )
    return wants
