"""All jobs that may change, side by side: what each step of theirs is worth, and whose first steps come first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import truediv
from statistics import median

import numpy as np
from numpy.typing import NDArray

from services.allocator.models.priority import priority_weight
from services.allocator.models.speed import Array
from services.allocator.policies.contract import JobSeen, Quota
from services.allocator.policies.weir.auction import Ints, Stairs
from services.allocator.policies.weir.patience import Stays, everybody, to_come_s, urgent
from services.allocator.policies.weir.pauses import PAUSES, settled_s
from services.allocator.policies.weir.pricing import prices
from services.allocator.policies.weir.stand import Stand, ended

BUSY = 0.5
"""A queue is busy whose work, as it has come so far, takes more than this share of the cluster's time: what is free is
then not free for long."""
NEARLY, TRIFLE = 0.9, 0.1
"""Everybody waits in the end for who takes at least so much of the time that all work together takes, while others have
at least so much of its own."""


class Columns:
    """The jobs' stands, a number a job; their staircases' first and last steps among them.

    `left_s`: nan where it is `unknown`; `work`: examples that remain, 0 there; `paused_s`: its own last pauses, as
    measured (-inf: none, or it waits); `shortest_s`: its remaining seconds at the top of its staircase; `alone_s`: at
    its least, its start included if it waits; `start_s`: what its start takes of the whole cluster, at its least.
    """

    def __init__(self, stands: Sequence[Stand], stairs: Stairs) -> None:
        jobs, rows, last = [s.job for s in stands], np.arange(len(stands)), stairs.there.sum(axis=1) - 1
        self.first_cost, self.first_speed = stairs.costs[:, 0], stairs.speeds[:, 0]
        self.last_cost, self.last_speed, self.grows = stairs.costs[rows, last], stairs.speeds[rows, last], last > 0
        self.waits = np.array([job.size is None for job in jobs])
        self.asked_s, self.since_s = np.array([j.submitted_s for j in jobs]), np.array([j.since_s for j in jobs])
        self.samples = np.array([job.progress.samples if job.progress else 0 for job in jobs])
        self.weight = np.array([priority_weight(job.request.priority) for job in jobs])
        self.best, self.speed = np.array([s.best for s in stands]), np.array([s.speed for s in stands])
        self.cost, self.pause_s = np.array([s.cost for s in stands]), np.array([s.pause_s for s in stands])
        self.paused_s = np.where(self.waits, -np.inf, [-np.inf if j.pause_s is None else j.pause_s for j in jobs])
        self.left_s = np.array([math.nan if s.left_s is None else s.left_s for s in stands])
        self.unknown = np.isnan(self.left_s)
        self.work = np.where(self.unknown, 0.0, self.left_s) * self.best
        self.shortest_s = self.work / self.last_speed
        self.alone_s = np.where(self.waits, self.pause_s, 0.0) + self.work / self.first_speed
        self.start_s = self.pause_s * self.first_cost


class Queue:
    """The jobs that are short of the same resource, and so in each other's way. `members`: places in the field;
    `past`: when each job that is over was asked for, and its work in seconds of the whole cluster.
    """

    def __init__(self, members: Ints, all_: Columns, past: Sequence[tuple[float, float]]) -> None:
        self.members, waits, start = members, all_.waits[members], all_.start_s[members]
        left, alone, pause = all_.left_s[members], all_.alone_s[members], all_.pause_s[members]
        unknown = all_.unknown[members]
        middle = 1.0 if unknown.all() else float(np.median(left[~unknown]))
        left = np.where(unknown, middle, left) + np.where(waits, start, 0.0)
        done = all_.samples[members] / all_.best[members] + np.where(waits, 0.0, start)
        self.stays = Stays(all_.asked_s[members], left, done, alone, waits, pause)
        self.shortest_s = all_.shortest_s[members]
        self.asked_s, self.work_s = everybody(self.stays, past)
        self.prices = prices(left.tolist(), elasticity(members, all_), all_.weight[members].tolist())

    def urgent(self, now: float) -> list[int]:
        """Those that must not be overtaken any more."""
        return [int(self.members[n]) for n in urgent(self.stays, self.asked_s, self.work_s, now)]

    def to_come_s(self, now: float) -> float:
        """Work that will yet be asked for."""
        return to_come_s(self.asked_s, self.work_s, now)

    def load(self, now: float) -> float:
        """Of the whole cluster's time since the first was asked for, what all work takes that was asked for."""
        return float(self.work_s.sum()) / max(now - float(self.asked_s[0]), 1e-9)

    def last(self, now: float) -> list[int]:
        """Those for which all would wait in the end."""
        return [int(self.members[n]) for n in critical(self.stays.left_s, self.shortest_s, self.to_come_s(now))]


