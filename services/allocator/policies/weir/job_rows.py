"""The numbers of one job for the policy, as a row.

The state of the allocator keeps a row for each job. A pass puts the rows side by side and decides
on arrays; it looks at no model and at no other part of a job. `update_rows` makes a row again when
its job, its program's model or the cluster changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from services.allocator.failures import compute_each
from services.allocator.models.fitting import SPEEDS
from services.allocator.models.programs import (
    ProgramKey,
    Programs,
    program_fits,
    program_key,
    update_programs,
)
from services.allocator.models.search import expected_gain
from services.allocator.models.speed import Array, Fit, Points
from services.allocator.placement.amounts import add, add_multiple, amounts, fits, total_of
from services.allocator.placement.placers import worker_node_count
from services.allocator.policies.contract import JobSnapshot, Size, priority_weight
from services.allocator.policies.weir.staircase import (
    COLUMNS,
    COST,
    SPEED,
    Config,
    SizeBounds,
    Staircase,
    build_staircases,
    faster_smaller_step,
    held_by,
    larger_sizes,
    size_amounts,
    size_bounds,
    with_present_config,
)
from services.allocator.policies.weir.stale_gradients import (
    StaleLimit,
    growth_limit,
    sample_worths,
    shrink_limit,
)
from services.allocator.state.tables import Tables
from shared.messages import Resources

SPARE = 1 / 32
"""A job that grows leaves this share of the cluster, in whole workers, for the next job. So a short
job need not make a large one pause when it starts, and again when it has ended.
"""


class Numbers(NamedTuple):
    """One job's numbers; side by side, columns [jobs, 26]. nan: not known.

    `waits`, `busy`, `heard`: 0 or 1; `heard`: the speed at its size has been reported. `best`:
    examples/s for the whole cluster's cost, at the best use. `speed`, `cost`: at its present size.
    `left`: examples that remain; `epochs`: the requested ones; `epoch`: examples of one; `kin_*`:
    from the program's jobs that are over. `fills`: 1 if the cluster has no room for another task of
    the job, even without any other job. `spare_*`: the amounts that it leaves free when it grows;
    `held_*`: the amounts of all its tasks.
    """

    waits: float
    busy: float
    asked_s: float
    since_s: float
    samples: float
    weight: float
    best: float
    speed: float
    cost: float
    pause_s: float
    left: float
    epochs: float
    epoch: float
    kin_epoch: float
    kin_pause_s: float
    heard: float
    fills: float
    ps: float
    workers: float
    batch: float
    spare_cpu: float
    spare_gib: float
    spare_gpu: float
    held_cpu: float
    held_gib: float
    held_gpu: float


class JobRow(msgspec.Struct, frozen=True, eq=False):
    """One job. `there`: the resources of the cluster (costs are shares of them); `node`: its
    largest node, empty.

    Bytes are float64: `numbers` as `Numbers`, `steps` the staircase [steps, 10] as
    `staircase.Config`, `untried` [sizes, 10] larger sizes by falling expected speed. `limit`: the
    size that stale gradients keep it from; None: there is none.
    """

    there: Resources
    node: Resources
    fitted: Fit
    program: ProgramKey
    digest: str
    numbers: bytes
    steps: bytes
    untried: bytes
    limit: StaleLimit | None = None


def fit_rows(
    jobs: Sequence[JobSnapshot], cluster_total: Resources, node: Resources
) -> list[JobRow]:
    """Make rows of jobs, with models fitted to the reports of these jobs."""
    fits = program_fits(jobs)
    return rows_of(jobs, [fits[program_key(job)] for job in jobs], cluster_total, node)


def rows_of(
    jobs: Sequence[JobSnapshot], fits: Sequence[Fit], cluster_total: Resources, node: Resources
) -> list[JobRow]:
    """Make the rows of jobs, with the model of each one's program."""
    held = [held_by_tasks(job) for job in jobs]
    built = build_staircases(list(zip(jobs, fits, strict=True)), cluster_total, node)
    speeds = _present_speeds(jobs, fits)
    stairs = []
    limits = []
    numbers = []
    for at, job in enumerate(jobs):
        now = _present_config(job, speeds.get(at), cluster_total, held[at])
        steps, limit = _steps_and_limit(job, built[at], now)
        stairs.append(steps)
        limits.append(limit)
        numbers.append(_job_numbers(job, steps, now, cluster_total, held[at]))
    untried = _untried_sizes(jobs, fits, numbers, cluster_total, node)
    rows = []
    for at, job in enumerate(jobs):
        row = JobRow(
            there=cluster_total,
            node=node,
            fitted=fits[at],
            program=program_key(job),
            digest=job.request.program_version,
            numbers=np.array(numbers[at]).tobytes(),
            steps=stairs[at].tobytes(),
            untried=untried[at].tobytes(),
            limit=limits[at],
        )
        rows.append(row)
    return rows


