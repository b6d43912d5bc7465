"""The sizes that a job may have, as a staircase: each step gains less speed for its cost than the
one before.

Configurations below the upper concave hull of speed over cost are never the best use of their cost:
a mixture of their neighbours would be faster. The hull, from the gang floor on, is a staircase:
each step gains less speed for its cost than the one before. On it the greedy rule, always the step
with most gain per cost, is optimal up to the last step that does not fit.

The cost of a size is its share of the cluster's scarcest resource (dominant share: Ghodsi et al.,
"Dominant Resource Fairness", NSDI 2011). The staircases of many jobs are built side
by side, in arrays [jobs, sizes].
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from services.allocator.models.speed import Array, Fit, Grid, grid_log_speeds, pad_rows
from services.allocator.placement.amounts import ROUNDING, amounts
from services.allocator.policies.contract import JobSnapshot, Size
from services.allocator.policies.weir.stale_gradients import sample_worths
from shared.messages import Resources, RoleResources, Span

SLOPE_TOLERANCE = 1.02
"""A step may gain up to this factor more for its cost than the one before it, so that straight
lines keep their points, and the rounding of a model does not decide.
"""
SAME_COST = 1e-12  # a smaller difference of cost counts as this one


class Config(NamedTuple):
    """One size and batch: its cores, GiB and devices, their share of the scarcest resource (its
    cost), and its speed in examples/s. As an array, a row of [..., 10].

    `spread_speed`: its speed if devices side by side are on several nodes although one could hold
    them; else nan. `scarce`: the index of the scarcest resource (cores, GiB, devices).
    """

    ps: int
    workers: int
    batch: int
    cpu: float
    memory_gib: float
    gpu: float
    cost: float
    speed: float
    spread_speed: float = math.nan
    scarce: int = 0

    @property
    def size(self) -> Size:
        return Size(self.ps, self.workers)

    @classmethod
    def of_row(cls, row: Sequence[float]) -> Config:
        ps, workers, batch, cpu, memory_gib, gpu, cost, speed, apart, scarce = row
        whole = int(ps), int(workers), int(batch)
        return cls(*whole, cpu, memory_gib, gpu, cost, speed, apart, int(scarce))


COLUMNS = len(Config._fields)
PS, WORKERS, BATCH, CPU, GIB, GPU, COST, SPEED, SPREAD_SPEED, SCARCE = range(COLUMNS)
"""Columns of a configuration's numbers in its row."""


def concave_hulls(cost: Array, speed: Array, base: Array) -> list[list[int]]:
    """Return for each job the points on the upper concave hull from its base on, by rising cost.

    `cost`, `speed`: [jobs, points], all finite; `base`: cost and speed [jobs, 2]; points that are
    no faster are left out.
    """
    order = np.argsort(
        cost - 1j * speed, axis=1, kind="stable"
    )  # by cost, of one cost the fastest first
    fastest = np.maximum.accumulate(np.take_along_axis(speed, order, axis=1), axis=1)
    fastest = np.concatenate([base[:, 1:], np.maximum(fastest, base[:, 1:])], axis=1)
    jobs, at = np.nonzero(np.diff(fastest, axis=1) > 0.0)
    rising = order[jobs, at]
    costs = cost[jobs, rising].tolist()
    speeds = speed[jobs, rising].tolist()
    points = rising.tolist()
    ends = np.searchsorted(jobs, np.arange(len(cost) + 1)).tolist()
    found = []
    for (cost_0, speed_0), start, end in zip(base.tolist(), ends, ends[1:], strict=False):
        kept = _hull_points([cost_0, *costs[start:end]], [speed_0, *speeds[start:end]])
        found.append([points[start + n - 1] for n in kept])
    return found


def _hull_points(cost: Sequence[float], speed: Sequence[float]) -> list[int]:
    """Return the indices of the points on the hull, without the first one (the base); both rise."""
    kept, slopes = [0], [math.inf]
    for n, (costs, gives) in enumerate(zip(cost[1:], speed[1:], strict=True), start=1):
        while True:
            last = kept[-1]
            more = costs - cost[last]
            slope = (gives - speed[last]) / (more if more > SAME_COST else SAME_COST)
            if slopes[-1] * SLOPE_TOLERANCE >= slope:
                break
            kept.pop()
            slopes.pop()
        kept.append(n)
        slopes.append(slope)
    return kept[1:]


