"""The auction: which job gets which step of the free room, for all jobs at once.

Each job offers its staircase: for a step, the price of its work times the speed gained for the
cost. The staircase is concave, so a later step never offers more than an earlier one. Steps are
granted by falling offer as long as they fit; a job whose step does not fit gets none after it. On
concave staircases that is optimal up to the last step that does not fit (the greedy of fractional
knapsacks; Dantzig, Operations Research 5(2), 1957).

`block_reasons` says why a job gets no further step:

    short  = what its next step takes - what is left  of each resource, on nodes and in its quota
    theirs = what the other jobs have, less the least size of those that run

Nothing short: the job has just paused, or the rest is reserved for the next job. More short than
`theirs`: capacity lacks, whatever the others have. Else the others gain more by what they have.
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
    where each job's begin. `exists`: whether a job has such a step. `cumulative` [resources, jobs,
    steps]: cores, GiB and devices of each step with those below it, and the same three again for
    each quota, a room that only some jobs may take from; `increments`: what each step takes more
    than the one before.
    """

    def __init__(self, steps: Array, counts: Ints, quota_places: Sequence[int] = ()) -> None:
        """`counts` [jobs]: steps of each; `quota_places`: each job's, -1: none."""
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
        """Return what each job takes with the last step that it was given [jobs, resources]:
        nothing with `NO_STEP`.
        """
        upto = self.cumulative[:, np.arange(len(given)), given].T
        return np.where(given[:, None] == NO_STEP, 0.0, upto)

    def gain_per_cost(self, speeds: Array) -> Array:
        """Return what each step gains for its cost, over the step before it: [jobs, steps]."""
        gained = np.diff(speeds, axis=1, prepend=0.0)
        paid = np.diff(self.costs, axis=1, prepend=0.0)
        return np.where(self.exists, gained / np.maximum(paid, 1e-12), 0.0)


def _with_quota_amounts(amounts: Array, quota_places: Sequence[int]) -> Array:
    """Return what is taken from the room that all share, and then from each quota."""
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
    """What some steps have to leave free. `steps`: which [jobs, steps]; `spare` [jobs, 3]."""

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

    `offers` [jobs, steps]: -inf where none is made; `room` [3]: and so much again for each quota.
    The jobs in `first` get their first steps before any other, in that order.
    """
    offers = np.array(offers, dtype=float)
    highest = np.finfo(float).max
    offers[list(first), :1] = highest / np.arange(1.0, len(first) + 1)[:, None]
    offers = np.minimum.accumulate(offers, axis=1)
    # All offers, the highest first: their jobs, steps, and what they take [resources, offers].
    made = np.flatnonzero(stairs.exists & (offers > -np.inf))
    made = made[np.argsort(-offers.take(made), kind="stable")]
    jobs, steps = np.divmod(made, offers.shape[1])
    takes = stairs.increments.reshape(len(stairs.increments), -1).take(made, axis=1)
    spare = np.zeros_like(takes)
    if leaves is not None:
        spare[:3] = np.where(leaves.steps.take(made), leaves.spare[jobs].T, 0.0)
    left = np.array(room, dtype=float)[:, None]
    found = np.full(len(offers), NO_STEP)
    while len(jobs):
        # 1. A job whose next step cannot fit any more has had its last.
        fit = np.all(takes + spare <= left + ROUNDING, axis=0)
        if not fit.all():
            fit = _before_first_misfit(fit, jobs, len(offers))
            jobs = jobs[fit]
            steps = steps[fit]
            takes = takes[:, fit]
            spare = spare[:, fit]
        # 2. As many of the others, in their order, as fit together; a job's last is its highest.
        together = np.all(np.cumsum(takes, axis=1) + spare <= left + ROUNDING, axis=0)
        count = len(together) if together.all() else int(together.argmin())
        found[jobs[:count]] = steps[:count]
        left = left - takes[:, :count].sum(axis=1, keepdims=True)
        jobs = jobs[count:]
        steps = steps[count:]
        takes = takes[:, count:]
        spare = spare[:, count:]
    return found


def _before_first_misfit(fit: NDArray[np.bool_], jobs: Ints, count: int) -> NDArray[np.bool_]:
    """Those before the first of the same job that does not fit."""
    until, late = np.full(count, len(jobs)), np.flatnonzero(~fit)[::-1]
    until[jobs[late]] = late  # of several of a job the last that is written is its first
    return np.asarray(np.arange(len(jobs)) < until[jobs])


Cause = Literal["pause", "next", "room", "quota", "others"]
CAUSES: tuple[Cause, ...] = ("pause", "next", "room", "quota", "others")
ROOM = 2
QUOTA = 3
OTHERS = 4
NOTHING = 5
"""Places among them; and beyond."""
SHORTAGE_PARTS = 100
"""What is short is told in so many parts of a core, or of a GiB."""


class BlockReason(NamedTuple):
    """`short`: cores, GiB, devices, of all nodes or of the quota; 0 where others gain more by
    them.
    """

    cause: Cause
    short: tuple[float, float, float] = (0.0, 0.0, 0.0)


def block_reasons(
    stairs: Staircases, offers: Array, room: Array, given: Ints, runs: Sequence[int]
) -> list[BlockReason | None]:
    """Return the hindrance of each job; None where no step follows.

    Arguments as of `grant_steps`; `given`: its answer, `runs`: the places of the jobs that run.
    """
    jobs = np.arange(len(given))
    at = np.minimum(given + 1, stairs.exists.shape[1] - 1)
    follows = (at > given) & stairs.exists[jobs, at]
    has = stairs.granted_amounts(given)
    # What the next step takes more than is left [jobs, resources].
    short = np.maximum(stairs.increments[:, jobs, at].T - (room - has.sum(axis=0)) - ROUNDING, 0.0)
    lacks = short > _of_others(stairs, has, given, runs)
    cases = [
        np.isneginf(offers[jobs, at]),
        ~short.any(axis=1),
        lacks[:, :3].any(axis=1),
        lacks.any(axis=1),
    ]
    cause = np.where(follows, np.select(cases, range(len(cases)), OTHERS), NOTHING)
    found = [REASONS_WITHOUT_AMOUNTS[case] for case in cause.tolist()]
    for place in np.flatnonzero(cause == ROOM).tolist():
        found[place] = _missing_amounts("room", short[place, :3])
    for place in np.flatnonzero(cause == QUOTA).tolist():
        found[place] = _missing_amounts("quota", short[place, 3:])
    return found


REASONS_WITHOUT_AMOUNTS: tuple[BlockReason | None, ...] = (*map(BlockReason, CAUSES), None)


def _missing_amounts(cause: Cause, amounts: Array) -> BlockReason:
    """`amounts`: cores, GiB, devices, of all nodes, or of each quota, of which a job has one."""
    parts = np.ceil(amounts.reshape(-1, 3).sum(axis=0) * SHORTAGE_PARTS) / SHORTAGE_PARTS
    cores, memory, devices = parts.tolist()
    return BlockReason(cause, (cores, memory, devices))


def _of_others(stairs: Staircases, has: Array, given: Ints, runs: Sequence[int]) -> Array:
    """Return what the others of each job have, but for the least of those that run."""
    more = has.copy()
    run = np.array(runs, dtype=int)
    more[run] -= np.where(given[run, None] == NO_STEP, 0.0, stairs.increments[:, run, 0].T)
    return np.asarray(more.sum(axis=0) - more)
