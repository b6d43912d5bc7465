"""Start from history, fit the throughput, scale by gain per cost: DLRover-RM (Wang et al., PVLDB 17(12), 2024).

1. Warm start: a job begins near the best plan of its kind (`history.py`).
2. Its throughput is fitted to what was seen (`iteration.py`), and every plan in reach is priced (`bidding.py`).
3. All jobs' candidates compete for what is free, the largest weight x gain / cost first.
4. Memory follows its largest use and what it will be soon, so that no ps runs out of it (`foresight.py`).

From the paper's public material: the three stages. Our reconstruction: throughput is charged with the pause of a
change, R / (pause + R / Psi) for the R examples that remain; the weight doubles with each priority and grows towards
completion; what is as good for less is taken before anything else; while jobs wait, running ones bid anew from half
of their throughput; and a ps always has more cores than the busiest one uses (hot ps). Tasks of a role are of one size.
Migration, shards and slow workers are the launcher's and the trainer's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from services.allocator.bidding import Array, Bid, front, greedy, in_reach
from services.allocator.foresight import foreseen, limit_due, limit_for
from services.allocator.history import Past, Plan, Timed, most_similar, warm_start
from services.allocator.iteration import fitted, grid, shares_of, throughput, usable
from services.allocator.placement import Node
from services.allocator.policies.contract import JobSeen, Want, at_start
from shared.messages import Alternative, Resources, Role

COMPUTING: tuple[Role, Role] = ("ps", "worker")
PRICE_CPU, PRICE_GIB = 1.0, 0.125  # a core is worth eight GiB
WORTH = 0.05  # a change gains so much throughput, or saves twice so much cost
CLOSE_S = 1800.0  # a job so near its end weighs twice
SETTLE_S = 60.0  # a new generation is watched for so long
SHRINK_AFTER_S = 300.0  # memory is not taken back before
AHEAD_S = 900.0  # memory is foreseen so far
PAUSE_DEFAULT_S = 30.0
PACKED = 0.9  # of what is free can be used: tasks do not fill nodes exactly
LEAST_USE = 0.7  # of a plan's cores must be used, by what is known
NEARLY = 0.9  # of the best use in reach will do where there is none so good
HOT = 1.1  # a ps has so many times the cores that the busiest one uses


def dlrover(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float, history: Sequence[Past] = ()) -> list[Want]:
    waiting, running = [j for j in jobs if j.size is None], [j for j in jobs if j.tasks and not j.busy]
    node_cpu = max((node.allocatable.cpu for node in cluster), default=0.0)
    firsts = [_first(job, history, node_cpu) for job in waiting]
    bids = {j.key: bid_of(j, history, node_cpu) for j in running if _ready(j, now)}
    chosen = greedy(bids, *_biddable(cluster, running, bids, firsts, waiting))
    return firsts + [_want(job, bids.get(job.key), chosen.get(job.key, 0), now) for job in running]


def _first(job: JobSeen, history: Sequence[Past], node_cpu: float) -> Want:
    guess = warm_start(job.request, history)
    if guess is None:
        return at_start(job, "the first size: no finished job is a guide")
    ps = min(max(guess.plan.ps, job.least.ps), job.most.ps)
    workers = min(max(guess.plan.workers, job.least.workers), job.most.workers)
    sizes = replace(
        job.sizes,
        ps=_sized(job.sizes.ps, min(guess.plan.ps_cpu, node_cpu), limit_for(guess.ps_gib / ps)),
        worker=_sized(job.sizes.worker, min(guess.plan.worker_cpu, node_cpu), limit_for(guess.worker_gib)),
    )
    return replace(at_start(job, f"as {guess.jobs} similar jobs ended"), ps=ps, workers=workers, sizes=sizes)


def _sized(asked: Resources, cpu: float, gib: float) -> Resources:
    return replace(asked, cpu=round(cpu, 2), memory_gib=gib)


def _ready(job: JobSeen, now: float) -> bool:
    """Was it seen long enough to be judged?"""
    return job.progress is not None and now - job.since_s >= SETTLE_S and bool(timed_of(job))


# ---------------------------------------------------------------- candidates of one job


def bid_of(job: JobSeen, history: Sequence[Past], node_cpu: float) -> Bid:
    """A running job's candidates, from the cheapest in reach."""
    now = plan_of(job)
    plans = np.vstack([grid([now]), in_reach(now, job.least, job.most, node_cpu)])
    similar = usable([timed for past in most_similar(job.request, history) for timed in past.timed])
    psi = throughput(plans, job.batch, fitted(timed_of(job), similar=similar, shares=_shares(job)))
    speed, weight = _charged(job, plans, psi)
    cpu, gib = _cpu(plans), _held(job, "ps").memory_gib * now.ps + _held(job, "worker").memory_gib * plans[:, 1]
    cost = PRICE_CPU * cpu + PRICE_GIB * gib
    busy = np.flatnonzero(_busy_enough(job, plans, psi))
    best = busy[front(cost[busy], speed[busy])]
    return Bid(
        plans=plans[best],
        speed=speed[best],
        cost=cost[best],
        cpu=cpu[best],
        gib=gib[best],
        weight=weight,
        now=(float(speed[0]), float(cost[0])),
    )