JUST_FASTER = 1 + 1e-9
"""A size that a job keeps although a smaller one is as fast counts as this much faster."""


def _steps_and_limit(
    job: JobSnapshot, stairs: Staircase, now: Config | None
) -> tuple[Array, StaleLimit | None]:
    """Return the steps of a job, its present size among them if it may keep it, and the limit that
    stale gradients set to its size.
    """
    steps = stairs.steps
    if now is None:
        return steps, None
    top = stairs.fresh_top
    if top is None:
        return with_present_config(steps, now), None
    # A job beyond its best size keeps it if the gain is not worth a pause.
    best = faster_smaller_step(steps, now)
    if best is not None and best.batch == now.batch:
        limit = shrink_limit(job, now.speed, best.size, best.speed)
        if limit is not None:
            now = now._replace(speed=best.speed * JUST_FASTER)
        return with_present_config(steps, now), limit
    limit = None
    if top.batch == now.batch and top.cost > now.cost:
        limit = growth_limit(job, now.speed, top.size, top.speed)
    return with_present_config(steps, now), limit


def _job_numbers(
    job: JobSnapshot, steps: Array, now: Config | None, cluster_total: Resources, held: Resources
) -> Numbers:
    progress = job.progress
    request = job.request
    size = job.size or Size(0, 0)
    left = epoch = math.nan
    if progress is not None and progress.total_samples > 0:
        left = float(max(1, progress.total_samples - progress.samples))
        epoch = progress.total_samples / request.epochs
    kin_epoch = kin_pause_s = math.nan
    if job.history is not None:
        kin_epoch = job.history.epoch_samples or math.nan
        if job.history.pause_s is not None:
            kin_pause_s = job.history.pause_s
    best = float((steps[:, SPEED] / steps[:, COST]).max()) if len(steps) else 0.0
    spare_workers = math.floor(SPARE * held_by(cluster_total, job.sizes.worker))
    spare = [spare_workers * amount for amount in amounts(job.sizes.worker)]
    return Numbers(
        waits=job.size is None,
        busy=job.busy,
        asked_s=job.submitted_s,
        since_s=job.since_s,
        samples=progress.samples if progress else 0,
        weight=priority_weight(request.priority),
        best=best,
        speed=now.speed if now else 0.0,
        cost=now.cost if now else 0.0,
        pause_s=math.nan if job.pause_s is None else job.pause_s,
        left=left,
        epochs=request.epochs,
        epoch=epoch,
        kin_epoch=kin_epoch,
        kin_pause_s=kin_pause_s,
        heard=_is_heard(job),
        fills=_fills_cluster(job, cluster_total, held),
        ps=size.ps,
        workers=size.workers,
        batch=job.batch,
        spare_cpu=spare[0],
        spare_gib=spare[1],
        spare_gpu=spare[2],
        held_cpu=held.cpu,
        held_gib=held.memory_gib,
        held_gpu=held.gpu,
    )


def _is_heard(job: JobSnapshot) -> bool:
    if job.size is None:
        return False
    size = (job.size.ps, job.size.workers, job.batch)
    return any((seen.ps, seen.workers, seen.batch) == size for seen in job.observed)


def _fills_cluster(job: JobSnapshot, cluster_total: Resources, held: Resources) -> bool:
    size = job.size or job.least
    more_ps = job.request.ps.max > size.ps
    more_workers = job.request.workers.max > size.workers
    if not more_ps and not more_workers:
        return False
    if more_ps and fits(add(held, job.sizes.ps), cluster_total):
        return False
    return not (more_workers and fits(add(held, job.sizes.worker), cluster_total))


# ---------------------------------------------------------------- sizes that need not be steps


def held_by_tasks(job: JobSnapshot) -> Resources:
    """Return the resources of all tasks of a job."""
    return total_of([task.resources for task in job.tasks])


def _present_config(
    job: JobSnapshot, speed: float | None, cluster_total: Resources, held: Resources
) -> Config | None:
    """Return the present size of a job, if it has workers. `speed`: examples/s."""
    if job.size is None or speed is None:
        return None
    worth = job.worth(job.batch, job.size)
    return config_with_cost(job.size, job.batch, held, cluster_total, worth * speed)


