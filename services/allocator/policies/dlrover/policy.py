"""Start from history, fit the throughput, scale by gain per cost: DLRover-RM (Wang et al., PVLDB
17(12), 2024).

1. Warm start: a job begins near the best plan of its kind (`model.py`).
2. Its throughput is fitted to the observations (`iteration.py`), plans in reach priced
   (`candidates.py`); both are part of the job's model (`model.py`).
3. All jobs' candidates compete for the free capacity, the largest weight x gain / cost first
   (`bidding.py`).
4. Memory follows its largest use and its forecast, so that no ps runs out of it
   (`models/memory_forecast.py`).

From the paper's public material: the three stages. Our reconstruction: the weight rises with the
priority (`priority_weight`) and towards completion; every job bids anew from its cheapest
candidate, so capacity that gains more elsewhere goes there; the rest stands in `candidates.py`.
Tasks of a role are of one size. Migration, shards and slow workers are the launcher's and the
trainer's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from services.allocator.models.memory_forecast import limit_due, limit_for
from services.allocator.placement.amounts import total_of
from services.allocator.policies.contract import (
    JobSnapshot,
    Node,
    Plan,
    Target,
    generations_at_once,
    has_open_sizes,
    models_of,
    start_target,
)
from services.allocator.policies.dlrover.bidding import Array, Bid, weighted_greedy
from services.allocator.policies.dlrover.candidates import (
    last_report,
    memory_due,
    plan_bounds,
)
from services.allocator.policies.dlrover.model import DlroverModel, WarmStart, fit_with_sizes
from shared.messages import Alternative, Resources, RoleResources
from shared.text import format_count

WORTH = 0.1  # a change gains this share of throughput, or saves twice this share of cost
SETTLE_S = 60.0  # a new generation is observed for so long
SHRINK_AFTER_S = 60.0  # memory is not reduced before this time
FIRST_SPARE = (
    1.4  # a first limit is this multiple of the use of similar jobs; an excess is soon taken back
)
PACKED = 0.9  # this share of the free capacity can be used: tasks do not fill nodes exactly


class PlanOptions(msgspec.Struct, frozen=True):
    """`size_all`: choose the sizes of all tasks, also of those that the user gave; `move`: a task
    that cannot grow on its node goes to another one.
    """

    size_all: bool = False
    move: bool = False


LIVE = PlanOptions()
AS_PUBLISHED = PlanOptions(size_all=True, move=True)


def dlrover(
    cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float, options: PlanOptions = LIVE
) -> list[Target]:
    """Return the target of each job. A job without ps has no such model, and stays at its first
    size.
    """
    waiting = []
    running = []
    for job in jobs:
        if job.size is None:
            waiting.append(job)
        elif job.size.ps > 0 and job.tasks and not job.busy:
            running.append(job)
    models = _job_models([*waiting, *running], options)
    largest = _largest_task(cluster)

    # 1. Jobs that wait start near the plans of similar jobs.
    firsts = []
    for job in waiting:
        guess = models[job.key].guess
        fixed = _is_fixed(job, options)
        firsts.append(_warm_start_target(job, guess, largest, fixed))

    # 2. Jobs that have run for a while bid for the free capacity.
    ready = [job for job in running if _is_ready(job, models[job.key], now)]
    limits = plan_bounds(cluster, jobs, ready, options.move)
    bids = {}
    for job in ready:
        model = models[job.key]
        limit = limits[job.key]
        fixed = _is_fixed(job, options)
        bids[job.key] = model.bid(job, largest.cpu, fixed, limit)
    capacity = _free_capacity(cluster)
    capacity = _with_given_back(capacity, models, bids)
    capacity = _without_first_sizes(capacity, waiting, firsts)
    chosen = weighted_greedy(bids, max(0.0, capacity.cpu), max(0.0, capacity.gib))

    # 3. Each gets its candidate, where that is worth a change.
    targets = list(firsts)
    for job in running:
        bid = bids.get(job.key)
        at = chosen.get(job.key, 0)
        model = models[job.key]
        task_most = None if _is_fixed(job, options) else largest
        targets.append(_dlrover_target(job, model, bid, at, now, task_most))
    return targets


def _job_models(jobs: Sequence[JobSnapshot], options: PlanOptions) -> dict[str, DlroverModel]:
    """Return the models by job; those that have none are fitted together."""

    def fit_lacking(lacking: Sequence[JobSnapshot]) -> list[DlroverModel]:
        """Fit the models of the jobs that have none yet."""
        sized = [not _is_fixed(job, options) for job in lacking]
        return fit_with_sizes(lacking, sized)

    models = models_of(jobs, DlroverModel, fit_lacking)
    by_job = {}
    for job, model in zip(jobs, models, strict=True):
        by_job[job.key] = model
    return by_job


def _is_fixed(job: JobSnapshot, options: PlanOptions) -> bool:
    """Return True if the sizes of the job's tasks are those of its request."""
    return not (options.size_all or has_open_sizes(job.request))


