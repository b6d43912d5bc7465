"""Optimus' probes: the sizes at which a program's speed is measured before it is fitted.

From the authors' code: 8 points of each new program, at random p = w in 1..10 and none twice, three
minutes each; jobs of one program share their points, as the mean where several measured the same.
Ours: a probe is a stretch of the job's own training, not a run beside it, within the job's bounds;
the order of the sizes is random by the job's name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import msgspec

from services.allocator.policies.contract import JobSeen, Size
from services.allocator.policies.optimus.fits import Points

PROBES = 8
"""Points wanted."""
LARGEST = 10
"""p = w of the largest probe."""


def batch_of(job: JobSeen) -> int:
    """Return the batch, which never changes."""
    return job.batch or job.request.batch.start


def measured(job: JobSeen) -> dict[Size, float]:
    """Return the job's own points."""
    batch = batch_of(job)
    points = {}
    for seen in job.observed:
        if seen.batch == batch and 0 < seen.samples_per_second < math.inf:
            points[Size(seen.ps, seen.workers)] = seen.samples_per_second
    return points


def program(job: JobSeen) -> str:
    """Return a name that jobs have in common that are expected to be equally fast at a size."""
    return f"{job.request.program.digest}/{batch_of(job)}"


def pooled(jobs: Sequence[JobSeen]) -> dict[str, Points]:
    """Return the points of each program: the mean of those that its jobs measured."""
    speeds: dict[str, dict[Size, list[float]]] = {}
    for job in jobs:
        own = measured(job)
        if not own:
            continue
        by_size = speeds.setdefault(program(job), {})
        for size, speed in own.items():
            by_size.setdefault(size, []).append(speed)

    points: dict[str, Points] = {}
    for name, by_size in speeds.items():
        points[name] = _mean_speeds(by_size)
    return points


def _mean_speeds(by_size: Mapping[Size, Sequence[float]]) -> dict[Size, float]:
    """Return the mean of the speeds at each size."""
    means = {}
    for size, speeds in by_size.items():
        means[size] = sum(speeds) / len(speeds)
    return means


class ProbeOrder(msgspec.Struct, frozen=True):
    """The sizes that a job may probe, in its random order."""

    sizes: tuple[Size, ...]


def fit_jobs(jobs: Sequence[JobSeen]) -> list[ProbeOrder]:
    """Return the probe order of each job."""
    return [probe_order(job) for job in jobs]


def probe_order(job: JobSeen) -> ProbeOrder:
    """Return the order, a function of the job's name and bounds."""
    places = []
    for side in range(1, LARGEST + 1):
        place = hashlib.sha256(f"{job.key}/{side}".encode()).digest()
        places.append((place, _size_within(side, job.least, job.most)))
    places.sort()
    sizes = dict.fromkeys(size for _, size in places)
    return ProbeOrder(tuple(sizes))


def probes(job: JobSeen, known: Points) -> list[Size]:
    """Return the sizes still to be measured, in order; none once enough are known."""
    if len(known) >= PROBES:
        return []
    order = job.model if isinstance(job.model, ProbeOrder) else probe_order(job)
    return [size for size in order.sizes if size not in known]


def _size_within(side: int, least: Size, most: Size) -> Size:
    """Return the size nearest to p = w = `side` within bounds."""
    ps = max(least.ps, min(most.ps, side))
    workers = max(least.workers, min(most.workers, side))
    return Size(ps, workers)
