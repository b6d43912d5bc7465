"""The contract of policies: every type that a policy is given, and that it returns.

`policy(cluster, jobs, now) -> list of Target`: the desired size of each job that it decides on. A
policy sees only the facts that a live allocator sees. It may shrink a job as well as grow it, and
may ask for more than fits now: the grown job then waits until the pods of the shrunk one are gone.
A job without a target stays as it is.

This module imports nothing else of the allocator.

The weight of a job's priority (`priority_weight`) is

    weight = 2^p                      for -16 <= p <= 16
    weight = 2^16 (1 + p - 16)        above
    weight = 2^-16 / (1 - 16 - p)     below

Small priorities double the weight with each step. Values of Kubernetes' PriorityClasses, up to
2^31, must not overflow: beyond 16 the weight is proportional to what exceeds 15. So it stays finite
and positive, always rises with the priority, and twice the value is about twice the weight. Our
choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from shared.messages import (
    Alternative,
    Cores,
    JobRequested,
    Measured,
    Moment,
    Namespace,
    NotNegative,
    ProgressReported,
    Resources,
    Role,
    RoleResources,
    Speed,
    TaskPlan,
)
from shared.sample_efficiency import sample_efficiency
from shared.text import format_count

PAUSE_S = 5.0
"""The assumed pause (s) of a resize, until a pause of the job was measured."""
MOST_STALENESS = 2.0
"""The most updates by which a further worker makes gradients stale; a larger measured figure does
not hold for other sizes.
"""
BEGINNING_SHARE = 0.25
"""The share of a job's examples that counts as its beginning, for `FinishedJob.ps_gib`."""


# ---------------------------------------------------------------- nodes, sizes, quotas


class Size(msgspec.Struct, frozen=True, gc=False):
    """The numbers of ps and workers; there is always one chief."""

    ps: int
    workers: int

    def of(self, role: Role) -> int:
        """Return the number of tasks of a role."""
        if role == "ps":
            return self.ps
        if role == "worker":
            return self.workers
        return 1

    def describe(self) -> str:
        return f"{format_count(self.ps, 'ps')} and {format_count(self.workers, 'worker')}"

    told = describe  # the older name, for custom policies


class Node(msgspec.Struct, frozen=True, gc=False):
    """A node as a policy sees it. `open`: new tasks may go there; `hosts`: keys of the jobs with
    tasks on it.

    `returning`: capacity that is not free yet, but that no task keeps: pods that will shrink still
    hold it. `shunned`: the node is open, but takes no new tasks now, because tasks on it are sent
    away or starve; its tasks stay and may grow.
    """

    name: str
    free: Resources
    allocatable: Resources = Resources()
    open: bool = True
    hosts: frozenset[str] = frozenset()
    returning: Resources = Resources()
    shunned: bool = False

    @property
    def takes(self) -> bool:
        """Return True if new tasks go there."""
        return self.open and not self.shunned


class TaskLimits(msgspec.Struct, frozen=True):
    """The limits of the cluster for the tasks of one namespace, in addition to those of their sum.

    `least` and `most`: of one task, by the LimitRanges named `limit_range`. `quotas`: the narrowest
    ResourceQuota in each resource.
    """

    least: Resources = Resources()
    most: Resources | None = None
    limit_range: str = ""
    quotas: tuple[tuple[str, str], ...] = ()


BOUNDLESS = 1 << 53  # devices, without a limit