def _largest_task(cluster: Sequence[Node]) -> Resources:
    """Return cores and GiB of the largest node, without any task on it."""
    cpu = 0.0
    gib = 0.0
    for node in cluster:
        cpu = max(cpu, node.allocatable.cpu)
        gib = max(gib, node.allocatable.memory_gib)
    return Resources(cpu=cpu, memory_gib=gib)


# ---------------------------------------------------------------- jobs that wait


def _warm_start_target(
    job: JobSnapshot, guess: WarmStart | None, largest: Resources, fixed: bool
) -> Target:
    """Return the first size of a job. `fixed`: True if its tasks are as requested."""
    if guess is None:
        return start_target(job, "the first size: no similar job has finished yet")

    asked = job.request
    ps = max(guess.plan.ps, asked.ps.min)
    ps = min(ps, asked.ps.max)
    workers = max(guess.plan.workers, asked.workers.min)
    workers = min(workers, asked.workers.max)

    sizes = None
    if ps > 0 and not fixed:
        sizes = _first_sizes(job, guess, ps, largest)
    return Target(
        job=job.key,
        ps=ps,
        workers=workers,
        batch=asked.batch.start,
        reason=f"as {format_count(guess.jobs, 'similar job')} ended",
        sizes=sizes,
    )


def _first_sizes(job: JobSnapshot, guess: WarmStart, ps: int, largest: Resources) -> RoleResources:
    """Return the sizes of a job's first tasks, by those of similar jobs."""
    times = FIRST_SPARE * generations_at_once(job.request)
    ps_gib = limit_for(times * guess.ps_gib / ps)
    worker_gib = limit_for(times * guess.worker_gib)

    asked = job.sizes
    if job.progress:
        # It has run before: its memory then may have been raised, because it was too little.
        ps_gib = max(ps_gib, asked.ps.memory_gib)
        worker_gib = max(worker_gib, asked.worker.memory_gib)

    ps_size = _task_size(asked.ps, guess.plan.ps_cpu, ps_gib, largest)
    worker_size = _task_size(asked.worker, guess.plan.worker_cpu, worker_gib, largest)
    return replace(asked, ps=ps_size, worker=worker_size)


def _task_size(asked: Resources, cpu: float, gib: float, largest: Resources) -> Resources:
    """Return a task's resources, not larger than the largest node."""
    most_cpu = max(largest.cpu, asked.cpu)
    most_gib = max(largest.memory_gib, asked.memory_gib)
    hundredths = math.floor(min(cpu, most_cpu) * 100 + 1e-9)
    return replace(asked, cpu=hundredths / 100, memory_gib=min(gib, most_gib))


# ---------------------------------------------------------------- jobs that run


def _is_ready(job: JobSnapshot, model: DlroverModel, now: float) -> bool:
    """Return True if the job was observed for long enough, with its present cores."""
    if job.progress is None or model.throughput is None:
        return False
    if now - job.since_s < SETTLE_S:
        return False
    last = last_report(job)
    if last is None or last.ps_had is None:
        return True
    tasks = model.tasks
    return last.ps_had == tasks.ps_size.cpu and last.worker_had == tasks.worker_size.cpu


class Capacity(NamedTuple):
    """Cores and GiB that jobs bid for."""

    cpu: float
    gib: float


def _free_capacity(cluster: Sequence[Node]) -> Capacity:
    """Return the free capacity that tasks can fill."""
    free = total_of([node.free for node in cluster if node.open])
    return Capacity(PACKED * free.cpu, PACKED * free.memory_gib)


def _with_given_back(
    capacity: Capacity, models: Mapping[str, DlroverModel], bids: Mapping[str, Bid]
) -> Capacity:
    """Return the capacity, with the amounts that jobs hold beyond their first candidates."""
    cpu, gib = capacity
    for key, bid in bids.items():
        now = models[key].tasks
        first_cpu = float(bid.cpu[0])
        first_workers = float(bid.plans[0, 1])
        cpu += now.cpu - first_cpu
        gib += now.worker_gib * (now.workers - first_workers)
    return Capacity(cpu, gib)


