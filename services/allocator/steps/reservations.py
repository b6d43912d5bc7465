"""Reservations of capacity for jobs that have waited too long, or that others must give way to.

Law: a job that fits the empty cluster starts, at its smallest size, within `reserve_after_s` plus
the longest time that the jobs running then still need to end or shrink. Later jobs of its priority
or a lower one do not delay it.

    head of the queue   waiting jobs, by priority, then in the order of submission; at most `MOST`
                        jobs with a place at a time. A job that fits nowhere does not block others
    claimants           a job that has waited for `reserve_after_s`; at once, a job with a priority
                        above the lowest; after a loss of tasks, once their room had the time to
                        become free by itself. A job with too many failed tries to start has no
                        claim in the pauses between further tries, so others may start in them
    reserved capacity   the places of its smallest size (gang floor), tried on the room without the
                        jobs that started up to some moment: the earliest moment with a place
    reserved from       jobs of lower priority; after `reserve_after_s` also those of the same
                        priority, except ones that wait and were submitted earlier. They may use
                        everything else (backfill)

Nothing is remembered: the choice follows from the state. It is stable because later jobs start
elsewhere; so only jobs that started before the reservation can be in its way. Running jobs keep
their capacity, except the victims of `preemption.py`. The rest of a namespace's quota is reserved
in the same way. While the quota is short, even after all ending pods and victims have ended, no
node is held back from other namespaces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf

from msgspec.structs import replace

from services.allocator.placement.amounts import NO_MORE, add, fits
from services.allocator.placement.claims import ReachableNodes
from services.allocator.placement.projected_capacity import (
    ProjectedCapacity,
    Reservation,
    Reservations,
    describe_amounts,
    describe_claim,
    needed_nodes,
)
from services.allocator.placement.room import Room
from services.allocator.placement.trial import Placed, PlacementRequest
from services.allocator.policies.contract import Size, Target, start_target
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.policy_view import (
    is_waiting,
    remaining_tasks,
    smallest_size,
    view_of_job,
    waits_since_s,
)
from services.allocator.state.state import State, tables_of
from services.allocator.steps.preemption import Candidates, Victim, find_victims
from services.allocator.steps.resize_conditions import retry_s
from services.allocator.steps.verdict import Situation, Verdict
from shared.messages import Resources, RoleResources, TaskPlan

MOST = 16
"""The most jobs at the head of the queue that have reservations at a time."""
TRIES = 16
"""The most sizes of a namespace's jobs without a place; after these, none of its other jobs is
tried. Sizes with more than all nodes have together, or with a task larger than each node, do not
count.
"""


UnplaceableRequest = tuple[
    Size, RoleResources, tuple[TaskPlan, ...], frozenset[str], frozenset[str]
]
"""A request without a place: the smallest size of a job, the sizes of its tasks, the tasks that it
keeps, the nodes out of its reach, and those with taints that it tolerates.
"""


def claimants(
    jobs: Mapping[str, Job], now: float, rules: Rules, opened_s: float = 0.0
) -> tuple[list[Job], float | None]:
    """Return the waiting jobs with a claim, in the order of service, and the time (s) of the next
    claim. `opened_s`: the time at which a node last became ready.
    """
    if not rules.reserve_after_s:
        return [], None
    # Most jobs run and have lost no task. They are skipped quickly.
    waiting = [
        job for job in jobs.values() if (job.running is None or job.exits) and is_waiting(job)
    ]
    if not waiting:
        return [], None

    lowest_priority = min([job.request.priority for job in jobs.values()])
    found = []
    next_due_s = inf
    for job in waiting:
        due_s = waits_since_s(job) + rules.reserve_after_s
        if due_s > now:
            next_due_s = min(next_due_s, due_s)
            if job.request.priority <= lowest_priority:
                continue
        if not _is_backing_off(job, now, rules) and not _may_get_room_back(
            job, now, rules, opened_s
        ):
            found.append(job)

    if next_due_s == inf:
        return found, None
    return found, next_due_s


def _is_overdue(job: Job, now: float, rules: Rules) -> bool:
    return now >= waits_since_s(job) + rules.reserve_after_s


def _is_backing_off(job: Job, now: float, rules: Rules) -> bool:
    """Return True if a job has failed to start in the allowed number of tries, and its backoff is
    not over yet.
    """
    tries = max(1, rules.max_start_failures)
    return job.abandonments >= tries and now < retry_s(job, rules)


def _may_get_room_back(job: Job, now: float, rules: Rules, opened_s: float) -> bool:
    """Return True if a job has just lost tasks, or nodes are coming back, so that its own room may
    come back.
    """
    if job.newest_decision is None:
        return False
    changed_s = max(waits_since_s(job), opened_s)
    return now < changed_s + rules.settle_s


class ReservationPlan:
    """The reservations of one pass. While they are held, the room has less free."""

    def __init__(self, state: State, room: Room, now: float, rules: Rules) -> None:
        self.state = state
        self.room = room
        self.now = now
        self.rules = rules
        self.reach = ReachableNodes(state, rules)
        self.reservations: dict[str, Reservation] = {}
        self.victims: list[Victim] = []
        self.wake_s: float | None = None
        self._held: Reservations = ()
        self._unplaceable: defaultdict[str, set[UnplaceableRequest]] = defaultdict(set)

    # ------------------------------------------------------------ the choice of reservations

    def plan(self, jobs: Mapping[str, Job], verdicts: Mapping[str, Verdict]) -> None:
        """Choose the reservations and the victims. `jobs`: in the order of priority and submission;
        a job with a verdict gives nothing up.
        """
        found, self.wake_s = claimants(jobs, self.now, self.rules, self.state.opened_s)
        if not found:
            return

        capacity = ProjectedCapacity(self.state, self.room)
        open_jobs = [job for key, job in jobs.items() if key not in verdicts]
        candidates = Candidates(open_jobs, self.now, self.rules)
        for job in found:
            if len(self.reservations) == MOST:
                break
            verdict = verdicts.get(job.key)
            if verdict is None or verdict.action is None:
                self._reserve(job, candidates, capacity)

    def _reserve(self, job: Job, candidates: Candidates, capacity: ProjectedCapacity) -> None:
        """Reserve the places of a job's smallest size, if there are any."""
        earlier = tuple(self.reservations.values())
        request = self._smallest_request(job)
        if not self._has_place(request, capacity, earlier):
            return

        claim = _claim(job, self.now, self.rules)

        # Use the capacity of ending pods, else that of victims, else the earliest capacity.
        is_short = self._is_quota_short(request, capacity, earlier)
        tasks = capacity.place(request, -inf, earlier)
        if tasks is None:
            found = find_victims(claim, request, capacity, earlier, candidates)
            if found is not None:
                victims, tasks = found
                self.victims += victims
                is_short = False
        if tasks is None:
            tasks = capacity.earliest(request, earlier, _job_with_tasks(request))
        if tasks is None:
            return

        nodes = {} if is_short else needed_nodes(_new_tasks(request, tasks))
        self.reservations[job.key] = replace(claim, nodes=nodes, quota=self._needed_quota(request))

    def _needed_quota(self, request: PlacementRequest) -> Resources:
        """Return the amount that the job takes of its namespace's quota; nothing if there is no
        quota.
        """
        if request.namespace not in self.room.remaining_quotas:
            return NO_MORE
        return request.growth(request.most)

    def _smallest_request(self, job: Job) -> PlacementRequest:
        """Return the placement of a job at its smallest size, beside the tasks that it keeps."""
        seen_job = tables_of(self.state).jobs[job.key]
        situation = Situation(job, seen_job, self.room, self.now, self.rules, self.state.cause)
        return situation.request(
            remaining_tasks(job),
            smallest_size(job),
            avoid=self.reach.unreachable_nodes(job),
            opened=self.reach.tolerated_nodes(job),
        )

    def _is_quota_short(
        self, request: PlacementRequest, capacity: ProjectedCapacity, earlier: Reservations
    ) -> bool:
        """Return True if the quota has no room for the job, even after all ending pods have
        ended.
        """
        if request.namespace not in self.room.remaining_quotas:
            return False
        remaining = capacity.trial(-inf, earlier).remaining_quotas[request.namespace]
        return not fits(self._needed_quota(request), remaining)

    def _has_place(
        self, request: PlacementRequest, capacity: ProjectedCapacity, earlier: Reservations
    ) -> bool:
        """Return True if the job has a place once all others have ended. Of one namespace only so
        many jobs without a place are tried.
        """
        impossible = self._unplaceable[request.namespace]
        if not capacity.may_hold(request):
            return False
        placement = (
            request.most,
            request.sizes,
            tuple(request.keep),
            request.avoid,
            request.opened,
        )
        if placement in impossible or len(impossible) == TRIES:
            return False
        if capacity.holds(request, earlier, _job_with_tasks(request)):
            return True
        impossible.add(placement)
        return False

    # ------------------------------------------------------------ the reserved capacity

    def hold_all(self) -> None:
        self._hold(tuple(self.reservations.values()))

    def hold_for(self, job: Job) -> None:
        """Hold back only the reservations that this job may not use."""
        if self.reservations:
            claims = self.reservations.values()
            others = [claim for claim in claims if is_reserved_from(claim, job)]
            self._hold(tuple(others))

    def _hold(self, wanted: Reservations) -> None:
        """Hold back the capacity of these reservations, and give back that of all others. Does
        nothing if they are the same as before.
        """
        if wanted != self._held:
            self._held = wanted
            nodes, quotas = _reserved_amounts(wanted)
            self.room.hold_back(nodes, quotas)

    # ------------------------------------------------------------ the use of reservations

    def start_target(self, situation: Situation) -> Target | None:
        """Return the job's target; one with a reservation starts as soon as it can, even against
        its policy.
        """
        job = situation.job
        target = situation.target
        claim = self.reservations.get(job.key)
        if claim is None or job.newest_decision is not None:
            return target
        if target is not None and not target.waits:
            if _fits(situation, situation.sizes(target)):
                return target
            if not _fits(situation, situation.sizes()):
                return target
        return start_target(
            view_of_job(job, self.rules), f"starts first: it {describe_claim(claim)}"
        )

    def note(self, job: Job, *, wants_more: bool) -> str:
        """Return the reservation of a waiting job, or the one in its way; empty: neither exists."""
        own = self.reservations.get(job.key)
        if own is not None:
            return f"reserved for it, because it {describe_claim(own)}: {describe_amounts(own)}"
        if job.newest_decision is not None and not wants_more:
            return ""
        other = self._reservation_in_the_way(job)
        if other is None:
            return ""
        return f"reserved for {other.job}: {describe_amounts(other)}"

    def _reservation_in_the_way(self, job: Job) -> Reservation | None:
        """Return the first reservation of capacity that the job could use, preferably in its
        namespace or on its nodes.
        """
        namespace = job.request.namespace
        nodes = {task.node for task in remaining_tasks(job)}
        first = None
        for claim in self.reservations.values():
            if not is_reserved_from(claim, job):
                continue
            if claim.namespace == namespace or not nodes.isdisjoint(claim.nodes):
                return claim
            if first is None and claim.nodes:
                first = claim
        return first


