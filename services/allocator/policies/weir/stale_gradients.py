"""The worth of a job's examples at each size, and the size beyond which stale gradients cost more
than further workers bring.

    worth(p, w, B) = (phi + B0) / (phi + E)      E = (1 + s (w - 1)) B      with ps and `async`
                                                 E = B                      otherwise

phi: the measured gradient noise, in examples; B0: the first batch; s: updates by which each further
worker makes a gradient stale, about 1 (`JobSnapshot.worker_staleness`). An example counts like one
in a batch of E examples (`shared/sample_efficiency.py`). The policy values a size by its progress,
examples/s x worth. With no noise (phi = 0) the progress of an async job hardly rises with its
workers; with much noise (phi >> w B) it rises as the examples/s do. Without a measured noise the
worth is 1.

A job may be beyond its best size when the noise has been measured. It shrinks if that is worth its
pause. Otherwise it keeps its size while no other job needs the room.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from services.allocator.models.speed import Array
from services.allocator.policies.contract import JobSnapshot, Size
from shared.text import format_duration

MIN_GAIN = 0.15
"""A job that would gain less than this share of its speed keeps its size."""


def sample_worths(
    sizes: Array, starts: Sequence[int], noises: Sequence[float | None], staleness: Sequence[float]
) -> Array:
    """Return the worth of a sample at each size [jobs, sizes].

    `sizes` [jobs, sizes, 3]: ps, workers, batch; `starts`: the first batch of each job; `noises`:
    None: not measured; `staleness`: updates by each further worker.
    """
    ps, workers, batch = np.moveaxis(sizes, 2, 0)
    first = np.array(starts, dtype=float)[:, None]
    noise = np.array(noises, dtype=float)[:, None]  # None becomes nan
    by_worker = np.array(staleness, dtype=float)[:, None]
    updates = by_worker * np.where(ps > 0, workers - 1, 0.0)
    worths = (noise + first) / (noise + (1.0 + updates) * batch)
    return np.asarray(np.where(np.isnan(noise), 1.0, worths))


class StaleLimit(msgspec.Struct, frozen=True):
    """Another size, and why a job keeps its own. `why` follows the size's name."""

    ps: int
    workers: int
    batch: int
    why: str

    @property
    def size(self) -> Size:
        return Size(self.ps, self.workers)


def growth_limit(
    job: JobSnapshot, speed: float, larger: Size, larger_speed: float
) -> StaleLimit | None:
    """Return the limit if a job would be changed to a larger size, were it not for stale gradients;
    else None. `speed`, `larger_speed`: examples/s, each counted with its worth.
    """
    present = job.size
    if present is None or larger_speed >= (1 + MIN_GAIN) * speed:
        return None
    faster, cost = _examples_and_progress(job, present, speed, larger, larger_speed)
    if faster < MIN_GAIN:
        return None
    why = (
        f"would be {faster:.0%} faster, but staler gradients would cost {cost:.0%} of the progress"
        f" {describe_noise(job)}"
    )
    return StaleLimit(larger.ps, larger.workers, job.batch, why)


def shrink_limit(
    job: JobSnapshot, speed: float, smaller: Size, smaller_speed: float
) -> StaleLimit | None:
    """Return the limit if a job is beyond its best size, but the gain of a smaller size is not worth
    a pause; None: it should shrink.
    """
    gain = smaller_speed / speed - 1
    left = 0
    if job.progress is not None:
        left = job.progress.total_samples - job.progress.samples
    saved_s = left / speed - left / smaller_speed
    if gain >= MIN_GAIN and saved_s > job.pauses_s:
        return None
    gains = f"would make {gain:.0%} more progress by fresher gradients"
    against = f"below the {MIN_GAIN:.0%} threshold"
    if gain >= MIN_GAIN:
        pause = format_duration(job.pauses_s, fine=True)
        against = f"too little to repay a pause of {pause} before it ends"
    why = f"{gains}, {against} {describe_noise(job)}"
    return StaleLimit(smaller.ps, smaller.workers, job.batch, why)


def why_smaller(
    job: JobSnapshot, speed: float, smaller: Size, batch: int, smaller_speed: float
) -> str:
    """Return why a job makes more progress at a smaller size, as a text that follows its reason;
    empty if staleness is not why.
    """
    present = job.size
    if present is None or job.noise is None or batch != job.batch or smaller_speed < speed:
        return ""
    faster, cost = _examples_and_progress(job, smaller, smaller_speed, present, speed)
    if cost <= 0:
        return ""
    word = "faster" if faster >= 0 else "slower"
    return (
        f"; {present.describe()} are {abs(faster):.0%} {word}, and their staler gradients cost"
        f" {cost:.0%} of the progress {describe_noise(job)}"
    )


def _examples_and_progress(
    job: JobSnapshot, smaller: Size, smaller_speed: float, larger: Size, larger_speed: float
) -> tuple[float, float]:
    """Return how many more examples/s the larger size has, and how much less progress an example of
    it makes, both as shares. The speeds count each example with its worth.
    """
    worth_there = job.worth(job.batch, larger) / job.worth(job.batch, smaller)
    return larger_speed / worth_there / smaller_speed - 1, 1 - worth_there


def describe_noise(job: JobSnapshot) -> str:
    """Return the numbers that the cost of staleness follows from."""
    noise = job.noise or 0.0
    digits = f"{noise:,.0f}" if noise >= 10 else f"{noise:.2g}"
    return f"(noise scale {digits}, batch {job.batch})"