def _present_speeds(jobs: Sequence[JobSnapshot], fits: Sequence[Fit]) -> dict[int, float]:
    """Return the speed (examples/s) of each job with workers, by its place: as it was measured, or
    else by its model.
    """
    found = {}
    unknown = []
    sizes = []
    for at, job in enumerate(jobs):
        if job.size is None or job.size.workers < 1:
            continue
        speed = measured_speed(job, job.size)
        if speed is not None:
            found[at] = speed
        else:
            unknown.append(at)
            sizes.append((job.size.ps, job.size.workers, job.batch))
    speeds = model_speeds([fits[at] for at in unknown], sizes)
    found.update(zip(unknown, speeds, strict=True))
    return found


def model_speeds(fits: Sequence[Fit], sizes: Sequence[tuple[int, int, int]]) -> list[float]:
    """Return the speed (examples/s) at each size (ps, workers, batch) by its own model, with the
    usual cores and traffic. Equal models compute all their sizes at once.
    """
    places: dict[Fit, list[int]] = {}
    for at, fitted in enumerate(fits):
        places.setdefault(fitted, []).append(at)
    found = [0.0] * len(fits)
    for fitted, rows_of_fit in places.items():
        rows = np.empty((len(rows_of_fit), 6))
        rows[:, :3] = [sizes[at] for at in rows_of_fit]
        rows[:, 3:] = fitted.usual[1:]
        speeds = np.exp(fitted.mean(Points(rows, fitted.device)))
        for at, speed in zip(rows_of_fit, speeds.tolist(), strict=True):
            found[at] = speed
    return found


def measured_speed(job: JobSnapshot, size: Size) -> float | None:
    """Return the speed (examples/s) that was observed at a size, on as many nodes as the job has
    now.

    None: no believable speed was observed.
    """
    speed = 0.0
    nodes = worker_node_count(job.tasks)
    for seen in job.observed:
        same = (seen.ps, seen.workers, seen.batch) == (size.ps, size.workers, job.batch)
        if same and seen.nodes in (None, nodes):
            speed = seen.samples_per_second
    return speed if SPEEDS[0] <= speed <= SPEEDS[1] else None


def config_of(
    job: JobSnapshot, row: JobRow, size: Size, batch: int, speed: float | None = None
) -> Config:
    """Return a size that need not be on the job's staircase. `speed`: None: that of its model."""
    sizes = job.sizes
    takes = add_multiple(add_multiple(sizes.chief, sizes.ps, size.ps), sizes.worker, size.workers)
    if speed is None:
        speed = job.worth(batch, size) * row.fitted.speed(size.ps, size.workers, batch)
    return config_with_cost(size, batch, takes, row.there, speed)


def config_with_cost(
    size: Size, batch: int, takes: Resources, cluster_total: Resources, speed: float
) -> Config:
    """Return a size with its cost: the largest of its shares of the cluster's resources."""
    shares = []
    for mine, total in zip(amounts(takes), amounts(cluster_total), strict=True):
        shares.append(mine / total if total > 0 else 0.0)
    cost = max(shares)
    return Config(
        *(size.ps, size.workers, batch),
        *amounts(takes),
        cost,
        speed,
        scarce=shares.index(cost),
    )


# ---------------------------------------------------------------- sizes worth a try


def _untried_sizes(
    jobs: Sequence[JobSnapshot],
    fits: Sequence[Fit],
    numbers: Sequence[Numbers],
    cluster_total: Resources,
    node: Resources,
) -> list[Array]:
    """Return larger sizes of each job that no job of its program has tried.

    Arrays [sizes, 10] as `staircase.Config`, by falling expected speed, which assumes that a slower
    size is given up again. Empty for a job that does not train.
    """
    found = [np.zeros((0, COLUMNS))] * len(jobs)
    together: dict[Fit, list[int]] = {}
    for at, fitted in enumerate(fits):
        if numbers[at].speed:
            together.setdefault(fitted, []).append(at)
    for fitted, places in together.items():
        all_bounds = [size_bounds(jobs[at], node) for at in places]
        sizes = []
        for at, bounds in zip(places, all_bounds, strict=True):
            sizes.append(_new_larger_sizes(numbers[at], bounds, fitted))
        mean, deviation = _predict_log_speeds(fitted, sizes, all_bounds)
        ends = np.cumsum([len(job_sizes) for job_sizes in sizes]).tolist()
        for at, bounds, job_sizes, end in zip(places, all_bounds, sizes, ends, strict=True):
            if not len(job_sizes):
                continue
            part = slice(end - len(job_sizes), end)
            now = numbers[at].speed
            speeds = _expected_speeds(bounds, now, job_sizes, mean[part], deviation[part])
            found[at] = _by_falling_speed(job_sizes, speeds, bounds, now, cluster_total)
    return found


