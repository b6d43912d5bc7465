"""The model that DLRover-RM fits to one job, from this job and its program's history alone.

A model is valid until one of the job's facts changes: the policy only combines models with the free
capacity (`policy.py`). The candidates in a model are those on nodes of any size and without bounds
(`_stored_bid`). If the nodes or the bounds are too narrow for one of them, all are found again.

The warm start of DLRover-RM (Wang et al., PVLDB 17(12), 2024) takes the probable needs of a job
from jobs that finished. From the paper: the k most similar finished jobs are found by their
metadata, and exponentially smoothed,

    A <- mu A_i + (1 - mu) A          from the least to the most similar

so that training starts near the best size, not at it. Ours: the definition of similarity (the same
program file by digest or by name, the same namespace, a batch of the same order; of equal ones, the
job that finished later); that jobs of other programs are not used at all; and that memory is the
most that any of the jobs used, because a task with too little memory is killed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from services.allocator.models.fitting import is_believable
from services.allocator.placement.amounts import ROUNDING
from services.allocator.policies.contract import (
    FinishedJob,
    JobSnapshot,
    Plan,
    TimedPlan,
    has_open_sizes,
    worker_batch,
)
from services.allocator.policies.dlrover.bidding import Bid, PlanSpace, plan_space
from services.allocator.policies.dlrover.candidates import (
    Bounds,
    MemoryTrend,
    Tasks,
    candidates,
    last_report,
    memory_trend,
    needed_bounds,
    tasks_of,
)
from services.allocator.policies.dlrover.iteration import (
    PS_CPU,
    WORKER_CPU,
    Case,
    Model,
    fit_throughputs,
    shares_of,
    usable_plans,
)
from shared.messages import JobRequested

NOTHING = Case(timed=())


class StoredReach(msgspec.Struct, frozen=True):
    """The numbers that are tried, on nodes of any size (`bidding.PlanSpace`)."""

    ps: tuple[float, ...]
    workers: tuple[float, ...]
    ps_cores: tuple[float, ...]
    worker_cores: tuple[float, ...]

    def reach(self) -> PlanSpace:
        """Return the numbers as arrays."""
        return PlanSpace(
            ps=np.array(self.ps),
            workers=np.array(self.workers),
            ps_cores=np.array(self.ps_cores),
            worker_cores=np.array(self.worker_cores),
        )


class Throughput(msgspec.Struct, frozen=True):
    """The fitted model of an iteration (`iteration.Model`). `useful_cores`: of a ps, and of a
    worker; None: there is no bound.
    """

    coefficients: tuple[float, ...]
    useful_cores: tuple[float | None, float | None]

    def model(self) -> Model:
        """Return the model as arrays."""
        ps_cpu, worker_cpu = self.useful_cores
        bounds = np.full(4, math.inf)
        if ps_cpu is not None:
            bounds[PS_CPU] = ps_cpu
        if worker_cpu is not None:
            bounds[WORKER_CPU] = worker_cpu
        return Model(np.array(self.coefficients), bounds)


class StoredBid(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates without bounds (`bidding.Bid`)."""

    table: bytes
    """Packed float64 [8, candidates]: ps, workers, cores a ps, cores a worker, examples/s, cost,
    cores, GiB.
    """
    weight: float
    now: tuple[float, float]
    """Throughput and cost of the present plan."""
    needs: Bounds
    """The candidates are the same within any bounds as wide as these."""
    reach: StoredReach
    counts_only: bool
    """True: tasks keep their cores, whatever the nodes are."""

    def fits_on(self, node_cpu: float) -> bool:
        """Return True if nodes with so many cores are large enough for all plans in reach."""
        if self.counts_only:
            return True
        most = max(self.reach.ps_cores[-1], self.reach.worker_cores[-1])
        return most <= node_cpu

    def bid(self) -> Bid:
        """Return the candidates as arrays."""
        table = np.frombuffer(self.table).reshape(8, -1)
        return Bid(
            plans=table[:4].T,
            speed=table[4],
            cost=table[5],
            cpu=table[6],
            gib=table[7],
            weight=self.weight,
            now=self.now,
        )


class DlroverModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model of one job. While it waits: the size to start with. Once it runs: its throughput,
    candidates and memory.
    """

    tasks: Tasks
    guess: WarmStart | None = None
    """None: it runs, or no finished job is similar."""
    sizes_seen: int = 0
    """The number of observations that can be fitted."""
    throughput: Throughput | None = None
    """None: nothing was observed, or its tasks have no cores."""
    bids: StoredBid | None = None
    ps_memory: MemoryTrend | None = None
    """None: not measured."""
    worker_memory: MemoryTrend | None = None

    def bid(self, job: JobSnapshot, node_cpu: float, counts_only: bool, bounds: Bounds) -> Bid:
        """Return the job's candidates within the bounds. `node_cpu`: cores of the largest node."""
        assert self.throughput
        assert self.bids
        known = self.bids
        if known.counts_only != counts_only:
            reach = plan_space(self.tasks.plan, job.least, job.most, counts_only)
        elif _is_wide_enough(bounds, known.needs) and known.fits_on(node_cpu):
            return known.bid()
        else:
            reach = known.reach.reach()
        if not counts_only:
            reach = reach.on_nodes(node_cpu)
        model = self.throughput.model()
        return candidates(job, self.tasks, model, reach, bounds).bid