class Field:
    """All jobs that may change, side by side."""

    def __init__(self, stands: Sequence[Stand]) -> None:
        jobs, worth = [s.job for s in stands], np.ones(len(stands))
        spaces = list(limited(jobs))
        purses = [spaces.index(job.request.namespace) if job.quota else -1 for job in jobs]
        self.stairs, self.purses = Stairs([s.steps for s in stands], purses), purses
        all_ = Columns(stands, self.stairs)
        self.queues = [
            Queue(np.array(members), all_, ended([stands[n] for n in members])) for members in _by_scarcity(stands)
        ]
        for queue in self.queues:
            worth[queue.members] = queue.prices
        self.runs = np.flatnonzero(~all_.waits).tolist()
        self.holds = self.stairs.there & (self.stairs.costs <= all_.cost[:, None] * (1 + 1e-9))
        # Of `_held`, what does not change with time.
        rows, top = np.arange(len(jobs)), np.maximum(self.holds.sum(axis=1) - 1, 0)
        run = self.stairs.costs[rows, top][:, None] - self.stairs.costs
        self.below, self.top_speed = self.holds & (run > 0), self.stairs.speeds[rows, top]
        self.run = np.where(self.below, run, 1.0)
        self.spare = np.array([s.spare for s in stands])
        self.worth = worth / all_.best
        self.speed = all_.speed
        self.pause_s = np.where(all_.waits, 0.0, all_.pause_s)
        self.values = self._slopes(all_) * self.worth[:, None]
        self.since_s = all_.since_s
        gain = 1.0 - np.minimum(1.0, all_.speed / all_.last_speed)  # by its largest size
        self.settles_s = settled_s(all_.since_s, all_.paused_s, gain)
        self._left: dict[tuple[bool, ...], Array] = {}

    def offers(self, now: float) -> Array:
        """What each step is worth; who has just paused makes none beyond what it has."""
        settling = (now < self.settles_s)[:, None]
        worth = np.maximum(self.values, self._held(now))
        worth[:, 1:][(settling & ~self.holds)[:, 1:]] = -np.inf
        return np.asarray(worth)

    def late(self, now: float) -> list[int]:
        """Those that wait and must not be overtaken any more, most urgent first."""
        return [n for queue in self.queues for n in queue.urgent(now)]

    def late_first(self, offers: Array, late: Sequence[int], given: Ints) -> Array:
        """Offers with which the late come before whoever else would get more, but after what a job keeps where nobody
        is late (`given`): that would be free only after a pause, and what is free sooner goes to the late anyway.
        """
        keeps = self.holds & (np.arange(self.holds.shape[1]) <= given[:, None])
        top = offers[~keeps].max()
        offers = np.where(keeps, offers + 2 * top, offers)
        offers[late, 0] = top * (2 - np.arange(len(late)) / len(late))
        return offers

    def _slopes(self, all_: Columns) -> Array:
        """What each step gains for its cost. A job that runs grows by a pause, and shrinks again by another, when room
        is short: over what is left of it a step brings only

            left / (left / v + PAUSES x pause)      examples a second
        """
        part = np.divide(1.0, all_.work, out=np.zeros_like(all_.work), where=all_.work > 0)
        lost = np.where(self.holds, 0.0, (PAUSES * self.pause_s * part)[:, None])
        net = self.stairs.speeds / (1.0 + lost * self.stairs.speeds)
        return self.stairs.slopes(net)

    def _held(self, now: float) -> Array:
        """What the steps that a job holds are worth to it together, for whoever loses one of them pauses, and whoever
        gets it does, too: [jobs, steps], 0 for the others.

        The pauses cost examples, speed x pause x `PAUSES`, as a rate over as long as the job has been as it is (so long
        it will go on; see `patience.to_come_s`). With so much more speed for what it has, the staircase goes in one
        line from where it is tangent, and all steps on that line have its slope.
        """
        stood_s = np.maximum(now - self.since_s, np.maximum(self.pause_s, 1e-9))
        more = PAUSES * self.speed * self.pause_s / stood_s
        slopes = np.where(self.below, ((self.top_speed + more)[:, None] - self.stairs.speeds) / self.run, np.inf)
        at = slopes.argmin(axis=1)
        tangent = slopes[np.arange(len(at)), at]
        inside = self.holds & (np.arange(slopes.shape[1]) > at[:, None])
        worth = np.where(np.isfinite(tangent), tangent, 0.0) * self.worth
        return np.asarray(np.where(inside, worth[:, None], 0.0))

    def leaves(self, now: float) -> Array:
        """What each step has to leave, [jobs, steps, (cores, GiB, devices)]: growth, something, while jobs come."""
        coming = self._coming(now)
        if coming not in self._left:
            self._left[coming] = self._left_while(coming)
        return self._left[coming]

    def _left_while(self, coming: Sequence[bool]) -> Array:
        grows = ~self.holds & (np.arange(self.holds.shape[1]) > 0)
        return np.where((grows & self._members(coming)[:, None])[:, :, None], self.spare[:, None, :], 0.0)

    def rest(self, rooms: Array, given: Ints, now: float) -> Array:
        """What is left to each job alone [jobs, (cores, GiB, devices)], of all room and of its quota, and is free for
        long: nothing while jobs come to a busy queue, and less what who grows leaves while they come to another.
        `rooms`, `given`: as in `granted`; who runs and was given nothing has its least.
        """
        given = np.where(self.holds.any(axis=1), np.maximum(given, 0), given)
        left = rooms - self.stairs.held(given).sum(axis=0)
        own = np.append(left[3:], [math.inf] * 3).reshape(-1, 3)[self.purses]  # -1, no purse, is the last
        coming = self._coming(now)
        busy = [more and queue.load(now) > BUSY for queue, more in zip(self.queues, coming, strict=True)]
        kept = np.where(self._members(coming)[:, None], self.spare, 0.0)
        return np.where(self._members(busy)[:, None], 0.0, np.minimum(left[:3], own) - kept)

    def _coming(self, now: float) -> tuple[bool, ...]:
        """To which queues jobs come."""
        return tuple(queue.to_come_s(now) > 0 for queue in self.queues)

    def _members(self, are: Sequence[bool]) -> NDArray[np.bool_]:
        """Whether a job's queue is such a one [jobs]."""
        found = np.zeros(len(self.holds), dtype=bool)
        for queue, its in zip(self.queues, are, strict=True):
            found[queue.members] = its
        return found

    def first(self, now: float) -> list[int]:
        """Whose gang floors come before any other step, in their order."""
        last = [n for queue in self.queues for n in queue.last(now)]
        return [*dict.fromkeys([*self.runs, *last])]


