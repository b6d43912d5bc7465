"""Memory that a task will need soon, from its use so far: embedding tables grow while training
(DLRover-RM).

    needed = largest use + rate x examples ahead          [GiB]
    rate   = slope of use over examples, by least squares; 0 where the rise is within twice the
             scatter around it

From DLRover's public design: memory is assumed to grow in proportion to steps, and a ps is enlarged
before it reaches its limit. Ours: the test of the slope, so that flat but noisy memory raises no
alarm; a forecast of some minutes instead of to the job's end, because memory can be changed in
place again; and when memory is reduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

AHEAD_S = 240.0  # the time that memory is forecast for
MARGIN = 1.1  # a new limit is this multiple of the need
NEAR = 1.05  # a limit below this multiple of the need is raised
WIDE = 1.1  # a limit above this multiple of the right one is lowered
STEP_GIB = 1 / 16
SCATTER = 2.0
MOST_GIB = 2.0**20  # no task has more; a higher figure is an error of measurement


def forecast_use(points: Sequence[tuple[float, float]], ahead: float) -> float | None:
    """Return the GiB needed `ahead` examples from now; None where nothing was measured.

    `points`: (examples, GiB).
    """
    known = []
    for samples, gib in points:
        if math.isfinite(samples) and math.isfinite(gib) and gib > 0:
            known.append((samples, gib))
    if not known:
        return None

    x, y = np.array(known, dtype=np.float64).T
    growth = 0.0
    if math.isfinite(ahead):
        growth = growth_rate(x, y) * max(ahead, 0.0)
    return float(min(MOST_GIB, y.max() + growth))


def growth_rate(x: np.ndarray, y: np.ndarray) -> float:
    """Return GiB an example; 0 where memory does not clearly grow. `x`, `y`: examples and GiB
    [points].
    """
    spread = x - x.mean()
    if len(x) < 3 or not spread.any():
        return 0.0

    use = y - y.mean()
    slope = float(spread @ use / (spread @ spread))
    scatter = float(np.std(use - slope * spread))
    rise = slope * float(np.ptp(x))
    if rise > SCATTER * scatter:
        return slope
    return 0.0


def limit_for(need: float) -> float:
    """Return the limit for a need, in whole steps."""
    steps = math.ceil(need * MARGIN / STEP_GIB - 1e-9)
    return steps * STEP_GIB


def limit_due(limit: float, need: float | None, may_shrink: bool) -> float:
    """Return the limit, or a new one if the need comes near to it or is far below it."""
    if need is None:
        return limit
    right = limit_for(need)
    if need * NEAR > limit:
        return right
    if may_shrink and limit > WIDE * right:
        return right
    return limit
