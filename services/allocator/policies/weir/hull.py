"""What a job could be, as a staircase of configurations in which each step gains less speed for its
cost than the last.

Configurations below the upper concave hull of speed over cost are never the best use of what they
cost: a mixture of their neighbours would be faster. On a hull the greedy rule, always the step that
gains most for its cost, is optimal up to the last step that does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from services.allocator.models.speed import Array
from services.allocator.policies.contract import Size

ALIKE = 1.02
"""A step that gains so much more for its cost than the one before it still comes after it, so that
straight lines keep their points, and a model's rounding does not decide.
"""
LEAST = 1e-12  # of a cost's difference: points of one cost


class Config(NamedTuple):
    """One size and batch: the cores, GiB and devices that it takes, what share of the scarcest
    resource that is (its cost), and its speed in examples/s. As an array, a row of [..., 10].

    `apart`: its speed where devices side by side stand on several nodes though one could hold them;
    else nan. `scarce`: the resource (of cores, GiB, devices) of which the cost is a share.
    """

    ps: int
    workers: int
    batch: int
    cpu: float
    memory_gib: float
    gpu: float
    cost: float
    speed: float
    apart: float = math.nan
    scarce: int = 0

    @property
    def size(self) -> Size:
        return Size(self.ps, self.workers)

    @classmethod
    def of_row(cls, row: Sequence[float]) -> Config:
        ps, workers, batch, cpu, memory_gib, gpu, cost, speed, apart, scarce = row
        whole = int(ps), int(workers), int(batch)
        return cls(*whole, cpu, memory_gib, gpu, cost, speed, apart, int(scarce))


COLUMNS = len(Config._fields)
PS, WORKERS, BATCH, CPU, GIB, GPU, COST, SPEED, APART, SCARCE = range(COLUMNS)
"""Places of a configuration's numbers in its row."""


def hulls(cost: Array, speed: Array, base: Array) -> list[list[int]]:
    """Of each job, which points lie on the upper concave hull from its base on, by rising cost.

    `cost`, `speed`: [jobs, points], all finite; `base`: cost and speed [jobs, 2]; what is no faster
    is left out.
    """
    order = np.argsort(
        cost - 1j * speed, axis=1, kind="stable"
    )  # by cost, of one cost the fastest first
    fastest = np.maximum.accumulate(np.take_along_axis(speed, order, axis=1), axis=1)
    fastest = np.concatenate([base[:, 1:], np.maximum(fastest, base[:, 1:])], axis=1)
    jobs, at = np.nonzero(np.diff(fastest, axis=1) > 0.0)
    rising = order[jobs, at]
    costs = cost[jobs, rising].tolist()
    speeds = speed[jobs, rising].tolist()
    points = rising.tolist()
    ends = np.searchsorted(jobs, np.arange(len(cost) + 1)).tolist()
    found = []
    for (cost_0, speed_0), start, end in zip(base.tolist(), ends, ends[1:], strict=False):
        kept = _kept([cost_0, *costs[start:end]], [speed_0, *speeds[start:end]])
        found.append([points[start + n - 1] for n in kept])
    return found


def _kept(cost: Sequence[float], speed: Sequence[float]) -> list[int]:
    """Return which of the points after the first, the base, are on the hull; both rise."""
    kept, slopes = [0], [math.inf]
    for n, (costs, gives) in enumerate(zip(cost[1:], speed[1:], strict=True), start=1):
        while True:
            last = kept[-1]
            more = costs - cost[last]
            slope = (gives - speed[last]) / (more if more > LEAST else LEAST)
            if slopes[-1] * ALIKE >= slope:
                break
            kept.pop()
            slopes.pop()
        kept.append(n)
        slopes.append(slope)
    return kept[1:]
