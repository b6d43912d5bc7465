"""Start from history, fit the throughput, scale by gain per cost: DLRover-RM (Wang et al., PVLDB 17(12), 2024).

1. Warm start: a job begins near the best plan of its kind (`models/history.py`).
2. Its throughput is fitted to what was seen (`iteration.py`), plans in reach priced (`candidates.py`).
3. All jobs' candidates compete for what is free, the largest weight x gain / cost first (`bidding.py`).
4. Memory follows its largest use and what it will be soon, so that no ps runs out of it (`models/foresight.py`).

From the paper's public material: the three stages. Our reconstruction: the weight rises with the priority
(`models/priority.py`) and towards completion; every job bids anew from its cheapest candidate, so what gains more
elsewhere goes there; the rest stands in `candidates.py`. Tasks of a role are of one size. Migration, shards and
slow workers are the launcher's and the trainer's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.kept import Kept, KeptTogether
from services.allocator.models.foresight import limit_due, limit_for
from services.allocator.models.history import Guess, warm_start
from services.allocator.policies.contract import JobSeen, Node, Past, Plan, Want, at_start, left_open
from services.allocator.policies.dlrover.bidding import Array, Bid, greedy
from services.allocator.policies.dlrover.bounds import Bounds, bounds
from services.allocator.policies.dlrover.candidates import (
    JOBS_KEPT,
    bid_of,
    cores,
    generations,
    held,
    memory_due,
    models,
    plan_of,
    timed_of,
)
from services.allocator.policies.dlrover.iteration import grid
from shared.messages import Alternative, Resources, RoleResources
from shared.words import counted

WORTH = 0.1  # a change gains so much throughput, or saves twice so much cost
SETTLE_S = 60.0  # a new generation is watched for so long
SHRINK_AFTER_S = 60.0  # memory is not taken back before
FIRST_SPARE = 1.4  # a first limit is so many times what others used; what is too much is soon taken back
PACKED = 0.9  # of what is free can be used: tasks do not fill nodes exactly


class Ways(msgspec.Struct, frozen=True):
    """`size_all`: whatever was asked for; `move`: who cannot grow where it stands goes elsewhere."""

    size_all: bool = False
    move: bool = False


LIVE, AS_PUBLISHED = Ways(), Ways(size_all=True, move=True)


def dlrover(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float, ways: Ways = LIVE) -> list[Want]:
    """A job without ps has no such model, and stays at its first size."""
    waiting = [job for job in jobs if job.size is None]
    running = [job for job in jobs if job.size is not None and job.size.ps > 0 and job.tasks and not job.busy]
    largest = _largest(cluster)
    firsts = [_firsts(job)(largest, _fixed(job, ways)) for job in waiting]
    limits = bounds(cluster, jobs, ways.move)
    ready = [job for job in running if _ready(job, now)]
    models([(job, _past(job)) for job in ready])  # side by side: `bid_of` finds each one's known
    bids = {job.key: _bid(job)(largest.cpu, _fixed(job, ways), limits[job.key]) for job in ready}
    chosen = greedy(bids, *_biddable(cluster, running, bids, firsts, waiting))
    return firsts + [
        _want(job, bids.get(job.key), chosen.get(job.key, 0), now, None if _fixed(job, ways) else largest)
        for job in running
    ]


_bid: Kept[JobSeen, Callable[[float, bool, Bounds], Bid]] = Kept(
    lambda job: cache(partial(bid_of, job, _past(job))), JOBS_KEPT
)
"""By the cores of the largest node, whether numbers alone are chosen, and what the job may hold."""


def _fixed(job: JobSeen, ways: Ways) -> bool:
    return not (ways.size_all or left_open(job.request))


def _past(job: JobSeen) -> tuple[Past, ...]:
    return job.kin.past if job.kin else ()


def _largest(cluster: Sequence[Node]) -> Resources:
    """What a task on an empty node could have."""
    there = [node.allocatable for node in cluster]
    cpu, gib = max((n.cpu for n in there), default=0.0), max((n.memory_gib for n in there), default=0.0)
    return Resources(cpu=cpu, memory_gib=gib)


def _first(job: JobSeen, largest: Resources, fixed: bool) -> Want:
    guess = _guess(job.key, (job.request, _past(job)))
    if guess is None:
        return at_start(job, "the first size: no finished job is a guide")
    ps = min(max(guess.plan.ps, job.least.ps), job.most.ps)
    workers = min(max(guess.plan.workers, job.least.workers), job.most.workers)
    want = replace(at_start(job, f"as {counted(guess.jobs, 'similar job')} ended"), ps=ps, workers=workers)
    return want if fixed or ps < 1 else replace(want, sizes=_first_sizes(job, guess, ps, largest))


_firsts: Kept[JobSeen, Callable[[Resources, bool], Want]] = Kept(lambda job: cache(partial(_first, job)), JOBS_KEPT)
_guess: KeptTogether[str, Any, Guess | None] = KeptTogether(lambda asked: warm_start(*asked))


def _first_sizes(job: JobSeen, guess: Guess, ps: int, largest: Resources) -> RoleResources:
    times = FIRST_SPARE * generations(job.request)
    ps_gib, worker_gib = limit_for(times * guess.ps_gib / ps), limit_for(times * guess.worker_gib)
    if job.progress:  # it has run before: what it had then may have been raised, because it was too little
        ps_gib, worker_gib = max(ps_gib, job.sizes.ps.memory_gib), max(worker_gib, job.sizes.worker.memory_gib)
    return replace(
        job.sizes,
        ps=_sized(job.sizes.ps, guess.plan.ps_cpu, ps_gib, largest),
        worker=_sized(job.sizes.worker, guess.plan.worker_cpu, worker_gib, largest),
    )


def _sized(asked: Resources, cpu: float, gib: float, largest: Resources) -> Resources:
    """No task becomes larger than the largest node."""
    cpu, gib = min(cpu, max(largest.cpu, asked.cpu)), min(gib, max(largest.memory_gib, asked.memory_gib))
    return replace(asked, cpu=math.floor(cpu * 100 + 1e-9) / 100, memory_gib=gib)


def _ready(job: JobSeen, now: float) -> bool:
    """Was it seen long enough to be judged, with the cores that it has, and has it any?"""
    plan, last = plan_of(job), job.recent[-1] if job.recent else None
    heard = last is None or last.ps_had is None or (last.ps_had, last.worker_had) == (plan.ps_cpu, plan.worker_cpu)
    seen = job.progress is not None and now - job.since_s >= SETTLE_S
    return seen and heard and min(plan.ps_cpu, plan.worker_cpu) > 0 and bool(timed_of(job))


def _biddable(
    cluster: Sequence[Node],
    running: Sequence[JobSeen],
    bids: Mapping[str, Bid],
    firsts: Sequence[Want],
    waiting: Sequence[JobSeen],
) -> tuple[float, float]:
    """Cores and GiB: what is free, and what jobs hold beyond their first candidate, less what the waiting need."""
    cpu = PACKED * math.fsum(node.free.cpu for node in cluster if node.open)
    gib = PACKED * math.fsum(node.free.memory_gib for node in cluster if node.open)
    for job in running:
        if job.key in bids:
            now, bid = plan_of(job), bids[job.key]
            cpu += float(cores(grid([now]))[0] - bid.cpu[0])
            gib += held(job, "worker").memory_gib * float(now.workers - bid.plans[0, 1])
    for job, want in zip(waiting, firsts, strict=True):
        sizes = want.sizes or job.sizes
        cpu -= want.ps * sizes.ps.cpu + want.workers * sizes.worker.cpu
        gib -= want.ps * sizes.ps.memory_gib + want.workers * sizes.worker.memory_gib
    return max(0.0, cpu), max(0.0, gib)


# ---------------------------------------------------------------- the answer


def _want(job: JobSeen, bid: Bid | None, at: int, now: float, largest: Resources | None) -> Want:
    """`largest`: of a task; None where numbers alone are chosen."""
    before = plan_of(job)
    plan, reason, others = (before, "watched for a while first", ()) if bid is None else _judged(job, bid, at)
    foreseen = float(bid.speed[at]) if bid else 0.0
    return Want(
        job=job.key,
        ps=plan.ps,
        workers=plan.workers,
        batch=job.batch,
        reason=reason,
        alternatives=others,
        sizes=_resized(job, before, plan, foreseen, now, largest) if largest else None,
    )


def _resized(
    job: JobSeen, before: Plan, plan: Plan, foreseen: float, now: float, largest: Resources
) -> RoleResources | None:
    """Cores as planned, memory as it will be used at the speed that is `foreseen`; None where tasks have just that."""
    ps, worker = held(job, "ps"), held(job, "worker")
    may_shrink = now - job.since_s >= SHRINK_AFTER_S or plan.ps != before.ps
    speed = max(job.recent[-1].samples_per_second if job.recent else 0.0, foreseen)
    ps_need, worker_need = memory_due(job, plan, "ps", speed), memory_due(job, plan, "worker", speed)
    spread = ps.memory_gib * before.ps / plan.ps
    sizes = replace(
        job.sizes,
        ps=_sized(ps, plan.ps_cpu, limit_due(spread, ps_need, may_shrink), largest),
        worker=_sized(worker, plan.worker_cpu, limit_due(worker.memory_gib, worker_need, may_shrink), largest),
    )
    return None if (sizes.ps, sizes.worker) == (ps, worker) else sizes


def _judged(job: JobSeen, bid: Bid, at: int) -> tuple[Plan, str, tuple[Alternative, ...]]:
    """The candidate that the job got, if it is worth a change; why; and the next one that it did not get."""
    before, seen = plan_of(job), f"by {counted(len(timed_of(job)), 'size')} seen"
    gain, extra = float(bid.speed[at] / bid.now[0] - 1), float(bid.cost[at] / bid.now[1] - 1)
    others = tuple(_other(job, bid, to) for to in range(at + 1, min(at + 2, len(bid.plans))))
    if gain < WORTH and extra > -2 * WORTH:
        return before, f"nothing in reach is worth a change {seen}", others
    return _plan(bid.plans[at]), f"{gain:+.0%} examples a second for {extra:+.0%} cost {seen}", others


def _other(job: JobSeen, bid: Bid, to: int) -> Alternative:
    plan, gain = _plan(bid.plans[to]), float(bid.speed[to] / bid.now[0] - 1)
    extra = float(bid.cost[to] / bid.now[1] - 1)
    why = f"{gain:+.0%} for {extra:+.0%} cost: others gain more from it, it does not fit, or it is not worth it"
    return Alternative(ps=plan.ps, workers=plan.workers, batch=job.batch, why=why)


def _plan(row: Array) -> Plan:
    ps, workers, ps_cpu, worker_cpu = row.tolist()
    return Plan(int(ps), int(workers), ps_cpu, worker_cpu)