def _new_larger_sizes(numbers: Numbers, bounds: SizeBounds, fitted: Fit) -> Array:
    """Return larger sizes of a job that no job of its program has tried."""
    larger = larger_sizes(bounds, fitted, (int(numbers.ps), int(numbers.workers)))
    observed = {tuple(row) for row in fitted.rows[:, :3].tolist()}
    is_new = [tuple(row) not in observed for row in larger.tolist()]
    return larger[is_new]


def _predict_log_speeds(
    fitted: Fit, sizes: Sequence[Array], all_bounds: Sequence[SizeBounds]
) -> tuple[Array, Array]:
    """Return the mean of log speed, and its standard deviation, of the sizes of several jobs of one
    program, one job after the other [all sizes].
    """
    every = np.concatenate(sizes)
    _, ps_cpu, worker_cpu, remote = fitted.usual
    counts = [len(mine) for mine in sizes]
    on_one_node = np.repeat([one.together for one in all_bounds], counts)
    rows = np.empty((len(every), 6))
    rows[:, :3] = every
    rows[:, 3] = ps_cpu
    rows[:, 4] = worker_cpu
    rows[:, 5] = np.where(every[:, 0] > 0, remote, every[:, 1] > on_one_node)
    return fitted.predict(Points(rows, fitted.device))


def _expected_speeds(
    bounds: SizeBounds, speed: float, sizes: Array, mean: Array, deviation: Array
) -> Array:
    """Return expected speeds [sizes], each sample weighted with its worth."""
    first = bounds.batch.start
    worths = sample_worths(sizes[None], [first], [bounds.noise], [bounds.staleness])[0]
    gains = expected_gain(mean + np.log(worths), deviation, math.log(speed))
    return np.asarray(speed * np.exp(gains))


def _by_falling_speed(
    sizes: Array, speeds: Array, bounds: SizeBounds, now: float, cluster_total: Resources
) -> Array:
    """Return the sizes with their amounts and costs [sizes, 10]. `now`: the present speed."""
    takes = size_amounts(sizes[None], [bounds])[:, 0].T
    total = np.array(amounts(cluster_total))
    shares = np.divide(takes, total, out=np.zeros_like(takes), where=total > 0)
    # If one node could hold these devices, they gain nothing on several nodes.
    gathers = (sizes[:, 0] == 0) & (sizes[:, 1] > 1) & (sizes[:, 1] <= bounds.together)
    apart = np.where(gathers, now, math.nan)
    columns = [*sizes.T, *takes.T, shares.max(axis=1), speeds, apart, shares.argmax(axis=1)]
    order = np.argsort(-speeds, kind="stable")
    return np.stack(columns, axis=1)[order]


def update_rows(
    before: Tables, tables: Tables, changed: Sequence[str], gone: Collection[str]
) -> Tables:
    """Return the tables with the programs and rows of this policy's jobs as they are now.

    `changed`: its jobs that came or changed; `gone`: jobs that are no longer its own. `before`: the
    tables of the last update.
    """
    is_first = not before.jobs
    same_cluster = (before.total, before.largest) == (tables.total, tables.largest)
    if same_cluster and not (changed or gone or is_first):
        return tables
    programs, refitted = update_programs(
        tables.programs, tables.jobs, tables.ranks, changed, gone, is_first
    )
    stale = set(changed)
    for key, name in programs.of_job.items():
        if not same_cluster or name in refitted:
            stale.add(key)
    ready = [key for key in sorted(stale) if programs.of_job[key] in programs.fits]
    make_rows = partial(_rows_of_keys, programs=programs, tables=tables)
    rows = dict(zip(ready, compute_each(make_rows, ready), strict=True))
    # The policy fails with a job that has no row, and with no other job.
    jobs = dict(tables.jobs)
    for key in stale:
        jobs[key] = replace(jobs[key], model=rows.get(key))
    return replace(tables, jobs=jobs, programs=programs)


def _rows_of_keys(keys: Sequence[str], programs: Programs, tables: Tables) -> list[JobRow]:
    """Return the rows of these jobs, by the models of their programs."""
    jobs = [tables.jobs[key] for key in keys]
    fits = [programs.fits[programs.of_job[key]] for key in keys]
    return rows_of(jobs, fits, tables.total, tables.largest)
