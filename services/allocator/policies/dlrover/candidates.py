"""A running job as DLRover-RM sees it: what it runs on, what it could run on, and what that would cost it.

A plan's throughput is fitted (`iteration.py`) and charged with the pause of a change: R / (pause + R / Psi) for
the R examples that remain. Of the plans in reach (`bidding.py`) those whose cores would be used are left; others are
dearer ways to train as fast. Cores that an example costs are the same on every plan, so the use of one plan tells that
of all. A ps always has more cores than the busiest one uses (hot ps). All of this is our reconstruction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.allocator.kept import Kept, KeptEach, KeptTogether, by_ids
from services.allocator.models.evidence import believable
from services.allocator.models.foresight import AHEAD_S, foreseen
from services.allocator.models.history import most_similar
from services.allocator.models.priority import priority_weight
from services.allocator.placing.amounts import ROUNDING
from services.allocator.policies.contract import JobSeen, Past, Plan, Timed
from services.allocator.policies.dlrover.bidding import Array, Bid, front, in_reach
from services.allocator.policies.dlrover.bounds import BOUNDLESS, Bounds
from services.allocator.policies.dlrover.iteration import Case, Model, fitted_each, grid, shares_of, throughput, usable
from services.allocator.readings import measured
from shared.messages import JobRequested, Resources, Role

PRICE_CPU, PRICE_GIB = 1.0, 0.125  # a core is worth eight GiB
CLOSE_S = 1800.0  # a job so near its end weighs twice
PAUSE_DEFAULT_S = 30.0
LEAST_USE = 0.85  # of a plan's cores must be used, by what is known
NEARLY = 0.9  # of the best use in reach will do where there is none so good
JOBS_KEPT = 1024  # of so many it is remembered what was seen
HOT = 1.1  # a ps has so many times the cores that the busiest one uses


def bid_of(
    job: JobSeen,
    history: Sequence[Past],
    node_cpu: float,
    counts_only: bool = False,
    bounds: Bounds = BOUNDLESS,
) -> Bid:
    """A running job's candidates, from the cheapest in reach; what it has is always among them."""
    now = plan_of(job)
    plans = np.vstack([grid([now]), in_reach(now, job.least, job.most, node_cpu, counts_only)])
    plans = plans[_allowed(plans, memory(job, plans), bounds)]
    psi = throughput(plans, job.batch, models([(job, history)])[0])
    speed, weight = _charged(job, plans, psi)
    cpu, gib = cores(plans), memory(job, plans)
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
    weight = priority_weight(job.request.priority) * (1 + CLOSE_S * float(psi[0]) / remaining)
    return remaining / (pause_s * moves + remaining / psi), weight


def _busy_enough(job: JobSeen, plans: Array, psi: Array) -> NDArray[np.bool_]:
    """Plans whose cores would be used enough; core-seconds that an example costs are the same on every plan."""
    last = job.recent[-1] if job.recent else None
    if last is None or not last.worker_cpu or last.samples_per_second <= 0:
        return np.ones(len(plans), dtype=np.bool_)
    on_ps = psi * (last.ps_cpu or 0.0) / last.samples_per_second
    used = (on_ps + psi * last.worker_cpu / last.samples_per_second) / cores(plans)
    cool = on_ps * unevenness(job) * HOT <= plans[:, 0] * plans[:, 2]
    cool = cool if cool.any() else np.ones(len(plans), dtype=np.bool_)
    enough: NDArray[np.bool_] = cool & (used >= min(LEAST_USE, NEARLY * float(used[cool].max())))
    return enough


def unevenness(job: JobSeen) -> float:
    """Cores that the busiest ps used, by the mean of all ps."""
    uses = [use.cpu for use in measured(job.progress, "ps")] if job.progress else []
    return len(uses) * max(uses) / math.fsum(uses) if uses and math.fsum(uses) > 0 else 1.0


def _allowed(plans: Array, gib: Array, bounds: Bounds) -> NDArray[np.bool_]:
    fits = (cores(plans) <= bounds.cpu + ROUNDING) & (gib <= bounds.gib + ROUNDING)
    fits &= (plans[:, 2] <= bounds.ps_cpu + ROUNDING) & (plans[:, 3] <= bounds.worker_cpu + ROUNDING)
    fits[0] = True
    return fits


