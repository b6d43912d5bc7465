"""The answer: the tasks of a job, the reason, the obstacle to more, and the remedies.

`speed_prospect` gives the speed that more tasks would have, beside the measured one. Its model is
fitted to the speeds of all jobs of the program.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.allocator.job_views import Phase
from services.allocator.models.fitting import is_believable
from services.allocator.models.program_history import histories_by_program
from services.allocator.models.programs import program_fits, program_key
from services.allocator.models.speed import Fit
from services.allocator.placement.placers import ROLES
from services.allocator.policies.contract import JobSnapshot, Size
from services.allocator.policies.weir.job_rows import measured_speed
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.policy_view import size_of, view_of_job
from services.allocator.state.state import State
from services.whatif.event_log import LogEntry
from services.whatif.explain.counterfactual import AnyChange, Widens
from services.whatif.proposal import Effect
from shared.messages import AllocationDecided, Alternative, JobRequested, TaskPlan


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a decision gives a job: their numbers and resources, and the roles on each
    node.
    """

    generation: int
    ps: int
    workers: int
    batch: int
    cpu: float
    memory_gib: float
    gpu: int
    nodes: dict[str, tuple[str, ...]]


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that gave the job its tasks, as it was published.

    `cause` is the id of the event that led to it; `event` is that event, None if it is unknown.
    """

    decided_s: float
    generation: int
    revision: int
    reason: str
    gain_s: float
    cost_s: float
    cause: str
    event: LogEntry | None = None
    alternatives: tuple[Alternative, ...] = ()


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that together make the allocator give the job more.

    `gives` has the tasks that the job would have; `others` are the jobs that would have fewer.
    """

    changes: tuple[AnyChange, ...]
    gives: Holding
    others: tuple[Effect, ...] = ()


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of a job, in examples a second, as the policy `weir` compares them.

    `samples_per_second` is measured at the job's size (a mean of its reports, the newest counts
    most); if the job has not reported at its size, it is `expected`, and `measured` is False.
    `expected` is the fitted model's speed at the job's size. `larger_samples_per_second` is the
    model's speed at the fastest of the next larger sizes (`ps`, `workers`). `beyond`: that size is
    above the bounds of the request.
    """

    samples_per_second: float
    ps: int
    workers: int
    larger_samples_per_second: float
    sizes_seen: int
    faster: bool
    expected: float = 0.0
    measured: bool = True
    beyond: bool = False


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of one job at one moment.

    `bounds` are those of the request. `runs` has the tasks that train, since `since_s`; `comes` has
    those of the decision in flight. `reported_s` is the time of the last report.

    `why` is the allocator's reason at that moment. `until_s` is the end of the timer for which the
    job waits, if there is one. `means` are alternatives, of which each one is enough; if there are
    none, `nothing` is the reason. `unasked` is the reason why the decision could not be repeated;
    then these four are unknown.
    """

    job: str
    namespace: str
    uid: int
    at_s: float
    phase: Phase
    since_s: float
    policy: str
    priority: int
    bounds: Widens
    samples: int = 0
    total_samples: int = 0
    samples_per_second: float = 0.0
    reported_s: float | None = None
    runs: Holding | None = None
    comes: Holding | None = None
    ground: DecisionRecord | None = None
    why: str = ""
    until_s: float | None = None
    means: tuple[Means, ...] = ()
    nothing: str = ""
    unasked: str = ""
    prospect: Prospect | None = None
    notes: tuple[str, ...] = ()


def tasks_held(decision: AllocationDecided) -> Holding:
    """Return the tasks that a decision gives a job."""
    size = size_of(decision)
    amounts = [task.resources for task in decision.tasks]
    cpu = sum(amount.cpu for amount in amounts)
    memory_gib = sum(amount.memory_gib for amount in amounts)
    return Holding(
        generation=decision.generation,
        ps=size.ps,
        workers=size.workers,
        batch=decision.batch,
        cpu=round(cpu, 6),
        memory_gib=round(memory_gib, 6),
        gpu=sum(amount.gpu for amount in amounts),
        nodes=_roles_by_node(decision.tasks),
    )


