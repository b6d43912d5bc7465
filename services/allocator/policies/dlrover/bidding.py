"""Candidate plans of each job, and their choice: the weighted greedy of DLRover-RM (PVLDB 17(12),
2024).

    A     = (p, w, lambda_p, lambda_w)               a plan
    RC(A) = sum over resources of price x amount     its resource cost
    TG(A) = Psi(A) - Psi(now)                        its throughput gain

A job's candidates are the plans that no other beats in both RC and TG (`pareto_front`). All jobs'
candidates then compete for the free capacity: the largest weight x TG / RC first, while capacity
lasts (`weighted_greedy`).

From the paper's public material: the two objectives. Recalled and not checked: the weighted greedy.
The paper searches the plan space at random, with NSGA-II; here the whole space in reach, some
thousand plans, is enumerated and filtered exactly. Ours: a plan is in reach within a factor of four
in numbers and at most twice the cores of a task, because a model of few observations is not trusted
far away; a job steps from candidate to candidate, TG and RC are counted from the one before, and TG
is relative to the job's own throughput; a step is not taken if its relative gain is below
LEAST_ELASTICITY of its relative cost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.placement.amounts import ROUNDING
from services.allocator.policies.contract import Plan, Size

Array = NDArray[np.float64]
Step = tuple[float, str, int]
"""The negative of weight x TG / RC, so that the largest sorts first; the job; the candidate."""

REACH_FACTOR = 4  # numbers of ps and of workers are within this factor of the present ones
COUNTS = 12  # numbers of ps, and of workers, that are tried
CORES = (
    0.25,
    0.375,
    0.5,
    0.625,
    0.75,
    0.875,
    1.0,
    1.25,
    1.5,
    2.0,
)  # of the present cores of a task
CORES_STEP = 0.05
CORES_LEAST = 0.1
LEAST_ELASTICITY = 0.35


class Bid(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates of one job by rising cost and throughput, each array [candidates]; the job
    begins with the first.
    """

    plans: Array
    """[candidates, 4]: ps, workers, cores a ps, cores a worker."""
    speed: Array
    """Examples a second."""
    cost: Array
    """In cores: a GiB counts as a part of one (`candidates.PRICE_GIB`)."""
    cpu: Array
    """Cores."""
    gib: Array
    weight: float = 1.0
    now: tuple[float, float] = (0.0, 0.0)
    """Throughput and cost of the present plan."""

    def against_now(self, at: int) -> tuple[float, float]:
        """Return the gain in throughput and the additional cost of a candidate, relative to the
        present plan.
        """
        speed_now, cost_now = self.now
        gain = float(self.speed[at] / speed_now - 1)
        extra = float(self.cost[at] / cost_now - 1)
        return gain, extra

    def additional(self, here: int, to: int) -> tuple[float, float]:
        """Return cores and GiB that a candidate has beyond another one."""
        cpu = float(self.cpu[to] - self.cpu[here])
        gib = float(self.gib[to] - self.gib[here])
        return cpu, gib


class PlanSpace(NamedTuple):
    """The numbers that are tried, each array [numbers] rising; a plan in reach is any combination
    of them.
    """

    ps: Array
    workers: Array
    ps_cores: Array
    """Cores of each ps."""
    worker_cores: Array

    def grid(self) -> tuple[Array, Array, Array, Array]:
        """Return the numbers as arrays that broadcast to all plans [ps, workers, cores a ps, cores
        a worker].
        """
        return (
            self.ps[:, None, None, None],
            self.workers[:, None, None],
            self.ps_cores[:, None],
            self.worker_cores,
        )

    def plans(self) -> Array:
        """Return all plans [plans, 4], as rows of the grid."""
        columns = np.broadcast_arrays(*self.grid())
        rows: Array = np.stack(columns, axis=-1).reshape(-1, 4)
        return rows

    def within(self, ps_cpu: float, worker_cpu: float) -> PlanSpace:
        """Return the space without plans with more cores than a ps, or a worker, can have."""
        possible_ps = self.ps_cores <= ps_cpu + ROUNDING
        possible_workers = self.worker_cores <= worker_cpu + ROUNDING
        return self._replace(
            ps_cores=self.ps_cores[possible_ps],
            worker_cores=self.worker_cores[possible_workers],
        )

    def on_nodes(self, node_cpu: float) -> PlanSpace:
        """Return the space with cores limited to those of a node."""
        most = _hundredths(max(node_cpu, CORES_LEAST))
        tried = max(self.ps_cores[-1], self.worker_cores[-1])
        if tried <= most:
            return self
        ps_cores = np.minimum(self.ps_cores, most)
        worker_cores = np.minimum(self.worker_cores, most)
        return self._replace(ps_cores=np.unique(ps_cores), worker_cores=np.unique(worker_cores))