def memory(job: JobSeen, plans: Array) -> Array:
    """All ps together have as much on every plan, and each worker as much as now."""
    ps_gib = held(job, "ps").memory_gib * plan_of(job).ps
    return np.asarray(ps_gib + held(job, "worker").memory_gib * plans[:, 1])


def cores(plans: Array) -> Array:
    return plans[:, 0] * plans[:, 2] + plans[:, 1] * plans[:, 3]


# ---------------------------------------------------------------- what is seen of a job


def _plan_of(job: JobSeen) -> Plan:
    size = job.size or job.start
    return Plan(size.ps, size.workers, held(job, "ps").cpu, held(job, "worker").cpu)


_plan: Kept[JobSeen, Plan] = Kept(_plan_of, JOBS_KEPT)


def plan_of(job: JobSeen) -> Plan:
    return _plan(job)


def held(job: JobSeen, role: Role) -> Resources:
    """What a task of the role has; of unlike ones, the largest."""
    tasks = [task.resources for task in job.tasks if task.role == role]
    return max(tasks, key=lambda held: (held.cpu, held.memory_gib), default=Resources())


def timed_of(job: JobSeen) -> list[Timed]:
    """Speeds seen as iteration times; where the cores of then are not known, those of now stand in."""
    return _timed(job)


def _timed_of(job: JobSeen) -> list[Timed]:
    now = plan_of(job)
    return usable(
        [
            Timed(
                Plan(o.ps, o.workers, o.ps_cpu or now.ps_cpu, o.worker_cpu or now.worker_cpu),
                o.batch,
                o.workers * o.batch / o.samples_per_second if believable(o) else math.inf,
            )
            for o in job.tried or job.observed
        ]
    )


def _timed_by(asked: Sequence[Any]) -> list[Timed]:
    request, history = asked
    return usable([timed for past in most_similar(request, history) for timed in past.timed])


_similar: KeptTogether[str, Any, list[Timed]] = KeptTogether(_timed_by)
"""What was timed of the finished jobs that a request is most similar to."""


def _case(job: JobSeen, history: Sequence[Past]) -> Case:
    return Case(timed_of(job), _similar(job.key, (job.request, history)), _shares(job))


_timed: Kept[JobSeen, list[Timed]] = Kept(_timed_of, JOBS_KEPT)
models: KeptEach[tuple[JobSeen, Sequence[Past]], Model] = KeptEach(
    lambda pairs: fitted_each([*starmap(_case, pairs)]), by_ids, JOBS_KEPT
)
"""Of jobs, beside what those that are over have shown."""


def _shares(job: JobSeen) -> tuple[float, ...] | None:
    """How an iteration divides among the model's terms, by the CPU use of the last report."""
    now, last = plan_of(job), job.recent[-1] if job.recent else None
    if last is None or last.worker_cpu is None or (last.ps, last.workers) != (now.ps, now.workers):
        return None
    busy_ps = (last.ps_cpu or 0.0) / (now.ps * now.ps_cpu)
    return shares_of(last.worker_cpu / (now.workers * now.worker_cpu), busy_ps)


def memory_due(job: JobSeen, plan: Plan, role: Role, speed: float) -> float | None:
    """GiB that the largest task of the role will use soon on a plan, at a speed.

    All ps together grow with the examples seen, however many there are: what was measured on one plan tells of all. A
    hand-over that is made before the break has two generations in a task.
    """
    if role == "ps":
        points = [(float(r.samples), r.ps_gib * r.ps) for r in job.recent if r.ps_gib]
    else:
        points = [(float(r.samples), r.worker_gib) for r in job.recent if r.worker_gib]
    remaining = job.progress.total_samples - job.progress.samples if job.progress else 0
    need = foreseen(points, min(speed * AHEAD_S, remaining))
    if need is None:
        return None
    return generations(job.request) * (need if role == "worker" else need / plan.ps)


def generations(request: JobRequested) -> int:
    """How many a task has to hold at once."""
    return 2 if request.handover == "make-before-break" else 1
