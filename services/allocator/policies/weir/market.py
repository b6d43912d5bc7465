"""All jobs that may change, side by side: the value of each step, and the order of gang floors.

    value of a step = price / best x (its speed - that of the step before) / (its cost - that one's)

`price` is the time saved for all jobs by a second less of the job's work (`work_prices`), and
`best` the job's examples/s for the whole cluster's cost, so that price / best is the price of one
example.

Prices are those of heSRPT (Berg, Vesilo and Harchol-Balter, "heSRPT: Parallel scheduling to
minimize mean slowdown", Performance Evaluation 2020): the smallest mean completion time of jobs
that share N cores and speed up as k^p on k of them. With the jobs ranked by remaining size, the
largest first, and x_i the i-th size in seconds on one core, their total time is

    sum over i of  x_i l_i / N^p        l_i = (i^e - (i - 1)^e)^(1/e)        e = 1 / (1 - p)

so l_i is the price of the i-th job's work. Giving each core where price x gained speed-up is
largest is their allocation exactly, and stays sensible where speed-ups are not powers of k: our
generalisation. Also ours: a job's size is divided by its weight for the ranking, and its price is
multiplied by it. p near 1 (work spreads without loss) gives shortest remaining time first; p near 0
gives equal shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.allocator.models.speed import Array
from services.allocator.placement.amounts import amounts
from services.allocator.policies.contract import JobSnapshot, Quota
from services.allocator.policies.weir.aging import (
    PAUSES,
    SojournInputs,
    all_arrivals,
    estimate_pauses,
    future_work_s,
    overdue_jobs,
    settled_at_s,
)
from services.allocator.policies.weir.auction import Ints, ReservedRoom, Staircases
from services.allocator.policies.weir.job_rows import JobRow, Numbers
from services.allocator.policies.weir.staircase import COLUMNS, COST, SCARCE, SPEED
from services.allocator.policies.weir.stale_gradients import MIN_GAIN

BUSY_LOAD = 0.5
"""A queue is busy if its work so far takes more than this share of the cluster's time: free
capacity is then not free for long.
"""
NEARLY, TRIFLE = 0.9, 0.1
"""All jobs wait in the end for a job if its shortest time is at least `NEARLY` of the time of all
work together, while the work of the others is at least `TRIFLE` of its shortest time.
"""
NumberColumns = dict[str, Array]
"""A column [jobs] for each of `Numbers`."""


class JobArrays:
    """Jobs side by side: one number for each job [jobs], and their staircases.

    `programs`: the number of each job's program; `models`: the number of its model, which it shares
    with the jobs of that program with the same cores; `left`: examples that remain (nan: not
    known); `pause_s`: estimated seconds of a change. The last two also use the reports of other
    jobs of the program.
    """

    def __init__(self, jobs: Sequence[JobSnapshot], rows: Sequence[JobRow]) -> None:
        self.jobs = list(jobs)
        self.rows = list(rows)
        table = np.frombuffer(b"".join([row.numbers for row in rows]))
        self.table = table.reshape(-1, len(Numbers._fields))
        self.numbers = _named_columns(self.table)
        self.steps = np.frombuffer(b"".join([row.steps for row in rows])).reshape(-1, COLUMNS)
        self.counts = np.array([len(row.steps) for row in rows], dtype=int) // (8 * COLUMNS)
        self.programs = _number_names([row.digest for row in rows])
        self.models = _number_names([row.program for row in rows])
        self.left = self._samples_left()
        of = self.numbers
        self.pause_s = estimate_pauses(of["pause_s"], self.programs, of["kin_pause_s"])

    def _samples_left(self) -> Array:
        """Return the remaining samples as reported; before that, those of all requested epochs."""
        left = self.numbers["left"]
        unknown = np.isnan(left)
        if not unknown.any():
            return left
        # Examples of an epoch, by program: of jobs that are over; those that run have precedence.
        epochs = np.full(int(self.programs.max()) + 1, math.nan)
        for column in (self.numbers["kin_epoch"], self.numbers["epoch"]):
            reported = ~np.isnan(column)
            epochs[self.programs[reported]] = column[reported]
        return np.where(unknown, self.numbers["epochs"] * epochs[self.programs], left)

    def held_amounts(self) -> Array:
        """Return cores, GiB and devices of all tasks of each job [jobs, 3]."""
        numbers = self.numbers
        held = [numbers["held_cpu"], numbers["held_gib"], numbers["held_gpu"]]
        return np.stack(held, axis=1)

    def changeable_places(self) -> Ints:
        """Return the places of the jobs that have a staircase and no decision in flight."""
        return np.flatnonzero((self.counts > 0) & (self.numbers["busy"] == 0))

    def too_large_places(self) -> Ints:
        """Return the indices of the waiting jobs with a least size larger than the cluster."""
        return np.flatnonzero((self.counts == 0) & (self.numbers["waits"] > 0))


def _number_names(names: Sequence[str]) -> Ints:
    """Return a number for each name, the same for equal names."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=int)


