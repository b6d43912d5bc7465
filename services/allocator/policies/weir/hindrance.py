"""Why a job gets no step more than it does, once all have theirs.

    short = what its next step takes - what is left              of each resource, of all nodes and of its quota
    theirs = what the others have, but for the least of those that run

Nothing short: it has just paused, or what is left is left for who comes next. More short than is theirs: so much lacks,
whoever had what. Else it lacks, because others gain more by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from services.allocator.models.speed import Array
from services.allocator.policies.weir.auction import NONE, ROUNDING, Ints, Stairs

Cause = Literal["pause", "next", "room", "quota", "others"]
CAUSES: tuple[Cause, ...] = ("pause", "next", "room", "quota", "others")
ROOM, QUOTA, OTHERS, NOTHING = 2, 3, 4, 5
"""Places among them; and beyond."""
FINE = 100
"""What is short is told in so many parts of a core, or of a GiB."""


class Hindrance(NamedTuple):
    """`short`: cores, GiB, devices, of all nodes or of the quota; not told where others gain more by them."""

    cause: Cause
    short: tuple[float, float, float] = (0.0, 0.0, 0.0)


ALIKE = (*map(Hindrance, CAUSES), None)


def hindrances(stairs: Stairs, offers: Array, room: Array, given: Ints, runs: Sequence[int]) -> list[Hindrance | None]:
    """Of each job; None where no step follows. As `granted`; `given`: its answer, `runs`: those that run."""
    jobs, at = np.arange(len(given)), np.minimum(given + 1, stairs.there.shape[1] - 1)
    follows = (at > given) & stairs.there[jobs, at]
    has = stairs.held(given)
    short = np.maximum(stairs.takes[jobs, at] - (room - has.sum(axis=0)) - ROUNDING, 0.0)
    lacks = short > _of_others(stairs, has, given, runs)
    cases = [np.isneginf(offers[jobs, at]), ~short.any(axis=1), lacks[:, :3].any(axis=1), lacks.any(axis=1)]
    cause = np.where(follows, np.select(cases, range(len(cases)), OTHERS), NOTHING)
    found: list[Hindrance | None] = [ALIKE[n] for n in cause.tolist()]
    for n in np.flatnonzero((cause == ROOM) | (cause == QUOTA)).tolist():
        found[n] = _short(CAUSES[cause[n]], short[n, :3] if cause[n] == ROOM else short[n, 3:])
    return found


def _short(cause: Cause, amounts: Array) -> Hindrance:
    """`amounts`: cores, GiB, devices, of all nodes, or of each purse, of which a job has one."""
    cores, memory, devices = (np.ceil(amounts.reshape(-1, 3).sum(axis=0) * FINE) / FINE).tolist()
    return Hindrance(cause, (cores, memory, devices))


def _of_others(stairs: Stairs, has: Array, given: Ints, runs: Sequence[int]) -> Array:
    """What the others of each have, but for the least of those that run."""
    more, run = has.copy(), np.array(runs, dtype=int)
    more[run] -= np.where(given[run, None] == NONE, 0.0, stairs.takes[run, 0])
    return np.asarray(more.sum(axis=0) - more)
