"""Devices and batch size together: IBM's elastic scaler (Saxena et al., MASCOTS 2020; US patent
11,586,475).

A job reaches the same accuracy for a range of batches, and a larger batch scales better: under
load, few devices and small batches; when devices are free, many and large. Jobs come in the order
of their arrival; S_j(g) is the scale of job j's best batch on g devices
(`services/allocator/policies/elastic_batch/scalability.py`), -inf where there is none.

    P(0, k) = 0
    P(j, k) = max over g <= k of  S_j(g) + P(j - 1, k - g)     best sum of the first j jobs on k
    feasible  <=>  P(J, K) > -inf;  read back g_J, then g_(J-1) from k = K - g_J, ...

    tentative = running + arrived
    while infeasible: the most recent arrival goes (dropped, or left in the queue)

Here P is kept from its first finite entry on: with L_j the least number of devices that the first j
jobs need, entry s of row j is P(j, L_j + s), s = 0 .. K - L_J. All entries that are left out are
-inf, or leave too little for the jobs that follow. So the trim by feasibility takes the longest
prefix with L_j <= K. The cost is O(J (K - L_J) k_max).

Our reconstruction: a job without a feasible pair is skipped; among equal sums a job keeps its size.
In the policy a device is a worker; ps follow in the ratio of the initial size; jobs whose workers
want GPUs share these, the others share the cores (in the largest unit that divides every task), and
their price includes ps and chief; `priority` comes before arrival; nothing changes if no job waits
and the sum would rise by less than `KEEP`. A request cannot be dropped, so it waits. With ps, a
batch is that of one worker, whatever the number of workers, unless `consistency: global-batch` (or
`exact`) says otherwise: then it is divided among them, so that their number divides it. With ps it
starts as requested, and changes once a speed was observed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import astuple

from services.allocator.policies.contract import (
    JobSnapshot,
    Node,
    Size,
    Target,
    models_of,
    shares_batch,
)
from services.allocator.policies.elastic_batch.scalability import (
    Floats,
    Ints,
    Limits,
    Pool,
    Speed,
    Table,
    Timing,
    core_pool,
    cores_of_workers,
    device_pool,
    feasible_devices,
    fit_timings,
    pool_without,
    ps_beside,
    rate_by,
    scale_tables,
)
from shared.messages import Span
from shared.text import format_count

KEEP = 0.05
"""The sum of scales must rise by this share if no job waits."""
EQUAL = 1e-9
"""Sums that differ by less are equal."""
CELLS = 1 << 16
"""Pairs of a job and a number of workers that are computed side by side."""


class Options(NamedTuple):
    """One job's feasible choices: the cost of each in units (ascending), and its scale."""

    costs: Ints
    scales: Floats

    @property
    def least(self) -> int:
        """Return the cost of the cheapest choice."""
        return int(self.costs[0])


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
    options = []
    for j, table in enumerate(tables):
        feasible = _feasible_options(table)
        if len(feasible.costs):
            able.append(j)
            options.append(feasible)
    able = able[: trim_options(options, devices)]
    options = options[: len(able)]
    held_by_able = [held[j] for j in able] if held else None
    chosen = optimise(options, devices, held_by_able)

    picks: list[Pick | None] = [None] * len(tables)
    for j, feasible, at in zip(able, options, chosen, strict=True):
        g = int(feasible.costs[at])
        batch = int(tables[j].batches[g - 1])
        picks[j] = Pick(g, batch)
    return picks


def _feasible_options(table: Table) -> Options:
    """Return the numbers of devices that have a batch, with their scales."""
    devices = np.flatnonzero(np.isfinite(table.scales)) + 1
    return Options(devices, table.scales[devices - 1])


def trim_options(jobs: Sequence[Options], devices: int) -> int:
    """Return the number of jobs, from the first on, that `devices` are enough for."""
    return enough_for([job.least for job in jobs], devices)


def enough_for(least: Sequence[int], devices: int) -> int:
    """Return the number of jobs, from the first on, with least needs within `devices`."""
    return int(np.searchsorted(np.cumsum(least), devices, side="right"))


