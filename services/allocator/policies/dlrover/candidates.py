"""The plans that a running job could have, their throughput and their price in DLRover-RM.

A plan's throughput is fitted (`iteration.py`) and charged with the pause of a change: R / (pause +
R / Psi) for the R examples that remain. Of the plans in reach (`bidding.py`) only those remain that
would use enough of their cores; the others cost more to train as fast. An example costs the same
core-seconds on every plan, so the use on one plan gives that on all. A ps has more cores than the
busiest one uses (hot ps), if there is such a plan. All of this is our reconstruction.

`plan_bounds` gives the upper limits on the plans of a running job, in addition to its own bounds
and the size of a node. Live pods do not move: a task can only grow into the free part of its node.
All jobs of a namespace share its quota: a job can have the part that the others leave.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.allocator.models.memory_forecast import AHEAD_S, MOST_GIB, growth_rate
from services.allocator.placement.amounts import ROUNDING
from services.allocator.policies.contract import (
    JobSnapshot,
    Node,
    Plan,
    Reading,
    generations_at_once,
    priority_weight,
    shares_batch,
    worker_batch,
)
from services.allocator.policies.dlrover.bidding import Array, Bid, PlanSpace, pareto_front
from services.allocator.policies.dlrover.iteration import (
    Model,
    plan_grid,
    plan_throughput,
    step_s,
)
from services.allocator.state.observations import usage_by_role
from shared.messages import Resources, Role

Flags = NDArray[np.bool_]

PRICE_CPU = 1.0
PRICE_GIB = 0.125  # a core is worth eight GiB
CLOSE_S = 1800.0  # a job with so much time left has twice the weight
PAUSE_DEFAULT_S = 30.0
LEAST_USE = 0.85  # the share of a plan's cores that must be used
NEARLY = 0.9  # this share of the best use in reach is enough, if it is less than that
HOT = 1.1  # a ps has this multiple of the cores that the busiest one uses


class Bounds(NamedTuple):
    """Cores that each ps, and each worker, can have on its node; cores and GiB of all ps and
    workers of the job together.
    """

    ps_cpu: float = math.inf
    worker_cpu: float = math.inf
    cpu: float = math.inf
    gib: float = math.inf


BOUNDLESS = Bounds()


class Tasks(msgspec.Struct, frozen=True):
    """How many ps and workers a job has, and the largest task of each role."""

    ps: int
    workers: int
    ps_size: Resources
    worker_size: Resources

    @property
    def plan(self) -> Plan:
        return Plan(self.ps, self.workers, self.ps_size.cpu, self.worker_size.cpu)

    @property
    def cpu(self) -> float:
        """Cores of all ps and workers."""
        return self.ps * self.ps_size.cpu + self.workers * self.worker_size.cpu

    @property
    def ps_gib(self) -> float:
        """Memory (GiB) of all ps together, the same on every plan."""
        return self.ps_size.memory_gib * self.ps

    @property
    def worker_gib(self) -> float:
        """Memory (GiB) of each worker, the same on every plan."""
        return self.worker_size.memory_gib


def tasks_of(job: JobSnapshot) -> Tasks:
    """Return the tasks of the job; while it waits, those of its first size, without resources."""
    size = job.size or job.start
    return Tasks(size.ps, size.workers, role_resources(job, "ps"), role_resources(job, "worker"))


def role_resources(job: JobSnapshot, role: Role) -> Resources:
    """Return the resources of the role's largest task; nothing if it has no task."""
    largest = Resources()
    amounts = (-math.inf, -math.inf)
    for task in job.tasks:
        if task.role != role:
            continue
        has = task.resources
        if (has.cpu, has.memory_gib) > amounts:
            largest = has
            amounts = (has.cpu, has.memory_gib)
    return largest