def plan_space(now: Plan, least: Size, most: Size, counts_only: bool = False) -> PlanSpace:
    """Return the plans near `now` in each of the four numbers, within the job's bounds.

    `counts_only`: tasks keep the cores that they have.
    """
    if counts_only:
        ps_cores = np.array([now.ps_cpu])
        worker_cores = np.array([now.worker_cpu])
    else:
        ps_cores = _core_counts(now.ps_cpu)
        worker_cores = _core_counts(now.worker_cpu)
    return PlanSpace(
        ps=_task_counts(now.ps, least.ps, most.ps),
        workers=_task_counts(now.workers, least.workers, most.workers),
        ps_cores=ps_cores,
        worker_cores=worker_cores,
    )


def _task_counts(now: int, least: int, most: int) -> Array:
    """Return numbers of tasks [numbers] within the bounds, evenly spread in their logarithm."""
    high = max(least, min(most, now * REACH_FACTOR))
    low = max(least, math.ceil(now / REACH_FACTOR))
    low = min(low, high)
    spread = np.round(np.geomspace(low, high, COUNTS))
    present = min(max(now, low), high)
    return np.unique(np.append(spread, present))


def _core_counts(now: float) -> Array:
    """Return cores of a task [numbers]."""
    steps = np.round(now * np.array(CORES) / CORES_STEP)
    tried = steps * CORES_STEP
    tried = np.maximum(tried, CORES_LEAST)
    return np.unique(_hundredths(tried))


def _hundredths(cores: Any) -> Any:
    """Round down to hundredths of a core."""
    return np.floor(cores * 100 + 1e-9) / 100


def pareto_front(cost: Array, gain: Array) -> NDArray[np.intp]:
    """Return the indices of the plans that no other beats in both, by rising cost (exact)."""
    # Leave out plans that gain less than a plan of at most their cost; few plans remain.
    by_cost = np.argsort(cost)
    rising = gain[by_cost]
    near = by_cost[rising >= np.maximum.accumulate(rising)]
    near.sort()

    # Of these, by cost and then by gain, each that gains more than all before it.
    by_cost_and_gain = np.lexsort((-gain[near], cost[near]))
    order = near[by_cost_and_gain]
    best = np.maximum.accumulate(gain[order])
    rises = np.append(True, best[1:] > best[:-1])
    unbeaten: NDArray[np.intp] = order[rises]
    return unbeaten


def weighted_greedy(bids: Mapping[str, Bid], cpu: float, gib: float) -> dict[str, int]:
    """Return the index of the candidate that each job gets. `cpu`, `gib`: cores and GiB beyond the
    need of all first candidates.
    """
    chosen = dict.fromkeys(bids, 0)
    heap: list[Step] = []
    for key, bid in bids.items():
        step = _best_step(key, bid, 0, cpu, gib)
        if step:
            heap.append(step)
    heapq.heapify(heap)

    while heap:
        _, key, to = heapq.heappop(heap)
        bid = bids[key]
        more_cpu, more_gib = bid.additional(chosen[key], to)
        if more_cpu <= cpu and more_gib <= gib:
            cpu -= more_cpu
            gib -= more_gib
            chosen[key] = to
        step = _best_step(key, bid, chosen[key], cpu, gib)
        if step:
            heapq.heappush(heap, step)
    return chosen


def _best_step(key: str, bid: Bid, here: int, cpu: float, gib: float) -> Step | None:
    """Return one job's best next candidate that fits."""
    first = here + 1
    if first == len(bid.cost):
        return None

    rates = _gain_rates(bid, here)
    best = int(rates.argmax())
    more_cpu, more_gib = bid.additional(here, first + best)
    if more_cpu > cpu or more_gib > gib:
        # It does not fit: take the best one that fits.
        all_more_cpu = bid.cpu[first:] - bid.cpu[here]
        all_more_gib = bid.gib[first:] - bid.gib[here]
        rates *= (all_more_cpu <= cpu) & (all_more_gib <= gib)
        best = int(rates.argmax())

    rate = float(rates[best])
    if rate <= 0:
        return None
    return -bid.weight * rate, key, first + best


def _gain_rates(bid: Bid, here: int) -> Array:
    """Return TG / RC of every later candidate, counted from the present one; 0: it gains too
    little.
    """
    later = slice(here + 1, None)
    gain = bid.speed[later] / bid.speed[here] - 1
    paid = bid.cost[later] - bid.cost[here]
    pays = gain >= LEAST_ELASTICITY * paid / bid.cost[here]
    rates: Array = gain / np.maximum(paid, 1e-9) * pays
    return rates