EXACT_COUNTS = 8
"""Counts up to this are all tried, larger ones in steps of an eighth."""
SAME_COST_SHARE = 1e-6
"""Costs that differ by less, relatively, are the same."""
BATCHES = 9
"""Batches tried of a range, evenly spaced by factor, both ends among them."""
FEW = 4
"""Larger counts that are tried by exploration: the next, the largest, and some between."""
LARGEST_FACTOR = 2.0
"""The largest step, as a multiple of the largest observed size: models are wrong far away from it.
"""
FLOOR_COST = 1.05
"""A gang floor may cost this much: the cluster's total is rounded to two digits (`two_digits`), so
a job that costs more than 1 may still fit. Grants are bounded by the exact capacity (`auction.py`).
"""
SIDE_BY_SIDE = 1 << 12
"""The most sizes of all jobs in one pass, so that arrays stay small."""


def task_counts(span: Span, seen: int) -> tuple[int, ...]:
    """Return the numbers of tasks to try, within a job's bounds and reach; the least is the first.

    `seen`: the most that ever ran.
    """
    most = max(span.min, min(span.max, math.ceil(max(span.start, seen) * LARGEST_FACTOR)))
    found = []
    count = span.min
    while count < most:
        found.append(count)
        step = math.ceil(count / EXACT_COUNTS) if count > EXACT_COUNTS else 1
        count += step
    return (*found, most)


def even_counts(numbers: tuple[int, ...], together: int) -> tuple[int, ...]:
    """Return the least of `numbers` (of devices), and those within them that fill nodes without a
    rest.

    The rest of a node is of no use to jobs that want more devices side by side.
    """
    least = numbers[0]
    most = numbers[-1]
    found = {least}
    for count in range(1, together):
        if together % count == 0 and least <= count <= most:
            found.add(count)
    for count in range(together, most + 1, together):
        if count >= least:
            found.add(count)
    return tuple(sorted(found))


def batch_sizes(span: Span) -> tuple[int, ...]:
    """Return the batches of a range to try, the start always among them."""
    if span.max <= span.min:
        return (span.start,)
    spaced = np.geomspace(max(1, span.min), span.max, BATCHES).round().astype(int)
    return tuple(sorted({span.start, *spaced.tolist()}))


class SizeBounds(msgspec.Struct, frozen=True):
    """The properties of a job that its staircase depends on, in addition to its program's speeds.

    `noise`: gradient noise, in samples; `staleness`: updates by which each further worker makes
    gradients stale, 0 without a noise; `together`: workers that one node holds.
    """

    ps: Span
    workers: Span
    batch: Span
    sizes: RoleResources
    noise: float | None
    staleness: float
    together: int


Case = tuple[SizeBounds, Fit]
Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class Staircase(NamedTuple):
    """The sizes that a job may have.

    `steps` [steps, 10] as `staircase.Config`: the gang floor, then the hull; empty where even the
    floor is larger than the cluster. `fresh_top`: the size that is fastest if gradients are always
    fresh, with its speed by stale ones; None if gradients are not stale, or no noise is known.
    """

    steps: Array
    fresh_top: Config | None = None


NO_STEPS = Staircase(np.zeros((0, COLUMNS)))
NEARLY_FASTEST = 0.98
"""The cheapest size with this share of the speed of the fastest one counts as the fastest."""


def build_staircases(
    jobs: Sequence[tuple[JobSnapshot, Fit]], cluster_total: Resources, node: Resources
) -> list[Staircase]:
    """Return each job's staircase. `node`: the largest one, empty."""
    cases: dict[Case, list[int]] = {}
    for at, (job, fitted) in enumerate(jobs):
        cases.setdefault((size_bounds(job, node), fitted), []).append(at)
    found = [NO_STEPS] * len(jobs)
    for places, stairs in zip(cases.values(), _of_cases(list(cases), cluster_total), strict=True):
        for at in places:
            found[at] = stairs
    return found


