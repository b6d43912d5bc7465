"""Weir's own policy, the default: the smallest mean completion time, with the cost of restarts
counted.

    1. Each job's staircase: its speeds by size and batch, by the model fitted to all jobs of its
       program, on their concave hull over cost (`staircase.py`, `job_rows.py`).
    2. Each job's price: the time saved for all jobs by a second less of its work (`market.py`,
       heSRPT).
    3. The capacity, step by step, to the job that gains most price x speed for its cost
       (`auction.py`); first steps are gang floors: of running jobs, then of jobs that all would
       wait for in the end, then of the others by their price. The present share of a job counts
       more, so that no job loses it for a trifle; after a pause a job may shrink, but not grow,
       until the possible gain is more than another pause.
    4. Where that passes over jobs that may not be overtaken any more (`aging.py`): once more,
       with these first in all that jobs would not keep anyway.
    5. The rest goes to jobs that may gain by a larger size, though that is not likely
       (`explored_sizes`).

From the other policies: free room is used, except for a small reserve for the next job (Config
Manager); unknown speeds come from a fitted model that is refined as jobs grow (Dike); the loss
counts by way of the remaining work (FlowCon, Optimus); gain per cost decides (DLRover); size and
batch are chosen together for all jobs (IBM). New are the prices, and that a size is valued by its
progress with stale gradients (`stale_gradients.py`).

The combination is ours. `market.py` has all jobs side by side. A job of unknown length counts as
the median of the known ones. A namespace's quota is a second capacity for the steps of its jobs, so
that others get the part beyond it.

Exploration: larger sizes that a job tries on capacity that no other job needs.

The auction uses likely speeds. A job that is not likely to gain stays as it is, so its model never
learns about larger sizes; on an idle cluster a try costs only two pauses. So the rest of the
capacity is offered again, by the expected gain if a slower size is given up again (expected
improvement: `models/search.py`; the speeds are in each job's row, `job_rows.py`):

    a size is tried  <=>  it gains `GAIN` or more, and saves more than `PAUSES` pauses of the rest

No job tries while a job of the same policy waits (except for its quota), or if free capacity will
be needed soon (`Market.spare_room`). One job of a program tries at a time, the one with most left
to do, and each size is tried once: its speed holds for all jobs of the program. A job that has just
paused waits as for any growth (`aging.py`). Ours. Pollux (OSDI 2021) believes an optimistic model
until there are observations, for contended room as well; that was worse when room was short.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.allocator.models.speed import Array
from services.allocator.placement.amounts import ROUNDING, amounts
from services.allocator.policies.contract import JobList, JobSnapshot, Node, Target
from services.allocator.policies.weir.aging import PAUSES, settled_at_s
from services.allocator.policies.weir.auction import (
    NO_STEP,
    BlockReason,
    Ints,
    block_reasons,
    grant_steps,
)
from services.allocator.policies.weir.job_rows import fit_rows
from services.allocator.policies.weir.market import (
    Market,
    PolicyArrays,
    arrays_of,
    build_arrays,
    least_repaying_speed,
)
from services.allocator.policies.weir.reasons import (
    exploration_target,
    targets_of,
    too_large_target,
)
from services.allocator.policies.weir.staircase import COLUMNS, CPU, GPU, SPEED, Config
from shared.messages import Resources


def weir(cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
    """Return a target for each job that may change."""
    # 1. Take the jobs' arrays, as the allocator keeps them.
    table, market = _policy_arrays(cluster, jobs)
    too_large = table.too_large_places().tolist()
    targets = [too_large_target(jobs[at]) for at in too_large]
    if market is None:
        return targets
    # 2. Price every step, and grant the room and the quotas to the best of them.
    rooms = np.concatenate([_shared_room(cluster, market), market.quota_rooms])
    offers = market.step_offers(now)
    given = _granted_steps(market, offers, rooms, now)
    # 3. Return the target of each job, and the reason against more.
    obstacles = block_reasons(market.stairs, offers, rooms, given, market.running)
    targets += targets_of(market, given, obstacles)
    # 4. Let jobs that want no more try larger sizes on the rest.
    first = len(too_large)
    content = _content_jobs(market, targets[first:], obstacles)
    if content:
        rest = market.spare_room(rooms, given, now)
        for at, config in explored_sizes(market, content, rest, now).items():
            targets[first + at] = exploration_target(market, at, config)
    return targets


def _policy_arrays(cluster: Sequence[Node], jobs: Sequence[JobSnapshot]) -> PolicyArrays:
    """Return the jobs' arrays: those that the allocator keeps, or new ones."""
    if isinstance(jobs, JobList) and jobs.arrays is not None:
        known: PolicyArrays = jobs.arrays
        return known
    made = arrays_of(jobs)
    if made is not None:
        return made
    return build_arrays(
        jobs, fit_rows(jobs, two_digits(_total_room(cluster, jobs)), largest_node(cluster))
    )