def _is_wide_enough(bounds: Bounds, needs: Bounds) -> bool:
    """Return True if each bound is at least as wide as needed, rounding aside."""
    return (
        needs.ps_cpu <= bounds.ps_cpu + ROUNDING
        and needs.worker_cpu <= bounds.worker_cpu + ROUNDING
        and needs.cpu <= bounds.cpu + ROUNDING
        and needs.gib <= bounds.gib + ROUNDING
    )


# ---------------------------------------------------------------- the fit


def fit_dlrover_jobs(jobs: Sequence[JobSnapshot]) -> list[DlroverModel]:
    """Fit all jobs in one pass; the sizes of tasks are chosen for those that left them open."""
    return fit_with_sizes(jobs, [has_open_sizes(job.request) for job in jobs])


def fit_with_sizes(jobs: Sequence[JobSnapshot], sized: Sequence[bool]) -> list[DlroverModel]:
    """Fit all jobs in one pass. `sized`: True for a job if the sizes of its tasks are to be
    chosen.
    """
    observations = [_observations_of(job) for job in jobs]
    # The throughput of all jobs with observations, side by side.
    known = [seen.case for seen in observations if seen.can_be_fitted]
    fitted = iter(fit_throughputs(known))

    found = []
    for seen, is_sized in zip(observations, sized, strict=True):
        if _trains_with_ps(seen.job):
            model = next(fitted) if seen.can_be_fitted else None
            found.append(_running_model(seen, model, counts_only=not is_sized))
        else:
            found.append(_model_without_training(seen.job, seen.tasks))
    return found


class Observations(NamedTuple):
    """A job, its tasks, and the data of its throughput fit."""

    job: JobSnapshot
    tasks: Tasks
    case: Case

    @property
    def can_be_fitted(self) -> bool:
        """Return True if a speed was observed, and tasks have cores."""
        least_cpu = min(self.tasks.ps_size.cpu, self.tasks.worker_size.cpu)
        return bool(self.case.timed) and least_cpu > 0


def _observations_of(job: JobSnapshot) -> Observations:
    """Return the known facts of a job; nothing is fitted if it does not train."""
    case = case_of(job) if _trains_with_ps(job) else NOTHING
    return Observations(job, tasks_of(job), case)


def _trains_with_ps(job: JobSnapshot) -> bool:
    """Return True if the job has tasks and ps; the model covers no other training."""
    if job.size is None or not job.tasks:
        return False
    return job.size.ps > 0


def _model_without_training(job: JobSnapshot, tasks: Tasks) -> DlroverModel:
    """Return the model of a job that waits, or trains without ps."""
    if job.size is not None:
        return DlroverModel(tasks=tasks)
    guess = warm_start(job.request, finished_jobs(job))
    return DlroverModel(tasks=tasks, guess=guess)


def _running_model(seen: Observations, model: Model | None, counts_only: bool) -> DlroverModel:
    """Return the model of a job that trains, its throughput as it was fitted."""
    job = seen.job
    throughput = None
    bids = None
    if model is not None:
        throughput = _throughput(model)
        bids = _stored_bid(job, seen.tasks, model, counts_only)
    return DlroverModel(
        tasks=seen.tasks,
        sizes_seen=len(seen.case.timed),
        throughput=throughput,
        bids=bids,
        ps_memory=memory_trend(job, "ps"),
        worker_memory=memory_trend(job, "worker"),
    )


def _throughput(model: Model) -> Throughput:
    """Return the fitted throughput in the form that is stored. None stands for infinitely many
    useful cores of a ps or worker.
    """
    useful_ps, useful_workers = model.bounds[PS_CPU:].tolist()
    ps_cpu = useful_ps if math.isfinite(useful_ps) else None
    worker_cpu = useful_workers if math.isfinite(useful_workers) else None
    coefficients = tuple(model.coefficients.tolist())
    return Throughput(coefficients, (ps_cpu, worker_cpu))


def _stored_bid(job: JobSnapshot, tasks: Tasks, model: Model, counts_only: bool) -> StoredBid:
    """Return the job's candidates on nodes of any size and without bounds."""
    reach = plan_space(tasks.plan, job.least, job.most, counts_only)
    found = candidates(job, tasks, model, reach)
    bid = found.bid
    table = np.vstack([bid.plans.T, bid.speed, bid.cost, bid.cpu, bid.gib])
    numbers = [tuple(array.tolist()) for array in reach]
    return StoredBid(
        table=table.tobytes(),
        weight=bid.weight,
        now=bid.now,
        needs=needed_bounds(tasks, found),
        reach=StoredReach(*numbers),
        counts_only=counts_only,
    )


MOST_SIMILAR = 5
MU = 0.5  # weight of each job, against the less similar ones before it
SAME_DIGEST = 4.0
SAME_NAME = 2.0
SAME_NAMESPACE = 1.0