def size_bounds(job: JobSnapshot, node: Resources) -> SizeBounds:
    """Return the job's bounds. Its batch may change only after its first report; that of all workers
    together with ps (`global-batch`) only with a measured noise, because it changes the result.
    """
    request = job.request
    batch = request.batch
    noise = job.noise
    if job.progress is None:
        batch = Span(start=batch.start, min=batch.start, max=batch.start)
    elif noise is None and request.makes_updates_together and request.ps.max > 0:
        now = job.batch or batch.start
        batch = Span(start=now, min=now, max=now)
    staleness = 0.0 if noise is None else job.worker_staleness
    together = held_by(node, job.sizes.worker)
    return SizeBounds(request.ps, request.workers, batch, job.sizes, noise, staleness, together)


def held_by(node: Resources, wants: Resources) -> int:
    """Return how many such tasks an empty node holds."""
    most = math.inf
    for has, want in zip(amounts(node), amounts(wants), strict=True):
        if want > 0:
            most = min(most, has / want)
    return 1 if most == math.inf else int(most + ROUNDING)


def _of_cases(cases: Sequence[Case], cluster_total: Resources) -> list[Staircase]:
    axes = [_axes(bounds, fitted) for bounds, fitted in cases]
    found = [NO_STEPS] * len(cases)
    for lot in _case_batches(axes):
        grid = Grid(
            pad_rows([axes[at][0] for at in lot]),
            pad_rows([axes[at][1] for at in lot]),
            pad_rows([axes[at][2] for at in lot]),
        )
        built = _build_staircases([cases[at] for at in lot], grid, cluster_total)
        for at, stairs in zip(lot, built, strict=True):
            found[at] = stairs
    return found


def _axes(bounds: SizeBounds, fitted: Fit) -> Axes:
    """Return every number of ps, of workers, and every batch to try."""
    ps_seen, workers_seen = fitted.rows[:, :2].max(axis=0, initial=0.0).astype(int).tolist()
    workers = task_counts(bounds.workers, workers_seen)
    if bounds.ps.max == 0 and bounds.together > 1:
        workers = even_counts(workers, bounds.together)
    return task_counts(bounds.ps, ps_seen), workers, batch_sizes(bounds.batch)


def larger_sizes(bounds: SizeBounds, fitted: Fit, has: tuple[int, int]) -> Array:
    """Return some sizes [sizes, (ps, workers, batch)] that have more of one role than the job, and
    no less of the other. `has`: its ps and workers.
    """
    ps, workers, batch = _axes(bounds, fitted)
    if ps[-1] <= has[0] and workers[-1] <= has[1]:
        return np.zeros((0, 3))
    more_ps = _thin_out([count for count in ps if count >= has[0]])
    more_workers = _thin_out([count for count in workers if count >= has[1]])
    axes = [np.array([axis], dtype=np.float64) for axis in (more_ps, more_workers, batch)]
    sizes = whole_passes(Grid(*axes).sizes(), [(bounds, fitted)])[0]
    larger = (sizes[:, 0] > has[0]) | (sizes[:, 1] > has[1])
    return np.unique(sizes[larger], axis=0)


def _thin_out(numbers: Sequence[int]) -> Sequence[int]:
    """Return at most `FEW` of the numbers, evenly spaced, both ends among them."""
    if len(numbers) <= FEW:
        return numbers
    last = len(numbers) - 1
    return [numbers[round(at * last / (FEW - 1))] for at in range(FEW)]


def _case_batches(axes: Sequence[Axes]) -> Iterator[list[int]]:
    """Yield the indices of the jobs of each pass: those with axes of similar lengths, because
    shorter ones are filled.
    """
    shapes = [(len(ps), len(workers), len(batch)) for ps, workers, batch in axes]
    lot: list[int] = []
    widest = (0, 0, 0)
    for at in sorted(range(len(shapes)), key=shapes.__getitem__):
        shape = shapes[at]
        wider = (
            max(widest[0], shape[0]),
            max(widest[1], shape[1]),
            max(widest[2], shape[2]),
        )
        if lot and (len(lot) + 1) * math.prod(wider) > SIDE_BY_SIDE:
            yield lot
            lot = []
            wider = shape
        lot.append(at)
        widest = wider
    if lot:
        yield lot