def optimise(jobs: Sequence[Options], devices: int, held: Sequence[int] | None = None) -> list[int]:
    """Return the option that each job gets, so that the sum of scales is largest; the jobs must be
    feasible together.
    """
    extra, slack = _extra_costs(jobs, devices)
    best = _best_sums(jobs, extra, slack)

    # Read back from the last job to the first.
    chosen = [0] * len(jobs)
    left = slack
    for j in range(len(jobs) - 1, -1, -1):
        affordable = np.searchsorted(extra[j], left, side="right")
        if affordable == 1:
            continue
        job = jobs[j]
        within = extra[j][:affordable]
        sums = job.scales[:affordable] + best[j, left - within]
        held_cost = held[j] if held else None
        pick = _best_option(sums, job.costs, held_cost)
        chosen[j] = pick
        left -= int(within[pick])
    return chosen


def _extra_costs(jobs: Sequence[Options], devices: int) -> tuple[list[Ints], int]:
    """Return the cost of each job's options beyond its cheapest, and the devices that the cheapest
    of all jobs leave.
    """
    extra = []
    needed = 0
    for job in jobs:
        least = job.least
        extra.append(job.costs - least)
        needed += least
    if needed > devices:
        jobs_need = f"{format_count(len(jobs), 'job')} need {needed} devices"
        raise ValueError(f"{jobs_need}, there are {devices}")
    return extra, devices - needed


def _best_sums(jobs: Sequence[Options], extra: Sequence[Ints], slack: int) -> Floats:
    """Return P [J + 1, slack + 1]. A window is row j - 1, shifted by the cost of an option and
    filled with -inf from the left.
    """
    best = np.zeros((len(jobs) + 1, slack + 1))
    reach = _longest_shift(extra, slack)
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


def _longest_shift(extra: Sequence[Ints], slack: int) -> int:
    """Return the largest extra cost of an option, at most `slack`."""
    dearest = 0
    for costs in extra:
        dearest = max(dearest, int(costs[-1]))
    return min(dearest, slack)


def _best_option(sums: Floats, costs: Ints, held: int | None) -> int:
    """Return the option with the largest sum; among equal ones the one at the job's present cost,
    else the cheapest.
    """
    equal = np.flatnonzero(sums >= sums.max() - EQUAL)
    if held is not None and len(equal) > 1:
        same = equal[costs[equal] == held]
        if len(same):
            return int(same[0])
    return int(equal[0])


# ---------------------------------------------------------------- the policy


class Choices(NamedTuple):
    """Numbers of workers that a job may have, ascending, with their options.

    `table`: the scales of all numbers; `now`: the scale of the size that it has, 0 while it has
    none.
    """

    job: JobSnapshot
    workers: Ints
    options: Options
    table: Table
    now: float

    def scale(self, workers: int) -> float:
        """Return the scale of a number of workers."""
        if 0 < workers <= len(self.table.scales):
            return float(self.table.scales[workers - 1])
        return self.now


