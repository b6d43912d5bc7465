"""Start from history, fit the throughput, scale by gain per cost: DLRover-RM (Wang et al., PVLDB
17(12), 2024).

1. Warm start: a job begins near the best plan of its kind (`models/history.py`). 2. Its throughput
is fitted to what was seen (`iteration.py`), plans in reach priced (`candidates.py`); both are part of
the job's model (`model.py`). 3. All jobs'
candidates compete for what is free, the largest weight x gain / cost first (`bidding.py`). 4.
Memory follows its largest use and what it will be soon, so that no ps runs out of it
(`models/foresight.py`).

From the paper's public material: the three stages. Our reconstruction: the weight rises with the
priority (`models/priority.py`) and towards completion; every job bids anew from its cheapest
candidate, so what gains more elsewhere goes there; the rest stands in `candidates.py`. Tasks of a
role are of one size. Migration, shards and slow workers are the launcher's and the trainer's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from services.allocator.models.foresight import limit_due, limit_for
from services.allocator.models.history import Guess
from services.allocator.policies.contract import (
    JobSeen,
    Node,
    Plan,
    Want,
    at_start,
    left_open,
    models_of,
)
from services.allocator.policies.dlrover.bidding import Array, Bid, greedy
from services.allocator.policies.dlrover.bounds import bounds
from services.allocator.policies.dlrover.candidates import generations, memory_due
from services.allocator.policies.dlrover.model import DlroverModel, fit_with_sizes
from shared.messages import Alternative, Resources, RoleResources
from shared.words import counted

WORTH = 0.1  # a change gains so much throughput, or saves twice so much cost
SETTLE_S = 60.0  # a new generation is watched for so long
SHRINK_AFTER_S = 60.0  # memory is not taken back before
FIRST_SPARE = (
    1.4  # a first limit is so many times what others used; what is too much is soon taken back
)
PACKED = 0.9  # of what is free can be used: tasks do not fill nodes exactly


class Ways(msgspec.Struct, frozen=True):
    """`size_all`: choose the sizes of all tasks, also of those that the user gave; `move`: a task
    that cannot grow on its node goes to another one.
    """

    size_all: bool = False
    move: bool = False


LIVE = Ways()
AS_PUBLISHED = Ways(size_all=True, move=True)


def dlrover(
    cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float, ways: Ways = LIVE
) -> list[Want]:
    """A job without ps has no such model, and stays at its first size."""
    waiting = []
    running = []
    for job in jobs:
        if job.size is None:
            waiting.append(job)
        elif job.size.ps > 0 and job.tasks and not job.busy:
            running.append(job)
    models = _models([*waiting, *running], ways)
    largest = _largest(cluster)

    # 1. Jobs that wait start near the plans of similar jobs.
    firsts = []
    for job in waiting:
        firsts.append(_first(job, models[job.key].guess, largest, _is_fixed(job, ways)))

    # 2. Jobs that have run for a while bid for what is free.
    ready = [job for job in running if _is_ready(job, models[job.key], now)]
    limits = bounds(cluster, jobs, ready, ways.move)
    bids = {}
    for job in ready:
        fixed = _is_fixed(job, ways)
        bids[job.key] = models[job.key].bid(job, largest.cpu, fixed, limits[job.key])
    cpu, gib = _free_capacity(cluster)
    cpu, gib = _with_given_back(cpu, gib, models, bids)
    cpu, gib = _without_first_sizes(cpu, gib, waiting, firsts)
    chosen = greedy(bids, max(0.0, cpu), max(0.0, gib))

    # 3. Each gets its candidate, where that is worth a change.
    wants = list(firsts)
    for job in running:
        bid = bids.get(job.key)
        at = chosen.get(job.key, 0)
        sized = None if _is_fixed(job, ways) else largest
        wants.append(_want(job, models[job.key], bid, at, now, sized))
    return wants


def _models(jobs: Sequence[JobSeen], ways: Ways) -> dict[str, DlroverModel]:
    """Return the models by job; those that have none are fitted together."""

    def fit_lacking(lacking: Sequence[JobSeen]) -> list[DlroverModel]:
        return fit_with_sizes(lacking, [not _is_fixed(job, ways) for job in lacking])

    models = models_of(jobs, DlroverModel, fit_lacking)
    return {job.key: model for job, model in zip(jobs, models, strict=True)}


def _is_fixed(job: JobSeen, ways: Ways) -> bool:
    """Return whether the sizes of the job's tasks are those that its user gave."""
    return not (ways.size_all or left_open(job.request))


