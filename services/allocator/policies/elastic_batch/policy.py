"""Devices and batch size together: IBM's elastic scaler (Saxena et al., MASCOTS 2020; US patent 11,586,475).

A job reaches the same accuracy for a range of batches, and a larger batch scales better: under load, few devices and
small batches; when devices are free, many and large. Jobs come in the order of their arrival; S_j(g) is the scale of
job j's best batch on g devices (`services/allocator/policies/elastic_batch/scalability.py`), -inf where there is none.

    P(0, k) = 0
    P(j, k) = max over g <= k of  S_j(g) + P(j - 1, k - g)         the best sum for the first j jobs on k devices
    feasible  <=>  P(J, K) > -inf;  read back g_J, then g_(J-1) from k = K - g_J, ...

    tentative = running + arrived;  while infeasible: the most recent arrival goes (dropped, or left in the queue)

Here P is kept from its first finite entry on: with L_j the devices that the first j jobs need at the least, entry s of
row j is P(j, L_j + s), s = 0 .. K - L_J. All that is left out is -inf, or leaves too little for the jobs that follow.
It also makes the trim by feasibility what it is: the longest prefix with L_j <= K. O(J (K - L_J) k_max).

Our reconstruction: a job that no pair suits is passed over; among equal sums a job keeps what it has. As a policy a
device is a worker; ps follow in the ratio of the start; jobs whose workers want GPUs share these, the others the cores
(in the largest unit that divides every task), with ps and chief in the price; `priority` comes before arrival; nothing
changes while nobody waits and the sum would rise by less than `KEEP`. A request cannot be dropped, so it waits. Beside
ps, where a batch is one worker's whatever their number, it starts as asked and changes once a speed was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from services.allocator.kept import Kept, KeptEach
from services.allocator.policies.contract import JobSeen, Node, Size, Want
from services.allocator.policies.elastic_batch.pool import Pool, core_pool, cores, device_pool, ps_beside
from services.allocator.policies.elastic_batch.scalability import (
    Floats,
    Ints,
    Limits,
    Speed,
    Table,
    Timing,
    fitted_each,
    scale_table,
)
from shared.words import counted

KEEP = 0.05
"""The sum of scales must rise by so much where nobody waits."""
EQUAL = 1e-9
"""Sums that differ by less are equal."""
JOBS_KEPT, UNITS_KEPT = 4096, 16


class Options(NamedTuple):
    """One job's feasible choices: what each costs in devices (ascending), and its scale."""

    costs: Ints
    scales: Floats


class Pick(NamedTuple):
    devices: int
    batch: int


# ---------------------------------------------------------------- the algorithm


def autoscale(tables: Sequence[Table], devices: int, held: Sequence[int] | None = None) -> list[Pick | None]:
    """Devices and batch for each job, in FIFO order; None: dropped, or left in the queue. `held`: devices it has."""
    feasible = [np.flatnonzero(np.isfinite(table.scales)) for table in tables]
    able = [j for j, found in enumerate(feasible) if len(found)]
    options = [Options(feasible[j] + 1, tables[j].scales[feasible[j]]) for j in able]
    kept = trimmed(options, devices)
    chosen = optimise(options[:kept], devices, [held[j] for j in able[:kept]] if held else None)
    picks: list[Pick | None] = [None] * len(tables)
    for j, at in zip(able, chosen, strict=False):
        g = feasible[j][at]
        picks[j] = Pick(int(g) + 1, int(tables[j].batches[g]))
    return picks


def trimmed(jobs: Sequence[Options], devices: int) -> int:
    """How many jobs, from the first on, `devices` are enough for."""
    least = np.cumsum([job.costs[0] for job in jobs])
    return int(np.searchsorted(least, devices, side="right"))


