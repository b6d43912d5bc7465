"""What a job could be: the sizes it may have, what each takes, and how fast it would go.

The cost of a size is its share of the cluster's scarcest resource (dominant share: Ghodsi et al., "Dominant Resource
Fairness", NSDI 2011). What is not on the concave hull of speed over cost is never the best use of what it costs; the
rest, from the gang floor on, is a staircase on which each step gains less for its cost than the one before (`hull.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from services.allocator.market.hull import Config, hull
from services.allocator.models.learning import worth
from services.allocator.placing.placement import Size

if TYPE_CHECKING:  # the policies import this module
    from services.allocator.policies.contract import JobSeen
from services.allocator.models.speed import Array, Fit, Points
from shared.messages import Resources, RoleResources, Span

KEPT = 4096
FINE = 8
"""Counts up to this are all tried, larger ones in steps of a ninth."""
ROUNDING = 1e-9
ALIKE = 1e-6
"""Costs that differ by less, relatively, are the same."""
BATCHES = 9
"""Batches tried of a range, evenly spaced by factor, both ends among them."""
REACH = 2.0
"""No step to more than so many times what was ever observed: models err far away."""


def counts(least: int, most: int, observed: int) -> list[int]:
    """Numbers of tasks to try, within a job's bounds and reach."""
    most = max(least, min(most, math.ceil(observed * REACH)))
    found, n = [], least
    while n < most:
        found.append(n)
        n = max(n + 1, math.ceil(n * (1 + 1 / FINE)) if n > FINE else n + 1)
    return [*found, most]


def even(numbers: Sequence[int], together: int) -> list[int]:
    """Of numbers of devices those that fill nodes without a rest: else what is left of a node is of use to nobody who
    wants more of them side by side.
    """
    least, most = numbers[0], numbers[-1]
    parts = [n for n in range(1, together) if together % n == 0]
    return sorted({least, *(n for n in [*parts, *range(together, most + 1, together)] if least <= n <= most)})


def batches(span: Span) -> list[int]:
    """A range's batches, the start always."""
    if span.max <= span.min:
        return [span.start]
    spaced = np.geomspace(max(1, span.min), span.max, BATCHES)
    return sorted({span.start, *(round(b) for b in spaced.tolist())})


class Asked(msgspec.Struct, frozen=True):
    """All of a job that its staircase depends on, beside its program's speeds. `noise`: gradient noise, in samples;
    `together`: workers that one node holds.
    """

    least: Size
    start: Size
    most: Size
    batch: Span
    sizes: RoleResources
    noise: float | None
    together: int


def staircase(job: JobSeen, fitted: Fit, there: Resources, node: Resources) -> tuple[Config, ...]:
    """The gang floor, and from there on the hull; empty where even the floor is larger than the cluster. `node`: the
    largest one, empty.
    """
    noise = job.progress.gradient_noise if job.progress else None
    batch = job.request.batch
    if job.progress is None:
        batch = Span(start=batch.start, min=batch.start, max=batch.start)
    asked = Asked(job.least, job.start, job.most, batch, job.sizes, noise, held_by(node, job.sizes.worker))
    return _staircase(asked, fitted, there)


def held_by(node: Resources, wants: Resources) -> int:
    """How many such tasks an empty node holds."""
    pairs = ((node.cpu, wants.cpu), (node.memory_gib, wants.memory_gib), (node.gpu, wants.gpu))
    return int(min((has / want for has, want in pairs if want > 0), default=1.0) + ROUNDING)