def _roles_by_node(tasks: Iterable[TaskPlan]) -> dict[str, tuple[str, ...]]:
    """Return the roles of the tasks on each node, in the order of the roles."""
    by_node: dict[str, list[str]] = {}
    for task in sorted(tasks, key=_role_and_index):
        by_node.setdefault(task.node, []).append(task.role)
    return {node: tuple(roles) for node, roles in by_node.items()}


def _role_and_index(task: TaskPlan) -> tuple[int, int]:
    return ROLES.index(task.role), task.index


FASTER = 0.05
"""The least share by which a larger size has to be faster. Fitted speeds are not more exact."""


def speed_prospect(state: State, key: str, rules: Rules) -> Prospect | None:
    """Return the speeds of a job at its size and at a larger one; None if no speed was observed."""
    job = state.jobs[key]
    wanted = job.newest_decision
    sizes_seen = _sizes_seen(job)
    if wanted is None or not sizes_seen:
        return None

    fitted = fit_program(state, job, rules)
    size = size_of(wanted)
    reported = measured_speed(view_of_job(job, rules), size)
    expected = _speed_at(fitted, size, wanted)
    current = reported or expected
    best = _fastest_larger_size(fitted, size, wanted)
    fastest = _speed_at(fitted, best, wanted)

    return Prospect(
        samples_per_second=current,
        ps=best.ps,
        workers=best.workers,
        larger_samples_per_second=fastest,
        sizes_seen=len(sizes_seen),
        faster=fastest > (1 + FASTER) * current,
        expected=expected,
        measured=reported is not None,
        beyond=_is_beyond_bounds(best, job.request),
    )


def _sizes_seen(job: Job) -> set[tuple[int, int, int]]:
    """Return ps, workers and batch of each size with an observed speed."""
    return {(one.ps, one.workers, one.batch) for one in job.observed if is_believable(one)}


def _is_beyond_bounds(size: Size, request: JobRequested) -> bool:
    """Return True if a size exceeds the requested maximum of ps or of workers."""
    return size.ps > request.ps.max or size.workers > request.workers.max


def expected_speed(state: State, job: Job, rules: Rules) -> float:
    """Return the fitted speed of the running tasks in examples a second; 0 if none runs."""
    if job.active_decision is None:
        return 0.0
    fitted = fit_program(state, job, rules)
    return _speed_at(fitted, size_of(job.active_decision), job.active_decision)


def fit_program(state: State, job: Job, rules: Rules) -> Fit:
    """Return the model that is fitted to all jobs of the job's program."""
    kin = histories_by_program(state.closed)

    def seen_with_kin(one: Job) -> JobSnapshot:
        return view_of_job(one, rules, kin.get(one.request.program_version))

    jobs = [seen_with_kin(one) for one in state.jobs.values()]
    mine = seen_with_kin(job)
    if mine not in jobs:
        jobs.append(mine)
    return program_fits(jobs)[program_key(mine)]


def _speed_at(fitted: Fit, size: Size, decided: AllocationDecided) -> float:
    return fitted.speed(size.ps, size.workers, decided.batch)


def _fastest_larger_size(fitted: Fit, size: Size, decided: AllocationDecided) -> Size:
    """Return the fastest of the next larger sizes by the fitted speeds, at the batch of the
    decision.
    """
    return max(_larger_sizes(size), key=lambda larger: _speed_at(fitted, larger, decided))


def _larger_sizes(size: Size) -> list[Size]:
    """Return the next larger sizes. A job without ps stays without.

    They are: one more worker; one more ps; both; twice as many workers; twice as many of both.
    """
    ps, workers = size.ps, size.workers
    ps_more = ps + min(1, ps)
    candidates = [
        Size(ps, workers + 1),
        Size(ps_more, workers),
        Size(ps_more, workers + 1),
        Size(ps, 2 * workers),
        Size(2 * ps, 2 * workers),
    ]
    larger = []
    for one in candidates:
        if one != size and one not in larger:
            larger.append(one)
    return larger