def optimise(jobs: Sequence[Options], devices: int, held: Sequence[int] | None = None) -> list[int]:
    """Which option each job gets, so that the sum of scales is largest; the jobs must be feasible together."""
    extra = [job.costs - job.costs[0] for job in jobs]
    slack = devices - sum(int(job.costs[0]) for job in jobs)
    if slack < 0:
        raise ValueError(f"{counted(len(jobs), 'job')} need {devices - slack} devices, there are {devices}")
    best = _rows(jobs, extra, slack)
    chosen, left = [0] * len(jobs), slack
    for j in range(len(jobs) - 1, -1, -1):
        within = extra[j][: np.searchsorted(extra[j], left, side="right")]
        sums = jobs[j].scales[: len(within)] + best[j, left - within]
        equal = np.flatnonzero(sums >= sums.max() - EQUAL)
        mine = equal[jobs[j].costs[equal] == held[j]] if held else equal
        chosen[j] = int([*mine, *equal][0])
        left -= int(within[chosen[j]])
    return chosen


def _rows(jobs: Sequence[Options], extra: Sequence[Ints], slack: int) -> Floats:
    """P; shape (J + 1, slack + 1). A window is row j - 1 shifted by what an option costs; from the left comes -inf."""
    best = np.zeros((len(jobs) + 1, slack + 1))
    reach = max((int(np.minimum(e[-1], slack)) for e in extra), default=0)
    padded = np.full(reach + slack + 1, -np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, slack + 1)
    for j, (job, e) in enumerate(zip(jobs, extra, strict=True)):
        padded[reach:] = best[j]
        within = e[: np.searchsorted(e, slack, side="right")]
        sums = windows[reach - within]
        sums += job.scales[: len(within), None]
        sums.max(axis=0, out=best[j + 1])
    return best


# ---------------------------------------------------------------- the policy


class Seen(NamedTuple):
    """A job with its table; `now`: the scale of what it has, 0 while it has nothing."""

    job: JobSeen
    table: Table
    now: float