class Plans(NamedTuple):
    """The present plan, and after it all plans in reach, in the order of their grid; arrays
    [plans].
    """

    now: Array
    """The present plan [4]: ps, workers, cores a ps, cores a worker."""
    reach: PlanSpace
    psi: Array
    """Examples a second."""
    cores: Array
    """Cores of all ps and workers."""
    ps_cores: Array
    """Cores of all ps."""
    gib: Array
    """Memory (GiB) of all ps and workers."""
    pause_s: Array
    """The pause (s) of a change to the plan; 0 if the numbers of tasks stay the same."""

    def rows(self, indices: NDArray[np.intp]) -> Array:
        """Return some of the plans [indices, 4]."""
        rows = np.tile(self.now, (len(indices), 1))
        others = indices > 0
        if not others.any():
            return rows
        shape = tuple([len(numbers) for numbers in self.reach])
        places = np.unravel_index(indices[others] - 1, shape)
        for column, numbers in enumerate(self.reach):
            rows[others, column] = numbers[places[column]]
        return rows

    def changed_speed(self, remaining: float) -> Array:
        """Return the mean speed (examples/s) for the remaining examples, the pause of a change
        included.
        """
        seconds = self.pause_s + remaining / self.psi
        return np.asarray(remaining / seconds)

    def prices(self) -> Array:
        """Return the cost of each plan [plans], in cores."""
        return np.asarray(PRICE_CPU * self.cores + PRICE_GIB * self.gib)


def _plans(job: JobSnapshot, tasks: Tasks, model: Model, reach: PlanSpace) -> Plans:
    """Return the present plan and those in reach, with their throughput and amounts."""
    now = tasks.plan
    pause_s = PAUSE_DEFAULT_S if job.pause_s is None else job.pause_s
    present = plan_grid([now])
    batch_now = worker_batch(job.request, job.batch, now.workers)
    present_psi = plan_throughput(present, batch_now, model)

    # The plans in reach [ps, workers, cores a ps, cores a worker], and [ps, workers] alone.
    ps, workers, ps_cpu, worker_cpu = reach.grid()
    batch = job.batch / workers if shares_batch(job.request) else job.batch
    iteration_s = step_s(reach.grid(), batch, model)
    psi = workers * batch / iteration_s
    gib = tasks.ps_gib + tasks.worker_gib * workers
    gib_now = tasks.ps_gib + tasks.worker_gib * now.workers
    moves = (ps != now.ps) | (workers != now.workers)

    # All of them in one row, after the present one.
    shape = psi.shape
    ps_cores = _in_row(now.ps * now.ps_cpu, ps * ps_cpu, shape)
    worker_cores = _in_row(now.workers * now.worker_cpu, workers * worker_cpu, shape)
    return Plans(
        now=present[0],
        reach=reach,
        psi=_in_row(float(present_psi[0]), psi, shape),
        cores=ps_cores + worker_cores,
        ps_cores=ps_cores,
        gib=_in_row(gib_now, gib, shape),
        pause_s=_in_row(0.0, pause_s * moves, shape),
    )


def _in_row(first: float, others: NDArray[Any], shape: tuple[int, ...]) -> Array:
    """Return an array of this number, followed by those of an array that broadcasts to the
    shape.
    """
    row = np.empty(1 + math.prod(shape))
    row[0] = first
    row[1:].reshape(shape)[...] = others
    return row


class Candidates(NamedTuple):
    """The candidates among some plans. `standard`: the index of the plan that uses its cores best,
    with which the others are compared.
    """

    bid: Bid
    plans: Plans
    standard: int


def candidates(
    job: JobSnapshot, tasks: Tasks, model: Model, reach: PlanSpace, bounds: Bounds = BOUNDLESS
) -> Candidates:
    """Return a running job's candidates within the bounds, from the cheapest in reach; its present
    plan is always in reach.
    """
    possible = reach.within(bounds.ps_cpu, bounds.worker_cpu)
    plans = _plans(job, tasks, model, possible)
    busy, standard = _busy_enough(job, plans, _allowed_plans(plans, bounds))

    remaining = _remaining_examples(job)
    speed = plans.changed_speed(remaining)
    cost = plans.prices()
    best = _front_among(busy, cost, speed)

    closeness = CLOSE_S * float(plans.psi[0]) / remaining
    weight = priority_weight(job.request.priority) * (1 + closeness)
    now = (float(speed[0]), float(cost[0]))
    bid = Bid(
        plans=plans.rows(best),
        speed=speed[best],
        cost=cost[best],
        cpu=plans.cores[best],
        gib=plans.gib[best],
        weight=weight,
        now=now,
    )
    return Candidates(bid, plans, standard)