def _build_staircases(
    cases: Sequence[Case], grid: Grid, cluster_total: Resources
) -> list[Staircase]:
    """Return the staircases of a lot; the first sizes of a grid are the gang floor with each
    batch.
    """
    sizes = whole_passes(grid.sizes(), cases)
    bounds = [case[0] for case in cases]
    takes = size_amounts(sizes, bounds)
    # Shares of each resource [3, jobs, sizes]; the largest is the cost [jobs, sizes].
    shares = _cost_shares(takes, cluster_total)
    cost = shares.max(axis=0)
    speed, spread_speed = _grid_speeds(cases, grid, sizes)
    number_of_floors = grid.batches.shape[1]
    highest_cost = np.full(cost.shape[1], 1.0 + 1e-9)
    highest_cost[:number_of_floors] = FLOOR_COST
    is_impossible = (cost > highest_cost) | (cost <= 0.0) | ~np.isfinite(speed)
    speed[is_impossible] = 0.0
    fresh_tops = _fresh_tops(cases, sizes, cost, speed)
    # The floor with its fastest batch is the first step.
    jobs = np.arange(len(cases))
    floors = speed[:, :number_of_floors].argmax(axis=1)
    base = np.stack([cost[jobs, floors], speed[jobs, floors]], axis=1)
    speed_above = np.where(cost > base[:, :1], speed, 0.0)
    above = concave_hulls(cost, speed_above, base)
    # All numbers of each size, in the order of `staircase.Config` [jobs, sizes, 10].
    scarce = shares.argmax(axis=0).astype(np.float64)
    parts = [*np.moveaxis(sizes, 2, 0), *takes, cost, speed, spread_speed, scarce]
    table = np.stack(parts, axis=2)
    found = []
    for at, (floor, steps) in enumerate(zip(floors.tolist(), above, strict=True)):
        if not base[at, 1] > 0.0:
            found.append(NO_STEPS)
            continue
        fresh_top = None
        if at in fresh_tops:
            fresh_top = Config.of_row(table[at, fresh_tops[at]].tolist())
        found.append(Staircase(table[at, [floor, *steps]], fresh_top))
    return found


def _fresh_tops(cases: Sequence[Case], sizes: Array, cost: Array, speed: Array) -> dict[int, int]:
    """Return, by the job's index, the size that is fastest if gradients are always fresh; of nearly
    equal ones the cheapest. Jobs without stale gradients are left out.

    `cost`, `speed` [jobs, sizes]: `speed` counts each example with its worth.
    """
    stale = [at for at, (bounds, _) in enumerate(cases) if bounds.staleness > 0]
    if not stale:
        return {}
    bounds = [cases[at][0] for at in stale]
    fresh = [replace(one, staleness=0.0) for one in bounds]
    at_first = _worths(sizes[stale], fresh) / _worths(sizes[stale], bounds)
    fresh_speed = speed[stale] * at_first
    fastest = fresh_speed >= NEARLY_FASTEST * fresh_speed.max(axis=1, keepdims=True)
    cheapest = np.where(fastest, cost[stale], math.inf).argmin(axis=1)
    return dict(zip(stale, cheapest.tolist(), strict=True))


def whole_passes(sizes: Array, cases: Sequence[Case]) -> Array:
    """Return the sizes, with the batches of devices side by side changed to whole passes: a pass
    that is not full takes as long as a full one. If no such batch is within a job's bounds, it
    stays as it is.

    `sizes`: ps, workers, batch [jobs, sizes, 3].
    """
    alone = sizes[..., 0] == 0
    if not alone.any():
        return sizes
    device = np.array([fitted.device for _, fitted in cases])[:, None]
    spans = np.array(
        [(bounds.batch.min, bounds.batch.max) for bounds, _ in cases], dtype=np.float64
    )
    at_once = sizes[..., 1] * device
    several = alone & (sizes[..., 2] > at_once)
    once = at_once[several]
    said = sizes[..., 2][several]
    least, most = np.broadcast_to(spans[:, None], (*sizes.shape[:2], 2))[several].T
    # The number of passes nearest to the batch, within its bounds.
    fewest = np.ceil(least / once)
    largest = np.floor(most / once)
    passes = np.clip(np.round(said / once), fewest, largest)
    sizes[several, 2] = np.where(fewest <= largest, passes * once, said)
    return sizes


