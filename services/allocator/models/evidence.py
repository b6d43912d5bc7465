"""What observed speeds tell, as rows of numbers: where nothing is known of cores, what is usual stands in."""

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
    """An observed speed of which is known how it was placed: the share of traffic that left its node."""

    remote: float = 1.0


class Evidence(NamedTuple):
    """`rows`: points (`speed.Points`) [observations, 6]; `times`: seconds for a point's batch [observations]; `usual`:
    the last batch and remote traffic, the last known cores a ps and a worker (1 where nobody knows).
    """

    rows: Array
    times: Array
    usual: Usual


def evidence(observed: Sequence[Observed], batch: int) -> Evidence:
    """Of what is `believable`; `batch`: usual, where nothing is."""
    seen = [o for o in observed if believable(o)]
    ps_cpu = next((o.ps_cpu for o in reversed(seen) if _known(o.ps_cpu)), None) or 1.0
    worker_cpu = next((o.worker_cpu for o in reversed(seen) if _known(o.worker_cpu)), None) or 1.0
    rows = [
        (
            *(o.ps, o.workers, max(1, o.batch)),
            *(_known(o.ps_cpu) or ps_cpu, _known(o.worker_cpu) or worker_cpu),
            o.remote if isinstance(o, Measured) else remote(o.nodes),
        )
        for o in seen
    ]
    usual = (float(rows[-1][2] if rows else max(1, batch)), ps_cpu, worker_cpu, rows[-1][5] if rows else 1.0)
    points = np.array(rows, dtype=float).reshape(-1, 6)
    return Evidence(points, points[:, 2] / np.array([o.samples_per_second for o in seen]), usual)


def believable(seen: Observed) -> bool:
    """Does it tell of training, at a speed that may be true?"""
    return seen.workers > 0 and SPEEDS[0] <= seen.samples_per_second <= SPEEDS[1]


def remote(nodes: int | None) -> float:
    """The share of its traffic that leaves a node, of a job on so many; where nobody knows, all of it."""
    return 0.0 if nodes == 1 else 1.0


def _known(cores: float | None) -> float | None:
    return cores if cores is not None and CORES[0] <= cores <= CORES[1] else None
