"""All jobs that may change, side by side: what each step of theirs is worth, and whose first steps come first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from services.allocator.market.auction import Ints, Stairs
from services.allocator.market.patience import Stays, everybody, to_come_s, urgent
from services.allocator.market.pauses import PAUSES
from services.allocator.market.pricing import prices
from services.allocator.market.stand import Stand, ended
from services.allocator.models.speed import Array
from services.allocator.placing.quota import Quota

if TYPE_CHECKING:  # the policies import this module
    from services.allocator.policies.contract import JobSeen

PAUSED_TO_GROW = 2.0
"""A job has just paused while that was more than so many times what it would gain since by its largest size."""
NEARLY, TRIFLE = 0.9, 0.1
"""Everybody waits in the end for who takes at least so much of the time that all work together takes, while others have
at least so much of its own."""


class Queue:
    """The jobs that are short of the same resource, and so in each other's way. `members`: places in the field."""

    def __init__(self, members: Sequence[int], stands: Sequence[Stand]) -> None:
        self.members, mine = np.array(members), [stands[n] for n in members]
        known = [s.left_s for s in mine if s.left_s is not None]
        middle = median(known) if known else 1.0
        waits = np.array([s.job.size is None for s in mine])
        start = np.array([s.start_s for s in mine])
        left = np.array([middle if s.left_s is None else s.left_s for s in mine]) + np.where(waits, start, 0.0)
        done = np.array([s.job.progress.samples / s.best if s.job.progress else 0.0 for s in mine])
        done += np.where(waits, 0.0, start)
        alone = np.array([s.alone_s for s in mine])
        pause = np.array([s.pause_s for s in mine])
        self.stays = Stays(np.array([s.job.submitted_s for s in mine]), left, done, alone, waits, pause)
        self.shortest_s = np.array([s.shortest_s for s in mine])
        self.asked_s, self.work_s = everybody(self.stays, ended(mine))
        self.prices = prices(left.tolist(), elasticity(mine), [2.0**s.job.request.priority for s in mine])

    def urgent(self, now: float) -> list[int]:
        """Those that must not be overtaken any more."""
        return [int(self.members[n]) for n in urgent(self.stays, self.asked_s, self.work_s, now)]

    def to_come_s(self, now: float) -> float:
        """Work that will yet be asked for."""
        return to_come_s(self.asked_s, self.work_s, now)

    def last(self, now: float) -> list[int]:
        """Those for which all would wait in the end."""
        return [int(self.members[n]) for n in critical(self.stays.left_s, self.shortest_s, self.to_come_s(now))]


class Field:
    """All jobs that may change, side by side."""

    def __init__(self, stands: Sequence[Stand]) -> None:
        jobs, worth = [s.job for s in stands], np.ones(len(stands))
        self.queues = [Queue(members, stands) for members in _by_scarcity(stands)]
        for queue in self.queues:
            worth[queue.members] = queue.prices
        self.runs = [n for n, job in enumerate(jobs) if job.size is not None]
        spaces = list(limited(jobs))
        purses = [spaces.index(job.request.namespace) if job.quota else -1 for job in jobs]
        self.stairs = Stairs([s.steps for s in stands], purses)
        held = np.array([s.cost for s in stands])[:, None] * (1 + 1e-9)
        self.holds = self.stairs.there & (self.stairs.costs <= held)
        # Of `_held`, what does not change with time.
        rows, top = np.arange(len(jobs)), np.maximum(self.holds.sum(axis=1) - 1, 0)
        run = self.stairs.costs[rows, top][:, None] - self.stairs.costs
        self.below, self.top_speed = self.holds & (run > 0), self.stairs.speeds[rows, top]
        self.run = np.where(self.below, run, 1.0)
        self.spare = np.array([s.spare for s in stands])
        self.worth = worth / np.array([s.best for s in stands])
        self.speed = np.array([s.speed for s in stands])
        self.pause_s = np.array([s.pause_s if s.job.size is not None else 0.0 for s in stands])
        self.values = self._slopes(stands) * self.worth[:, None]
        self.since_s = np.array([job.since_s for job in jobs])
        self.settles_s = np.array([_after_pause_s(s.job, PAUSED_TO_GROW * _gain(s)) for s in stands])

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

    def _slopes(self, stands: Sequence[Stand]) -> Array:
        """What each step gains for its cost. A job that runs grows by a pause, and shrinks again by another, when room
        is short: over what is left of it a step brings only

            left / (left / v + PAUSES x pause)      examples a second
        """
        part = np.array([1.0 / (s.left_s * s.best) if s.left_s else 0.0 for s in stands])
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
        grows = ~self.holds & (np.arange(self.holds.shape[1]) > 0)
        comes = np.zeros(len(self.holds), dtype=bool)
        for queue in self.queues:
            comes[queue.members] = queue.to_come_s(now) > 0
        return np.where((grows & comes[:, None])[:, :, None], self.spare[:, None, :], 0.0)

    def first(self, now: float) -> list[int]:
        """Whose gang floors come before any other step, in their order."""
        last = [n for queue in self.queues for n in queue.last(now)]
        return [*dict.fromkeys([*self.runs, *last])]


def _by_scarcity(stands: Sequence[Stand]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for n, s in enumerate(stands):
        found.setdefault(s.scarce, []).append(n)
    return list(found.values())


def _after_pause_s(job: JobSeen, share: float) -> float:
    """When its last pause will have been no more than a share of its time since; the first one is free."""
    if job.size is None or job.pause_s is None:
        return -math.inf
    return job.since_s + job.pause_s / max(share, 1e-6)


def _gain(s: Stand) -> float:
    """Of its time, what it would save at the top of its staircase."""
    return 1.0 - min(1.0, s.speed / s.steps[-1].speed)


def critical(left_s: Array, shortest_s: Array, to_come_s: float) -> list[int]:
    """Those for which everybody would wait in the end: they take as long as all work together, however large."""
    end_s = max(float(left_s.sum()) + to_come_s, float(shortest_s.max()))
    others_s = left_s.sum() - left_s
    found = (shortest_s >= NEARLY * end_s) & (others_s >= TRIFLE * shortest_s)
    return [int(n) for n in np.flatnonzero(found)]


def elasticity(stands: Sequence[Stand]) -> float:
    """p of a speed-up k^p, from the first to the last step of each staircase; the median over jobs."""
    found = [
        math.log(s.steps[-1].speed / s.steps[0].speed) / math.log(s.steps[-1].cost / s.steps[0].cost)
        for s in stands
        if len(s.steps) > 1
    ]
    return median(found) if found else 0.5


def limited(jobs: Sequence[JobSeen]) -> dict[str, Quota]:
    """The quota of each of these jobs' namespaces that has one."""
    return {job.request.namespace: job.quota for job in jobs if job.quota is not None}