def _grid_speeds(cases: Sequence[Case], grid: Grid, sizes: Array) -> tuple[Array, Array]:
    """Return speeds with workers on as few nodes as possible; and on several nodes, for devices
    side by side that one node could hold (nan for all others).
    """
    bounds = [case[0] for case in cases]
    fits = [case[1] for case in cases]
    worths = _worths(sizes, bounds)
    together = [one.together for one in bounds]
    log_speeds = grid_log_speeds(fits, grid, sizes, together)
    spread_speeds = np.full(sizes.shape[:2], math.nan)
    fits_one_node = sizes[..., 1] <= np.array(together)[:, None]
    side_by_side = (sizes[..., 0] == 0) & (sizes[..., 1] > 1) & fits_one_node
    if side_by_side.any():
        spread = np.exp(grid_log_speeds(fits, grid, sizes, [0] * len(fits))) * worths
        spread_speeds[side_by_side] = spread[side_by_side]
    return np.exp(log_speeds) * worths, spread_speeds


def faster_smaller_step(steps: Array, now: Config) -> Config | None:
    """Return the best step that costs less than the present size and is as fast; None: there is
    none, or the present size is a step already.
    """
    lower, is_step = _place_in(steps, now)
    if is_step or not lower or steps[lower - 1, SPEED] < now.speed:
        return None
    return Config.of_row(steps[lower - 1].tolist())


def with_present_config(steps: Array, now: Config) -> Array:
    """Add the present size of the job to its staircase, so that the job can keep it. Nothing is
    added where a smaller size would be as fast, or where it is a step already.
    """
    lower, is_step = _place_in(steps, now)
    if is_step or not lower or steps[lower - 1, SPEED] >= now.speed:
        return steps
    above = steps[lower:]
    faster = above[above[:, SPEED] > now.speed]
    return np.concatenate([steps[:lower], [now], faster])


def _place_in(steps: Array, now: Config) -> tuple[int, bool]:
    """Return the number of steps that cost less than a size, and True if one costs the same."""
    costs = steps[:, COST].tolist()
    lower = bisect_left(costs, now.cost * (1 - SAME_COST_SHARE))
    return lower, lower < bisect_right(costs, now.cost * (1 + SAME_COST_SHARE))


def size_amounts(sizes: Array, bounds: Sequence[SizeBounds]) -> Array:
    """Return cores, GiB and devices of whole jobs [3, jobs, sizes]."""
    by_job = []
    for one in bounds:
        roles = one.sizes
        by_job.append((amounts(roles.chief), amounts(roles.ps), amounts(roles.worker)))
    of_task = np.array(by_job, dtype=float).reshape(-1, 3, 3)  # [jobs, roles, amounts]
    chief, ps, worker = of_task.transpose(1, 2, 0)[..., None]  # each [amounts, jobs, 1]
    return np.asarray(chief + sizes[..., 0] * ps + sizes[..., 1] * worker)


def _cost_shares(takes: Array, cluster_total: Resources) -> Array:
    """Return shares of each resource of the cluster, shaped as `takes`."""
    total = np.array(amounts(cluster_total))[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # may be infinite
        shares = np.where(takes > 0, takes / total, 0.0)
    return np.asarray(shares)


def _worths(sizes: Array, bounds: Sequence[SizeBounds]) -> Array | float:
    """Return the worth of a sample at each size [jobs, sizes]; 1 if no noise is known."""
    if all(one.noise is None for one in bounds):
        return 1.0
    starts = [one.batch.start for one in bounds]
    noises = [one.noise for one in bounds]
    return sample_worths(sizes, starts, noises, [one.staleness for one in bounds])
