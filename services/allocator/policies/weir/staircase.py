"""What a job could be: the sizes it may have, what each takes, and how fast it would go.

The cost of a size is its share of the cluster's scarcest resource (dominant share: Ghodsi et al., "Dominant Resource
Fairness", NSDI 2011). What is not on the concave hull of speed over cost is never the best use of what it costs; the
rest, from the gang floor on, is a staircase on which each step gains less for its cost than the one before (`hull.py`).
All jobs' staircases are built side by side.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from operator import attrgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.kept import Kept, KeptEach
from services.allocator.models.speed import Array, Fit
from services.allocator.placing.amounts import ROUNDING
from services.allocator.placing.placement import ROLES
from services.allocator.policies.contract import JobSeen, worth
from services.allocator.policies.weir.grid import Grid, filled, log_speeds
from services.allocator.policies.weir.hull import Config, hulls
from shared.messages import Resources, RoleResources, Span

KEPT = 4096
CLUSTERS_KEPT = 16
FINE = 8
"""Counts up to this are all tried, larger ones in steps of a ninth."""
ALIKE = 1e-6
"""Costs that differ by less, relatively, are the same."""
BATCHES = 9
"""Batches tried of a range, evenly spaced by factor, both ends among them."""
FEW = 4
"""Larger counts that are thought of where one is tried: the next, the largest, and some between."""
REACH = 2.0
"""No step to more than so many times what was ever observed: models err far away."""
SIDE_BY_SIDE = 1 << 12
"""Sizes, of all jobs together, that are looked at in one pass: so that arrays stay small."""


@lru_cache(KEPT)
def counts(span: Span, seen: int) -> tuple[int, ...]:
    """Numbers of tasks to try, within a job's bounds and reach; the least is the first. `seen`: most that ever ran."""
    most = max(span.min, min(span.max, math.ceil(max(span.start, seen) * REACH)))
    found, n = [], span.min
    while n < most:
        found.append(n)
        n = max(n + 1, math.ceil(n * (1 + 1 / FINE)) if n > FINE else n + 1)
    return (*found, most)


@lru_cache(KEPT)
def even(numbers: tuple[int, ...], together: int) -> tuple[int, ...]:
    """Of numbers of devices those that fill nodes without a rest: else what is left of a node is of use to nobody who
    wants more of them side by side.
    """
    least, most = numbers[0], numbers[-1]
    parts = [n for n in range(1, together) if together % n == 0]
    return tuple(sorted({least, *(n for n in [*parts, *range(together, most + 1, together)] if least <= n <= most)}))


@lru_cache(KEPT)
def batches(span: Span) -> tuple[int, ...]:
    """A range's batches, the start always."""
    if span.max <= span.min:
        return (span.start,)
    spaced = np.geomspace(max(1, span.min), span.max, BATCHES)
    return tuple(sorted({span.start, *(round(b) for b in spaced.tolist())}))


class Asked(msgspec.Struct, frozen=True, cache_hash=True):
    """All of a job that its staircase depends on, beside its program's speeds. `noise`: gradient noise, in samples;
    `together`: workers that one node holds.
    """

    ps: Span
    workers: Span
    batch: Span
    sizes: RoleResources
    noise: float | None
    together: int


Case = tuple[Asked, Fit]
Staircase = tuple[Config, ...]


def staircases(jobs: Sequence[tuple[JobSeen, Fit]], there: Resources, node: Resources) -> list[Staircase]:
    """Of each job the gang floor, and from there on the hull; empty where even the floor is larger than the cluster.

    `node`: the largest one, empty.
    """
    return _in_cluster(there)([(_asked(job, node), fitted) for job, fitted in jobs])


def _asked(job: JobSeen, node: Resources) -> Asked:
    asked, start = job.request, job.request.batch.start
    batch = asked.batch if job.progress else Span(start=start, min=start, max=start)
    return Asked(asked.ps, asked.workers, batch, job.sizes, job.noise, held_by(node, job.sizes.worker))


@lru_cache(KEPT)
def held_by(node: Resources, wants: Resources) -> int:
    """How many such tasks an empty node holds."""
    pairs = ((node.cpu, wants.cpu), (node.memory_gib, wants.memory_gib), (node.gpu, wants.gpu))
    return int(min((has / want for has, want in pairs if want > 0), default=1.0) + ROUNDING)


