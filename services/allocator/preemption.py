"""Which running jobs give something up for a waiting job. Pure.

Law: nothing is taken if the job starts without it as soon as what is ending has ended; no victim is taken that is not
needed, and of one that shrinks no more than is needed. Victims are named in the decision.

    shrink      a job above its gang floor: for a job of higher priority; for one that has waited for `reserve_after_s`
                also if both have the same priority
    suspend     an elastic job of lower priority: it drains, saves, and waits again, in front of its own priority

Jobs of lower priority come first, and of these the ones that started last. All shrink before one is suspended. A job
gives way only if it would hold its capacity for longer than the pauses cost that this means for it; not while a
generation of it is in flight, nor shortly after it resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf

import msgspec
from msgspec.structs import replace

from services.allocator import leaving
from services.allocator.bisection import least
from services.allocator.job import Job
from services.allocator.payback import Payback, payback
from services.allocator.placing.placement import Room, ladder, place
from services.allocator.policies.contract import Size
from services.allocator.rules import Rules
from services.allocator.seen import counted_size, least_of, seen, size_of
from services.allocator.supply import Held, Placed, Reservation, Supply, describe_claim
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict, decision
from shared.messages import RoleResources, TaskPlan

RELEASE_S = 30.0
"""Seconds beyond its grace that a suspended job waits for its pods to go, before it starts without that."""


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """`tasks`: those that it keeps; none of them if it is suspended. `claim`: of the job for which it gives way."""

    job: Job
    tasks: tuple[TaskPlan, ...]
    claim: Reservation | None = None

    def freed(self) -> list[Held]:
        """Return the capacity that it gives up."""
        kept = {task.serial for task in self.tasks}
        runs = self.job.runs.tasks if self.job.runs else ()
        return [Held(-inf, self.job.key, t.node, t.resources) for t in runs if t.serial not in kept]

    @property
    def reason(self) -> str:
        other = f"gives way to {self.claim.job}, which {describe_claim(self.claim)}" if self.claim else "gives way"
        if not self.tasks:
            return f"{other}: saves, and goes on when there is room"
        return f"{other}: shrinks to {counted_size(self.tasks).told()}"


class Candidates:
    """Who could give way in one pass: found once for all claims of one kind."""

    def __init__(self, jobs: Iterable[Job], now: float, rules: Rules) -> None:
        self.jobs, self.now, self.rules = list(jobs), now, rules
        self.taken: set[str] = set()
        self._steps: dict[tuple[int, bool], list[Victim]] = {}

    def steps(self, claim: Reservation) -> list[Victim]:
        """What could be done for the claim, in the order in which it is tried."""
        kind = claim.priority, claim.overdue
        if kind not in self._steps:
            self._steps[kind] = _all_steps(claim, self.jobs, self.now, self.rules)
        return [victim for victim in self._steps[kind] if victim.job.key not in self.taken]


def find_victims(
    claim: Reservation, placed: Placed, supply: Supply, reserved: Sequence[Reservation], candidates: Candidates
) -> tuple[list[Victim], tuple[TaskPlan, ...]] | None:
    """The victims, and where the job will be placed; None if it would not fit even then."""
    steps = candidates.steps(claim)

    def tasks_with(victims: Iterable[Victim]) -> tuple[TaskPlan, ...] | None:
        freed = [held for victim in victims for held in victim.freed()]
        return placed(supply.trial(-inf, reserved, freed))

    if not steps or tasks_with(_chosen(steps).values()) is None:
        return None
    count = least(len(steps), lambda n: tasks_with(_chosen(steps[:n]).values()) is not None)
    chosen = _chosen(steps if count is None else steps[:count])
    for key in list(chosen):
        others = {other: victim for other, victim in chosen.items() if other != key}
        if tasks_with(others.values()) is not None:
            chosen = others
    for victim in list(chosen.values()):
        chosen |= _chosen([_smallest_cut(victim, partial(_is_enough, chosen, tasks_with))])
    tasks = tasks_with(chosen.values())
    if tasks is None:
        return None
    candidates.taken |= chosen.keys()
    return [replace(victim, claim=claim) for victim in chosen.values()], tasks


def _is_enough(
    chosen: Mapping[str, Victim],
    tasks_with: Callable[[Iterable[Victim]], tuple[TaskPlan, ...] | None],
    cut: Victim,
) -> bool:
    """Whether the waiting job fits if one of the victims gives up something else."""
    return tasks_with({**chosen, cut.job.key: cut}.values()) is not None


def give_way(victim: Victim, now: float, rules: Rules, cause: str) -> Verdict:
    """The decision that shrinks or suspends a victim."""
    return decide_tasks(victim.job, victim.tasks, victim.reason, now, rules, cause)


def decide_tasks(job: Job, tasks: Sequence[TaskPlan], reason: str, now: float, rules: Rules, cause: str) -> Verdict:
    """Give a running job these tasks, with its batch; none: it is suspended."""
    batch = job.runs.batch if job.runs and tasks else 0
    cost_s = _payback(job, rules).cost_s
    return Verdict(why=reason, action=decision(job, tasks, batch, now, reason=reason, cause=cause, cost_s=cost_s))


def release_wait(job: Job, room: Room, now: float) -> Verdict | None:
    """A suspended job starts again once its pods have saved and gone; None if it may start."""
    until_s = job.suspended_s + job.request.grace_s + RELEASE_S
    if not job.suspended_s or now >= until_s or not any(job.key in node.hosts for node in room.nodes.values()):
        return None
    return Verdict(why="suspended: its pods save and end before it starts again", wake_s=until_s)


def _all_steps(claim: Reservation, jobs: Iterable[Job], now: float, rules: Rules) -> list[Victim]:
    able = [job for job in jobs if _may_give_way(job, claim, now, rules)]
    able.sort(key=lambda job: (job.request.priority, -job.started_s, -job.uid))
    nowhere = Room([])
    shrinks = [_shrunk(job, least_of(job, size_of(job.runs)), nowhere) for job in able if job.runs]
    suspends = [Victim(job=job, tasks=()) for job in able if _may_be_suspended(job, claim, rules)]
    return [victim for victim in shrinks if victim.freed()] + suspends


def _may_give_way(job: Job, claim: Reservation, now: float, rules: Rules) -> bool:
    """Whether it may be changed now, and would not be through sooner."""
    priority, runs = job.request.priority, job.runs
    if runs is None or job.coming is not None or job.key == claim.job or job.is_trained:
        return False
    if priority > claim.priority or (priority == claim.priority and not claim.overdue):
        return False
    if now < job.resumed_s + rules.cooldown_s or now < retry_s(job, rules):
        return False
    if (job.leaving and leaving.going(job, runs.tasks)) or any(job.exit_of(task) for task in runs.tasks):
        return False
    gain = _payback(job, rules)
    return gain.left_s > rules.payback_factor * gain.cost_s


def _may_be_suspended(job: Job, claim: Reservation, rules: Rules) -> bool:
    """Only an elastic job of lower priority, that would go on for longer than it takes to stop and to start again."""
    asked, gain = job.request, _payback(job, rules)
    is_elastic = asked.ps.min < asked.ps.max or asked.workers.min < asked.workers.max
    return is_elastic and asked.priority < claim.priority and gain.left_s > 2.0 * rules.payback_factor * gain.cost_s


def _payback(job: Job, rules: Rules) -> Payback:
    """Of a change to the size that it has: what a pause costs, and how long it still trains."""
    runs = job.runs
    size, batch = (size_of(runs), runs.batch) if runs else (Size(0, 0), 0)
    return payback(seen(job, rules), size, batch, rules)


def _shrunk(job: Job, size: Size, nowhere: Room) -> Victim:
    """`nowhere`: a room without nodes, since nothing new is placed."""
    runs = job.runs.tasks if job.runs else ()
    return Victim(job=job, tasks=place(nowhere, job.key, runs, size, RoleResources(), job.serials) or runs)


def _chosen(steps: Iterable[Victim]) -> dict[str, Victim]:
    """By job: the last step replaces the ones before."""
    return {victim.job.key: victim for victim in steps}


def _smallest_cut(victim: Victim, enough: Callable[[Victim], bool]) -> Victim:
    """A job that shrinks keeps as much as it can."""
    if not victim.tasks or victim.job.runs is None:
        return victim
    sizes = ladder(size_of(victim.job.runs), counted_size(victim.tasks))[1:]
    nowhere = Room([])
    cuts = [_shrunk(victim.job, size, nowhere) for size in sizes]
    first = least(len(cuts) - 1, lambda n: enough(cuts[n])) if cuts else None
    return victim if first is None else cuts[first]