def _fits(situation: Situation, sizes: RoleResources) -> bool:
    """Return True if a job without tasks fits at its smallest size."""
    trial = situation.trial((), smallest_size(situation.job), sizes=sizes)
    if isinstance(trial, Placed):
        trial.undo()
        return True
    return False


def _job_with_tasks(request: PlacementRequest) -> str:
    """Return the job, if it keeps tasks, else nothing."""
    return request.job if request.keep else ""


def is_reserved_from(claim: Reservation, job: Job) -> bool:
    """Return True if the job may not use the reserved capacity."""
    priority = job.request.priority
    if claim.job == job.key or claim.priority < priority:
        return False
    if claim.priority > priority:
        return True
    return claim.overdue and (job.newest_decision is not None or job.uid > claim.uid)


def _new_tasks(request: PlacementRequest, tasks: Iterable[TaskPlan]) -> list[TaskPlan]:
    """Return the placed tasks without those that the job keeps."""
    kept = {task.serial for task in request.keep}
    return [task for task in tasks if task.serial not in kept]


def _claim(job: Job, now: float, rules: Rules) -> Reservation:
    """Return the reservation of a job, with its nodes and quota still to be filled in."""
    return Reservation(
        job=job.key,
        uid=job.uid,
        priority=job.request.priority,
        after_s=rules.reserve_after_s,
        overdue=_is_overdue(job, now, rules),
    )


def _reserved_amounts(
    claims: Iterable[Reservation],
) -> tuple[dict[str, Resources], dict[str, Resources]]:
    """Return the reserved amounts by node, and by namespace."""
    nodes: defaultdict[str, Resources] = defaultdict(lambda: NO_MORE)
    quotas: defaultdict[str, Resources] = defaultdict(lambda: NO_MORE)
    for claim in claims:
        quotas[claim.namespace] = add(quotas[claim.namespace], claim.quota)
        for name, amount in claim.nodes.items():
            nodes[name] = add(nodes[name], amount)
    return nodes, quotas