@lru_cache(CLUSTERS_KEPT)
def _in_cluster(there: Resources) -> KeptEach[Case, Staircase]:
    return KeptEach(partial(_all_built, there=there), lambda case: case, KEPT)


def _all_built(cases: Sequence[Case], there: Resources) -> list[Staircase]:
    axes = [_axes(asked, fitted) for asked, fitted in cases]
    found: dict[int, Staircase] = {}
    for lot in _lots([tuple(map(len, axis)) for axis in axes]):
        grid = Grid(*map(filled, zip(*(axes[n] for n in lot), strict=True)))
        found.update(zip(lot, _built([cases[n] for n in lot], grid, there), strict=True))
    return [found[n] for n in range(len(cases))]


def _axes(asked: Asked, fitted: Fit) -> tuple[tuple[int, ...], ...]:
    """Every number of ps, of workers, and every batch to think of."""
    ps_seen, workers_seen = _most_seen(fitted)
    ps, workers = counts(asked.ps, ps_seen), counts(asked.workers, workers_seen)
    by_node = asked.ps.max == 0 and asked.together > 1
    return ps, even(workers, asked.together) if by_node else workers, batches(asked.batch)


def larger(job: JobSeen, fitted: Fit, node: Resources) -> Array:
    """Some of the sizes [sizes, (ps, workers, batch)] that have more of one role than the job, and no less of the
    other.
    """
    asked, has = _asked(job, node), job.size or job.least
    ps, workers, batch = _axes(asked, fitted)
    axes = (_few([n for n in ps if n >= has.ps]), _few([n for n in workers if n >= has.workers]), batch)
    grid = Grid(*(np.array([axis], dtype=np.float64) for axis in axes))
    sizes = np.unique(whole_passes(grid.sizes(), [(asked, fitted)])[0], axis=0)
    return np.asarray(sizes[(sizes[:, :2] > (has.ps, has.workers)).any(axis=1)])


def _few(numbers: Sequence[int]) -> Sequence[int]:
    """Evenly spaced, both ends among them."""
    if len(numbers) <= FEW:
        return numbers
    return [numbers[round(n * (len(numbers) - 1) / (FEW - 1))] for n in range(FEW)]


_most_seen: Kept[Fit, list[int]] = Kept(
    lambda fitted: [int(most) for most in fitted.observed.rows[:, :2].max(axis=0, initial=0.0)], KEPT
)