def _largest(cluster: Sequence[Node]) -> Resources:
    """Return cores and GiB of the largest node, without any task on it."""
    cpu = max([node.allocatable.cpu for node in cluster], default=0.0)
    gib = max([node.allocatable.memory_gib for node in cluster], default=0.0)
    return Resources(cpu=cpu, memory_gib=gib)


# ---------------------------------------------------------------- jobs that wait


def _first(job: JobSeen, guess: Guess | None, largest: Resources, fixed: bool) -> Want:
    if guess is None:
        return at_start(job, "the first size: no finished job is a guide")
    asked = job.request
    ps = min(max(guess.plan.ps, asked.ps.min), asked.ps.max)
    workers = min(max(guess.plan.workers, asked.workers.min), asked.workers.max)
    return Want(
        job=job.key,
        ps=ps,
        workers=workers,
        batch=asked.batch.start,
        reason=f"as {counted(guess.jobs, 'similar job')} ended",
        sizes=None if fixed or ps < 1 else _first_sizes(job, guess, ps, largest),
    )


def _first_sizes(job: JobSeen, guess: Guess, ps: int, largest: Resources) -> RoleResources:
    times = FIRST_SPARE * generations(job.request)
    ps_gib = limit_for(times * guess.ps_gib / ps)
    worker_gib = limit_for(times * guess.worker_gib)
    if job.progress:
        # It has run before: its memory then may have been raised, because it was too little.
        ps_gib = max(ps_gib, job.sizes.ps.memory_gib)
        worker_gib = max(worker_gib, job.sizes.worker.memory_gib)
    return replace(
        job.sizes,
        ps=_sized(job.sizes.ps, guess.plan.ps_cpu, ps_gib, largest),
        worker=_sized(job.sizes.worker, guess.plan.worker_cpu, worker_gib, largest),
    )


def _sized(asked: Resources, cpu: float, gib: float, largest: Resources) -> Resources:
    """Return a task's resources, not larger than the largest node."""
    cpu = min(cpu, max(largest.cpu, asked.cpu))
    gib = min(gib, max(largest.memory_gib, asked.memory_gib))
    return replace(asked, cpu=math.floor(cpu * 100 + 1e-9) / 100, memory_gib=gib)


# ---------------------------------------------------------------- jobs that run


def _is_ready(job: JobSeen, model: DlroverModel, now: float) -> bool:
    """Return whether the job was observed for long enough, with the cores that it has."""
    if job.progress is None or now - job.since_s < SETTLE_S or model.throughput is None:
        return False
    tasks = model.tasks
    last = job.recent[-1] if job.recent else None
    if last is None or last.ps_had is None:
        return True
    return (last.ps_had, last.worker_had) == (tasks.ps_size.cpu, tasks.worker_size.cpu)


def _free_capacity(cluster: Sequence[Node]) -> tuple[float, float]:
    """Return the free cores and GiB that tasks can fill."""
    free = [node.free for node in cluster if node.open]
    cpu = PACKED * math.fsum([amount.cpu for amount in free])
    gib = PACKED * math.fsum([amount.memory_gib for amount in free])
    return cpu, gib


def _with_given_back(
    cpu: float,
    gib: float,
    models: Mapping[str, DlroverModel],
    bids: Mapping[str, Bid],
) -> tuple[float, float]:
    """Return cores and GiB with those that jobs have beyond their first candidates."""
    for key, bid in bids.items():
        now = models[key].tasks
        cpu += now.ps * now.ps_size.cpu + now.workers * now.worker_size.cpu - float(bid.cpu[0])
        gib += now.worker_gib * (now.workers - float(bid.plans[0, 1]))
    return cpu, gib


