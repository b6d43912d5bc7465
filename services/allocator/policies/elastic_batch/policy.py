"""Devices and batch size together: IBM's elastic scaler (Saxena et al., MASCOTS 2020; US patent
11,586,475).

A job reaches the same accuracy for a range of batches, and a larger batch scales better: under
load, few devices and small batches; when devices are free, many and large. Jobs come in the order
of their arrival; S_j(g) is the scale of job j's best batch on g devices
(`services/allocator/policies/elastic_batch/scalability.py`), -inf where there is none.

    P(0, k) = 0
    P(j, k) = max over g <= k of  S_j(g) + P(j - 1, k - g)         the best sum for the first j jobs on k devices
    feasible  <=>  P(J, K) > -inf;  read back g_J, then g_(J-1) from k = K - g_J, ...

    tentative = running + arrived;  while infeasible: the most recent arrival goes (dropped, or left in the queue)

Here P is kept from its first finite entry on: with L_j the devices that the first j jobs need at
the least, entry s of row j is P(j, L_j + s), s = 0 .. K - L_J. All that is left out is -inf, or
leaves too little for the jobs that follow. It also makes the trim by feasibility what it is: the
longest prefix with L_j <= K. O(J (K - L_J) k_max).

Our reconstruction: a job that no pair suits is passed over; among equal sums a job keeps what it
has. As a policy a device is a worker; ps follow in the ratio of the start; jobs whose workers want
GPUs share these, the others the cores (in the largest unit that divides every task), with ps and
chief in the price; `priority` comes before arrival; nothing changes while nobody waits and the sum
would rise by less than `KEEP`. A request cannot be dropped, so it waits. Beside ps, where a batch
is one worker's whatever their number, it starts as asked and changes once a speed was seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec.structs import astuple

from services.allocator.policies.contract import JobSeen, Node, Size, Want, models_of
from services.allocator.policies.elastic_batch.pool import (
    Pool,
    core_pool,
    cores,
    device_pool,
    ps_beside,
    without,
)
from services.allocator.policies.elastic_batch.scalability import (
    Floats,
    Ints,
    Limits,
    Speed,
    Table,
    Timing,
    feasible_devices,
    fitted_each,
    rate_by,
    scale_tables,
)
from shared.words import counted

KEEP = 0.05
"""The sum of scales must rise by so much where nobody waits."""
EQUAL = 1e-9
"""Sums that differ by less are equal."""
CELLS = 1 << 16
"""Pairs of a job and a number of workers whose scales are computed side by side."""


class Options(NamedTuple):
    """One job's feasible choices: the cost of each in units (ascending), and its scale."""

    costs: Ints
    scales: Floats


class Pick(NamedTuple):
    devices: int
    batch: int


# ---------------------------------------------------------------- the algorithm


def autoscale(
    tables: Sequence[Table], devices: int, held: Sequence[int] | None = None
) -> list[Pick | None]:
    """Return devices and batch for each job, in FIFO order; None: dropped, or left in the queue.

    `held`: the devices that each job has.
    """
    able = []
    feasible = []
    options = []
    for j, table in enumerate(tables):
        choices = np.flatnonzero(np.isfinite(table.scales))
        if len(choices):
            able.append(j)
            feasible.append(choices)
            options.append(Options(choices + 1, table.scales[choices]))
    kept = trimmed(options, devices)
    held_by_kept = []
    if held:
        held_by_kept = [held[j] for j in able[:kept]]
    chosen = optimise(options[:kept], devices, held_by_kept)

    picks: list[Pick | None] = [None] * len(tables)
    for n, at in enumerate(chosen):
        j = able[n]
        g = int(feasible[n][at])
        picks[j] = Pick(g + 1, int(tables[j].batches[g]))
    return picks


def trimmed(jobs: Sequence[Options], devices: int) -> int:
    """Return the number of jobs, from the first on, that `devices` are enough for."""
    return enough_for([int(job.costs[0]) for job in jobs], devices)


def enough_for(least: Sequence[int], devices: int) -> int:
    """Return the number of jobs, from the first on, whose least needs are within `devices`."""
    return int(np.searchsorted(np.cumsum(least), devices, side="right"))


def optimise(jobs: Sequence[Options], devices: int, held: Sequence[int] | None = None) -> list[int]:
    """Return the option that each job gets, so that the sum of scales is largest; the jobs must be
    feasible together.
    """
    extra = []
    needed = 0
    for job in jobs:
        least = job.costs[0]
        extra.append(job.costs - least)
        needed += int(least)
    slack = devices - needed
    if slack < 0:
        jobs_need = f"{counted(len(jobs), 'job')} need {needed} devices"
        raise ValueError(f"{jobs_need}, there are {devices}")

    # Read back from the last job to the first.
    best = _rows(jobs, extra, slack)
    chosen = [0] * len(jobs)
    left = slack
    for j in range(len(jobs) - 1, -1, -1):
        affordable = np.searchsorted(extra[j], left, side="right")
        if affordable == 1:
            continue
        within = extra[j][:affordable]
        sums = jobs[j].scales[:affordable] + best[j, left - within]
        equal = np.flatnonzero(sums >= sums.max() - EQUAL)
        pick = int(equal[0])
        if held and len(equal) > 1:
            same = equal[jobs[j].costs[equal] == held[j]]
            if len(same):
                pick = int(same[0])
        chosen[j] = pick
        left -= int(within[pick])
    return chosen


