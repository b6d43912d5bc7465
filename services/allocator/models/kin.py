"""The history of a program, of jobs that are over: speeds, pauses, and the number of examples of an
epoch; and of those that succeeded, the plan at which they ended and the memory they used.

A job that waits has reported nothing yet; its program may have run before. Another version of it, a
file of the same name, is a guide only to the plan, not to its speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.allocator.job import Job
from services.allocator.models.past import past_of
from services.allocator.policies.contract import Kin, Observed, Past
from services.allocator.state import Closed
from shared.messages import JobRequested


def epoch_samples(request: JobRequested, total_samples: int) -> float | None:
    """Return the number of samples of an epoch; None: not known."""
    if total_samples <= 0:
        return None
    return total_samples / request.epochs


def kin_of(kins: Mapping[str, Kin], request: JobRequested) -> Kin | None:
    """Return the history of a request's program; if it never ran, of another version of it."""
    if not kins:
        return None
    same_version = kins.get(request.program.digest)
    return same_version or kins.get(_named(request))


def _named(request: JobRequested) -> str:
    """Return the key of all versions of a program."""
    return f"name {request.program.name}"


def by_program(
    closed: Mapping[str, Closed], known: Mapping[str, tuple[Past, ...]] | None = None
) -> dict[str, Kin]:
    """Return what jobs that are over have shown, by their program's digest and by its name.

    `known`: `past_of` of each closed job, if the caller has it.
    """
    if known is None:
        known = {key: tuple(past_of(end)) for key, end in closed.items()}
    past = _past_by_name(closed, known)

    kins = {}
    for digest, jobs in _jobs_by_digest(closed).items():
        newest = jobs[-1].request
        kins[digest] = _kin(jobs, past[_named(newest)])
    for name, versions in past.items():
        if versions:
            kins[name] = Kin(past=tuple(versions))
    return kins


def _jobs_by_digest(closed: Mapping[str, Closed]) -> dict[str, list[Job]]:
    """Return the jobs of each version of a program, the oldest first."""
    found: dict[str, list[Job]] = {}
    for end in closed.values():
        of_version = found.setdefault(end.job.request.program.digest, [])
        of_version.append(end.job)
    return found


def _past_by_name(
    closed: Mapping[str, Closed], known: Mapping[str, tuple[Past, ...]]
) -> dict[str, list[Past]]:
    """Return the records of all versions of each program, the oldest first."""
    found: dict[str, list[Past]] = {}
    for key, end in closed.items():
        of_name = found.setdefault(_named(end.job.request), [])
        of_name.extend(known[key])
    return found


def _kin(jobs: Sequence[Job], past: Sequence[Past]) -> Kin:
    """Return the history of one program. `jobs`: those of this version, the oldest first."""
    observed: list[Observed] = []
    pauses: list[float] = []
    ended: list[tuple[float, float]] = []
    newest_epoch: float | None = None
    for job in jobs:
        observed += job.observed
        pauses += job.pauses
        progress = job.progress
        if progress is None:
            continue
        ended.append((job.asked_s, float(progress.samples)))
        samples = epoch_samples(job.request, progress.total_samples)
        if samples:
            newest_epoch = samples

    return Kin(
        observed=tuple(observed),
        epoch_samples=newest_epoch,
        pause_s=_mean_pause(pauses),
        ended=tuple(ended),
        past=tuple(past),
    )


def _mean_pause(pauses: Sequence[float]) -> float | None:
    """Return the mean in seconds; None where no pause was measured."""
    if not pauses:
        return None
    return sum(pauses) / len(pauses)
