"""What a change costs each job, in seconds for which it stands still, before it has paused for the first time, too.

As its own pauses were measured; before that as those of its program's other jobs, which have as much to copy; before
that as the median program's; before anybody has paused, `PAUSE_S`. (Where nobody knew better than `PAUSE_S`, each job
had to pause once for long to learn that it had better not.)
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from services.allocator.models.speed import Array
from services.allocator.policies.contract import PAUSE_S, JobSeen

PAUSES = 2.0
"""Where a job's steps go to another, so many jobs pause; and so often does who grows, and shrinks again."""
PAUSED_TO_GROW = 2.0
"""A job has just paused while that was more than so many times what it would gain since by growing."""


def settled_s(since_s: Array | float, paused_s: Array | float, gain: Array | float) -> Array:
    """When a job's last pause, of `paused_s`, will have been no more than a share of its time since; the first one is
    free. The share goes by `gain`: what growing would save, of its time.
    """
    return np.asarray(since_s + paused_s / np.maximum(PAUSED_TO_GROW * gain, 1e-6))


def pauses(jobs: Sequence[JobSeen]) -> list[float]:
    """One a job, in the order given."""
    found: dict[str, list[float]] = {}
    for digest, kin in {job.request.program.digest: job.kin for job in jobs if job.kin}.items():
        if kin.pause_s is not None:
            found[digest] = [kin.pause_s]
    for job in jobs:
        if job.pause_s is not None:
            found.setdefault(job.request.program.digest, []).append(job.pause_s)
    alike = {digest: _two(fmean(measured)) for digest, measured in found.items()}
    usual = _two(median(alike.values())) if alike else PAUSE_S
    return [alike.get(job.request.program.digest, usual) if job.pause_s is None else job.pause_s for job in jobs]


def _two(seconds: float) -> float:
    """To two digits: what is kept by it stays, while a mean changes little."""
    return float(f"{seconds:.1e}")
