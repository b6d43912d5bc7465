"""Why a job gets no step more than it does, once all have theirs.

    short = what its next step takes - what is left              of each resource, of all nodes and of its quota
    theirs = what the others have, but for the least of those that run

Nothing short: it has just paused, or what is left is left for who comes next. More short than is
theirs: so much lacks, whoever had what. Else it lacks, because others gain more by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from services.allocator.models.speed import Array
from services.allocator.policies.weir.auction import NONE, ROUNDING, Ints, Stairs

Cause = Literal["pause", "next", "room", "quota", "others"]
CAUSES: tuple[Cause, ...] = ("pause", "next", "room", "quota", "others")
ROOM = 2
QUOTA = 3
OTHERS = 4
NOTHING = 5
"""Places among them; and beyond."""
FINE = 100
"""What is short is told in so many parts of a core, or of a GiB."""


class Hindrance(NamedTuple):
    """`short`: cores, GiB, devices, of all nodes or of the quota; 0 where others gain more by
    them.
    """

    cause: Cause
    short: tuple[float, float, float] = (0.0, 0.0, 0.0)


def hindrances(
    stairs: Stairs, offers: Array, room: Array, given: Ints, runs: Sequence[int]
) -> list[Hindrance | None]:
    """Return the hindrance of each job; None where no step follows.

    Arguments as of `granted`; `given`: its answer, `runs`: the places of the jobs that run.
    """
    jobs = np.arange(len(given))
    at = np.minimum(given + 1, stairs.there.shape[1] - 1)
    follows = (at > given) & stairs.there[jobs, at]
    has = stairs.held(given)
    # What the next step takes more than is left [jobs, resources].
    short = np.maximum(stairs.takes[:, jobs, at].T - (room - has.sum(axis=0)) - ROUNDING, 0.0)
    lacks = short > _of_others(stairs, has, given, runs)
    cases = [
        np.isneginf(offers[jobs, at]),
        ~short.any(axis=1),
        lacks[:, :3].any(axis=1),
        lacks.any(axis=1),
    ]
    cause = np.where(follows, np.select(cases, range(len(cases)), OTHERS), NOTHING)
    found = [ALIKE[case] for case in cause.tolist()]
    for place in np.flatnonzero(cause == ROOM).tolist():
        found[place] = _short("room", short[place, :3])
    for place in np.flatnonzero(cause == QUOTA).tolist():
        found[place] = _short("quota", short[place, 3:])
    return found


ALIKE: tuple[Hindrance | None, ...] = (*map(Hindrance, CAUSES), None)


def _short(cause: Cause, amounts: Array) -> Hindrance:
    """`amounts`: cores, GiB, devices, of all nodes, or of each purse, of which a job has one."""
    parts = np.ceil(amounts.reshape(-1, 3).sum(axis=0) * FINE) / FINE
    cores, memory, devices = parts.tolist()
    return Hindrance(cause, (cores, memory, devices))


def _of_others(stairs: Stairs, has: Array, given: Ints, runs: Sequence[int]) -> Array:
    """Return what the others of each job have, but for the least of those that run."""
    more = has.copy()
    run = np.array(runs, dtype=int)
    more[run] -= np.where(given[run, None] == NONE, 0.0, stairs.takes[:, run, 0].T)
    return np.asarray(more.sum(axis=0) - more)
