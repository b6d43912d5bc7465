"""What a second of each job's work is worth, so that the mean completion time becomes small.

Jobs that share N cores and speed up as k^p on k of them have the smallest mean completion time
under heSRPT (Berg, Vesilo and Harchol-Balter, "heSRPT: Parallel scheduling to minimize mean
slowdown", Performance Evaluation 2020). With the jobs ranked by remaining size, the largest first,
and x_i the i-th size in seconds on one core, their total time is

    sum over i of  x_i l_i / N^p        l_i = (i^e - (i - 1)^e)^(1/e)        e = 1 / (1 - p)

so l_i is the price of the i-th job's work: what a second less of it saves everybody. Giving each
core where price x speed-up gained is largest is their allocation exactly, and stays sensible where
speed-ups are not powers of k: our generalisation. Ours, too: a job's size is divided by its weight
where jobs are ranked, and its price is multiplied by it.

p near 1 (work spreads without loss) makes it shortest remaining time first; p near 0 makes it equal
shares.
"""

from __future__ import annotations

import numpy as np

from services.allocator.models.speed import Array

ELASTICITY = (0.05, 0.95)  # between these the powers stay finite


def prices(sizes: Array, elasticity: float, weights: Array) -> Array:
    """Return one price a job [jobs].

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
