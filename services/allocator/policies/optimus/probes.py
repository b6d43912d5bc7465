"""Optimus' probes: what is measured before a program's speed is fitted.

From the authors' code: 8 points of each new program, at random p = w in 1..10 and none twice, three minutes each; jobs
of one program share their points, as the mean where several measured the same. Ours: a probe is a stretch of the job's
own training, not a run beside it, within the job's bounds; the order of the sizes is random by the job's name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from services.allocator.policies.contract import JobSeen, Size

PROBES = 8
"""Points wanted."""
LARGEST = 10
"""p = w of the largest probe."""
JOBS = 4096
"""Of so many jobs the order is remembered."""

Points = Mapping[Size, float]
"""Examples a second by size."""


def batch_of(job: JobSeen) -> int:
    """The batch never changes."""
    return job.batch or job.request.batch.start


def measured(job: JobSeen) -> dict[Size, float]:
    mine = (o for o in job.observed if o.batch == batch_of(job) and 0 < o.samples_per_second < math.inf)
    return {Size(o.ps, o.workers): o.samples_per_second for o in mine}


def program(job: JobSeen) -> str:
    """Jobs with the same are expected to be equally fast at a size."""
    return f"{job.request.program.digest}/{batch_of(job)}"


def pooled(jobs: Sequence[JobSeen]) -> dict[str, Points]:
    """The points of each program."""
    seen: dict[str, dict[Size, list[float]]] = {}
    for job in jobs:
        for size, speed in measured(job).items():
            seen.setdefault(program(job), {}).setdefault(size, []).append(speed)
    return {name: {size: sum(s) / len(s) for size, s in sizes.items()} for name, sizes in seen.items()}


def probes(job: JobSeen, known: Points) -> list[Size]:
    """The sizes still to be measured, in order; none once enough are known."""
    if len(known) >= PROBES:
        return []
    return [size for size in _in_order(job.key, job.least, job.most) if size not in known]


@lru_cache(JOBS)
def _in_order(key: str, least: Size, most: Size) -> tuple[Size, ...]:
    """All probes of a job."""
    sides = sorted(range(1, LARGEST + 1), key=lambda n: hashlib.sha256(f"{key}/{n}".encode()).digest())
    return tuple(dict.fromkeys(_within(side, least, most) for side in sides))


def _within(side: int, least: Size, most: Size) -> Size:
    ps = max(least.ps, min(most.ps, side))
    return Size(ps, max(least.workers, min(most.workers, side)))