def _named_columns(table: Array) -> NumberColumns:
    """Return the columns of a table [jobs, 26] by their names."""
    return dict(zip(Numbers._fields, np.ascontiguousarray(table.T), strict=True))


class Queue:
    """The jobs that are short of the same resource, and so in each other's way.

    `members`: places in the market; `past`: of each job that is over, the time (s) of its request,
    and its work in seconds of the whole cluster.
    """

    def __init__(self, members: Ints, market: Market, past: Sequence[tuple[float, float]]) -> None:
        self.members = members
        waits = market.waits[members]
        left = market.left_s[members]
        unknown = np.isnan(left)
        start = market.start_s[members]
        # A job of unknown length counts as the median of the known ones.
        middle = 1.0 if unknown.all() else float(np.median(left[~unknown]))
        left = np.where(unknown, middle, left) + np.where(waits, start, 0.0)
        done = market.samples[members] / market.best[members] + np.where(waits, 0.0, start)
        alone = market.alone_s[members]
        pause = market.own_pause_s[members]
        self.sojourn = SojournInputs(market.asked_s[members], left, done, alone, waits, pause)
        self.shortest_s = market.shortest_s[members]
        self.asked_s, self.work_s = all_arrivals(self.sojourn, past)
        self.prices = work_prices(
            left, median_elasticity(market.stairs, members), market.weight[members]
        )

    def overdue_jobs(self, now: float) -> list[int]:
        """Return the jobs that must not be overtaken any more."""
        found = overdue_jobs(self.sojourn, self.asked_s, self.work_s, now)
        return list(self.members[found].tolist())

    def future_work_s(self, now: float) -> float:
        """Return the expected work of jobs to come, in seconds of the whole cluster."""
        return future_work_s(self.asked_s, self.work_s, now)

    def load_share(self, now: float) -> float:
        """Return all work as a share of the cluster's time since the first request."""
        return float(self.work_s.sum()) / max(now - float(self.asked_s[0]), 1e-9)

    def critical_jobs(self, now: float) -> list[int]:
        """Return the jobs that all others would wait for in the end."""
        found = critical_jobs(self.sojourn.left_s, self.shortest_s, self.future_work_s(now))
        return list(self.members[found].tolist())


