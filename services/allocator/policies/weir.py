"""Weir's own policy, the default: the smallest mean completion time that restarts leave worth having.

    1. Each job's staircase: its speeds by size, fitted to what was observed, on their concave hull over cost.
    2. Each job's price: what a second less of its work saves all jobs together (`pricing.py`, heSRPT).
    3. The room, step by step, to whoever gains most price x speed for its cost; first steps are gang floors.
    4. Who has just paused, keeps what it has, so that no job pauses for more than `PAUSED` of its time.

From the seeds: free room is always used (Config Manager), by a fitted model that a growth path refines (Dike), what
remains to be learned counts (FlowCon's and Optimus' loss-awareness enter by the remaining work), gain per cost decides
(DLRover), size and batch are chosen together for all jobs (IBM). The prices are what none of them has.

The combination is ours. A job of which nothing is known yet is taken to be like the median of those that are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from msgspec import Struct

from services.allocator.hull import Config, hull, shared
from services.allocator.placement import Node, Size
from services.allocator.policies.contract import JobSeen, Want
from services.allocator.policies.elastic_batch import _timing as timing_of
from services.allocator.policies.elastic_batch import limits_of
from services.allocator.pool import Pool, core_pool, cores, device_pool, ps_beside
from services.allocator.pricing import prices
from services.allocator.scalability import Limits, Timing, scale_table
from shared.messages import Alternative, Resources

PAUSED = 0.1
"""Of its time, at most, a job pauses."""
PAUSE_S = 5.0
"""What a pause is taken to be until one was measured."""
REACH = 2.0
"""No step to more than so many times the largest number of workers that was ever observed: models err far away."""
KEEP = 0.05
"""A job that would gain less than this keeps what it has."""


class Stand(Struct, frozen=True):
    """A job, its staircase in units of the pool, its remaining time on one unit (None: unknown), and what it has."""

    job: JobSeen
    steps: tuple[Config, ...]
    left_s: float | None
    has: Config | None


def weir(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    on_devices = [job for job in jobs if job.sizes.worker.gpu > 0]
    on_cores = [job for job in jobs if job.sizes.worker.gpu == 0]
    wants = divided(on_devices, device_pool(cluster, on_devices), now)
    grown = {want.job: want.workers for want in wants}
    taken = sum(cores(job, grown[job.key]) - _held(job) for job in on_devices if job.key in grown)
    return [*wants, *divided(on_cores, core_pool(cluster, on_cores, max(0, taken)), now)]


def _held(job: JobSeen) -> int:
    return cores(job, job.size.workers) if job.size else 0


def divided(jobs: Sequence[JobSeen], pool: Pool, now: float) -> list[Want]:
    """What each job should have of a pool; nothing is said of those that keep what they have because they must."""
    stands = [stand(job, pool) for job in jobs]
    fixed = [s for s in stands if settled(s, now)]
    free = [s for s in stands if not settled(s, now) and s.steps]
    room = pool.units - sum(s.has.cost for s in fixed if s.has)
    worth = worths(free)
    run = {s.job.key for s in free if s.job.size}
    given = shared({s.job.key: s.steps for s in free}, worth, Resources(cpu=max(0.0, room)), first=run)
    return [_want(s, given.get(s.job.key), worth[s.job.key]) for s in free]


# ---------------------------------------------------------------- one job


def stand(job: JobSeen, pool: Pool) -> Stand:
    limits = limits_of(job)
    timing = timing_of(job.observed, limits)
    steps = _steps(job, limits, timing, pool)
    has = next((c for c in _configs(job, limits, timing, pool) if c.size == job.size), None)
    return Stand(job, tuple(steps), _left_s(job, steps), has)


def _steps(job: JobSeen, limits: Limits, timing: Timing, pool: Pool) -> list[Config]:
    """The gang floor, and from there on the hull."""
    reach = max([job.start.workers, *(o.workers for o in job.observed)]) * REACH
    able = (c for c in _configs(job, limits, timing, pool) if c.cost > 0.0 and c.speed > 0.0)
    near = [c for c in able if c.size.workers <= reach]
    return [*near[:1], *hull(near[1:], near[0])] if near else []


def _configs(job: JobSeen, limits: Limits, timing: Timing, pool: Pool) -> list[Config]:
    table = scale_table(timing.rate, limits)
    reference = float(timing.rate(limits.reference, 1))
    found = []
    for at in np.flatnonzero(np.isfinite(table.scales)).tolist():
        cost, workers = float(pool.cost(job, at + 1)), at + 1
        size, speed = Size(ps_beside(job, workers), workers), float(table.scales[at]) * reference
        found.append(Config(size, int(table.batches[at]), Resources(cpu=cost), cost, speed))
    return found


def _left_s(job: JobSeen, steps: Sequence[Config]) -> float | None:
    """Remaining examples over the speed of one unit where the job uses it best; None before its first report."""
    if job.progress is None or not steps or not job.observed:
        return None
    left = max(0, job.progress.total_samples - job.progress.samples)
    return max(left, 1) / (steps[0].speed / steps[0].cost)


def settled(s: Stand, now: float) -> bool:
    """In flight; or it paused so recently that another pause would cost more than its share of time."""
    if s.job.size is None:
        return False
    pause_s = PAUSE_S if s.job.pause_s is None else s.job.pause_s
    return s.job.busy or now - s.job.since_s < pause_s / PAUSED


# ---------------------------------------------------------------- all jobs


def worths(stands: Sequence[Stand]) -> Mapping[str, float]:
    """Price x what one example a second more is of the job's speed on one unit."""
    known = [s.left_s for s in stands if s.left_s is not None]
    middle = median(known) if known else 1.0
    sizes = [middle if s.left_s is None else s.left_s for s in stands]
    weights = [2.0**s.job.request.priority for s in stands]
    found = prices(sizes, elasticity(stands), weights)
    return {s.job.key: price / (s.steps[0].speed / s.steps[0].cost) for s, price in zip(stands, found, strict=True)}


def elasticity(stands: Sequence[Stand]) -> float:
    """p of a speed-up k^p, from the first to the last step of each staircase; the median over jobs."""
    found = [
        math.log(s.steps[-1].speed / s.steps[0].speed) / math.log(s.steps[-1].cost / s.steps[0].cost)
        for s in stands
        if len(s.steps) > 1
    ]
    return median(found) if found else 0.5


def _want(s: Stand, config: Config | None, worth: float) -> Want:
    if config is None:
        return _waits(s)
    if s.has and abs(config.speed - s.has.speed) < KEEP * s.has.speed and config.cost >= s.has.cost:
        config = s.has
    at = [c.cost for c in s.steps].index(config.cost) if config in s.steps else -1
    above = s.steps[at + 1] if 0 <= at < len(s.steps) - 1 else None
    others = (
        (_other(above, "its price times the speed gained is less than others' for the same room"),) if above else ()
    )
    return Want(
        job=s.job.key,
        ps=config.size.ps,
        workers=config.size.workers,
        batch=config.batch,
        reason=f"{config.speed:,.0f} examples/s at a price of {worth * config.speed / config.cost:.3g} a unit of room",
        alternatives=others,
    )


def _waits(s: Stand) -> Want:
    """Nothing is left at its price: one that runs goes down to its least, one that waits asks for no more than that."""
    least = s.steps[0]
    reason = "others' work is worth more for the room there is"
    return Want(job=s.job.key, ps=least.size.ps, workers=least.size.workers, batch=least.batch, reason=reason)


def _other(config: Config, why: str) -> Alternative:
    return Alternative(ps=config.size.ps, workers=config.size.workers, batch=config.batch, why=why)