def _rows(jobs: Sequence[Options], extra: Sequence[Ints], slack: int) -> Floats:
    """Return P [J + 1, slack + 1]. A window is row j - 1 shifted by the cost of an option; from the
    left comes -inf.
    """
    best = np.zeros((len(jobs) + 1, slack + 1))
    reach = 0
    for costs in extra:
        reach = max(reach, min(int(costs[-1]), slack))
    padded = np.full(reach + slack + 1, -np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, slack + 1)
    for j, job in enumerate(jobs):
        affordable = np.searchsorted(extra[j], slack, side="right")
        if affordable == 1:
            np.add(best[j], job.scales[0], out=best[j + 1])
            continue
        padded[reach:] = best[j]
        within = extra[j][:affordable]
        sums = windows[reach - within]
        sums += job.scales[:affordable, None]
        sums.max(axis=0, out=best[j + 1])
    return best


# ---------------------------------------------------------------- the policy


class Choices(NamedTuple):
    """Numbers of workers that a job may have, ascending, with their options.

    `table`: the scales of all numbers; `now`: the scale of the size that it has, 0 while it has
    none.
    """

    job: JobSeen
    workers: Ints
    options: Options
    table: Table
    now: float

    def scale(self, workers: int) -> float:
        if 0 < workers <= len(self.table.scales):
            return float(self.table.scales[workers - 1])
        return self.now


