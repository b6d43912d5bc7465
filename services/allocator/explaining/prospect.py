"""The speed that more tasks would have, beside the measured one.

The model is fitted to the speeds of all jobs of the program.
"""

from __future__ import annotations

from services.allocator.explaining.explanation import Prospect
from services.allocator.job import Job
from services.allocator.models.evidence import believable
from services.allocator.models.kin import by_program
from services.allocator.models.programs import models, program
from services.allocator.models.speed import Fit
from services.allocator.policies.contract import Size
from services.allocator.policies.weir.rows import measured
from services.allocator.rules import Rules
from services.allocator.seen import seen, size_of
from services.allocator.state import State
from shared.messages import AllocationDecided

FASTER = 0.05
"""The least share that counts as a gain: a fitted speed is not known better than that."""


def prospect(state: State, key: str, rules: Rules) -> Prospect | None:
    """Return the speeds of a job at its size and at a larger one; None if no speed was seen."""
    job = state.jobs[key]
    wanted = job.wanted
    sizes_seen = {(o.ps, o.workers, o.batch) for o in job.observed if believable(o)}
    if wanted is None or not sizes_seen:
        return None
    fitted = fitted_to(state, job, rules)
    size = size_of(wanted)
    told = measured(seen(job, rules), size)
    expected = _speed(fitted, size, wanted)
    now = told or expected
    best = max(_larger(size), key=lambda larger: _speed(fitted, larger, wanted))
    fastest = _speed(fitted, best, wanted)
    return Prospect(
        samples_per_second=now,
        ps=best.ps,
        workers=best.workers,
        larger_samples_per_second=fastest,
        sizes_seen=len(sizes_seen),
        faster=fastest > (1 + FASTER) * now,
        expected=expected,
        measured=told is not None,
        beyond=best.ps > job.request.ps.max or best.workers > job.request.workers.max,
    )


def expected_speed(state: State, job: Job, rules: Rules) -> float:
    """Return the fitted speed of the running tasks in examples a second; 0 if none runs."""
    if job.runs is None:
        return 0.0
    fitted = fitted_to(state, job, rules)
    return _speed(fitted, size_of(job.runs), job.runs)


def fitted_to(state: State, job: Job, rules: Rules) -> Fit:
    """Return the model that is fitted to all jobs of the job's program."""
    kin = by_program(state.closed)
    jobs = []
    for one in state.jobs.values():
        jobs.append(seen(one, rules, kin.get(one.request.program.digest)))
    mine = seen(job, rules, kin.get(job.request.program.digest))
    if mine not in jobs:
        jobs.append(mine)
    return models(jobs)[program(mine)]


def _speed(fitted: Fit, size: Size, decided: AllocationDecided) -> float:
    return fitted.speed(size.ps, size.workers, decided.batch)


def _larger(size: Size) -> list[Size]:
    """Return the next larger sizes. A job without ps stays without.

    They are: a worker more, a ps more, both; twice as many workers, and twice of everything.
    """
    ps_step = min(1, size.ps)
    steps = [
        (0, 1),
        (ps_step, 0),
        (ps_step, 1),
        (0, size.workers),
        (size.ps, size.workers),
    ]
    larger = []
    for ps, workers in steps:
        one = Size(size.ps + ps, size.workers + workers)
        if one != size and one not in larger:
            larger.append(one)
    return larger
