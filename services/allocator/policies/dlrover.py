"""Start from history, fit the throughput, scale by gain per cost: DLRover-RM (Wang et al., PVLDB 17(12), 2024).

1. Warm start: a job begins near the best plan of its kind (`models/history.py`).
2. Its throughput is fitted to what was seen (`models/iteration.py`), plans in reach priced (`market/candidates.py`).
3. All jobs' candidates compete for what is free, the largest weight x gain / cost first (`market/bidding.py`).
4. Memory follows its largest use and what it will be soon, so that no ps runs out of it (`models/foresight.py`).

From the paper's public material: the three stages. Our reconstruction: the weight doubles with each priority and grows
towards completion; every job bids anew from its cheapest candidate, so what gains more elsewhere goes there; the rest
stands in `market/candidates.py`. Tasks of a role are of one size. Migration, shards and slow workers are the
launcher's and the trainer's.

The allocator keeps no history of resources, and gives each task the cores and memory that were asked for. So what can
be chosen by name is `dlrover_counts`: the same, of the numbers of ps and workers alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from services.allocator.market.bidding import Array, Bid, greedy
from services.allocator.market.candidates import bid_of, cores, held, memory_due, plan_of, timed_of
from services.allocator.models.foresight import limit_due, limit_for
from services.allocator.models.history import Past, Plan, warm_start
from services.allocator.models.iteration import grid
from services.allocator.placing.placement import Node
from services.allocator.policies.contract import JobSeen, Want, at_start
from shared.messages import Alternative, Resources

WORTH = 0.1  # a change gains so much throughput, or saves twice so much cost
SETTLE_S = 60.0  # a new generation is watched for so long
SHRINK_AFTER_S = 60.0  # memory is not taken back before
FIRST_SPARE = 1.4  # a first limit is so many times what others used; what is too much is soon taken back
PACKED = 0.9  # of what is free can be used: tasks do not fill nodes exactly


def dlrover(
    cluster: Sequence[Node],
    jobs: Sequence[JobSeen],
    now: float,
    history: Sequence[Past] = (),
    counts_only: bool = False,
) -> list[Want]:
    """`counts_only`: plans keep the cores of tasks. A job without ps has no such model, and stays at its first size."""
    waiting = [job for job in jobs if job.size is None]
    running = [job for job in jobs if job.size is not None and job.size.ps > 0 and job.tasks and not job.busy]
    node_cpu = max((node.allocatable.cpu for node in cluster), default=0.0)
    firsts = [_first(job, history, node_cpu) for job in waiting]
    bids = {j.key: bid_of(j, history, node_cpu, counts_only) for j in running if _ready(j, now)}
    chosen = greedy(bids, *_biddable(cluster, running, bids, firsts, waiting))
    return firsts + [_want(job, bids.get(job.key), chosen.get(job.key, 0), now) for job in running]


def dlrover_counts(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    return [replace(want, sizes=None) for want in dlrover(cluster, jobs, now, counts_only=True)]


def _first(job: JobSeen, history: Sequence[Past], node_cpu: float) -> Want:
    guess = warm_start(job.request, history)
    if guess is None:
        return at_start(job, "the first size: no finished job is a guide")
    ps = min(max(guess.plan.ps, job.least.ps), job.most.ps)
    workers = min(max(guess.plan.workers, job.least.workers), job.most.workers)
    ps_gib, worker_gib = limit_for(FIRST_SPARE * guess.ps_gib / ps), limit_for(FIRST_SPARE * guess.worker_gib)
    if job.progress:  # it has run before: what it had then may have been raised, because it was too little
        ps_gib, worker_gib = max(ps_gib, job.sizes.ps.memory_gib), max(worker_gib, job.sizes.worker.memory_gib)
    sizes = replace(
        job.sizes,
        ps=_sized(job.sizes.ps, min(guess.plan.ps_cpu, node_cpu), ps_gib),
        worker=_sized(job.sizes.worker, min(guess.plan.worker_cpu, node_cpu), worker_gib),
    )
    return replace(at_start(job, f"as {guess.jobs} similar jobs ended"), ps=ps, workers=workers, sizes=sizes)


def _sized(asked: Resources, cpu: float, gib: float) -> Resources:
    return replace(asked, cpu=math.floor(cpu * 100 + 1e-9) / 100, memory_gib=gib)


def _ready(job: JobSeen, now: float) -> bool:
    """Was it seen long enough to be judged?"""
    return job.progress is not None and now - job.since_s >= SETTLE_S and bool(timed_of(job))


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


def _want(job: JobSeen, bid: Bid | None, at: int, now: float) -> Want:
    before = plan_of(job)
    plan, reason, others = (before, "watched for a while first", ()) if bid is None else _judged(job, bid, at)
    ps, worker = held(job, "ps"), held(job, "worker")
    may_shrink = now - job.since_s >= SHRINK_AFTER_S or plan.ps != before.ps
    speed = max(job.recent[-1].samples_per_second if job.recent else 0.0, float(bid.speed[at]) if bid else 0.0)
    ps_need, worker_need = memory_due(job, plan, "ps", speed), memory_due(job, plan, "worker", speed)
    spread = ps.memory_gib * before.ps / plan.ps
    sizes = replace(
        job.sizes,
        ps=_sized(ps, plan.ps_cpu, limit_due(spread, ps_need, may_shrink)),
        worker=_sized(worker, plan.worker_cpu, limit_due(worker.memory_gib, worker_need, may_shrink)),
    )
    same = (sizes.ps, sizes.worker) == (ps, worker)
    return Want(
        job=job.key,
        ps=plan.ps,
        workers=plan.workers,
        batch=job.batch,
        reason=reason,
        alternatives=others,
        sizes=None if same else sizes,
    )


def _judged(job: JobSeen, bid: Bid, at: int) -> tuple[Plan, str, tuple[Alternative, ...]]:
    """The candidate that the job got, if it is worth a change; why; and the next one that it did not get."""
    before, seen = plan_of(job), f"by {len(timed_of(job))} sizes seen"
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