def _without_first_sizes(
    capacity: Capacity, waiting: Sequence[JobSnapshot], firsts: Sequence[Target]
) -> Capacity:
    """Return the capacity without the needs of waiting jobs."""
    cpu, gib = capacity
    for job, want in zip(waiting, firsts, strict=True):
        sizes = want.sizes or job.sizes
        ps = sizes.ps
        worker = sizes.worker
        cpu -= want.ps * ps.cpu + want.workers * worker.cpu
        gib -= want.ps * ps.memory_gib + want.workers * worker.memory_gib
    return Capacity(cpu, gib)


# ---------------------------------------------------------------- the answer


def _dlrover_target(
    job: JobSnapshot,
    model: DlroverModel,
    bid: Bid | None,
    at: int,
    now: float,
    largest: Resources | None,
) -> Target:
    """Return the job's target at one of its candidates. `largest`: of a task; None where numbers
    alone are chosen.
    """
    if bid is None:
        choice = Choice(model.tasks.plan, "not observed for long enough yet")
        speed = 0.0
    else:
        choice = _choose_plans(job, model, bid, at)
        speed = float(bid.speed[at])
    sizes = None
    if largest:
        sizes = _changed_sizes(job, model, choice.plan, speed, now, largest)
    return Target(
        job=job.key,
        ps=choice.plan.ps,
        workers=choice.plan.workers,
        batch=job.batch,
        reason=choice.reason,
        alternatives=choice.others,
        sizes=sizes,
    )


def _changed_sizes(
    job: JobSnapshot, model: DlroverModel, plan: Plan, speed: float, now: float, largest: Resources
) -> RoleResources | None:
    """Return cores as planned, and memory as it will be used at a speed (examples/s); None: the
    tasks have these sizes already.
    """
    before = model.tasks
    ps = before.ps_size
    worker = before.worker_size
    has_settled = now - job.since_s >= SHRINK_AFTER_S
    may_shrink = has_settled or plan.ps != before.ps
    last = last_report(job)
    if last is not None:
        speed = max(last.samples_per_second, speed)
    ps_gib, worker_gib = _memory_limits(job, model, plan, speed, may_shrink)

    new_ps = _task_size(ps, plan.ps_cpu, ps_gib, largest)
    new_worker = _task_size(worker, plan.worker_cpu, worker_gib, largest)
    if new_ps == ps and new_worker == worker:
        return None
    return replace(job.sizes, ps=new_ps, worker=new_worker)


def _memory_limits(
    job: JobSnapshot, model: DlroverModel, plan: Plan, speed: float, may_shrink: bool
) -> tuple[float, float]:
    """Return the memory (GiB) of each ps and of each worker on a plan. All ps together keep theirs;
    each worker has its own.
    """
    before = model.tasks
    ps_gib = before.ps_size.memory_gib * before.ps / plan.ps
    ps_need = memory_due(job, model.ps_memory, plan, "ps", speed)
    worker_need = memory_due(job, model.worker_memory, plan, "worker", speed)
    return (
        limit_due(ps_gib, ps_need, may_shrink),
        limit_due(before.worker_gib, worker_need, may_shrink),
    )


class Choice(NamedTuple):
    """A plan, the reason for it, and the next candidate, not granted."""

    plan: Plan
    reason: str
    others: tuple[Alternative, ...] = ()


def _choose_plans(job: JobSnapshot, model: DlroverModel, bid: Bid, at: int) -> Choice:
    """Return the candidate that the job got, if it is worth a change."""
    gain, extra = bid.against_now(at)
    others: tuple[Alternative, ...] = ()
    if at + 1 < len(bid.cost):
        others = (_alternative(job, bid, at + 1),)

    seen = f"by {format_count(model.sizes_seen, 'observed size')}"
    if gain < WORTH and extra > -2 * WORTH:
        return Choice(model.tasks.plan, f"no possible size is worth a change, {seen}", others)
    reason = f"{gain:+.0%} examples a second for {extra:+.0%} cost, {seen}"
    return Choice(_plan_of_row(bid.plans[at]), reason, others)


def _alternative(job: JobSnapshot, bid: Bid, to: int) -> Alternative:
    """Return a candidate that the job does not get."""
    plan = _plan_of_row(bid.plans[to])
    gain, extra = bid.against_now(to)
    why = (
        f"{gain:+.0%} for {extra:+.0%} cost: it does not fit, others gain more, "
        "or it is not worth it"
    )
    return Alternative(ps=plan.ps, workers=plan.workers, batch=job.batch, why=why)


def _plan_of_row(row: Array) -> Plan:
    """Return a row of `Bid.plans` as a plan."""
    ps, workers, ps_cpu, worker_cpu = row.tolist()
    return Plan(int(ps), int(workers), ps_cpu, worker_cpu)