def _charged(job: JobSeen, plans: Array, psi: Array) -> tuple[Array, float]:
    """Throughput over the work that remains, pause included; and the job's weight."""
    remaining = float(max(1, job.progress.total_samples - job.progress.samples)) if job.progress else 1.0
    pause_s = PAUSE_DEFAULT_S if job.pause_s is None else job.pause_s
    moves = (plans[:, :2] != plans[0, :2]).any(axis=1)
    weight = 2.0**job.request.priority * (1 + CLOSE_S * float(psi[0]) / remaining)
    return remaining / (pause_s * moves + remaining / psi), weight


def _busy_enough(job: JobSeen, plans: Array, psi: Array) -> NDArray[np.bool_]:
    """Plans whose cores would be used enough; core-seconds that an example costs are the same on every plan."""
    last = job.recent[-1] if job.recent else None
    if last is None or not last.worker_cpu or last.samples_per_second <= 0:
        return np.ones(len(plans), dtype=np.bool_)
    on_ps = psi * (last.ps_cpu or 0.0) / last.samples_per_second
    used = (on_ps + psi * last.worker_cpu / last.samples_per_second) / _cpu(plans)
    cool = on_ps * _unevenness(job) * HOT <= plans[:, 0] * plans[:, 2]
    cool = cool if cool.any() else np.ones(len(plans), dtype=np.bool_)
    enough: NDArray[np.bool_] = cool & (used >= min(LEAST_USE, NEARLY * float(used[cool].max())))
    return enough


def _unevenness(job: JobSeen) -> float:
    """Cores that the busiest ps used, by the mean of all ps."""
    uses = _use(job, "ps")
    return len(uses) * max(uses) / math.fsum(uses) if uses and math.fsum(uses) > 0 else 1.0


def _cpu(plans: Array) -> Array:
    return plans[:, 0] * plans[:, 2] + plans[:, 1] * plans[:, 3]


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
            cpu += float(_cpu(grid([now]))[0] - bid.cpu[0])
            gib += _held(job, "worker").memory_gib * float(now.workers - bid.plans[0, 1])
    for job, want in zip(waiting, firsts, strict=True):
        sizes = want.sizes or job.sizes
        cpu -= want.ps * sizes.ps.cpu + want.workers * sizes.worker.cpu
        gib -= want.ps * sizes.ps.memory_gib + want.workers * sizes.worker.memory_gib
    return max(0.0, cpu), max(0.0, gib)


# ---------------------------------------------------------------- what is seen of a job


def plan_of(job: JobSeen) -> Plan:
    size = job.size or job.start
    return Plan(size.ps, size.workers, _held(job, "ps").cpu, _held(job, "worker").cpu)


def _held(job: JobSeen, role: Role) -> Resources:
    """What a task of the role has; of unlike ones, the largest."""
    tasks = [task.resources for task in job.tasks if task.role == role]
    return max(tasks, key=lambda held: (held.cpu, held.memory_gib), default=Resources())


def timed_of(job: JobSeen) -> list[Timed]:
    """Speeds seen as iteration times; where the cores of then are not known, those of now stand in."""
    now = plan_of(job)
    return usable(
        [
            Timed(
                Plan(o.ps, o.workers, o.ps_cpu or now.ps_cpu, o.worker_cpu or now.worker_cpu),
                o.batch,
                o.workers * o.batch / o.samples_per_second if o.samples_per_second > 0 else math.inf,
            )
            for o in job.tried or job.observed
        ]
    )


def _use(job: JobSeen, role: Role) -> list[float]:
    """Cores that each task of the role used, by the last report."""
    usage = job.progress.usage if job.progress else ()
    return [use.cpu for use in usage if use.task.partition("-")[0] == role]


def _shares(job: JobSeen) -> tuple[float, ...] | None:
    """How an iteration divides among the model's terms, by the CPU use of the last report."""
    now, last = plan_of(job), job.recent[-1] if job.recent else None
    if last is None or last.worker_cpu is None or (last.ps, last.workers) != (now.ps, now.workers):
        return None
    busy_ps = (last.ps_cpu or 0.0) / (now.ps * now.ps_cpu)
    return shares_of(last.worker_cpu / (now.workers * now.worker_cpu), busy_ps)


def _need(job: JobSeen, role: Role) -> float | None:
    """GiB that the largest task of the role will use soon, at the present size."""
    now = [r for r in job.recent if (r.ps, r.workers) == (job.size.ps, job.size.workers)] if job.size else []
    points = [(float(r.samples), r.ps_gib if role == "ps" else r.worker_gib) for r in now]
    remaining = job.progress.total_samples - job.progress.samples if job.progress else 0
    speed = now[-1].samples_per_second if now else 0.0
    return foreseen([(x, y) for x, y in points if y is not None], min(speed * AHEAD_S, remaining))


# ---------------------------------------------------------------- the answer


def _want(job: JobSeen, bid: Bid | None, at: int, now: float) -> Want:
    before = plan_of(job)
    plan, reason, others = (before, "watched for a while first", ()) if bid is None else _judged(job, bid, at)
    ps, worker = _held(job, "ps"), _held(job, "worker")
    may_shrink = now - job.since_s >= SHRINK_AFTER_S
    needs = {role: _need(job, role) for role in COMPUTING}
    spread = before.ps / plan.ps
    sizes = replace(
        job.sizes,
        ps=_sized(ps, plan.ps_cpu, limit_due(ps.memory_gib * spread, _times(needs["ps"], spread), may_shrink)),
        worker=_sized(worker, plan.worker_cpu, limit_due(worker.memory_gib, needs["worker"], may_shrink)),
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


def _times(need: float | None, factor: float) -> float | None:
    return None if need is None else need * factor