def elastic_batch(cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
    """Divide the devices among the jobs that want them, then the cores among the others."""
    on_devices = []
    on_cores = []
    for job in sorted(jobs, key=_serving_order):
        if job.sizes.worker.gpu > 0:
            on_devices.append(job)
        else:
            on_cores.append(job)
    targets = _divide_pool(on_devices, device_pool(cluster, on_devices))

    # The cores that jobs on devices will need, as far as the others can do without them.
    pool = core_pool(cluster, on_cores, 0)
    needed = _more_cores(on_devices, targets)
    taken = max(0, min(needed, _spare_cores(pool, on_cores)))
    return targets + _divide_pool(on_cores, pool_without(pool, taken))


def _serving_order(job: JobSnapshot) -> tuple[bool, int, float]:
    """Return the sort key of the order: running jobs first, then by priority, then by arrival."""
    return job.size is None, -job.request.priority, job.submitted_s


def _more_cores(jobs: Sequence[JobSnapshot], targets: Sequence[Target]) -> int:
    """Return thousandths of a core that the wanted sizes need beyond those that the jobs have."""
    jobs_by_key = {job.key: job for job in jobs}
    more = 0
    for target in targets:
        job = jobs_by_key[target.job]
        more += cores_of_workers(job, target.workers)
        if job.size:
            more -= cores_of_workers(job, job.size.workers)
    return more


def _spare_cores(pool: Pool, jobs: Sequence[JobSnapshot]) -> int:
    """Return thousandths of a core beyond those that running jobs need: others may take them."""
    needed = 0
    for job in jobs:
        if job.size:
            workers = job.size.workers if job.busy else job.least.workers
            needed += pool.cost(job, workers)
    return (pool.units - needed) * pool.unit


def _divide_pool(jobs: Sequence[JobSnapshot], pool: Pool) -> list[Target]:
    """Divide a pool among its jobs."""
    served = _job_choices(jobs, pool)
    workers = _best_workers(served, pool)
    is_worth_it = _is_worth_it(jobs, served, workers)
    targets = []
    for choices, count in zip(served, workers, strict=True):
        if choices.job.busy:
            continue
        if is_worth_it:
            targets.append(_scaled_target(choices, count))
        else:
            targets.append(_unchanged_target(choices, count))
    return targets


def _best_workers(served: Sequence[Choices], pool: Pool) -> list[int]:
    """Return the number of workers of each job, so that the sum of scales is largest."""
    options = []
    held = []
    for choices in served:
        size = choices.job.size
        options.append(choices.options)
        held.append(pool.cost(choices.job, size.workers) if size else 0)
    chosen = optimise(options, pool.units, held)

    workers = []
    for choices, at in zip(served, chosen, strict=True):
        workers.append(int(choices.workers[at]))
    return workers


def _is_worth_it(
    jobs: Sequence[JobSnapshot], served: Sequence[Choices], workers: Sequence[int]
) -> bool:
    """Return True if a job starts, or must make room, or if the sum rises by `KEEP`."""
    running = 0
    for job in jobs:
        running += job.size is not None
    if len(served) < running:
        return True

    new = []
    now = []
    for choices, count in zip(served, workers, strict=True):
        if choices.job.size is None:
            return True
        new.append(choices.scale(count))
        now.append(choices.now)
    return math.fsum(new) > (1 + KEEP) * math.fsum(now)


def _scaled_target(choices: Choices, workers: int) -> Target:
    """Return the target for so many workers, with the best batch for them."""
    scale = choices.scale(workers)
    batch = int(choices.table.batches[workers - 1])
    size = f"batch {batch} on {format_count(workers, 'worker')}"
    reason = f"{size} is {scale:.2f} times one worker: the largest sum over all jobs"
    faster = None
    if choices.now > 0:
        faster = scale / choices.now
    return Target(
        job=choices.job.key,
        ps=ps_beside(choices.job, workers),
        workers=workers,
        batch=batch,
        reason=reason,
        speedup=faster,
    )


def _unchanged_target(choices: Choices, workers: int) -> Target:
    """Return the target for the present size; `workers` would raise the sum by less than `KEEP`."""
    size = choices.job.size or Size(0, 0)
    other = f"{format_count(workers, 'worker')} would raise the sum over all jobs by less than"
    return Target(
        job=choices.job.key,
        ps=size.ps,
        workers=size.workers,
        batch=choices.job.batch,
        reason=f"no job waits, and {other} {KEEP:.0%}",
    )


# ---------------------------------------------------------------- a job's choices


class ScaleModel(msgspec.Struct, frozen=True):
    """The fitted timing of a job and its table, as bytes: float64 scales and int64 batches, for 1
    up to the most workers that it may have.
    """

    timing: Timing
    scales: bytes
    batches: bytes

    @property
    def table(self) -> Table:
        """Return the table as arrays."""
        batches = np.frombuffer(self.batches, dtype=np.int64)
        return Table(np.frombuffer(self.scales), batches)


def fit_scale_models(jobs: Sequence[JobSnapshot]) -> list[ScaleModel]:
    """Return the model of each job, all fitted in one pass."""
    models = []
    for lot in _candidate_batches(jobs):
        limits = [limits_of(job) for job in lot]
        timings = _fit_timings(lot, limits)
        terms = np.array([astuple(timing) for timing in timings]).T[:, :, None, None]
        tables = scale_tables(partial(rate_by, terms), limits)
        for timing, table in zip(timings, tables, strict=True):
            model = ScaleModel(timing, table.scales.tobytes(), table.batches.tobytes())
            models.append(model)
    return models


def _fit_timings(jobs: Sequence[JobSnapshot], all_limits: Sequence[Limits]) -> list[Timing]:
    """Return the timing of each job, fitted to its observations."""
    cases = []
    for job, limits in zip(jobs, all_limits, strict=True):
        speeds = []
        for seen in job.observed:
            each = seen.batch / seen.workers if limits.split else seen.batch
            speeds.append(Speed(each, seen.workers, seen.samples_per_second))
        cases.append((speeds, limits.reference))
    return fit_timings(cases)


def limits_of(job: JobSnapshot) -> Limits:
    """Return the limits of a job's devices and batch, by its request."""
    batch = job.request.batch
    has_ps = job.start.ps > 0
    has_first_batch = has_ps and not job.observed
    split = not has_ps or shares_batch(job.request)
    if split and has_first_batch:
        batch = Span(start=batch.start, min=batch.start, max=batch.start)
    return Limits(
        batch_min=batch.min,
        batch_max=batch.max,
        device_batch_max=job.request.device_batch_max or batch.max,
        devices_max=job.most.workers,
        devices_min=job.least.workers,
        split=split,
        first=batch.start if has_first_batch else None,
    )


class Candidate(NamedTuple):
    """A job, and the numbers of workers that it may have, ascending, with the cost of each."""

    job: JobSnapshot
    limits: Limits
    workers: Ints
    costs: Ints

    @property
    def is_in_flight(self) -> bool:
        """Return True while a decision on the job is not carried out yet."""
        return self.job.busy and self.job.size is not None


def _job_choices(jobs: Sequence[JobSnapshot], pool: Pool) -> list[Choices]:
    """Return the choices of the jobs that the pool is enough for, from the first on.

    A job without a feasible number of workers is skipped.
    """
    candidates = _scale_candidates(jobs, pool)
    least = [int(candidate.costs[0]) for candidate in candidates]
    served = candidates[: enough_for(least, pool.units)]
    choices = []
    for candidate, (table, now) in zip(served, _scale_tables(served), strict=True):
        workers = candidate.workers
        scales = np.array([now]) if candidate.is_in_flight else table.scales[workers - 1]
        # Extreme speeds give no finite scale, and a job without any is skipped.
        finite = np.isfinite(scales)
        if finite.any():
            options = Options(candidate.costs[finite], scales[finite])
            choices.append(Choices(candidate.job, workers[finite], options, table, now))
    return choices


def _scale_candidates(jobs: Sequence[JobSnapshot], pool: Pool) -> list[Candidate]:
    """Return the jobs that have a feasible number of workers."""
    candidates = []
    for lot in _candidate_batches(jobs):
        limits = [limits_of(job) for job in lot]
        feasible = feasible_devices(limits)
        costs = pool.costs(lot, feasible.shape[1])
        for n, job in enumerate(lot):
            if job.busy and job.size:
                # A job in flight has one choice: the size that was decided for it.
                decided = job.size.workers
                workers = np.array([decided])
                workers_cost = np.array([pool.cost(job, decided)])
            else:
                found = feasible[n].nonzero()[0]
                workers = found + 1
                workers_cost = costs[n, found]
            if len(workers):
                candidates.append(Candidate(job, limits[n], workers, workers_cost))
    return candidates


def _candidate_batches(jobs: Sequence[JobSnapshot]) -> Iterator[Sequence[JobSnapshot]]:
    """Yield the jobs in lots that are computed side by side."""
    most = max((job.most.workers for job in jobs), default=1)
    size = max(1, CELLS // most)
    for at in range(0, len(jobs), size):
        yield jobs[at : at + size]


def _scale_tables(candidates: Sequence[Candidate]) -> Iterator[tuple[Table, float]]:
    """Yield the table of each job, and the scale of the size that it has."""
    jobs = []
    limits = []
    for candidate in candidates:
        jobs.append(candidate.job)
        limits.append(candidate.limits)

    models = models_of(jobs, ScaleModel, fit_scale_models)
    if models:
        seconds = np.array([astuple(model.timing) for model in models]).T  # [terms, jobs]
        tables = [model.table for model in models]
        yield from zip(tables, _scales_now(jobs, limits, seconds), strict=True)


def _scales_now(
    jobs: Sequence[JobSnapshot], limits: Sequence[Limits], seconds: Floats
) -> list[float]:
    """Return the scale of the size that each job has, 0 while it has none.

    `seconds`: of each term of the timings [terms, jobs].
    """
    each, workers = _present_batches(jobs, limits)
    references = np.array([limit.reference for limit in limits])
    speeds = rate_by(seconds, each, np.maximum(workers, 1))
    scales = speeds / rate_by(seconds, references, 1)
    known = (workers > 0) & np.isfinite(scales)
    now: list[float] = np.where(known, scales, 0.0).tolist()
    return now


def _present_batches(
    jobs: Sequence[JobSnapshot], limits: Sequence[Limits]
) -> tuple[Floats, Floats]:
    """Return the examples on each worker and the number of workers [jobs]; 1 and 0 while a job has
    no size.
    """
    each = np.ones(len(jobs))
    workers = np.zeros(len(jobs))
    for n, job in enumerate(jobs):
        size = job.size
        if size is None or size.workers < 1 or job.batch < 1:
            continue
        workers[n] = size.workers
        each[n] = job.batch
        if limits[n].split:
            each[n] /= size.workers
    return each, workers