def _front_among(plans: NDArray[np.intp] | None, cost: Array, speed: Array) -> NDArray[np.intp]:
    """Return the indices of the plans that no other one beats. `plans`: those to compare; None:
    all.
    """
    if plans is None:
        return pareto_front(cost, speed)
    return plans[pareto_front(cost[plans], speed[plans])]


def _remaining_examples(job: JobSnapshot) -> float:
    """Return the examples that remain, at least one."""
    if not job.progress:
        return 1.0
    return float(max(1, job.progress.total_samples - job.progress.samples))


def needed_bounds(tasks: Tasks, found: Candidates) -> Bounds:
    """Return the narrowest bounds within which the candidates are the same: those of the candidates
    and of the standard. No other plan makes a difference.
    """
    bid = found.bid
    standard = found.plans.rows(np.array([found.standard]))
    plans = np.vstack([bid.plans, standard])
    _, workers, ps_cpu, worker_cpu = plans.max(axis=0).tolist()
    cpu = max(bid.cpu.max(), found.plans.cores[found.standard])
    gib = tasks.ps_gib + tasks.worker_gib * workers
    return Bounds(ps_cpu=ps_cpu, worker_cpu=worker_cpu, cpu=float(cpu), gib=gib)


def _allowed_plans(plans: Plans, bounds: Bounds) -> Flags | None:
    """Return the plans within the quota [plans]; the present one always is. None: all plans."""
    if min(bounds.cpu, bounds.gib) == math.inf:
        return None
    fits = plans.cores <= bounds.cpu + ROUNDING
    fits &= plans.gib <= bounds.gib + ROUNDING
    fits[0] = True
    return fits


def _busy_enough(
    job: JobSnapshot, plans: Plans, allowed: Flags | None
) -> tuple[NDArray[np.intp] | None, int]:
    """Return the indices of the plans that would use enough of their cores, and of the one that
    uses them best; None: all plans.
    """
    core_seconds = _core_seconds(job)
    if core_seconds is None:
        if allowed is None:
            return None, 0
        return np.flatnonzero(allowed), 0

    # Plans without a hot ps, if there are any.
    on_ps, in_all = core_seconds
    on_hottest = on_ps * ps_unevenness(job) * HOT
    cool = plans.psi * on_hottest <= plans.ps_cores
    if allowed is not None:
        cool &= allowed
    if not cool.any():
        cool = np.ones(len(cool), dtype=np.bool_) if allowed is None else allowed

    # Of these, those that would use enough of their cores.
    used = plans.psi * in_all / plans.cores
    used[~cool] = -math.inf
    standard = int(used.argmax())
    least = min(LEAST_USE, NEARLY * float(used[standard]))
    return np.flatnonzero(used >= least), standard


def _core_seconds(job: JobSnapshot) -> tuple[float, float] | None:
    """Return the core-seconds that an example costs, on ps and in all; they are the same on every
    plan. None: not measured.
    """
    last = last_report(job)
    if last is None or not last.worker_cpu or last.samples_per_second <= 0:
        return None
    on_ps = (last.ps_cpu or 0.0) / last.samples_per_second
    on_workers = last.worker_cpu / last.samples_per_second
    return on_ps, on_ps + on_workers


def ps_unevenness(job: JobSnapshot) -> float:
    """Return the cores that the busiest ps used, as a multiple of the mean of all ps."""
    if not job.progress:
        return 1.0
    uses = [use.cpu for use in usage_by_role(job.progress, "ps")]
    total = math.fsum(uses)
    if total <= 0:
        return 1.0
    return len(uses) * max(uses) / total


def last_report(job: JobSnapshot) -> Reading | None:
    """Return the last report of the job; None: there is none yet."""
    return job.recent[-1] if job.recent else None


class MemoryTrend(msgspec.Struct, frozen=True):
    """Memory of a worker, or of all ps together. It grows with the examples, whatever the number of
    ps is, so the trend on one plan holds for all.
    """

    largest_gib: float
    gib_per_example: float


def memory_trend(job: JobSnapshot, role: Role) -> MemoryTrend | None:
    """Return the trend of the reports; None if they have no memory use."""
    samples = []
    used = []
    for report in job.recent:
        gib = report.worker_gib
        if role == "ps":
            gib = _ps_gib(report)
        if gib is not None and math.isfinite(gib) and gib > 0:
            samples.append(float(report.samples))
            used.append(gib)
    if not used:
        return None
    growth = growth_rate(np.array(samples), np.array(used))
    return MemoryTrend(max(used), growth)


