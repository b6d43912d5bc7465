"""Cores divided among jobs that stand on several nodes each: weighted max-min, by progressive
filling.

All jobs grow together, each in proportion to its weight; a job stops where a node that it stands on
is full; the others grow on. The result gives no node more than it has, and nobody more could be had
without taking it from a job that has less for its weight (Bertsekas & Gallager, Data Networks,
section 6.5.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Demands(NamedTuple):
    """Shares of jobs' cores that lie on nodes [demands each]; those of one job sum to 1."""

    job: Ints
    node: Ints
    share: Floats


def filled(pots: Floats, demands: Demands, weights: Floats) -> Floats:
    """Return cores for each job [jobs]. `pots`: cores of each node [nodes]; `weights` [jobs]."""
    level = np.zeros(len(weights))
    growing = np.ones(len(weights), dtype=bool)
    left = pots.copy()
    wanted = demands.share > 0
    job = demands.job[wanted]
    node = demands.node[wanted]
    pulls = weights[job] * demands.share[wanted]
    while True:
        # The node that is full first, if all jobs go on growing.
        pull = np.bincount(node, weights=pulls, minlength=len(pots))
        pulled = np.flatnonzero(pull > 0)
        if not len(pulled):
            return level
        steps = left[pulled] / pull[pulled]
        first = steps.argmin()
        step = steps[first]
        level[growing] += step * weights[growing]
        left = np.maximum(0.0, left - step * pull)

        # Its jobs stop, and so pull at no other node.
        growing[job[node == pulled[first]]] = False
        goes_on = growing[job]
        job = job[goes_on]
        node = node[goes_on]
        pulls = pulls[goes_on]
