"""What jobs that are over have shown of their program: speeds, pauses, and how many examples an epoch has.

A job that waits has told nothing yet; its program may have run before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from services.allocator.job import Job, Observed
from services.allocator.kept import Kept
from services.allocator.state import Closed
from shared.messages import JobRequested


class Kin(msgspec.Struct, frozen=True):
    """Of one program. `epoch_samples`: None where no job of it ever reported; so is `pause_s` without a pause."""

    observed: tuple[Observed, ...] = ()
    epoch_samples: float | None = None
    pause_s: float | None = None
    ended: tuple[tuple[float, float], ...] = ()
    """When each was asked for, and the samples that it trained on."""


def epoch_samples(request: JobRequested, total_samples: int) -> float | None:
    return total_samples / request.epochs if total_samples > 0 else None


def _by_program(closed: Mapping[str, Closed]) -> dict[str, Kin]:
    together: dict[str, list[Job]] = {}
    for end in closed.values():
        together.setdefault(end.job.request.program.digest, []).append(end.job)
    return {digest: _kin(jobs) for digest, jobs in together.items()}


def _kin(jobs: Sequence[Job]) -> Kin:
    epochs = [epoch_samples(job.request, job.progress.total_samples) for job in jobs if job.progress]
    pauses = [pause for job in jobs for pause in job.pauses]
    return Kin(
        tuple(point for job in jobs for point in job.observed),
        next((samples for samples in reversed(epochs) if samples), None),
        sum(pauses) / len(pauses) if pauses else None,
        tuple((job.asked_s, float(job.progress.samples)) for job in jobs if job.progress),
    )


by_program: Kept[Mapping[str, Closed], dict[str, Kin]] = Kept(_by_program, 8)
"""By the program's digest, of the jobs that are over; the very same, as long as no other job ends."""
