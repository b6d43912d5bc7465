"""The choice of running jobs that shrink or stop for a waiting job.

Law: nothing is taken if the job can start as soon as the ending pods have ended. No victim is taken
that is not needed, and a victim shrinks no more than needed. The decision names the job that it
gives way to.

    shrink      a job above its gang floor: for a job of higher priority; for one that has waited
                for `reserve_after_s` also if both have the same priority
    suspend     an elastic job of lower priority: it drains, saves, and waits again, in front of
                its own priority

Jobs of lower priority come first, and of these the ones that started last. All shrink before one is
suspended. A job gives way only if it would hold its capacity for longer than its own pauses take,
and not while a generation of it is in flight, nor shortly after it resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf

import msgspec
from msgspec.structs import replace

from services.allocator.placement.amounts import smallest_enough
from services.allocator.placement.placers import ladder, shrink_tasks
from services.allocator.placement.projected_capacity import (
    HeldCapacity,
    ProjectedCapacity,
    Reservation,
    describe_claim,
)
from services.allocator.placement.trial import PlacementRequest
from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.allocator.state.job import Job, without_key
from services.allocator.state.policy_view import counted_size, shrink_floor, size_of, view_of_job
from services.allocator.steps import evacuation
from services.allocator.steps.resize_conditions import Payback, payback_of, retry_s
from services.allocator.steps.verdict import Rationale, Situation, Verdict, grant_tasks
from shared.messages import TaskPlan

RELEASE_S = 30.0
"""Seconds beyond its grace that a suspended job waits for its pods to go, before it starts without
that.
"""
Victims = dict[str, "Victim"]
"""By job key."""
TasksWith = Callable[[Iterable["Victim"]], tuple[TaskPlan, ...] | None]
"""Place the waiting job with the capacity of these victims; None: it does not fit."""


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A job that gives way. `tasks`: those that it keeps; none: it is suspended. `claim`: the
    reservation of the job that it gives way to.
    """

    job: Job
    tasks: tuple[TaskPlan, ...]
    claim: Reservation | None = None

    def freed(self) -> list[HeldCapacity]:
        """Return the capacity that it gives up."""
        if self.job.active_decision is None:
            return []
        kept = {task.serial for task in self.tasks}
        freed = []
        for task in self.job.active_decision.tasks:
            if task.serial not in kept:
                freed.append(HeldCapacity(-inf, self.job.key, task.node, task.resources))
        return freed

    @property
    def reason(self) -> str:
        """Return the reason of the decision that shrinks or suspends the job: the job that it gives
        way to, and the size that it keeps.
        """
        other = "preempted"
        if self.claim:
            other = f"preempted by {self.claim.job}, which {describe_claim(self.claim)}"
        if not self.tasks:
            return f"{other}: saves, and continues when there is room"
        return f"{other}: shrinks to {counted_size(self.tasks).describe()}"


class Candidates:
    """The jobs that could give way in one pass, found once for all claims of one kind."""

    def __init__(self, jobs: Iterable[Job], now: float, rules: Rules) -> None:
        self.jobs = list(jobs)
        self.now = now
        self.rules = rules
        self.taken: set[str] = set()
        self._steps: dict[tuple[int, bool], list[Victim]] = {}

    def steps(self, claim: Reservation) -> list[Victim]:
        """Return the possible victims for the claim, in the order of the trials."""
        kind = claim.priority, claim.overdue
        if kind not in self._steps:
            self._steps[kind] = _all_steps(claim, self.jobs, self.now, self.rules)
        return [victim for victim in self._steps[kind] if victim.job.key not in self.taken]


def find_victims(
    claim: Reservation,
    request: PlacementRequest,
    capacity: ProjectedCapacity,
    reserved: Sequence[Reservation],
    candidates: Candidates,
) -> tuple[list[Victim], tuple[TaskPlan, ...]] | None:
    """Return the victims and the tasks of the waiting job; None: it would not fit even then."""

    def tasks_with(victims: Iterable[Victim]) -> tuple[TaskPlan, ...] | None:
        freed = []
        for victim in victims:
            freed += victim.freed()
        return capacity.place(request, -inf, reserved, freed)

    chosen = _first_victims(candidates.steps(claim), tasks_with)
    if chosen is None:
        return None
    chosen = _needed_victims(chosen, tasks_with)
    for victim in list(chosen.values()):
        smaller = _smallest_cut(victim, partial(_is_enough, chosen, tasks_with))
        chosen |= {smaller.job.key: smaller}
    tasks = tasks_with(chosen.values())
    if tasks is None:
        return None
    candidates.taken |= chosen.keys()
    return [replace(victim, claim=claim) for victim in chosen.values()], tasks


def _first_victims(steps: Sequence[Victim], tasks_with: TasksWith) -> Victims | None:
    """Return the victims of the fewest steps that make room for the waiting job; None: all steps do
    not.
    """
    if not steps or tasks_with(_victims_by_job(steps).values()) is None:
        return None

    def is_enough(number: int) -> bool:
        return tasks_with(_victims_by_job(steps[:number]).values()) is not None

    count = smallest_enough(len(steps), is_enough)
    if count is None:
        return _victims_by_job(steps)
    return _victims_by_job(steps[:count])


