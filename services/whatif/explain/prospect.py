"""The speed that more tasks would have, beside the measured one.

The model is fitted to the speeds of all jobs of the program.
"""

from __future__ import annotations

from services.allocator.job import Job
from services.allocator.models.evidence import believable
from services.allocator.models.kin import by_program
from services.allocator.models.programs import models, program
from services.allocator.models.speed import Fit
from services.allocator.policies.contract import JobSeen, Size
from services.allocator.policies.weir.rows import measured
from services.allocator.rules import Rules
from services.allocator.seen import seen, size_of
from services.allocator.state import State
from services.whatif.explain.explanation import Prospect
from shared.messages import AllocationDecided, JobRequested

FASTER = 0.05
"""The least share that counts as a gain: a fitted speed is not known better than that."""


def prospect(state: State, key: str, rules: Rules) -> Prospect | None:
    """Return the speeds of a job at its size and at a larger one; None if no speed was seen."""
    job = state.jobs[key]
    wanted = job.wanted
    sizes_seen = _sizes_seen(job)
    if wanted is None or not sizes_seen:
        return None

    fitted = fitted_to(state, job, rules)
    size = size_of(wanted)
    reported = measured(seen(job, rules), size)
    expected = _speed(fitted, size, wanted)
    current = reported or expected
    best = _fastest_larger_size(fitted, size, wanted)
    fastest = _speed(fitted, best, wanted)

    return Prospect(
        samples_per_second=current,
        ps=best.ps,
        workers=best.workers,
        larger_samples_per_second=fastest,
        sizes_seen=len(sizes_seen),
        faster=fastest > (1 + FASTER) * current,
        expected=expected,
        measured=reported is not None,
        beyond=_is_beyond_bounds(best, job.request),
    )


def _sizes_seen(job: Job) -> set[tuple[int, int, int]]:
    """Return ps, workers and batch of each size at which the job has shown a speed."""
    return {(one.ps, one.workers, one.batch) for one in job.observed if believable(one)}


def _is_beyond_bounds(size: Size, request: JobRequested) -> bool:
    """Return True if a size exceeds the requested maximum of ps or of workers."""
    return size.ps > request.ps.max or size.workers > request.workers.max


def expected_speed(state: State, job: Job, rules: Rules) -> float:
    """Return the fitted speed of the running tasks in examples a second; 0 if none runs."""
    if job.runs is None:
        return 0.0
    fitted = fitted_to(state, job, rules)
    return _speed(fitted, size_of(job.runs), job.runs)


def fitted_to(state: State, job: Job, rules: Rules) -> Fit:
    """Return the model that is fitted to all jobs of the job's program."""
    kin = by_program(state.closed)

    def seen_with_kin(one: Job) -> JobSeen:
        return seen(one, rules, kin.get(one.request.program.digest))

    jobs = [seen_with_kin(one) for one in state.jobs.values()]
    mine = seen_with_kin(job)
    if mine not in jobs:
        jobs.append(mine)
    return models(jobs)[program(mine)]


def _speed(fitted: Fit, size: Size, decided: AllocationDecided) -> float:
    return fitted.speed(size.ps, size.workers, decided.batch)


def _fastest_larger_size(fitted: Fit, size: Size, decided: AllocationDecided) -> Size:
    """Return the next larger size with the highest fitted speed, at the batch of the decision."""
    return max(_larger_sizes(size), key=lambda larger: _speed(fitted, larger, decided))


def _larger_sizes(size: Size) -> list[Size]:
    """Return the next larger sizes. A job without ps stays without.

    They are: a worker more, a ps more, both; twice as many workers, and twice of everything.
    """
    ps, workers = size.ps, size.workers
    ps_more = ps + min(1, ps)
    candidates = [
        Size(ps, workers + 1),
        Size(ps_more, workers),
        Size(ps_more, workers + 1),
        Size(ps, 2 * workers),
        Size(2 * ps, 2 * workers),
    ]
    larger = []
    for one in candidates:
        if one != size and one not in larger:
            larger.append(one)
    return larger