def _granted_steps(market: Market, offers: Array, rooms: Array, now: float) -> Ints:
    """Return the step that each job gets, by worth alone. If late jobs get none, all steps are
    granted again with the late jobs put first.
    """
    first = market.floors_first(now)
    leaves = market.reserved_room(now)
    given = grant_steps(market.stairs, offers, rooms, first, leaves)
    late = market.overdue_jobs(now)
    if (given[late] != NO_STEP).all():
        return given
    return grant_steps(
        market.stairs, market.offers_for_overdue(offers, late, given), rooms, first, leaves
    )


def _content_jobs(
    market: Market, targets: Sequence[Target], obstacles: Sequence[BlockReason | None]
) -> list[int]:
    """Return the indices of the jobs that may try: they have the size that they want, no job waits
    for room, and no decision on a job of their program is in flight.
    """
    # A job with a granted step may still wait, because free capacity may be scattered.
    for at in np.flatnonzero(market.waits).tolist():
        why = obstacles[at]
        if why is None or why.cause != "quota":
            return []
    content = []
    for at in exploration_candidates(market):
        job = market.jobs[at]
        if obstacles[at] is None and (targets[at].size, targets[at].batch) == (job.size, job.batch):
            content.append(at)
    return content


# ---------------------------------------------------------------- the room


def _shared_room(cluster: Sequence[Node], market: Market) -> Array:
    """Return cores, GiB and devices that the jobs of the market may share: the free ones, and their
    own on nodes that take tasks. Jobs in flight keep their size and share nothing.
    """
    free = [node.free for node in cluster if node.open]
    room = [
        sum([f.cpu for f in free]),
        sum([f.memory_gib for f in free]),
        sum([f.gpu for f in free]),
    ]
    held = market.held_together
    if len(free) < len(cluster):
        closed = {node.name for node in cluster if not node.open}
        for job in market.jobs:
            for task in job.tasks:
                if task.node in closed:
                    held = held - amounts(task.resources)
    return np.asarray(held + np.array(room))


def _total_room(cluster: Sequence[Node], jobs: Sequence[JobSnapshot]) -> Resources:
    """Return the free resources and those of these jobs, on nodes that take tasks."""
    open_nodes = {node.name: node for node in cluster if node.open}
    total = np.array([amounts(node.free) for node in open_nodes.values()]).reshape(-1, 3)
    total = total.sum(axis=0)
    known = {node.name for node in cluster}
    for job in jobs:
        for task in job.tasks:
            if task.node in open_nodes or task.node not in known:
                total = total + amounts(task.resources)
    cpu, memory_gib, gpu = total.tolist()
    return Resources(cpu=cpu, memory_gib=memory_gib, gpu=int(gpu))


def largest_node(cluster: Sequence[Node]) -> Resources:
    """Return the node with most devices, then most cores, empty."""
    found = Resources(cpu=0.0, memory_gib=0.0)
    for node in cluster:
        has = node.allocatable
        if node.open and (has.gpu, has.cpu, has.memory_gib) > (
            found.gpu,
            found.cpu,
            found.memory_gib,
        ):
            found = has
    return found


def two_digits(total: Resources) -> Resources:
    """Round to two digits: a share need not be exact."""
    cpu, memory_gib, gpu = (float(f"{amount:.1e}") for amount in amounts(total))
    return Resources(cpu=cpu, memory_gib=memory_gib, gpu=int(gpu))


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

    Programs that will be observed anyway are left out: those with a decision in flight, or with a
    job that has not reported its speed yet.
    """
    runs = np.array(market.running, dtype=int)
    by_time = np.argsort(np.nan_to_num(market.left_s[runs]), kind="stable")
    runs = runs[by_time[::-1]]
    # The first job of each model in this order.
    _, firsts = np.unique(market.models[runs], return_index=True)
    found = runs[np.sort(firsts)]
    table = market.table
    learning = np.zeros(len(table.jobs), dtype=bool)
    learning[table.models[table.numbers["busy"] > 0]] = True
    learning[market.models[runs[~market.speed_known[runs]]]] = True
    return list(found[~learning[market.models[found]]].tolist())