def elastic_batch(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    """Divide the devices among the jobs that want them, then the cores among the others."""
    order = sorted(jobs, key=lambda job: (job.size is None, -job.request.priority, job.submitted_s))
    on_devices = []
    on_cores = []
    for job in order:
        if job.sizes.worker.gpu > 0:
            on_devices.append(job)
        else:
            on_cores.append(job)
    wants = _divide(on_devices, device_pool(cluster, on_devices))

    # The cores that jobs on devices will need, as far as the others can do without them.
    jobs_by_key = {job.key: job for job in on_devices}
    taken = 0
    for want in wants:
        job = jobs_by_key[want.job]
        taken += cores(job, want.workers)
        if job.size:
            taken -= cores(job, job.size.workers)
    pool = core_pool(cluster, on_cores, 0)
    taken = max(0, min(taken, _spare(pool, on_cores)))
    return wants + _divide(on_cores, without(pool, taken))


def _spare(pool: Pool, jobs: Sequence[JobSeen]) -> int:
    """Return thousandths of a core beyond those that running jobs need: others may take them."""
    needed = 0
    for job in jobs:
        if job.size:
            workers = job.size.workers if job.busy else job.least.workers
            needed += pool.cost(job, workers)
    return (pool.units - needed) * pool.unit


def _divide(jobs: Sequence[JobSeen], pool: Pool) -> list[Want]:
    """Divide a pool among its jobs."""
    kept = _choices(jobs, pool)
    options = []
    held = []
    for choices in kept:
        size = choices.job.size
        options.append(choices.options)
        held.append(pool.cost(choices.job, size.workers) if size else 0)
    chosen = optimise(options, pool.units, held)

    workers = []
    for choices, at in zip(kept, chosen, strict=True):
        workers.append(int(choices.workers[at]))
    change = _is_worth_it(jobs, kept, workers)
    wants = []
    for choices, count in zip(kept, workers, strict=True):
        if choices.job.busy:
            continue
        wants.append(_picked(choices, count) if change else _stayed(choices, count))
    return wants


def _is_worth_it(jobs: Sequence[JobSeen], kept: Sequence[Choices], workers: Sequence[int]) -> bool:
    """Return true if somebody starts, or must make room, or if the sum rises by `KEEP`."""
    running = 0
    for job in jobs:
        running += job.size is not None
    if len(kept) < running:
        return True

    new = []
    now = []
    for choices, count in zip(kept, workers, strict=True):
        if choices.job.size is None:
            return True
        new.append(choices.scale(count))
        now.append(choices.now)
    return math.fsum(new) > (1 + KEEP) * math.fsum(now)


def _picked(choices: Choices, workers: int) -> Want:
    scale = choices.scale(workers)
    batch = int(choices.table.batches[workers - 1])
    size = f"batch {batch} on {counted(workers, 'worker')}"
    reason = f"{size} is {scale:.2f} times one worker: best for the sum over all jobs"
    return Want(
        job=choices.job.key,
        ps=ps_beside(choices.job, workers),
        workers=workers,
        batch=batch,
        reason=reason,
        faster=scale / choices.now if choices.now > 0 else None,
    )


def _stayed(choices: Choices, workers: int) -> Want:
    """Return its size as it is; `workers` would be no better by `KEEP`."""
    size = choices.job.size or Size(0, 0)
    other = f"{counted(workers, 'worker')} would raise the sum over all jobs by less than"
    return Want(
        job=choices.job.key,
        ps=size.ps,
        workers=size.workers,
        batch=choices.job.batch,
        reason=f"nobody waits, and {other} {KEEP:.0%}",
    )


# ---------------------------------------------------------------- a job's choices


def fit_jobs(jobs: Sequence[JobSeen]) -> list[Timing]:
    """Return the timing of each job, all fitted in one pass."""
    cases = []
    for job in jobs:
        limits = limits_of(job)
        speeds = []
        for seen in job.observed:
            each = seen.batch / seen.workers if limits.split else seen.batch
            speeds.append(Speed(each, seen.workers, seen.samples_per_second))
        cases.append((speeds, limits.reference))
    return fitted_each(cases)


def limits_of(job: JobSeen) -> Limits:
    request = job.request
    served = job.start.ps > 0
    return Limits(
        batch_min=request.batch.min,
        batch_max=request.batch.max,
        device_batch_max=request.device_batch_max or request.batch.max,
        devices_max=job.most.workers,
        devices_min=job.least.workers,
        split=not served,
        first=request.batch.start if served and not job.observed else None,
    )


def _choices(jobs: Sequence[JobSeen], pool: Pool) -> list[Choices]:
    """Return the choices of the jobs that the pool is enough for, from the first on.

    A job that no number of workers suits is passed over.
    """
    able = []
    limits = []
    workers = []
    costs = []
    least = []
    for lot in _lots(jobs):
        lot_limits = [limits_of(job) for job in lot]
        feasible = feasible_devices(lot_limits)
        lot_costs = pool.costs(lot, feasible.shape[1])
        for n, job in enumerate(lot):
            if job.busy and job.size:
                # A job in flight has one choice: the size that was decided for it.
                number = np.array([job.size.workers])
                cost = np.array([pool.cost(job, job.size.workers)])
            else:
                found = feasible[n].nonzero()[0]
                if not len(found):
                    continue
                number = found + 1
                cost = lot_costs[n, found]
            able.append(job)
            limits.append(lot_limits[n])
            workers.append(number)
            costs.append(cost)
            least.append(int(cost[0]))

    kept = able[: enough_for(least, pool.units)]
    choices = []
    for job, (table, now), number, cost in zip(
        kept, _tables(kept, limits), workers, costs, strict=False
    ):
        in_flight = job.busy and job.size
        scales = np.array([now]) if in_flight else table.scales[number - 1]
        # Speeds beyond reckoning leave no scale, and a job without any is passed over.
        finite = np.isfinite(scales)
        if finite.any():
            options = Options(cost[finite], scales[finite])
            choices.append(Choices(job, number[finite], options, table, now))
    return choices


def _lots(jobs: Sequence[JobSeen]) -> Iterator[Sequence[JobSeen]]:
    """Yield the jobs in lots whose arrays are filled side by side."""
    most = max((job.most.workers for job in jobs), default=1)
    size = max(1, CELLS // most)
    for at in range(0, len(jobs), size):
        yield jobs[at : at + size]


def _tables(jobs: Sequence[JobSeen], limits: Sequence[Limits]) -> Iterator[tuple[Table, float]]:
    """Yield the table of each job, and the scale of the size that it has."""
    timings = models_of(jobs, Timing, fit_jobs)
    at = 0
    for lot in _lots(jobs):
        lot_limits = limits[at : at + len(lot)]
        lot_timings = timings[at : at + len(lot)]
        at += len(lot)
        seconds = np.array([astuple(timing) for timing in lot_timings]).T  # [terms, jobs]
        terms = seconds[:, :, None, None]  # beside batches and workers
        tables = scale_tables(partial(rate_by, terms), lot_limits)
        yield from zip(tables, _scales_now(lot, lot_limits, seconds), strict=True)


def _scales_now(jobs: Sequence[JobSeen], limits: Sequence[Limits], seconds: Floats) -> list[float]:
    """Return the scale of the size that each job has, 0 while it has none.

    `seconds`: of each term of the timings [terms, jobs].
    """
    each = np.ones(len(jobs))
    workers = np.zeros(len(jobs))
    references = np.empty(len(jobs))
    for n, job in enumerate(jobs):
        references[n] = limits[n].reference
        if job.size is None or job.size.workers < 1 or job.batch < 1:
            continue
        workers[n] = job.size.workers
        each[n] = job.batch
        if limits[n].split:
            each[n] /= job.size.workers
    speeds = rate_by(seconds, each, np.maximum(workers, 1))
    scales = speeds / rate_by(seconds, references, 1)
    known = (workers > 0) & np.isfinite(scales)
    now: list[float] = np.where(known, scales, 0.0).tolist()
    return now