def _without_first_sizes(
    cpu: float, gib: float, waiting: Sequence[JobSeen], firsts: Sequence[Want]
) -> tuple[float, float]:
    """Return cores and GiB without those that waiting jobs need."""
    for job, want in zip(waiting, firsts, strict=True):
        sizes = want.sizes or job.sizes
        cpu -= want.ps * sizes.ps.cpu + want.workers * sizes.worker.cpu
        gib -= want.ps * sizes.ps.memory_gib + want.workers * sizes.worker.memory_gib
    return cpu, gib


# ---------------------------------------------------------------- the answer


def _want(
    job: JobSeen,
    model: DlroverModel,
    bid: Bid | None,
    at: int,
    now: float,
    largest: Resources | None,
) -> Want:
    """Return the job's want at one of its candidates. `largest`: of a task; None where numbers
    alone are chosen.
    """
    if bid is None:
        choice = Choice(model.tasks.plan, "watched for a while first")
        speed = 0.0
    else:
        choice = _chosen(job, model, bid, at)
        speed = float(bid.speed[at])
    sizes = None
    if largest:
        sizes = _resized(job, model, choice.plan, speed, now, largest)
    return Want(
        job=job.key,
        ps=choice.plan.ps,
        workers=choice.plan.workers,
        batch=job.batch,
        reason=choice.reason,
        alternatives=choice.others,
        sizes=sizes,
    )


def _resized(
    job: JobSeen, model: DlroverModel, plan: Plan, speed: float, now: float, largest: Resources
) -> RoleResources | None:
    """Return cores as planned, and memory as it will be used at a speed (examples/s); None where
    tasks have just that.
    """
    before = model.tasks
    ps = before.ps_size
    worker = before.worker_size
    may_shrink = now - job.since_s >= SHRINK_AFTER_S or plan.ps != before.ps
    if job.recent:
        speed = max(job.recent[-1].samples_per_second, speed)

    # All ps together keep their memory; each worker has its own.
    ps_gib = ps.memory_gib * before.ps / plan.ps
    ps_need = memory_due(job, model.ps_memory, plan, "ps", speed)
    worker_need = memory_due(job, model.worker_memory, plan, "worker", speed)
    ps_gib = limit_due(ps_gib, ps_need, may_shrink)
    worker_gib = limit_due(worker.memory_gib, worker_need, may_shrink)

    new_ps = _sized(ps, plan.ps_cpu, ps_gib, largest)
    new_worker = _sized(worker, plan.worker_cpu, worker_gib, largest)
    if (new_ps, new_worker) == (ps, worker):
        return None
    return replace(job.sizes, ps=new_ps, worker=new_worker)


class Choice(NamedTuple):
    """A plan, the reason for it, and the next candidate, which the job does not get."""

    plan: Plan
    reason: str
    others: tuple[Alternative, ...] = ()


def _chosen(job: JobSeen, model: DlroverModel, bid: Bid, at: int) -> Choice:
    """Return the candidate that the job got, if it is worth a change."""
    gain = float(bid.speed[at] / bid.now[0] - 1)
    extra = float(bid.cost[at] / bid.now[1] - 1)
    others: tuple[Alternative, ...] = ()
    if at + 1 < len(bid.cost):
        others = (_alternative(job, bid, at + 1),)
    seen = f"by {counted(model.sizes_seen, 'size')} seen"
    if gain < WORTH and extra > -2 * WORTH:
        return Choice(model.tasks.plan, f"nothing in reach is worth a change {seen}", others)
    reason = f"{gain:+.0%} examples a second for {extra:+.0%} cost {seen}"
    return Choice(_plan(bid.plans[at]), reason, others)


def _alternative(job: JobSeen, bid: Bid, to: int) -> Alternative:
    plan = _plan(bid.plans[to])
    gain = float(bid.speed[to] / bid.now[0] - 1)
    extra = float(bid.cost[to] / bid.now[1] - 1)
    why = (
        f"{gain:+.0%} for {extra:+.0%} cost: others gain more from it, it does not fit, "
        "or it is not worth it"
    )
    return Alternative(ps=plan.ps, workers=plan.workers, batch=job.batch, why=why)


def _plan(row: Array) -> Plan:
    ps, workers, ps_cpu, worker_cpu = row.tolist()
    return Plan(int(ps), int(workers), ps_cpu, worker_cpu)