def _by_scarcity(stands: Sequence[Stand]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for n, s in enumerate(stands):
        found.setdefault(s.scarce, []).append(n)
    return list(found.values())


def critical(left_s: Array, shortest_s: Array, to_come_s: float) -> list[int]:
    """Those for which everybody would wait in the end: they take as long as all work together, however large."""
    end_s = max(float(left_s.sum()) + to_come_s, float(shortest_s.max()))
    others_s = left_s.sum() - left_s
    found = (shortest_s >= NEARLY * end_s) & (others_s >= TRIFLE * shortest_s)
    return [int(n) for n in np.flatnonzero(found)]


def elasticity(members: Ints, all_: Columns) -> float:
    """p of a speed-up k^p, from the first to the last step of each staircase; the median over jobs."""
    mine = members[all_.grows[members]]
    faster, dearer = all_.last_speed[mine] / all_.first_speed[mine], all_.last_cost[mine] / all_.first_cost[mine]
    found = [*map(truediv, map(math.log, faster.tolist()), map(math.log, dearer.tolist()))]
    return median(found) if found else 0.5


def limited(jobs: Sequence[JobSeen]) -> dict[str, Quota]:
    """The quota of each of these jobs' namespaces that has one."""
    return {job.request.namespace: job.quota for job in jobs if job.quota is not None}