class Market:
    """The jobs that may change, side by side; arrays [jobs] and [jobs, steps].

    `table`: all jobs of the policy; `best`: examples/s for the whole cluster's cost; `left_s`:
    seconds that remain at that speed (nan: not known); `shortest_s`: at the top of its staircase;
    `alone_s`: at its least size, with its start if it waits; `start_s`: the cost of its start in
    seconds of the whole cluster, at its least size; `holds_step`: True if a step is within its
    present size; `unrepaid_steps` [jobs, 10]: the fastest of the larger steps that are left out
    because a pause for them would not pay (0: none). A market does not depend on the time or on the
    room.
    """

    def __init__(self, jobs: JobArrays, places: Ints) -> None:
        self.table = jobs
        self.jobs = jobs.jobs
        self.rows = jobs.rows
        numbers = jobs.numbers
        if len(places) < len(jobs.jobs):
            self.jobs = [jobs.jobs[at] for at in places.tolist()]
            self.rows = [jobs.rows[at] for at in places.tolist()]
            numbers = _named_columns(jobs.table[places])
        self.models = jobs.models[places]
        self.left = jobs.left[places]
        self.own_pause_s = jobs.pause_s[places]
        self._add_numbers(numbers)
        self.held = jobs.held_amounts()[places]
        self.held_together = self.held.sum(axis=0)
        steps = jobs.steps
        if len(places) < len(jobs.counts):
            own = np.zeros(len(jobs.counts), dtype=bool)
            own[places] = True
            steps = steps[np.repeat(own, jobs.counts)]
        self._add_staircases(steps, jobs.counts[places], numbers["workers"] > 0)
        self._add_times(numbers["pause_s"])
        self._add_prices()
        self.quota_rooms = self._quota_rooms(jobs, places)

    def _add_numbers(self, numbers: NumberColumns) -> None:
        """Take the columns of these jobs [jobs] from their rows."""
        self.waits = numbers["waits"] > 0
        self.speed_known = numbers["heard"] > 0
        self.fills_cluster = numbers["fills"] > 0
        self.speed = numbers["speed"]
        self.cost = numbers["cost"]
        self.best = numbers["best"]
        self.asked_s = numbers["asked_s"]
        self.since_s = numbers["since_s"]
        self.samples = numbers["samples"]
        self.weight = numbers["weight"]
        size = [numbers["ps"], numbers["workers"], numbers["batch"]]
        self.sizes = np.stack(size, axis=1)
        spare = [numbers["spare_cpu"], numbers["spare_gib"], numbers["spare_gpu"]]
        self.spare = np.stack(spare, axis=1)

    def _add_staircases(self, steps: Array, counts: Ints, has_workers: NDArray[np.bool_]) -> None:
        """Put the steps side by side that repay the pause for them.

        `steps` [all steps, 10]; `counts` [jobs]; `has_workers`: True if a job has workers.
        """
        least = least_repaying_speed(self.own_pause_s, self.speed, self.left)
        jobs = np.repeat(np.arange(len(counts)), counts)
        within = steps[:, COST] <= (self.cost * (1 + 1e-9))[jobs]
        first = np.zeros(len(steps), dtype=bool)
        first[np.cumsum(counts) - counts] = True
        repays = steps[:, SPEED] >= least[jobs]
        is_offered = within | first | repays | ~has_workers[jobs]
        self.unrepaid_steps = np.zeros((len(counts), COLUMNS))
        self.unrepaid_steps[jobs[~is_offered]] = steps[
            ~is_offered
        ]  # the last one of each job stays
        self.quotas = namespace_quotas(self.jobs)
        self.quota_places = _quota_places(self.jobs, list(self.quotas))
        counts = np.bincount(jobs[is_offered], minlength=len(counts))
        self.stairs = Staircases(steps[is_offered], counts, self.quota_places)
        self.holds_step = self.stairs.exists & (
            self.stairs.costs <= self.cost[:, None] * (1 + 1e-9)
        )
        self.last_step = counts - 1

    def _quota_rooms(self, jobs: JobArrays, places: Ints) -> Array:
        """Return the quota of each namespace that these jobs may share: cores, GiB and
        devices of one after the other.
        """
        if not self.quotas:
            return np.zeros(0)
        others = np.ones(len(jobs.jobs), dtype=bool)
        others[places] = False
        taken = {space: np.zeros(3) for space in self.quotas}
        held = jobs.held_amounts()
        for at in np.flatnonzero(others).tolist():
            space = jobs.jobs[at].request.namespace
            if space in taken:
                taken[space] += held[at]
        rooms = [np.array(amounts(quota.most())) - taken[s] for s, quota in self.quotas.items()]
        return np.concatenate(rooms)

    def _add_times(self, paused_s: Array) -> None:
        """Add the times of each job. `paused_s` [jobs]: its own measured pause (s); nan: none."""
        rows = np.arange(len(self.jobs))
        first_speed = self.stairs.speeds[:, 0]
        last_speed = self.stairs.speeds[rows, self.last_step]
        self.left_s = self.left / self.best
        work = np.nan_to_num(self.left)
        self.shortest_s = work / last_speed
        self.alone_s = np.where(self.waits, self.own_pause_s, 0.0) + work / first_speed
        self.start_s = self.own_pause_s * self.stairs.costs[:, 0]
        self.pause_s = np.where(self.waits, 0.0, self.own_pause_s)
        # The time at which the last pause is small against the gain of the largest size.
        gain = 1.0 - np.minimum(1.0, self.speed / last_speed)
        measured = np.where(self.waits | np.isnan(paused_s), -np.inf, paused_s)
        self.settled_s = settled_at_s(self.since_s, measured, gain)

    def _add_prices(self) -> None:
        """Price each job's work, and each of its steps."""
        scarce = self.stairs.steps[self.stairs.starts, SCARCE]
        worth = np.ones(len(self.jobs))
        self.queues = []
        for resource in dict.fromkeys(scarce.tolist()):
            members = np.flatnonzero(scarce == resource)
            self.queues.append(Queue(members, self, self._past_arrivals(members.tolist())))
            worth[members] = self.queues[-1].prices
        self.example_price = worth / self.best
        self.step_values = self._repaid_gain_per_cost() * self.example_price[:, None]
        self.running = np.flatnonzero(~self.waits).tolist()
        # The parts of `_held_step_values` that do not change with time.
        rows = np.arange(len(self.jobs))
        top = np.maximum(self.holds_step.sum(axis=1) - 1, 0)
        run = self.stairs.costs[rows, top][:, None] - self.stairs.costs
        self.below_top = self.holds_step & (run > 0)
        self.cost_to_top = np.where(self.below_top, run, 1.0)
        self.top_speed = self.stairs.speeds[rows, top]

    def _past_arrivals(self, members: Sequence[int]) -> list[tuple[float, float]]:
        """Return the request times (s) of the jobs of the members' programs that are over, and
        their work in seconds of the whole cluster.
        """
        alike = {}
        for at in members:
            if self.jobs[at].history:
                alike[self.rows[at].digest] = at
        found = []
        for at in alike.values():
            kin = self.jobs[at].kin
            for asked_s, samples in kin.ended if kin else ():
                found.append((asked_s, float(samples / self.best[at] + self.start_s[at])))
        return found

    def _repaid_gain_per_cost(self) -> Array:
        """Return the gain per cost of each step [jobs, steps].

        A running job pauses to grow, and pauses again to shrink when room is short: over its
        remaining time a step brings only

            left / (left / v + PAUSES x pause)      examples a second
        """
        work = np.nan_to_num(self.left)
        part = np.divide(1.0, work, out=np.zeros_like(work), where=work > 0)
        lost = np.where(self.holds_step, 0.0, (PAUSES * self.pause_s * part)[:, None])
        return self.stairs.gain_per_cost(self.stairs.speeds / (1.0 + lost * self.stairs.speeds))

    # ------------------------------------------------------------ offers

    def step_offers(self, now: float) -> Array:
        """Return the worth of each step; a job that has just paused offers none beyond its present
        size.
        """
        settling = (now < self.settled_s)[:, None]
        worth = np.maximum(self.step_values, self._held_step_values(now))
        worth[:, 1:][(settling & ~self.holds_step)[:, 1:]] = -np.inf
        return np.asarray(worth)

    def _held_step_values(self, now: float) -> Array:
        """Return the worth of the steps that jobs hold [jobs, steps]; 0 for the others. If such a
        step moves, the job that loses it pauses, and so does the one that gets it.

        The pauses cost speed x pause x `PAUSES` examples. As a rate, that is divided by the time
        for which the job has been unchanged, because it will probably stay so for as long again
        (see `aging.future_work_s`). With so much more speed at its present size, the staircase is
        one line from the tangent point on, and all steps on that line have its slope.
        """
        unchanged_s = np.maximum(now - self.since_s, np.maximum(self.pause_s, 1e-9))
        more = PAUSES * self.speed * self.pause_s / unchanged_s
        rise = (self.top_speed + more)[:, None] - self.stairs.speeds
        slopes = np.where(self.below_top, rise / self.cost_to_top, np.inf)
        tangent_step = slopes.argmin(axis=1)
        tangent = slopes[np.arange(len(tangent_step)), tangent_step]
        inside = self.holds_step & (np.arange(slopes.shape[1]) > tangent_step[:, None])
        worth = np.where(np.isfinite(tangent), tangent, 0.0) * self.example_price
        return np.asarray(np.where(inside, worth[:, None], 0.0))

    def overdue_jobs(self, now: float) -> list[int]:
        """Return the jobs that wait and must not be overtaken any more, most urgent first."""
        late = []
        for queue in self.queues:
            late += queue.overdue_jobs(now)
        return late

    def offers_for_overdue(self, offers: Array, late: Sequence[int], given: Ints) -> Array:
        """Return offers that put late jobs before any job that would get more, but after the steps
        that jobs hold and keep (`given`). Those would be free only after a pause, and capacity that
        is free sooner goes to the late jobs anyway.
        """
        keeps = self.holds_step & (np.arange(self.holds_step.shape[1]) <= given[:, None])
        top = offers[~keeps].max()
        offers = np.where(keeps, offers + 2 * top, offers)
        offers[late, 0] = top * (2 - np.arange(len(late)) / len(late))
        return offers

    def floors_first(self, now: float) -> list[int]:
        """Return the jobs that get their gang floors before any other step, in their order."""
        first = list(self.running)
        for queue in self.queues:
            first += queue.critical_jobs(now)
        return list(dict.fromkeys(first))

    # ------------------------------------------------------------ reserved and spare capacity

    def reserved_room(self, now: float) -> ReservedRoom:
        """Return the steps that must leave capacity free, and the amounts. Growth must leave it
        free in queues to which jobs keep coming.
        """
        grows = ~self.holds_step & (np.arange(self.holds_step.shape[1]) > 0)
        return ReservedRoom(grows & self._members_of(self._has_arrivals(now))[:, None], self.spare)

    def spare_room(self, rooms: Array, given: Ints, now: float) -> Array:
        """Return the capacity that is left for each job alone [jobs, 3], within its quota, and free
        for long. If jobs keep coming to its queue, that is nothing in a busy queue, and in another
        one the rest without the reserve for the next job.

        `rooms`, `given`: as in `grant_steps`; a running job that was given nothing counts with its
        least size.
        """
        given = np.where(self.holds_step.any(axis=1), np.maximum(given, 0), given)
        left = rooms - self.stairs.granted_amounts(given).sum(axis=0)
        # The last room, at -1, is that of jobs without a quota.
        quota_rooms = np.append(left[3:], [math.inf] * 3).reshape(-1, 3)
        own = quota_rooms[self.quota_places]
        coming = self._has_arrivals(now)
        busy = []
        for queue, more in zip(self.queues, coming, strict=True):
            busy.append(more and queue.load_share(now) > BUSY_LOAD)
        kept = np.where(self._members_of(coming)[:, None], self.spare, 0.0)
        free = np.minimum(left[:3], own) - kept
        return np.where(self._members_of(busy)[:, None], 0.0, free)

    def _has_arrivals(self, now: float) -> list[bool]:
        """Return True for each queue that jobs keep coming to."""
        return [queue.future_work_s(now) > 0 for queue in self.queues]

    def _members_of(self, is_such: Sequence[bool]) -> NDArray[np.bool_]:
        """Return a mask of the jobs in the queues that are marked True [jobs]."""
        found = np.zeros(len(self.jobs), dtype=bool)
        for queue, its in zip(self.queues, is_such, strict=True):
            found[queue.members] = its
        return found