class Quota(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Cores, GiB and devices; absent: no limit."""

    cpu: Cores | None = None
    memory_gib: Cores | None = None
    gpu: NotNegative | None = None

    def most(self) -> Resources:
        """Return the limits as amounts; infinity: no limit."""
        cpu = math.inf if self.cpu is None else self.cpu
        memory_gib = math.inf if self.memory_gib is None else self.memory_gib
        gpu = BOUNDLESS if self.gpu is None else self.gpu
        return Resources(cpu=cpu, memory_gib=memory_gib, gpu=gpu)

    def without(self, taken: Resources) -> Self:
        """Return the quota less an amount; nothing is left of a limit that is exceeded."""
        cpu = None if self.cpu is None else max(0.0, self.cpu - taken.cpu)
        memory_gib = (
            None if self.memory_gib is None else max(0.0, self.memory_gib - taken.memory_gib)
        )
        gpu = None if self.gpu is None else max(0, self.gpu - taken.gpu)
        return replace(self, cpu=cpu, memory_gib=memory_gib, gpu=gpu)


class ClusterQuota(Quota, frozen=True, kw_only=True):
    """The limits of a namespace by the settings and by the cluster together. `pods`: the number of
    tasks that it may have in all.
    """

    pods: NotNegative | None = None
    tasks: TaskLimits = TaskLimits()


Quotas = dict[Namespace, Quota]
"""A namespace that is not in it has no limit."""


class Observed(msgspec.Struct, frozen=True, gc=False):
    """The speed (examples/s) of a job at one size."""

    ps: int
    workers: int
    batch: int
    samples_per_second: Speed
    ps_cpu: float | None = None
    """Cores that each ps had when the speed was last seen; None: not known."""
    worker_cpu: float | None = None
    nodes: int | None = None
    """The number of nodes on which it ran, with devices side by side and without ps; None: with ps,
    or not known.
    """


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One report of a running job: time, samples, loss, speed, size and cores."""

    at_s: Moment
    samples: int
    loss: Measured | None
    samples_per_second: Speed
    ps: int
    workers: int
    batch: int
    ps_cpu: float | None = None
    """Cores that all ps together used, the mean since the last report; None: not measured."""
    worker_cpu: float | None = None
    ps_gib: float | None = None
    """Memory of the ps that used most; None: not measured."""
    worker_gib: float | None = None
    ps_had: float | None = None
    """Cores that each ps had."""
    worker_had: float | None = None
    nodes: int | None = None
    """As in `Observed`."""


class LossPoint(msgspec.Struct, frozen=True, gc=False):
    """A point of the loss curve."""

    samples: int
    loss: Measured


class Plan(msgspec.Struct, frozen=True, gc=False):
    """Numbers of ps and workers, and the cores of each of them (p, w, lambda_p, lambda_w in the
    paper).
    """

    ps: int
    workers: int
    ps_cpu: float
    worker_cpu: float


class TimedPlan(msgspec.Struct, frozen=True, gc=False):
    """A plan that ran: one worker's examples an update, and seconds an iteration."""

    plan: Plan
    batch: int
    step_s: float


class FinishedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A finished job: its request, its last plan, the memory it used, the plans that
    were timed.
    """

    request: JobRequested
    plan: Plan
    ps_gib: float
    """Memory of all ps together, before `BEGINNING_SHARE` of the examples were done. Later it is
    measured, and raised in place.
    """
    worker_gib: float
    """Memory of the worker that used most."""
    timed: tuple[TimedPlan, ...] = ()
    finished_s: float = 0.0


class ProgramHistory(msgspec.Struct, frozen=True):
    """The history of one program. `epoch_samples`: None if no job of it ever reported; `pause_s`:
    None without a pause.
    """

    observed: tuple[Observed, ...] = ()
    epoch_samples: float | None = None
    pause_s: float | None = None
    ended: tuple[tuple[float, float], ...] = ()
    """For each job: the time (s) of its request, and the samples that it trained on."""
    past: tuple[FinishedJob, ...] = ()
    """The records of jobs that succeeded, those of older versions of the program included."""


def sample_worth(batch: float, start: float, noise: float | None, staleness: float = 0.0) -> float:
    """Return the progress by a sample, relative to one of the first batch with a fresh gradient. It
    is 1 until the trainer has measured the noise: until then all sizes and batches within the
    user's bounds have the same worth.

    `staleness`: updates of other workers that are applied while a gradient is computed, the mean.
    The sample counts as one in a batch of all of them (`shared/sample_efficiency.py`).
    """
    if noise is None:
        return 1.0
    return sample_efficiency((1.0 + staleness) * batch, start, noise)


def shares_batch(request: JobRequested) -> bool:
    """Return True if a job's batch is that of all its workers together."""
    return request.makes_updates_together or request.ps.max == 0


def worker_batch(request: JobRequested, batch: int, workers: int) -> float:
    """Return the examples that one worker computes for an update, the mean over the workers."""
    return batch / max(1, workers) if shares_batch(request) else float(batch)


# ---------------------------------------------------------------- the input and the output


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job as its policy sees it. `size`: absent before its first decision; `busy`: True while a
    decision is in flight, for which the policy has to wait.
    """

    key: str
    request: JobRequested
    sizes: RoleResources
    submitted_s: float
    size: Size | None = None
    batch: int = 0
    tasks: tuple[TaskPlan, ...] = ()
    since_s: float = 0.0
    busy: bool = False
    progress: ProgressReported | None = None
    observed: tuple[Observed, ...] = ()
    tried: tuple[Observed, ...] = ()
    """As `observed`, but with an entry for each number of cores of a task, too."""
    recent: tuple[Reading, ...] = ()
    curve: tuple[LossPoint, ...] = ()
    pause_s: float | None = None
    quota: Quota | None = None
    """The part of its namespace's quota that all jobs of this policy together may hold: the rest
    that the jobs of other policies leave.
    """
    history: ProgramHistory | None = None
    """The history of its program, from jobs that are over."""

    model: Any = None
    """The model that the job's policy has fitted to it (`registry.FITTERS`; for policy `weir` the
    job's row, `weir/job_rows.py`); None: the policy fits it itself.
    """

    @property
    def kin(self) -> ProgramHistory | None:
        """Return `history`, by its older name."""
        return self.history

    @property
    def noise(self) -> float | None:
        """Return the gradient noise scale, in samples; None: not measured. A negative figure is an
        error of measurement.

        Until it is known, a lower bound is used where no gradient is stale: there, less noise means
        smaller batches, which is the safe side. With stale gradients it would mean fewer workers.
        """
        if self.progress is None:
            return None
        noise = self.progress.gradient_noise
        if noise is None and shares_batch(self.request):
            noise = self.progress.gradient_noise_at_least
        return noise if noise is not None and 0 <= noise < math.inf else None

    @property
    def worker_staleness(self) -> float:
        """Return the updates by which each further worker makes gradients stale, the mean; 0 if all
        workers make each update together.

        It is 1 if all workers are always busy: while one computes a gradient, each of the others
        applies one. The last report corrects that, if it is of two workers or more.
        """
        if shares_batch(self.request):
            return 0.0
        progress = self.progress
        if progress is None or progress.staleness is None or not self.recent:
            return 1.0
        last = self.recent[-1]  # the size that the report is of
        if last.workers < 2 or last.samples != progress.samples:
            return 1.0
        return min(progress.staleness.mean / (last.workers - 1), MOST_STALENESS)

    def worth(self, batch: int, size: Size | None = None) -> float:
        """Return the progress by a sample at a size and batch, relative to one of the first batch
        with a fresh gradient. Without a size: with a fresh gradient in this batch.
        """
        staleness = 0.0
        if self.noise is not None and size is not None and size.ps > 0:
            staleness = self.worker_staleness * max(0, size.workers - 1)
        return sample_worth(batch, self.request.batch.start, self.noise, staleness)

    @property
    def pauses_s(self) -> float:
        """Return the expected pause (s) of a change: the mean of the job's measured pauses, or
        `PAUSE_S` if there are none.
        """
        return PAUSE_S if self.pause_s is None else self.pause_s

    @property
    def start(self) -> Size:
        """Return the size to start with, within the present bounds of its request."""
        ps = self.request.ps
        workers = self.request.workers
        return Size(
            ps=max(ps.min, min(ps.start, ps.max)),
            workers=max(workers.min, min(workers.start, workers.max)),
        )

    @property
    def least(self) -> Size:
        return Size(self.request.ps.min, self.request.workers.min)

    @property
    def most(self) -> Size:
        return Size(self.request.ps.max, self.request.workers.max)


class JobList(list[JobSnapshot]):
    """The jobs of one policy, in the order of priority and submission."""

    arrays: Any = None
    """The arrays that the policy made of all these jobs when one of them changed
    (`registry.ARRAYS`); None: it makes them itself.
    """


M = TypeVar("M")


def models_of(
    jobs: Sequence[JobSnapshot],
    kind: type[M],
    fit_jobs: Callable[[Sequence[JobSnapshot]], Sequence[M]],
) -> list[M]:
    """Return the models that jobs carry; those of the other jobs are fitted together."""
    fitted = iter(fit_jobs([job for job in jobs if not isinstance(job.model, kind)]))
    models = []
    for job in jobs:
        models.append(job.model if isinstance(job.model, kind) else next(fitted))
    return models


class Target(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The desired size of one job, the reason, and the alternatives. Without ps and workers: the
    job waits; a running job keeps its tasks. `sizes`: of its tasks; absent: they stay as they are.

    `speedup`: its learning speed there, relative to now; absent: computed from observed speeds.
    `speed_now`: the present speed (`speedup` is relative to it), each example counted with its
    worth; absent: the observed speed. `speedup_if_spread`: the same, if its devices stand on more
    nodes than they need. `describe_partial`: returns the target for a smaller size and batch, if
    there is no room for this one; absent: the reason stays the same.
    """

    job: str
    ps: int
    workers: int
    batch: int
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    sizes: RoleResources | None = None
    speedup: float | None = None
    speed_now: float | None = None
    speedup_if_spread: float | None = None
    describe_partial: Callable[[Size, int], Target] | None = None

    @property
    def size(self) -> Size:
        return Size(self.ps, self.workers)

    @property
    def waits(self) -> bool:
        """Return True if the job gets no tasks for now."""
        return not self.ps and not self.workers

    def shrunk_to(self, size: Size, batch: int, why: str) -> Target:
        """Return the target for no more than this size; its reason names the size that was wanted.
        Its figures are those of the granted size, if they are known.
        """
        granted = replace(self, speedup=None, speedup_if_spread=None)
        if self.describe_partial:
            granted = self.describe_partial(size, batch)
        return replace(
            granted,
            ps=size.ps,
            workers=size.workers,
            batch=batch,
            reason=f"{granted.reason}, {why} (wanted: {self.size.describe()})",
            describe_partial=self.describe_partial,
        )

    cut = shrunk_to  # the older name, for custom policies


Policy = Callable[[Sequence[Node], Sequence[JobSnapshot], float], list[Target]]


def start_target(job: JobSnapshot, reason: str) -> Target:
    """Return the target for the size that the user asked for at first."""
    size = job.start
    return Target(
        job=job.key,
        ps=size.ps,
        workers=size.workers,
        batch=job.request.batch.start,
        reason=reason,
    )


def generations_at_once(request: JobRequested) -> int:
    """Return how many generations a task has to hold at once."""
    return 2 if request.handover == "make-before-break" else 1


def has_open_sizes(request: JobRequested) -> bool:
    """Return True if the user left the sizes of tasks to Weir. An answered request then has Weir's
    default sizes.
    """
    return request.resources in (None, RoleResources())


STEEP = 16
"""Up to this priority, and down to its negative, each step doubles the weight."""


def priority_weight(priority: int) -> float:
    """Return the weight, positive and finite."""
    within = max(-STEEP, min(priority, STEEP))
    beyond = 1.0 + abs(priority - within)
    if priority > 0:
        return float(2.0**within * beyond)
    return float(2.0**within / beyond)


# ---------------------------------------------------------------- older names
# Custom policies that were written for version 0.3 import them.

JobSeen = JobSnapshot
Kin = ProgramHistory
Past = FinishedJob
Timed = TimedPlan
Learned = LossPoint
efficiency = sample_efficiency
worth = sample_worth
at_start = start_target
left_open = has_open_sizes
RENAMED_KEYWORDS = {
    "faster": "speedup",
    "apart": "speedup_if_spread",
    "lesser": "describe_partial",
}


class Want:
    """The older name of `Target`, with the older keywords. It makes a `Target`."""

    def __new__(cls, **fields: Any) -> Target:  # type: ignore[misc]
        renamed = {RENAMED_KEYWORDS.get(name, name): value for name, value in fields.items()}
        return Target(**renamed)
