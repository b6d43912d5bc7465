"""The pooled speeds of the jobs of one program, and the model fitted to them.

Jobs that run the same program with the same cores a task are as fast as each other at a size
(Optimus' code pools them, too; DLRover and Pollux fit each job, or each user's job, alone). So the
second job of a program starts with the model of the first one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from services.allocator.failures import compute_each
from services.allocator.models.fitting import Prior, fit_closest_form
from services.allocator.models.model_profile import prior_of, profile_of
from services.allocator.models.speed import Fit, Form
from services.allocator.policies.contract import JobSnapshot, Observed, shares_batch
from shared.messages import ModelProfile

POINTS_MOST = 48
"""The number of a program's observations that are kept: the most recent ones."""

ProgramKey = str


def program_key(job: JobSnapshot) -> ProgramKey:
    """Return the key of jobs that are expected to be equally fast at a size and batch."""
    ps, worker = job.sizes.ps, job.sizes.worker
    return f"{job.request.program_version} {ps.cpu} {worker.cpu} {worker.gpu}"


class Evidence(msgspec.Struct, frozen=True):
    """The data that the model of a program is fitted to.

    `batch`: the initial batch; `device`: the most samples that a worker holds at once; `served`:
    True if it has ps; `is_shared`: True if the batch is that of all workers by the request.
    """

    seen: tuple[Observed, ...]
    profile: ModelProfile | None
    batch: int
    device: float
    served: bool
    is_shared: bool = False


class Programs(msgspec.Struct, frozen=True):
    """The program of each job, the observations of each program, and the model fitted to them. A
    program that cannot be fitted has no model.
    """

    of_job: dict[str, ProgramKey] = {}
    evidence: dict[ProgramKey, Evidence] = {}
    fits: dict[ProgramKey, Fit] = {}


def program_fits(jobs: Sequence[JobSnapshot]) -> dict[ProgramKey, Fit]:
    """Fit each program's model to the observations of all its jobs."""
    together: dict[ProgramKey, list[JobSnapshot]] = {}
    for job in jobs:
        together.setdefault(program_key(job), []).append(job)
    fits = fit_programs([evidence_of(alike) for alike in together.values()])
    return dict(zip(together, fits, strict=True))


def evidence_of(jobs: Sequence[JobSnapshot]) -> Evidence:
    """Return the observations of the jobs of one program, finished ones included."""
    one = jobs[0]
    shown = [one.history.observed] if one.history else []
    profile = None
    for job in jobs:
        shown.append(job.observed)
        if profile is None and job.progress:
            profile = job.progress.profile
    device = one.request.device_batch_max or math.inf
    return Evidence(
        seen=pool_observations(shown),
        profile=profile,
        batch=one.request.batch.start,
        device=device,
        served=one.most.ps > 0,
        is_shared=shares_batch(one.request),
    )


def fit_programs(evidence: Sequence[Evidence]) -> list[Fit]:
    """Fit a model to each program's evidence, all in one pass."""
    return fit_closest_form([(one.seen, _form_priors(one)) for one in evidence])


def update_programs(
    programs: Programs,
    jobs: Mapping[str, JobSnapshot],
    order: Iterable[str],
    changed: Collection[str],
    gone: Collection[str],
    is_first: bool,
) -> tuple[Programs, set[ProgramKey]]:
    """Return the programs after some of their jobs came, changed or went, and those fitted again,
    because their observations changed.

    `jobs`: open jobs, by key; `order`: their keys, in the order of priority and submission.
    `is_first`: the programs were stored, and other jobs may have changed since then.
    """
    # 1. The programs with a job that came, changed or went, and their jobs.
    of_job = dict(programs.of_job)
    stale = {of_job.pop(key) for key in gone if key in of_job}
    for key in changed:
        if key in of_job:
            stale.add(of_job[key])
        of_job[key] = program_key(jobs[key])
        stale.add(of_job[key])
    if is_first:
        stale.update(of_job.values())
    members = _jobs_of_programs(stale, of_job, jobs, order)

    # 2. Their evidence, and a new fit where it has changed.
    evidence = dict(programs.evidence)
    fits = dict(programs.fits)
    to_fit = []
    for name, alike in members.items():
        shown = evidence_of(alike) if alike else None
        if shown is None:
            evidence.pop(name, None)
            fits.pop(name, None)
        elif evidence.get(name) != shown or name not in fits:
            evidence[name] = shown
            fits.pop(name, None)
            to_fit.append(name)
    fitted = compute_each(fit_programs, [evidence[name] for name in to_fit])
    for name, fit in zip(to_fit, fitted, strict=True):
        if fit is not None:
            fits[name] = fit
    return Programs(of_job, evidence, fits), set(to_fit)


def _jobs_of_programs(
    names: Iterable[ProgramKey],
    of_job: Mapping[str, ProgramKey],
    jobs: Mapping[str, JobSnapshot],
    order: Iterable[str],
) -> dict[ProgramKey, list[JobSnapshot]]:
    """Return the jobs of each of these programs, in the given order of their keys."""
    found: dict[ProgramKey, list[JobSnapshot]] = {name: [] for name in names}
    for key in order:
        name = of_job.get(key)
        if name in found:
            found[name].append(jobs[key])
    return found


def pool_observations(shown: Iterable[Sequence[Observed]]) -> tuple[Observed, ...]:
    """Return one observation for each size, batch and number of nodes: the mean speed of the jobs
    that had it.
    """
    speeds: dict[tuple[int, int, int, int], list[Observed]] = {}
    for points in shown:
        for point in points:
            if not _is_usable(point):
                continue
            size = (point.ps, point.workers, point.batch, point.nodes or 0)
            earlier = speeds.pop(size, [])  # the size becomes the last one
            speeds[size] = [*earlier, point]

    # Only the sizes that came last are kept.
    recent = sorted([*speeds.items()][-POINTS_MOST:])
    return tuple(_mean_observation(points) for _, points in recent)


def _is_usable(point: Observed) -> bool:
    return 0.0 < point.samples_per_second < math.inf and point.workers > 0


def _mean_observation(points: Sequence[Observed]) -> Observed:
    """Return the last of these observations of one size, with the mean of all their speeds."""
    last = points[-1]
    mean = sum(point.samples_per_second for point in points) / len(points)
    return msgspec.structs.replace(last, samples_per_second=mean)


def _form_priors(evidence: Evidence) -> list[Prior]:
    """Return a prior for each meaning that the batch may have: of each worker, or of all workers.
    If the request does not say it, the speeds decide.
    """
    known = profile_of(evidence.profile) if evidence.profile else None
    forms: tuple[Form, ...] = ("synchronous",)
    if evidence.served and not evidence.is_shared:
        forms = ("asynchronous", "synchronous")
    return [prior_of(known, evidence.batch, form, device=evidence.device) for form in forms]