@lru_cache(KEPT)
def _staircase(asked: Asked, fitted: Fit, there: Resources) -> tuple[Config, ...]:
    rows = _rows(asked, fitted)
    takes = taken(rows, asked.sizes)
    cost = _share(takes, there)
    worths = _worth(asked, rows)
    speed, apart = (np.exp(fitted.predict(_spread(rows, fitted, n))[0]) * worths for n in (asked.together, 0))
    able = (cost <= 1.0 + 1e-9) & (cost > 0.0) & np.isfinite(speed) & (speed > 0.0)
    floors = np.flatnonzero(able & (rows[:, 0] == asked.least.ps) & (rows[:, 1] == asked.least.workers))
    if not len(floors):
        return ()
    floor = int(floors[speed[floors].argmax()])
    above = np.flatnonzero(able & (cost > cost[floor]) & (speed > speed[floor]))
    steps = [floor, *above[hull(cost[above], speed[above], (float(cost[floor]), float(speed[floor])))].tolist()]
    could = (rows[:, 0] == 0) & (rows[:, 1] > 1) & (rows[:, 1] <= asked.together)
    return tuple(
        _config(rows[n], takes[n], float(cost[n]), float(speed[n]), float(apart[n]) if could[n] else None)
        for n in steps
    )


def beside(steps: tuple[Config, ...], now: Config) -> tuple[Config, ...]:
    """With what the job has among them, so that who keeps it need not shrink to the next lower step. Not where a
    smaller size would be as fast, or where it is a step already.
    """
    lower = [step for step in steps if step.cost < now.cost * (1 - ALIKE)]
    same = [step for step in steps if abs(step.cost - now.cost) <= ALIKE * now.cost]
    if same or not lower or lower[-1].speed >= now.speed:
        return steps
    return (*lower, now, *(step for step in steps[len(lower) :] if step.speed > now.speed))


def _config(row: Array, takes: Array, cost: float, speed: float, apart: float | None) -> Config:
    ps, workers, batch = (int(n) for n in row)
    cpu, memory, gpu = takes.tolist()
    return Config(Size(ps, workers), batch, Resources(cpu=cpu, memory_gib=memory, gpu=int(gpu)), cost, speed, apart)


def _rows(asked: Asked, fitted: Fit) -> Array:
    """Every ps, workers, batch to think of; shape (sizes, 3)."""
    seen = fitted.observed.rows
    ps_seen, workers_seen = seen[:, :2].max(axis=0) if len(seen) else (0, 0)
    ps = counts(asked.least.ps, asked.most.ps, max(asked.start.ps, int(ps_seen)))
    workers = counts(asked.least.workers, asked.most.workers, max(asked.start.workers, int(workers_seen)))
    workers = even(workers, asked.together) if asked.most.ps == 0 and asked.together > 1 else workers
    grid = np.meshgrid(ps, workers, batches(asked.batch), indexing="ij")
    return np.stack([side.ravel() for side in grid], axis=1).astype(float)


def _spread(rows: Array, fitted: Fit, together: int) -> Points:
    """With the cores that are usual; devices side by side leave their node where they are too many for one."""
    _, ps_cpu, worker_cpu, usual = fitted.usual
    remote = np.where(rows[:, 0] > 0, usual, rows[:, 1] > together)
    cores = np.tile((ps_cpu, worker_cpu), (len(rows), 1))
    return Points(np.column_stack([rows, cores, remote]), fitted.observed.device)


def taken(rows: Array, sizes: RoleResources) -> Array:
    """Cores, GiB, devices of whole jobs; shape (sizes, 3)."""
    chief, ps, worker = (np.array(msgspec.structs.astuple(getattr(sizes, role))) for role in ROLES)
    return np.asarray(chief + rows[:, :1] * ps + rows[:, 1:2] * worker)


ROLES = ("chief", "ps", "worker")


def _share(takes: Array, there: Resources) -> Array:
    """Of what there is, of the resource of which it is the most."""
    total = np.array(msgspec.structs.astuple(there), dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(takes > 0, takes / total, 0.0)
    return np.asarray(shares.max(axis=1))


def _worth(asked: Asked, rows: Array) -> Array:
    """What a sample of each batch teaches."""
    return np.array([worth(batch, float(asked.batch.start), asked.noise) for batch in rows[:, 2].tolist()])


def whole(parts: Sequence[Resources]) -> Resources:
    """All of them together."""
    cpu = math.fsum(part.cpu for part in parts)
    memory = math.fsum(part.memory_gib for part in parts)
    return Resources(cpu=cpu, memory_gib=memory, gpu=sum(part.gpu for part in parts))
