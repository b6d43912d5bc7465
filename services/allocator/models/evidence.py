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
    """The observed speeds of one job, as arrays."""

    rows: Array
    """Points (`speed.Points`) [observations, 6]."""
    times: Array
    """Seconds for a point's batch [observations]."""
    usual: Usual
    """The last batch and remote traffic, the last known cores a ps and a worker (1 where nobody
    knows).
    """


def evidence(observed: Sequence[Observed], batch: int) -> Evidence:
    """Return the observations that are `believable`. `batch`: the usual one if none is."""
    seen = [point for point in observed if believable(point)]
    ps_cpu, worker_cpu = _last_cores(seen)
    rows = np.empty((len(seen), 6))
    speeds = np.empty(len(seen))
    for at, point in enumerate(seen):
        rows[at] = _point_row(point, ps_cpu, worker_cpu)
        speeds[at] = point.samples_per_second

    batches = rows[:, 2]
    usual = (float(max(1, batch)), ps_cpu, worker_cpu, 1.0)
    if seen:
        last_batch = float(batches[-1])
        last_remote = float(rows[-1, 5])
        usual = (last_batch, ps_cpu, worker_cpu, last_remote)
    return Evidence(rows, batches / speeds, usual)


def _last_cores(seen: Sequence[Observed]) -> tuple[float, float]:
    """Return the last known cores of a ps and of a worker; 1 where none are known."""
    ps_cpu = 1.0
    worker_cpu = 1.0
    for point in seen:
        ps_cpu = _known(point.ps_cpu) or ps_cpu
        worker_cpu = _known(point.worker_cpu) or worker_cpu
    return ps_cpu, worker_cpu


def _point_row(point: Observed, ps_cpu: float, worker_cpu: float) -> tuple[float, ...]:
    """Return an observed size as a row; the given cores stand in where its own are not known."""
    ps_cpu = _known(point.ps_cpu) or ps_cpu
    worker_cpu = _known(point.worker_cpu) or worker_cpu
    share = remote(point.nodes)
    if isinstance(point, Measured):
        share = point.remote
    return (point.ps, point.workers, max(1, point.batch), ps_cpu, worker_cpu, share)


def believable(seen: Observed) -> bool:
    """Return true if it tells of training, at a speed that may be true."""
    if seen.workers <= 0:
        return False
    least, most = SPEEDS
    return least <= seen.samples_per_second <= most


def remote(nodes: int | None) -> float:
    """Return the share of a job's traffic that leaves its node; all of it if nobody knows how many
    nodes it stands on.
    """
    if nodes == 1:
        return 0.0
    return 1.0


def _known(cores: float | None) -> float | None:
    """Return the cores of a task if they may be true."""
    least, most = CORES
    if cores is not None and least <= cores <= most:
        return cores
    return None