def elastic_batch(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    order = sorted(jobs, key=lambda job: (job.size is None, -job.request.priority, job.submitted_s))
    on_devices = [job for job in order if job.sizes.worker.gpu > 0]
    on_cores = [job for job in order if job.sizes.worker.gpu == 0]
    wants = _shared(on_devices, device_pool(cluster, on_devices))
    grown = {want.job: want.workers for want in wants}
    taken = sum(cores(job, grown[job.key]) - _held(job) for job in on_devices if job.key in grown)
    return [*wants, *_shared(on_cores, core_pool(cluster, on_cores, max(0, min(taken, _spare(cluster, on_cores)))))]


def _spare(cluster: Sequence[Node], jobs: Sequence[JobSeen]) -> int:
    """Thousandths of a core beyond what those that run cannot do without; so much others may take from them."""
    pool = core_pool(cluster, jobs, 0)
    held = (pool.cost(j, j.size.workers if j.busy else j.least.workers) for j in jobs if j.size)
    return (pool.units - sum(held)) * pool.unit


def _held(job: JobSeen) -> int:
    return cores(job, job.size.workers) if job.size else 0


def _shared(jobs: Sequence[JobSeen], pool: Pool) -> list[Want]:
    """Divide a pool among its jobs."""
    _timings(jobs)  # side by side: `_seen` finds each one's known
    seen = [_seen(job) for job in jobs]
    options_of = _options(pool.unit, pool.devices)
    able = [(s, options_of(s)) for s in seen if _workers(s)]
    kept = able[: trimmed([options for _, options in able], pool.units)]
    held = [pool.cost(s.job, s.job.size.workers) if s.job.size else 0 for s, _ in kept]
    chosen = optimise([options for _, options in kept], pool.units, held)
    picks = [(s, _workers(s)[at]) for (s, _), at in zip(kept, chosen, strict=True)]
    told = _picked if _worth_it(seen, picks) else _stayed
    return [told(s, workers) for s, workers in picks if not s.job.busy]


def _worth_it(seen: Sequence[Seen], picks: Sequence[tuple[Seen, int]]) -> bool:
    """Somebody starts, or must make room; or the sum rises."""
    if any(s.job.size is None for s, _ in picks) or len(picks) < sum(s.job.size is not None for s in seen):
        return True
    new = math.fsum(float(s.table.scales[workers - 1]) for s, workers in picks)
    return new > (1 + KEEP) * math.fsum(s.now for s in seen)


def _picked(seen: Seen, workers: int) -> Want:
    scale, batch = float(seen.table.scales[workers - 1]), int(seen.table.batches[workers - 1])
    reason = (
        f"batch {batch} on {counted(workers, 'worker')} is {scale:.2f} times one worker: best for the sum over all jobs"
    )
    ps, faster = ps_beside(seen.job, workers), scale / seen.now if seen.now > 0 else None
    return Want(job=seen.job.key, ps=ps, workers=workers, batch=batch, reason=reason, faster=faster)


def _stayed(seen: Seen, workers: int) -> Want:
    """As it is; `workers` would be no better by `KEEP`."""
    size = seen.job.size or Size(0, 0)
    reason = f"nobody waits, and {counted(workers, 'worker')} would raise the sum over all jobs by less than {KEEP:.0%}"
    return Want(job=seen.job.key, ps=size.ps, workers=size.workers, batch=seen.job.batch, reason=reason)


# ---------------------------------------------------------------- a job's table


def _looked_at(job: JobSeen) -> Seen:
    limits, timing = limits_of(job), _timings([job])[0]
    return Seen(job, _table(timing, limits), _scale_now(job, timing, limits))


def _scale_now(job: JobSeen, timing: Timing, limits: Limits) -> float:
    if job.size is None or job.size.workers < 1 or job.batch < 1:
        return 0.0
    each = job.batch / job.size.workers if limits.split else job.batch
    return float(timing.rate(each, job.size.workers) / timing.rate(limits.reference, 1))


def limits_of(job: JobSeen) -> Limits:
    request, served = job.request, job.start.ps > 0
    return Limits(
        batch_min=request.batch.min,
        batch_max=request.batch.max,
        device_batch_max=request.device_batch_max or request.batch.max,
        devices_max=job.most.workers,
        devices_min=job.least.workers,
        split=not served,
        first=request.batch.start if served and not job.observed else None,
    )


def _speeds(job: JobSeen) -> tuple[list[Speed], int]:
    """What was seen of a job, and the reference batch."""
    limits = limits_of(job)
    speeds = [
        Speed(o.batch / o.workers if limits.split else o.batch, o.workers, o.samples_per_second) for o in job.observed
    ]
    return speeds, limits.reference


_timings: KeptEach[JobSeen, Timing] = KeptEach(lambda jobs: fitted_each([*map(_speeds, jobs)]), id, JOBS_KEPT)


@lru_cache(maxsize=4096)
def _table(timing: Timing, limits: Limits) -> Table:
    return scale_table(timing.rate, limits)


def _choices(seen: Seen) -> list[int]:
    """What the job may be given. A job in flight has one choice: what was decided for it."""
    if seen.job.busy and seen.job.size:
        return [seen.job.size.workers]
    return [int(at) + 1 for at in np.flatnonzero(np.isfinite(seen.table.scales))]


def _priced(seen: Seen, unit: int, devices: bool) -> Options:
    job, at = seen.job, np.array(_workers(seen)) - 1
    if job.busy:
        return Options(np.array([Pool(0, unit, devices).cost(job, k) for k in _workers(seen)]), np.array([seen.now]))
    return Options(_costs(unit, devices)([job])[0][at], seen.table.scales[at])


@lru_cache(maxsize=UNITS_KEPT)
def _costs(unit: int, devices: bool) -> KeptEach[JobSeen, Ints]:
    """What each number of workers costs a job, from one on: the same whatever it reports."""
    pool = Pool(0, unit, devices)
    return KeptEach(
        lambda jobs: [np.array([pool.cost(job, k) for k in range(1, job.most.workers + 1)]) for job in jobs],
        lambda job: (id(job.request), id(job.sizes)),
        JOBS_KEPT,
    )


@lru_cache(maxsize=UNITS_KEPT)
def _options(unit: int, devices: bool) -> Kept[Seen, Options]:
    """By what a unit of the pool is: how many there are changes no price."""
    return Kept(partial(_priced, unit=unit, devices=devices), JOBS_KEPT)


_seen, _workers = Kept(_looked_at, JOBS_KEPT), Kept(_choices, JOBS_KEPT)
