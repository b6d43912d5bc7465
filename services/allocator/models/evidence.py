"""What observed speeds tell, as rows of numbers: where nothing is known of cores, what is usual
stands in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from services.allocator.models.speed import Array, Usual
from services.allocator.policies.contract import Observed

SPEEDS = (1e-6, 1e12)
"""Samples a second that may be true; of anything else it is the report that is wrong."""
CORES = (1e-3, 1e4)
"""Cores of a task that may be true."""


class Measured(Observed, frozen=True):
    """An observed speed of which is known how it was placed: the share of traffic that left its
    node.
    """

    remote: float = 1.0


class Evidence(NamedTuple):
    """`rows`: points (`speed.Points`) [observations, 6]; `times`: seconds for a point's batch
    [observations]; `usual`: the last batch and remote traffic, the last known cores a ps and a
    worker (1 where nobody knows).
    """

    rows: Array
    times: Array
    usual: Usual


def evidence(observed: Sequence[Observed], batch: int) -> Evidence:
    """Of what is `believable`; `batch`: usual, where nothing is."""
    seen = [point for point in observed if believable(point)]
    # Cores as they were last known stand in where they are not.
    ps_cpu = worker_cpu = 1.0
    for point in seen:
        ps_cpu = _known(point.ps_cpu) or ps_cpu
        worker_cpu = _known(point.worker_cpu) or worker_cpu
    rows = np.empty((len(seen), 6))
    speeds = np.empty(len(seen))
    for at, point in enumerate(seen):
        share = point.remote if isinstance(point, Measured) else remote(point.nodes)
        rows[at, :3] = (point.ps, point.workers, max(1, point.batch))
        rows[at, 3] = _known(point.ps_cpu) or ps_cpu
        rows[at, 4] = _known(point.worker_cpu) or worker_cpu
        rows[at, 5] = share
        speeds[at] = point.samples_per_second
    usual = (float(max(1, batch)), ps_cpu, worker_cpu, 1.0)
    if seen:
        usual = (float(rows[-1, 2]), ps_cpu, worker_cpu, float(rows[-1, 5]))
    return Evidence(rows, rows[:, 2] / speeds, usual)


def believable(seen: Observed) -> bool:
    """Does it tell of training, at a speed that may be true?"""
    return seen.workers > 0 and SPEEDS[0] <= seen.samples_per_second <= SPEEDS[1]


def remote(nodes: int | None) -> float:
    """The share of its traffic that leaves a node, of a job on so many; where nobody knows, all of
    it.
    """
    return 0.0 if nodes == 1 else 1.0


def _known(cores: float | None) -> float | None:
    return cores if cores is not None and CORES[0] <= cores <= CORES[1] else None