class PolicyArrays(NamedTuple):
    """All jobs of the policy, and those that may change; None: none may."""

    table: JobArrays
    market: Market | None


def arrays_of(jobs: Sequence[JobSnapshot]) -> PolicyArrays | None:
    """Return the arrays of these jobs; None if they have no rows, or rows for different
    clusters.
    """
    rows = [job.model for job in jobs]
    for row in rows:
        if not isinstance(row, JobRow) or row.there != rows[0].there:
            return None
    return build_arrays(jobs, rows) if rows else None


def build_arrays(jobs: Sequence[JobSnapshot], rows: Sequence[JobRow]) -> PolicyArrays:
    """Put jobs side by side."""
    table = JobArrays(jobs, rows)
    places = table.changeable_places()
    return PolicyArrays(table, Market(table, places) if len(places) else None)


def least_repaying_speed(pause_s: Array, speed: Array, left: Array) -> Array:
    """Return the least speed that is worth a pause. Below it a job is not given more, and capacity
    does not wait for it.

    All [jobs]: `speed` now; `left`: examples, nan: not known.
    """
    enough = (1.0 + MIN_GAIN) * speed
    with np.errstate(divide="ignore", invalid="ignore"):
        trained_s = left / speed - pause_s
        repaid = np.where(trained_s > 0, left / trained_s, np.inf)
    known = ~np.isnan(left) & (speed > 0)
    return np.where(known, np.maximum(enough, repaid), enough)


