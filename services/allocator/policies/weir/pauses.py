"""What a change costs each job, in seconds for which it stands still, before it has paused for the
first time, too.

As its own pauses were measured; before that as those of its program's other jobs, which have as
much to copy; before that as the median program's; before anybody has paused, `PAUSE_S`. (Where
nobody knew better than `PAUSE_S`, each job had to pause once for long to learn that it had better
not.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.allocator.models.speed import Array
from services.allocator.policies.contract import PAUSE_S

Ints = NDArray[np.int64]

PAUSES = 2.0
"""Where a job's steps go to another, so many jobs pause; and so often does who grows, and shrinks
again.
"""
PAUSED_TO_GROW = 2.0
"""A job has just paused while that was more than so many times what it would gain since by
growing.
"""


def settled_s(since_s: Array | float, paused_s: Array | float, gain: Array | float) -> Array:
    """When a job's last pause, of `paused_s`, will have been no more than a share of its time
    since; the first one is free. The share goes by `gain`: what growing would save, of its time.
    """
    return np.asarray(since_s + paused_s / np.maximum(PAUSED_TO_GROW * gain, 1e-6))


def pauses(own_s: Array, programs: Ints, kin_s: Array) -> Array:
    """Return the pause of each job [jobs].

    `own_s`: the mean of its own, `kin_s`: of its program's jobs that are over (nan: none);
    `programs`: the number of its program.
    """
    unknown = np.isnan(own_s)
    if not unknown.any():
        return own_s
    # The mean of each program: of its jobs that paused, and of those that are over as one more.
    count = int(programs.max()) + 1
    paused = programs[~unknown]
    sums = np.bincount(paused, weights=own_s[~unknown], minlength=count)
    numbers = np.bincount(paused, minlength=count).astype(np.float64)
    over = np.full(count, np.nan)
    has_kin = ~np.isnan(kin_s)
    over[programs[has_kin]] = kin_s[has_kin]
    sums = sums + np.nan_to_num(over)
    numbers += ~np.isnan(over)
    known = numbers > 0
    means = np.full(count, PAUSE_S)
    means[known] = sums[known] / numbers[known]
    means[~known] = np.median(means[known]) if known.any() else PAUSE_S
    return np.where(unknown, means[programs], own_s)
