"""Who gets which step of the room there is, for all jobs at once.

Each job offers its staircase: for a step, its worth times the speed gained for the cost (a concave staircase, so a
later step never offers more than an earlier one). Steps are granted by falling offer, as long as they fit; whose step
does not fit gets none after it. On concave staircases that is optimal up to the last step that does not fit (the
greedy of fractional knapsacks; Dantzig, Operations Research 5(2), 1957).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from services.allocator.kept import KeptEach
from services.allocator.models.speed import Array
from services.allocator.policies.weir.hull import Config

Ints = NDArray[np.int64]
NONE = -1
"""No step at all."""
ROUNDING = 1e-9


class Stairs:
    """Staircases side by side. `costs`, `speeds`: [jobs, steps], past a staircase's end nothing.

    `upto`: what each step takes with those below it, [jobs, steps, (cores, GiB, devices)], and the same three again for
    each purse, a room that only some jobs may take from (`purses`: each job's, -1: none); `takes`: what each takes more
    than the one before; `columns`: the same, one resource after the other [3 and more, jobs x steps].
    """

    def __init__(self, staircases: Sequence[Sequence[Config]], purses: Sequence[int] = ()) -> None:
        counts = np.array([*map(len, staircases)], dtype=int)
        there = np.arange(counts.max(initial=0)) < counts[:, None]
        rows = np.zeros((len(there), there.shape[1] + 1, 5))
        rows[:, 1:][there] = np.concatenate([np.zeros((0, 5)), *_rows(staircases)])
        more = np.diff(rows, axis=1)
        self.there, self.costs, self.speeds = there, rows[:, 1:, 0], rows[:, 1:, 1]
        self.takes = _from_purses(more[:, :, 2:], purses)
        self.upto = _from_purses(rows[:, 1:, 2:], purses)
        self.columns = np.ascontiguousarray(self.takes.reshape(-1, self.takes.shape[2]).T)

    def held(self, given: Ints) -> Array:
        """What each job takes with the last step that it was given, as in `upto`: nothing with `NONE`."""
        return np.where(given[:, None] == NONE, 0.0, self.upto[np.arange(len(given)), given])

    def slopes(self, speeds: Array) -> Array:
        """What each step gains for its cost, over the step before it: [jobs, steps], as `speeds`."""
        gained, paid = (np.diff(each, axis=1, prepend=0.0) for each in (speeds, self.costs))
        return np.where(self.there, gained / np.maximum(paid, 1e-12), 0.0)


def _from_purses(takes: Array, purses: Sequence[int]) -> Array:
    """What is taken from the room that all share, and then from each purse."""
    of = np.array(purses, dtype=int)[:, None, None]
    return np.concatenate([takes, *(np.where(of == n, takes, 0.0) for n in range(max(purses, default=-1) + 1))], axis=2)


def _tables(staircases: Sequence[Sequence[Config]]) -> list[Array]:
    """Of each: [steps, (cost, speed, cores, GiB, devices)]."""
    steps = [*chain.from_iterable(staircases)]
    costs, speeds = [s.cost for s in steps], [s.speed for s in steps]
    takes = [s.cpu for s in steps], [s.memory_gib for s in steps], [s.gpu for s in steps]
    whole = np.array([costs, speeds, *takes], dtype=float).T
    return np.split(whole, np.cumsum([*map(len, staircases)])[:-1])


_rows: KeptEach[Sequence[Config], Array] = KeptEach(_tables, id)


def granted(stairs: Stairs, offers: Array, room: Array, first: Sequence[int] = (), spare: Array | None = None) -> Ints:
    """The last step that each job gets, or `NONE`. `offers`: [jobs, steps], -inf where none is made; `room`: [3],
    and so much again for each purse.

    Those in `first` get their first steps before anybody else does, in that order. `spare`: [jobs, steps, 3], what a
    step has to leave.
    """
    offers = np.array(offers, dtype=float)
    offers[list(first), :1] = np.finfo(float).max / np.arange(1.0, len(first) + 1)[:, None]
    offers = np.minimum.accumulate(offers, axis=1)
    made = np.flatnonzero(stairs.there & (offers > -np.inf))
    made = made[np.argsort(-offers.take(made), kind="stable")]
    jobs, steps = np.divmod(made, offers.shape[1])
    takes = stairs.columns.take(made, axis=1)
    leaves = np.zeros_like(takes)
    if spare is not None:
        leaves[:3] = spare.reshape(-1, 3).take(made, axis=0).T
    left, found = np.array(room, dtype=float)[:, None], np.full(len(offers), NONE)
    while len(jobs):
        # 1. Whose next step cannot fit any more, has had its last.
        fit = np.all(takes + leaves <= left + ROUNDING, axis=0)
        if not fit.all():
            fit = _in_turn(fit, jobs, len(offers))
            jobs, steps, takes, leaves = jobs[fit], steps[fit], takes[:, fit], leaves[:, fit]
        # 2. As many of the others, in their order, as fit together; the last of a job is its highest.
        together = np.all(np.cumsum(takes, axis=1) + leaves <= left + ROUNDING, axis=0)
        count = len(together) if together.all() else int(together.argmin())
        found[jobs[:count]] = steps[:count]
        left = left - takes[:, :count].sum(axis=1, keepdims=True)
        jobs, steps, takes, leaves = jobs[count:], steps[count:], takes[:, count:], leaves[:, count:]
    return found


def _in_turn(fit: NDArray[np.bool_], jobs: Ints, count: int) -> NDArray[np.bool_]:
    """Those before the first of the same job that does not fit."""
    until, late = np.full(count, len(jobs)), np.flatnonzero(~fit)[::-1]
    until[jobs[late]] = late  # of several of a job the last that is written is its first
    return np.asarray(np.arange(len(jobs)) < until[jobs])