def _ps_gib(report: Reading) -> float | None:
    """Return the memory of all ps; None: not measured."""
    if report.ps_gib is None:
        return None
    return report.ps_gib * report.ps


def memory_due(
    job: JobSnapshot, trend: MemoryTrend | None, plan: Plan, role: Role, speed: float
) -> float | None:
    """Return the GiB that the largest task of the role will use soon on a plan, at a speed in
    examples/s.

    With make-before-break a task holds two generations during a hand-over.
    """
    if trend is None:
        return None
    ahead = 0.0
    if job.progress:
        remaining = job.progress.total_samples - job.progress.samples
        ahead = max(0.0, min(speed * AHEAD_S, remaining))
    grown = trend.largest_gib + trend.gib_per_example * ahead
    need = min(MOST_GIB, grown)
    if role == "ps":
        need /= plan.ps
    return generations_at_once(job.request) * need


Held = tuple[float, float]
"""Cores and GiB."""
NOTHING: Held = (0.0, 0.0)


def plan_bounds(
    cluster: Sequence[Node], jobs: Sequence[JobSnapshot], bidding: Sequence[JobSnapshot], move: bool
) -> dict[str, Bounds]:
    """Return the bounds of the jobs that bid, by job. `jobs`: all jobs. With `move`, a task that
    cannot grow on its node goes to another one.
    """
    free_cpu: dict[str, float] = {}
    if not move:
        free_cpu = _free_cpu(cluster)
    held = _held_by_namespace(jobs)
    found = {}
    for job in bidding:
        held_by_all = held.get(job.request.namespace, NOTHING)
        found[job.key] = _job_bounds(job, free_cpu, held_by_all)
    return found


def _free_cpu(cluster: Sequence[Node]) -> dict[str, float]:
    """Return the cores that are free for tasks, by node."""
    free_cpu = {}
    for node in cluster:
        free_cpu[node.name] = node.free.cpu if node.open else 0.0
    return free_cpu


def _held_by_namespace(jobs: Sequence[JobSnapshot]) -> dict[str, Held]:
    """Return the amounts that the jobs of each namespace with a quota hold together."""
    held: dict[str, Held] = {}
    for job in jobs:
        if job.quota:
            namespace = job.request.namespace
            cpu, gib = held.get(namespace, NOTHING)
            job_cpu, job_gib = _held_by_job(job, with_chief=True)
            held[namespace] = (cpu + job_cpu, gib + job_gib)
    return held


def _job_bounds(job: JobSnapshot, free_cpu: Mapping[str, float], held: Held) -> Bounds:
    """Return the bounds of one job. `held`: by all jobs in its namespace, its own included."""
    ps_cpu, worker_cpu = _room_to_grow(job, free_cpu)
    if job.quota is None:
        return Bounds(ps_cpu, worker_cpu)
    most = job.quota.most()
    held_cpu, held_gib = held
    cpu, gib = _held_by_job(job, with_chief=False)
    return Bounds(
        ps_cpu=ps_cpu,
        worker_cpu=worker_cpu,
        cpu=most.cpu - held_cpu + cpu,
        gib=most.memory_gib - held_gib + gib,
    )


def _held_by_job(job: JobSnapshot, with_chief: bool) -> Held:
    """Return cores and GiB of the job's tasks."""
    cpu = gib = 0.0
    for task in job.tasks:
        if with_chief or task.role != "chief":
            cpu += task.resources.cpu
            gib += task.resources.memory_gib
    return cpu, gib


def _room_to_grow(job: JobSnapshot, free_cpu: Mapping[str, float]) -> tuple[float, float]:
    """Return the cores that every ps, and every worker, could have on its node; the job's tasks on
    a node share the free part of it.
    """
    ps_cpu = worker_cpu = math.inf
    if not free_cpu:
        return ps_cpu, worker_cpu

    tasks_on = Counter([task.node for task in job.tasks])
    for task in job.tasks:
        free = free_cpu.get(task.node, 0.0)
        most = task.resources.cpu + free / tasks_on[task.node]
        if task.role == "ps":
            ps_cpu = min(ps_cpu, most)
        elif task.role == "worker":
            worker_cpu = min(worker_cpu, most)
    return ps_cpu, worker_cpu
