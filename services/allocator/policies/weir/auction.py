"""The auction: the free capacity is granted in steps, for all jobs at once.

Each job offers its staircase: for a step, the price of its work times the speed gained for the
cost. The staircase is concave, so a later step never offers more than an earlier one. Steps are
granted by falling offer as long as they fit; after a step that does not fit, a job gets no more. On
concave staircases that is optimal up to the last step that does not fit (the greedy of fractional
knapsacks; Dantzig, Operations Research 5(2), 1957).

`block_reasons` gives the reason against a job's next step:

    short  = amount of its next step - free amount    of each resource, on nodes and in its quota
    theirs = amounts of the other jobs, less the least size of those that run

Nothing short: the job has just paused, or the rest is reserved for the next job. More short than
`theirs`: capacity is missing, even without the other jobs. Else the others gain more by their
share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.allocator.models.speed import Array
from services.allocator.policies.weir.staircase import COLUMNS, COST, CPU, GIB, GPU, SPEED, Config

Ints = NDArray[np.int64]
NO_STEP = -1
"""No step at all."""
ROUNDING = 1e-9


class Staircases:
    """Staircases side by side, arrays [jobs, steps]; past a staircase's end all is 0.

    `steps` [all steps, 10]: of one job after the other, as `staircase.Config`; `starts` [jobs]:
    where each job's begin. `exists`: True if a job has such a step. `cumulative` [resources, jobs,
    steps]: cores, GiB and devices of each step with those below it, and the same three again for
    each quota, a capacity for some jobs only; `increments`: the amounts of each step beyond the one
    before.
    """

    def __init__(self, steps: Array, counts: Ints, quota_places: Sequence[int] = ()) -> None:
        """`counts` [jobs]: the steps of each job; `quota_places`: the place of its quota, -1:
        none.
        """
        self.steps = steps
        self.starts = np.cumsum(counts) - counts
        self.exists = np.arange(counts.max(initial=0)) < counts[:, None]
        self.costs = self._side_by_side(COST)
        self.speeds = self._side_by_side(SPEED)
        amounts = np.stack([self._side_by_side(column) for column in (CPU, GIB, GPU)])
        self.cumulative = _with_quota_amounts(amounts, quota_places)
        self.increments = np.diff(self.cumulative, axis=2, prepend=0.0)

    def _side_by_side(self, column: int) -> Array:
        found = np.zeros(self.exists.shape)
        found[self.exists] = self.steps[:, column]
        return found

    @classmethod
    def from_configs(
        cls, staircases: Sequence[Sequence[Config]], quota_places: Sequence[int] = ()
    ) -> Staircases:
        """Put staircases side by side."""
        counts = np.array([len(steps) for steps in staircases], dtype=int)
        rows = [np.array(steps, dtype=float).reshape(-1, COLUMNS) for steps in staircases]
        return cls(np.concatenate(rows), counts, quota_places)

    def step_config(self, job: int, step: int) -> Config:
        """Return a step of a job."""
        return Config.of_row(self.steps[self.starts[job] + step].tolist())

    def granted_amounts(self, given: Ints) -> Array:
        """Return the amounts of each job at its last granted step [jobs, resources]:
        nothing with `NO_STEP`.
        """
        upto = self.cumulative[:, np.arange(len(given)), given].T
        return np.where(given[:, None] == NO_STEP, 0.0, upto)

    def gain_per_cost(self, speeds: Array) -> Array:
        """Return the gained speed per cost of each step, over the step before it: [jobs, steps]."""
        gained = np.diff(speeds, axis=1, prepend=0.0)
        paid = np.diff(self.costs, axis=1, prepend=0.0)
        return np.where(self.exists, gained / np.maximum(paid, 1e-12), 0.0)


def _with_quota_amounts(amounts: Array, quota_places: Sequence[int]) -> Array:
    """Return the amounts taken from the shared capacity, and then from each quota."""
    number = max(quota_places, default=-1) + 1
    if not number:
        return amounts
    parts = [amounts]
    of = np.array(quota_places, dtype=int)[None, :, None]
    for quota in range(number):
        parts.append(np.where(of == quota, amounts, 0.0))
    return np.concatenate(parts)


@dataclass(frozen=True)
class ReservedRoom:
    """The amounts that some steps have to leave free. `steps`: the mask of these steps [jobs,
    steps]; `spare` [jobs, 3].
    """

    steps: NDArray[np.bool_]
    spare: Array


def grant_steps(
    stairs: Staircases,
    offers: Array,
    room: Array,
    first: Sequence[int] = (),
    leaves: ReservedRoom | None = None,
) -> Ints:
    """Return the last step that each job gets, or `NO_STEP`.

    `offers` [jobs, steps]: -inf: there is none; `room`: cores, GiB and devices, and the same three
    again for each quota. The jobs in `first` get their first steps before any other, in that order.
    """
    offers = _with_first_floors(offers, first)
    queue = _highest_first(stairs, offers, leaves)
    left = np.array(room, dtype=float)[:, None]
    granted_steps = np.full(len(offers), NO_STEP)
    while len(queue.jobs):
        # 1. A job gets no further step once its next step does not fit.
        fit = np.all(queue.takes + queue.spare <= left + ROUNDING, axis=0)
        if not fit.all():
            queue = queue.part(_before_first_misfit(fit, queue.jobs, len(offers)))
        # 2. Grant the longest prefix that fits together; the last step of a job is its highest.
        together = np.cumsum(queue.takes, axis=1) + queue.spare
        fit = np.all(together <= left + ROUNDING, axis=0)
        count = len(fit) if fit.all() else int(fit.argmin())
        granted = queue.part(slice(count))
        granted_steps[granted.jobs] = granted.steps
        left = left - granted.takes.sum(axis=1, keepdims=True)
        queue = queue.part(slice(count, None))
    return granted_steps


def _with_first_floors(offers: Array, first: Sequence[int]) -> Array:
    """Return the offers, with the first steps of these jobs above all others, in their order; no
    offer is above that of the step before it.
    """
    raised = np.array(offers, dtype=float)
    highest = np.finfo(float).max
    raised[list(first), :1] = highest / np.arange(1.0, len(first) + 1)[:, None]
    return np.minimum.accumulate(raised, axis=1)


class _OfferQueue(NamedTuple):
    """Offers, the highest first: the job and the step of each [offers], the amounts that it takes,
    and the amounts that it must leave free [resources, offers].
    """

    jobs: Ints
    steps: Ints
    takes: Array
    spare: Array

    def part(self, chosen: NDArray[np.bool_] | slice) -> _OfferQueue:
        """Return some of the offers, in the same order."""
        return _OfferQueue(
            self.jobs[chosen],
            self.steps[chosen],
            self.takes[:, chosen],
            self.spare[:, chosen],
        )


def _highest_first(stairs: Staircases, offers: Array, leaves: ReservedRoom | None) -> _OfferQueue:
    """Return the finite offers; of equal ones that of the earlier job is first."""
    made = np.flatnonzero(stairs.exists & (offers > -np.inf))
    falling = np.argsort(-offers.take(made), kind="stable")
    made = made[falling]
    jobs, steps = np.divmod(made, offers.shape[1])
    increments = stairs.increments.reshape(len(stairs.increments), -1)
    takes = increments.take(made, axis=1)
    spare = np.zeros_like(takes)
    if leaves is not None:
        spare[:3] = np.where(leaves.steps.take(made), leaves.spare[jobs].T, 0.0)
    return _OfferQueue(jobs, steps, takes, spare)


def _before_first_misfit(fit: NDArray[np.bool_], jobs: Ints, count: int) -> NDArray[np.bool_]:
    """Return the offers that come before the first misfit of their job, as a mask [offers].
    `count`: the number of all jobs.
    """
    misfits = np.flatnonzero(~fit)
    first_misfit = np.full(count, len(jobs))
    # Assigned in reverse order, so that the first of a job's misfits remains.
    backwards = misfits[::-1]
    first_misfit[jobs[backwards]] = backwards
    return np.asarray(np.arange(len(jobs)) < first_misfit[jobs])


Cause = Literal["pause", "next", "room", "quota", "others"]
CAUSES: tuple[Cause, ...] = ("pause", "next", "room", "quota", "others")
ROOM = 2
QUOTA = 3
OTHERS = 4
NOTHING = 5
"""Indices in `CAUSES`; `NOTHING` is beyond them."""
SHORTAGE_PARTS = 100
"""Missing amounts are rounded up to such parts of a core, or of a GiB."""


class BlockReason(NamedTuple):
    """The reason why a job gets no further step. `short`: missing cores, GiB, devices, of all nodes
    or of the quota; 0 if others gain more by them.
    """

    cause: Cause
    short: tuple[float, float, float] = (0.0, 0.0, 0.0)


def block_reasons(
    stairs: Staircases, offers: Array, room: Array, given: Ints, runs: Sequence[int]
) -> list[BlockReason | None]:
    """Return the reason why each job gets no further step; None if it has no further step.

    Arguments as of `grant_steps`; `given`: its answer, `runs`: the places of the jobs that run.
    """
    jobs = np.arange(len(given))
    next_step = np.minimum(given + 1, stairs.exists.shape[1] - 1)
    has_next = (next_step > given) & stairs.exists[jobs, next_step]
    held = stairs.granted_amounts(given)
    left = room - held.sum(axis=0)
    # The missing amounts of the next step [jobs, resources].
    short = np.maximum(stairs.increments[:, jobs, next_step].T - left - ROUNDING, 0.0)
    lacks = short > _amounts_of_others(stairs, held, given, runs)
    conditions = [
        np.isneginf(offers[jobs, next_step]),
        ~short.any(axis=1),
        lacks[:, :3].any(axis=1),
        lacks.any(axis=1),
    ]
    cause = np.select(conditions, range(len(conditions)), OTHERS)
    cause = np.where(has_next, cause, NOTHING)
    reasons = [REASONS_WITHOUT_AMOUNTS[number] for number in cause.tolist()]
    for job in np.flatnonzero(cause == ROOM).tolist():
        reasons[job] = _missing_amounts("room", short[job, :3])
    for job in np.flatnonzero(cause == QUOTA).tolist():
        reasons[job] = _missing_amounts("quota", short[job, 3:])
    return reasons


REASONS_WITHOUT_AMOUNTS: tuple[BlockReason | None, ...] = (*map(BlockReason, CAUSES), None)


def _missing_amounts(cause: Cause, amounts: Array) -> BlockReason:
    """Return the reason with cores, GiB and devices rounded up. `amounts`: those of all nodes, or
    of each quota (a job has one).
    """
    together = amounts.reshape(-1, 3).sum(axis=0)
    parts = np.ceil(together * SHORTAGE_PARTS) / SHORTAGE_PARTS
    cores, memory, devices = parts.tolist()
    return BlockReason(cause, (cores, memory, devices))


def _amounts_of_others(stairs: Staircases, held: Array, given: Ints, runs: Sequence[int]) -> Array:
    """Return the amounts of all other jobs [jobs, resources], without the least sizes of those that
    run.
    """
    spare = held.copy()
    running = np.array(runs, dtype=int)
    least = stairs.increments[:, running, 0].T
    spare[running] -= np.where(given[running, None] == NO_STEP, 0.0, least)
    return np.asarray(spare.sum(axis=0) - spare)
