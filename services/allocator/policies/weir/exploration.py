"""Exploration: larger sizes that a job tries on capacity that no other job needs.

The auction uses likely speeds. A job that is not likely to gain stays as it is, so its model never
learns about larger sizes; on an idle cluster a try costs only two pauses. So the rest of the
capacity is offered again, by the expected gain if a slower size is given up again (expected
improvement: `models/search.py`; the speeds are in each job's row, `job_rows.py`):

    a size is tried  <=>  it gains `GAIN` or more, and saves more than `PAUSES` pauses of the rest

No job tries while a job of the same policy waits (except for its quota), or where free capacity
will be needed soon (`Market.spare_room`). Of a program one job tries at a time, the one with most
left to do, and each size once: its speed holds for all. A job that has just paused waits as for any
growth (`aging.py`). Ours. Others believe an optimistic model until they know better (Pollux, OSDI
2021), for contended room as well; that was worse where room is short.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.allocator.models.speed import Array
from services.allocator.placement.amounts import ROUNDING
from services.allocator.policies.weir.aging import PAUSES, settled_at_s
from services.allocator.policies.weir.market import Market, least_repaying_speed
from services.allocator.policies.weir.staircase import COLUMNS, CPU, GPU, SPEED, Config

GAIN = 0.2
"""The least expected gain, as a share of the present speed. With less, tries did as much harm as
good.
"""


def explored_sizes(
    market: Market, places: Sequence[int], left: Array, now: float
) -> dict[int, Config]:
    """Return the sizes to try, by the job's index; a config's speed is the expected one.

    `places`: some of `exploration_candidates`, each with the size that it wants; `left` [jobs, 3]:
    cores, GiB and devices that are left to each job.
    """
    left = left.copy()
    least = least_repaying_speed(PAUSES * market.own_pause_s, market.speed, market.left)
    least = np.maximum(least, (1.0 + GAIN) * market.speed)
    found = {}
    for at in places:
        if np.isnan(market.left[at]) or not market.speed[at]:
            continue
        sizes = np.frombuffer(market.rows[at].untried).reshape(-1, COLUMNS)
        more = sizes[:, CPU : GPU + 1] - market.held[at]
        fits = (more <= left[at] + ROUNDING).all(axis=1) & (sizes[:, SPEED] >= least[at])
        if not fits.any():
            continue
        first = int(fits.argmax())
        gain = 1.0 - market.speed[at] / sizes[first, SPEED]
        paused_s = market.jobs[at].pause_s or 0.0
        if now >= settled_at_s(market.since_s[at], paused_s, gain):
            left -= more[first]
            found[at] = Config.of_row(sizes[first].tolist())
    return found


def exploration_candidates(market: Market) -> list[int]:
    """Return the place of each program's running job with most left to do, by falling time.

    Programs that will be learned about anyway are left out: those with a decision in flight, or
    with a job that has not reported its speed yet.
    """
    runs = np.array(market.running, dtype=int)
    by_time = np.argsort(np.nan_to_num(market.left_s[runs]), kind="stable")
    runs = runs[by_time[::-1]]
    # The first of each model in this order.
    _, firsts = np.unique(market.models[runs], return_index=True)
    found = runs[np.sort(firsts)]
    table = market.table
    learning = np.zeros(len(table.jobs), dtype=bool)
    learning[table.models[table.numbers["busy"] > 0]] = True
    learning[market.models[runs[~market.speed_known[runs]]]] = True
    return list(found[~learning[market.models[found]]].tolist())