def _lots(shapes: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
    """Which jobs are looked at in one pass: alike ones, for shorter axes are filled up."""
    lot: list[int] = []
    widest: tuple[int, ...] = (0, 0, 0)
    for n in sorted(range(len(shapes)), key=shapes.__getitem__):
        wider = tuple(map(max, widest, shapes[n]))
        if lot and (len(lot) + 1) * math.prod(wider) > SIDE_BY_SIDE:
            yield lot
            lot, wider = [], shapes[n]
        lot.append(n)
        widest = wider
    yield lot


def _built(cases: Sequence[Case], grid: Grid, there: Resources) -> Iterator[Staircase]:
    """Arrays are [jobs, sizes]; the first sizes are the gang floor's, with each batch."""
    sizes, asked = whole_passes(grid.sizes(), cases), [asked for asked, _ in cases]
    takes = taken(sizes, asked)
    shares = _shares(takes, there)
    cost = shares.max(axis=0)
    speed, apart = _speeds(cases, grid, sizes)
    speed[(cost > 1.0 + 1e-9) | (cost <= 0.0) | ~np.isfinite(speed)] = 0.0
    jobs, floors = np.arange(len(cases)), speed[:, : grid.batches.shape[1]].argmax(axis=1)
    base = np.stack([cost[jobs, floors], speed[jobs, floors]], axis=1)
    steps = hulls(cost, np.where(cost > base[:, :1], speed, 0.0), base)
    floored = zip((base[:, 1] > 0.0).tolist(), floors.tolist(), steps, strict=True)
    chosen = [[floor, *above] if able else [] for able, floor, above in floored]
    at = np.repeat(jobs, [*map(len, chosen)]), np.array([n for some in chosen for n in some], dtype=int)
    columns = (*sizes[at].T.astype(int), *takes[:, *at], cost[at], speed[at], apart[at], shares[:, *at].argmax(axis=0))
    configs = map(Config, *(column.tolist() for column in columns))
    return (tuple(islice(configs, len(some))) for some in chosen)


def whole_passes(sizes: Array, cases: Sequence[Case]) -> Array:
    """With batches of devices side by side that are whole passes: one that is not full takes as long as one that is.
    Where no such batch is within a job's bounds, as it is.

    `sizes`: ps, workers, batch [jobs, sizes, 3].
    """
    alone = sizes[..., 0] == 0
    if not alone.any():
        return sizes
    device = np.array([fitted.observed.device for _, fitted in cases])[:, None]
    spans = np.array([(asked.batch.min, asked.batch.max) for asked, _ in cases], dtype=np.float64)[:, None]
    at_once, batch = sizes[..., 1] * device, sizes[..., 2]
    several = alone & (batch > at_once)
    once, said = at_once[several], batch[several]
    least, most = np.broadcast_to(spans, (*sizes.shape[:2], 2))[several].T
    fewest, largest = np.ceil(least / once), np.floor(most / once)
    passes = np.clip(np.round(said / once), fewest, largest)
    sizes[several, 2] = np.where(fewest <= largest, passes * once, said)
    return sizes


def _speeds(cases: Sequence[Case], grid: Grid, sizes: Array) -> tuple[Array, NDArray[np.object_]]:
    """As near to each other as workers can stand; and apart, of devices side by side that one node could hold."""
    asked, fits = [one for one, _ in cases], [fitted for _, fitted in cases]
    worths, together = _worth(sizes, asked), [one.together for one in asked]
    apart = np.full(sizes.shape[:2], None)
    could = (sizes[..., 0] == 0) & (sizes[..., 1] > 1) & (sizes[..., 1] <= np.array(together)[:, None])
    if could.any():
        apart[could] = (np.exp(log_speeds(fits, grid, sizes, [0] * len(fits))) * worths)[could].tolist()
    return np.exp(log_speeds(fits, grid, sizes, together)) * worths, apart


def beside(steps: Staircase, now: Config) -> Staircase:
    """With what the job has among them, so that who keeps it need not shrink to the next lower step. Not where a
    smaller size would be as fast, or where it is a step already.
    """
    lower = bisect_left(steps, now.cost * (1 - ALIKE), key=_cost)
    same = lower < bisect_right(steps, now.cost * (1 + ALIKE), key=_cost)
    if same or not lower or steps[lower - 1].speed >= now.speed:
        return steps
    return (*steps[:lower], now, *(step for step in steps[lower:] if step.speed > now.speed))


_cost = attrgetter("cost")


def taken(sizes: Array, asked: Sequence[Asked]) -> Array:
    """Cores, GiB, devices of whole jobs [3, jobs, sizes]."""
    each = np.array([_of_roles(one.sizes) for one in asked], dtype=float).reshape(-1, 3, 3)
    chief, ps, worker = each.transpose(1, 2, 0)[..., None]
    return np.asarray(chief + sizes[..., 0] * ps + sizes[..., 1] * worker)


_of_roles = attrgetter(*(f"{role}.{amount}" for role in ROLES for amount in ("cpu", "memory_gib", "gpu")))


def _shares(takes: Array, there: Resources) -> Array:
    """Of what there is of each resource, shaped as `takes`."""
    total = np.array(msgspec.structs.astuple(there), dtype=float)[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # infinite where there is next to nothing
        shares = np.where(takes > 0, takes / total, 0.0)
    return np.asarray(shares)


def _worth(sizes: Array, asked: Sequence[Asked]) -> Array | float:
    """What a sample of each batch teaches [jobs, sizes]."""
    if all(one.noise is None for one in asked):
        return 1.0
    found = np.ones(sizes.shape[:2])
    for row, batch, one in zip(found, sizes[..., 2], asked, strict=True):
        different, at = np.unique(batch, return_inverse=True)
        row[:] = np.array([worth(n, float(one.batch.start), one.noise) for n in different.tolist()])[at]
    return found