class WarmStart(msgspec.Struct, frozen=True):
    """The size and memory to start with."""

    plan: Plan
    ps_gib: float
    """Memory (GiB) of all ps together at the start."""
    worker_gib: float
    """Memory (GiB) of each worker."""
    jobs: int
    """The number of finished jobs that it is derived from."""


def similarity(request: JobRequested, past: FinishedJob) -> float:
    """Return the similarity of a finished job; 0: it is not used."""
    other = past.request
    score = 0.0
    if request.program_version == other.program_version:
        score += SAME_DIGEST
    if request.program.name == other.program.name:
        score += SAME_NAME
    if not score:
        return 0.0

    if request.namespace == other.namespace:
        score += SAME_NAMESPACE
    # Batches of one order of magnitude are alike.
    ratio = request.batch.start / other.batch.start
    apart = abs(math.log2(ratio))
    return score + 1 / (1 + apart)


def most_similar(
    request: JobRequested, history: Sequence[FinishedJob], k: int = MOST_SIMILAR
) -> list[FinishedJob]:
    """Return the k most similar jobs, from the least to the most similar of them."""
    ranked = []
    for place, past in enumerate(history):
        score = similarity(request, past)
        if score > 0:
            ranked.append((score, past.finished_s, place))
    ranked.sort()
    return [history[place] for _, _, place in ranked[-k:]]


def warm_start(
    request: JobRequested, history: Sequence[FinishedJob], k: int = MOST_SIMILAR, mu: float = MU
) -> WarmStart | None:
    """Return the size and memory to start with; None: no finished job is similar."""
    similar = most_similar(request, history, k)
    if not similar:
        return None
    plans = []
    ps_gib = []
    worker_gib = []
    for past in similar:
        plans.append(past.plan)
        ps_gib.append(past.ps_gib)
        worker_gib.append(past.worker_gib)

    return WarmStart(
        plan=smooth_plans(plans, mu),
        ps_gib=max(ps_gib),
        worker_gib=max(worker_gib),
        jobs=len(similar),
    )


def smooth_plans(plans: Sequence[Plan], mu: float) -> Plan:
    """Return the exponentially smoothed plan; the last one weighs most."""
    first = plans[0]
    ps: float = first.ps
    workers: float = first.workers
    ps_cpu = first.ps_cpu
    worker_cpu = first.worker_cpu
    for plan in plans[1:]:
        ps = _smoothing_step(plan.ps, ps, mu)
        workers = _smoothing_step(plan.workers, workers, mu)
        ps_cpu = _smoothing_step(plan.ps_cpu, ps_cpu, mu)
        worker_cpu = _smoothing_step(plan.worker_cpu, worker_cpu, mu)
    return Plan(max(1, round(ps)), max(1, round(workers)), ps_cpu, worker_cpu)


def _smoothing_step(number: float, before: float, mu: float) -> float:
    """Return the smoothed number; `before`: that of the jobs before."""
    return mu * number + (1 - mu) * before


def timed_of(job: JobSnapshot) -> list[TimedPlan]:
    """Return the observed speeds as iteration times. If the cores at that time are not known, the
    present ones are used.
    """
    now = tasks_of(job).plan
    timed = []
    for seen in job.tried or job.observed:
        ps_cpu = seen.ps_cpu or now.ps_cpu
        worker_cpu = seen.worker_cpu or now.worker_cpu
        batch = max(1, round(worker_batch(job.request, seen.batch, seen.workers)))
        step_s = math.inf
        if is_believable(seen):
            step_s = seen.workers * batch / seen.samples_per_second
        plan = Plan(seen.ps, seen.workers, ps_cpu, worker_cpu)
        timed.append(TimedPlan(plan, batch, step_s))
    return usable_plans(timed)


def finished_jobs(job: JobSnapshot) -> tuple[FinishedJob, ...]:
    """Return the finished jobs of the job's program."""
    return job.history.past if job.history else ()


def case_of(job: JobSnapshot) -> Case:
    """Return the observations for the fit of the job's throughput."""
    similar: list[TimedPlan] = []
    for past in most_similar(job.request, finished_jobs(job)):
        similar.extend(past.timed)
    return Case(timed_of(job), usable_plans(similar), _iteration_shares(job))


def _iteration_shares(job: JobSnapshot) -> tuple[float, ...] | None:
    """Return how an iteration divides among the model's terms, by the CPU use of the last report;
    None if the report does not show it, as for a job without ps.
    """
    last = last_report(job)
    if last is None or last.worker_cpu is None:
        return None

    now = tasks_of(job).plan
    if (last.ps, last.workers) != (now.ps, now.workers):
        return None

    ps_cpu = now.ps * now.ps_cpu
    worker_cpu = now.workers * now.worker_cpu
    if ps_cpu <= 0 or worker_cpu <= 0:
        return None
    busy_ps = (last.ps_cpu or 0.0) / ps_cpu
    busy_workers = last.worker_cpu / worker_cpu
    return shares_of(busy_workers, busy_ps)
