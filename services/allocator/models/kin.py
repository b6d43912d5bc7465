"""What jobs that are over have shown of their program: speeds, pauses, and how many examples an epoch has; and of those
that succeeded, at which plan they ended and what memory they used.

A job that waits has told nothing yet; its program may have run before. Another version of it, a file of the same name,
is a guide only to the plan: how fast it is, is another matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.allocator.job import Job
from services.allocator.kept import Kept
from services.allocator.models.past import past_of
from services.allocator.policies.contract import Kin, Past
from services.allocator.state import CLOSED_KEPT, Closed
from shared.messages import JobRequested


def epoch_samples(request: JobRequested, total_samples: int) -> float | None:
    return total_samples / request.epochs if total_samples > 0 else None


def kin_of(kins: Mapping[str, Kin], request: JobRequested) -> Kin | None:
    """Of its program; of another version of it, where that never ran."""
    return (kins.get(request.program.digest) or kins.get(_named(request))) if kins else None


def _named(request: JobRequested) -> str:
    return f"name {request.program.name}"


_past: Kept[Closed, tuple[Past, ...]] = Kept(lambda end: tuple(past_of(end)), CLOSED_KEPT * 2)


def _by_program(closed: Mapping[str, Closed]) -> dict[str, Kin]:
    together: dict[str, list[Job]] = {}
    past: dict[str, list[Past]] = {}
    for end in closed.values():
        together.setdefault(end.job.request.program.digest, []).append(end.job)
        past.setdefault(_named(end.job.request), []).extend(_past(end))
    kins = {digest: _kin(jobs, past[_named(jobs[-1].request)]) for digest, jobs in together.items()}
    return kins | {name: Kin(past=tuple(versions)) for name, versions in past.items() if versions}


def _kin(jobs: Sequence[Job], past: Sequence[Past]) -> Kin:
    epochs = [epoch_samples(job.request, job.progress.total_samples) for job in jobs if job.progress]
    pauses = [pause for job in jobs for pause in job.pauses]
    return Kin(
        tuple(point for job in jobs for point in job.observed),
        next((samples for samples in reversed(epochs) if samples), None),
        sum(pauses) / len(pauses) if pauses else None,
        tuple((job.asked_s, float(job.progress.samples)) for job in jobs if job.progress),
        tuple(past),
    )


by_program: Kept[Mapping[str, Closed], dict[str, Kin]] = Kept(_by_program, 8)
"""By the program's digest and by its name, of the jobs that are over; the very same, as long as no other job ends."""