def _needed_victims(chosen: Victims, tasks_with: TasksWith) -> Victims:
    """Return the victims that the waiting job needs."""
    for key in list(chosen):
        others = without_key(chosen, key)
        if tasks_with(others.values()) is not None:
            chosen = others
    return chosen


def _is_enough(chosen: Victims, tasks_with: TasksWith, smaller: Victim) -> bool:
    """Return True if the waiting job fits with this smaller cut of a victim."""
    return tasks_with({**chosen, smaller.job.key: smaller}.values()) is not None


def give_way(situation: Situation, victim: Victim) -> Verdict:
    """Return the decision that shrinks or suspends a victim."""
    return decide_tasks(situation, victim.tasks, victim.reason)


def decide_tasks(situation: Situation, tasks: Sequence[TaskPlan], reason: str) -> Verdict:
    """Give a running job these tasks, with its batch; none: it is suspended."""
    current = situation.current
    batch = current.batch if current and tasks else 0
    pause = _payback(situation.job, situation.settings)
    rationale = Rationale(reason=reason, cause=situation.cause, cost_s=pause.cost_s)
    return grant_tasks(situation, tasks, batch, rationale)


def release_wait(situation: Situation) -> Verdict | None:
    """Wait until the pods of a suspended job have saved and ended; None: it may start."""
    job = situation.job
    until_s = job.suspended_s + job.request.grace_s + RELEASE_S
    if not job.suspended_s or situation.now >= until_s:
        return None
    for node in situation.room.nodes.values():
        if job.key in node.hosts:
            why = "suspended: its pods save and end before it starts again"
            return Verdict(why=why, wake_s=until_s)
    return None


def _all_steps(claim: Reservation, jobs: Iterable[Job], now: float, rules: Rules) -> list[Victim]:
    """Return first all that shrink, then all that are suspended."""
    able = [job for job in jobs if _may_give_way(job, claim, now, rules)]
    able.sort(key=_order_of_giving_way)
    shrinks = []
    suspends = []
    for job in able:
        if job.active_decision:
            smaller = _shrunk_victim(job, shrink_floor(job, size_of(job.active_decision)))
            if smaller.freed():
                shrinks.append(smaller)
        if _may_be_suspended(job, claim, rules):
            suspends.append(Victim(job=job, tasks=()))
    return shrinks + suspends


def _order_of_giving_way(job: Job) -> tuple[int, float, int]:
    """Return a sort key; the job with the lowest one gives way first."""
    return job.request.priority, -job.started_s, -job.uid


def _may_give_way(job: Job, claim: Reservation, now: float, rules: Rules) -> bool:
    """Return True if a job may be changed now, and holds its capacity for longer than the change
    takes.
    """
    running = job.active_decision
    if (
        running is None
        or job.pending_generation is not None
        or job.key == claim.job
        or job.is_trained
    ):
        return False
    if not _gives_way_to(job.request.priority, claim):
        return False
    if now < job.resumed_s + rules.cooldown_s or now < retry_s(job, rules):
        return False
    if job.leaving and evacuation.departure_reasons(job, running.tasks):
        return False
    if job.exits and any(job.exit_of(task) for task in running.tasks):
        return False

    gain = _payback(job, rules)
    return gain.left_s > rules.payback_factor * gain.cost_s


def _gives_way_to(priority: int, claim: Reservation) -> bool:
    """Return True if a job of this priority gives way for the claim."""
    if priority == claim.priority:
        return claim.overdue
    return priority < claim.priority


def _may_be_suspended(job: Job, claim: Reservation, rules: Rules) -> bool:
    """Return True if a job is elastic, of lower priority, and runs for longer than it takes to stop
    and to start again.
    """
    request = job.request
    is_elastic = request.ps.min < request.ps.max or request.workers.min < request.workers.max
    if not is_elastic or request.priority >= claim.priority:
        return False
    gain = _payback(job, rules)
    return gain.left_s > 2.0 * rules.payback_factor * gain.cost_s


def _payback(job: Job, rules: Rules) -> Payback:
    """Return the cost of a pause and the time that the job still trains."""
    size, batch = Size(0, 0), 0
    if job.active_decision is not None:
        size, batch = size_of(job.active_decision), job.active_decision.batch
    return payback_of(view_of_job(job, rules), size, batch, rules)


def _shrunk_victim(job: Job, size: Size) -> Victim:
    """Return the job as a victim that keeps its oldest tasks at this size."""
    tasks = job.active_decision.tasks if job.active_decision else ()
    return Victim(job=job, tasks=shrink_tasks(tasks, size))


def _victims_by_job(steps: Iterable[Victim]) -> Victims:
    """Return the victims by job: the last step replaces the ones before."""
    return {victim.job.key: victim for victim in steps}


def _smallest_cut(victim: Victim, is_enough: Callable[[Victim], bool]) -> Victim:
    """Return the smallest cut of a victim that is still enough."""
    if not victim.tasks or victim.job.active_decision is None:
        return victim
    sizes = ladder(size_of(victim.job.active_decision), counted_size(victim.tasks))[1:]
    if not sizes:
        return victim
    smaller = [_shrunk_victim(victim.job, size) for size in sizes]
    first = smallest_enough(len(smaller) - 1, lambda number: is_enough(smaller[number]))
    return victim if first is None else smaller[first]