def critical_jobs(left_s: Array, shortest_s: Array, future_s: float) -> list[int]:
    """Return the jobs that all would wait for in the end: they take as long as all work together,
    even at their largest size.
    """
    end_s = max(float(left_s.sum()) + future_s, float(shortest_s.max()))
    others_s = left_s.sum() - left_s
    found = (shortest_s >= NEARLY * end_s) & (others_s >= TRIFLE * shortest_s)
    return np.flatnonzero(found).tolist()


def median_elasticity(stairs: Staircases, members: Ints) -> float:
    """Return p of a speed-up k^p, from the first to the last step of each staircase; the median
    over jobs.
    """
    last = stairs.exists[members].sum(axis=1) - 1
    several = members[last > 0]
    last = last[last > 0]
    if not len(several):
        return 0.5
    faster = stairs.speeds[several, last] / stairs.speeds[several, 0]
    dearer = stairs.costs[several, last] / stairs.costs[several, 0]
    return float(np.median(np.log(faster) / np.log(dearer)))


def namespace_quotas(jobs: Sequence[JobSnapshot]) -> dict[str, Quota]:
    """Return the quota of each of these jobs' namespaces that has one."""
    return {job.request.namespace: job.quota for job in jobs if job.quota is not None}


def _quota_places(jobs: Sequence[JobSnapshot], spaces: list[str]) -> list[int]:
    """Return the place of each job's quota, -1: it has none."""
    if not spaces:
        return [-1] * len(jobs)
    places = {space: at for at, space in enumerate(spaces)}
    return [places[job.request.namespace] if job.quota else -1 for job in jobs]


ELASTICITY = (0.05, 0.95)  # between these the powers stay finite


def work_prices(sizes: Array, elasticity: float, weights: Array) -> Array:
    """Return the price of each job's work [jobs].

    `sizes`: seconds of work on one core; `weights`: how much each job matters; both [jobs].
    """
    p = min(max(elasticity, ELASTICITY[0]), ELASTICITY[1])
    e = 1.0 / (1.0 - p)
    largest_first = np.argsort(-sizes / weights, kind="stable")
    ranks = np.arange(1.0, len(sizes) + 1)
    by_rank = (ranks**e - (ranks - 1.0) ** e) ** (1.0 - p)
    found = np.empty(len(sizes))
    found[largest_first] = by_rank
    return weights * found
