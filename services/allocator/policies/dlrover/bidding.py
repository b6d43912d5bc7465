"""What each job could have, and who gets it: candidates and weighted greedy of DLRover-RM (PVLDB 17(12), 2024).

    RC(A) = sum over resources of price x amount     resource cost of a plan A = (p, w, lambda_p, lambda_w)
    TG(A) = Psi(A) - Psi(now)                        throughput gain

A job's candidates are the plans that no other beats in both RC and TG (`front`). All jobs' candidates then compete for
what is free: the largest weight x TG / RC first, while capacity lasts (`greedy`).

From the paper's public material: the two objectives. Recalled and not checked: the weighted greedy. The paper searches
the plan space with NSGA-II, by chance; here the whole space in reach, some thousand plans, is enumerated and filtered
exactly. Ours: a plan is in reach within a factor of four in numbers and at most twice the cores of a task, because a
model of few observations is not trusted far away; a job steps from candidate to candidate, TG and RC counted from the
one before, TG relative to the job's own throughput; a step whose relative gain is below LEAST_ELASTICITY of its
relative cost is not taken.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.policies.contract import Plan, Size
from services.allocator.policies.dlrover.iteration import grid

Array = NDArray[np.float64]

REACH = 4  # a number of ps or workers is at most so many times the present one, or a part of it
COUNTS = 12  # numbers of ps, and of workers, that are tried
CORES = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5, 2.0)  # of the present cores of a task
CORES_STEP, CORES_LEAST = 0.05, 0.1
LEAST_ELASTICITY = 0.35
REACHES = 64  # so many of the last ones are remembered


class Bid(msgspec.Struct, frozen=True, kw_only=True):
    """One job's candidates by rising cost and throughput, each array [candidates]; it begins with the first."""

    plans: Array
    """[candidates, 4]: ps, workers, cores a ps, cores a worker."""
    speed: Array
    """Examples a second."""
    cost: Array
    cpu: Array
    gib: Array
    weight: float = 1.0
    now: tuple[float, float] = (0.0, 0.0)
    """Throughput and cost of the present plan."""


@lru_cache(REACHES)
def in_reach(now: Plan, least: Size, most: Size, node_cpu: float, counts_only: bool = False) -> Array:
    """Plans [plans, 4] near `now` in each of the four numbers, within the job's bounds and a node's cores.

    `counts_only`: tasks keep the cores that they have, and `now` is among the plans, whatever the bounds.
    """
    cpu = (now.ps_cpu, now.worker_cpu)
    axes = (
        _counts(now.ps, least.ps, most.ps),
        _counts(now.workers, least.workers, most.workers),
        *(np.array([cores]) if counts_only else _cores(cores, node_cpu) for cores in cpu),
    )
    plans: Array = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 4)
    if counts_only:
        plans = np.unique(np.vstack([grid([now]), plans]), axis=0)
    plans.setflags(write=False)
    return plans


def _counts(now: int, least: int, most: int) -> Array:
    high = max(least, min(most, now * REACH))
    low = min(max(least, math.ceil(now / REACH)), high)
    return np.unique(np.append(np.round(np.geomspace(low, high, COUNTS)), min(max(now, low), high)))


def _cores(now: float, most: float) -> Array:
    tried = np.round(now * np.array(CORES) / CORES_STEP) * CORES_STEP
    return np.unique(np.floor(np.clip(tried, CORES_LEAST, max(most, CORES_LEAST)) * 100 + 1e-9) / 100)


def front(cost: Array, gain: Array) -> NDArray[np.intp]:
    """The plans that no other beats in both, by rising cost (exact)."""
    order = np.lexsort((-gain, cost))
    best = np.maximum.accumulate(gain[order])
    kept: NDArray[np.intp] = order[np.append(True, best[1:] > best[:-1])]
    return kept


def greedy(bids: Mapping[str, Bid], cpu: float, gib: float) -> dict[str, int]:
    """Which candidate each job gets, of so many cores and GiB beyond what the first ones need."""
    at = dict.fromkeys(bids, 0)
    heap = [step for key, bid in bids.items() if (step := _step(key, bid, 0, cpu, gib))]
    heapq.heapify(heap)
    while heap:
        _, key, to = heapq.heappop(heap)
        bid, here = bids[key], at[key]
        more_cpu, more_gib = float(bid.cpu[to] - bid.cpu[here]), float(bid.gib[to] - bid.gib[here])
        if more_cpu <= cpu and more_gib <= gib:
            cpu, gib, at[key] = cpu - more_cpu, gib - more_gib, to
        if step := _step(key, bid, at[key], cpu, gib):
            heapq.heappush(heap, step)
    return at


def _step(key: str, bid: Bid, here: int, cpu: float, gib: float) -> tuple[float, str, int] | None:
    """One job's best next candidate that fits, as (- weight x TG / RC, job, candidate)."""
    after = slice(here + 1, None)
    gain, paid = bid.speed[after] / bid.speed[here] - 1, bid.cost[after] - bid.cost[here]
    fits = (bid.cpu[after] - bid.cpu[here] <= cpu) & (bid.gib[after] - bid.gib[here] <= gib)
    pays = gain >= LEAST_ELASTICITY * paid / bid.cost[here]
    rate = np.where(fits & pays, gain / np.maximum(paid, 1e-9), 0.0)
    if not rate.size or rate.max() <= 0:
        return None
    best = int(rate.argmax())
    return (-bid.weight * float(rate[best]), key, here + 1 + best)
