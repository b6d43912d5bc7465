"""Would more tasks be faster than was measured? By the model that is fitted to what all jobs of the program showed."""

from __future__ import annotations

from collections.abc import Iterable

from services.allocator.explaining.explanation import Prospect
from services.allocator.job import Job
from services.allocator.models.evidence import believable
from services.allocator.models.kin import by_program
from services.allocator.models.speed import Fit
from services.allocator.policies.contract import Size
from services.allocator.policies.weir.programs import models, program
from services.allocator.policies.weir.stand import measured
from services.allocator.rules import Rules
from services.allocator.seen import seen, size_of
from services.allocator.state import State
from shared.messages import AllocationDecided

FASTER = 0.05
"""What is gained by less is no gain: a fitted speed is not known better than that."""


def prospect(state: State, key: str, rules: Rules) -> Prospect | None:
    """None where nothing was seen of the job's speed."""
    job = state.jobs[key]
    wanted, sizes = job.wanted, [o for o in job.observed if believable(o)]
    if wanted is None or not sizes:
        return None
    fitted, size = fitted_to(state, job, rules), size_of(wanted)
    told, expected = measured(seen(job, rules), size), _speed(fitted, size, wanted)
    now = told or expected
    best = max(_larger(size), key=lambda larger: _speed(fitted, larger, wanted))
    fastest = _speed(fitted, best, wanted)
    return Prospect(
        samples_per_second=now,
        ps=best.ps,
        workers=best.workers,
        larger_samples_per_second=fastest,
        sizes_seen=len({(o.ps, o.workers, o.batch) for o in sizes}),
        faster=fastest > (1 + FASTER) * now,
        expected=expected,
        measured=told is not None,
        beyond=best.ps > job.request.ps.max or best.workers > job.request.workers.max,
    )


def expected_speed(state: State, job: Job, rules: Rules) -> float:
    """Examples a second at what runs, where no report has said so yet."""
    return _speed(fitted_to(state, job, rules), size_of(job.runs), job.runs) if job.runs else 0.0


def fitted_to(state: State, job: Job, rules: Rules) -> Fit:
    kin = by_program(state.closed)
    jobs = [seen(one, rules, kin.get(one.request.program.digest)) for one in state.jobs.values()]
    mine = seen(job, rules, kin.get(job.request.program.digest))
    return models(jobs if mine in jobs else [*jobs, mine])[program(mine)]


def _speed(fitted: Fit, size: Size, decided: AllocationDecided) -> float:
    return fitted.speed(size.ps, size.workers, decided.batch)


def _larger(size: Size) -> Iterable[Size]:
    """A worker more, a ps more, both; twice as many workers, and of everything. Without ps: without."""
    served = min(1, size.ps)
    more = [(0, 1), (served, 0), (served, 1), (0, size.workers), (size.ps, size.workers)]
    return [Size(size.ps + ps, size.workers + workers) for ps, workers in dict.fromkeys(more) if ps or workers]
