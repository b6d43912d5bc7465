"""Capacity held back for jobs that have waited too long, or that others must give way to. Pure.

Law: a job that fits the empty cluster starts, at its smallest size, within `reserve_after_s` and the longest time that
what runs then still needs to end or shrink, whatever is submitted later with its priority or a lower one.

    head of the queue   waiting jobs (`waiting.py`), by priority, then in the order of submission; `MOST` of those that
                        have a place at a time. One that fits nowhere takes nobody's turn
    who has a claim     a job that has waited for `reserve_after_s`; at once, one whose priority is above the lowest,
                        or, if it lost tasks, when their room had the time to come free by itself. One that was not
                        started in so many tries that it would have failed, had it never run, has none in the pauses
                        between further tries: others may start in them
    what is reserved    the places of its smallest size (gang floor), tried on what would be free without the jobs that
                        started up to some moment: the earliest moment for which there is a place
    from whom           jobs of lower priority; after `reserve_after_s` from those of the same priority, too, except
                        ones that wait and were submitted earlier. They may use everything else (backfill).

Nothing is remembered: the choice follows from the state. It is stable because newcomers start elsewhere, so the jobs in
the way of a reserved job are only ever those that started before it was reserved. Running jobs keep what they have;
`preemption.py` says who gives something up. What a namespace has left of its quota is reserved in the same way; while
the quota is short, even with what is ending and what others give up, no node is held back from other namespaces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf

from msgspec.structs import replace

from services.allocator.claims import Reach
from services.allocator.job import Job
from services.allocator.kept import Kept
from services.allocator.placing.amounts import NO_MORE, fits, less, plus
from services.allocator.placing.placement import Room, has_room, place
from services.allocator.placing.quota import growth
from services.allocator.placing.resizing import wanted_sizes
from services.allocator.policies.contract import Size, Want, at_start
from services.allocator.preemption import Candidates, Victim, find_victims
from services.allocator.rules import Rules
from services.allocator.seen import seen
from services.allocator.state import State
from services.allocator.supply import Reservation, Supply, describe_amounts, describe_claim, needed_nodes
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict
from services.allocator.waiting import since_s, smallest, staying, waits
from shared.messages import Resources, RoleResources, TaskPlan

MOST = 16
"""So many jobs at the head of the queue have reservations at a time."""
TRIES = 16
"""So many sizes of a namespace's jobs may have no place, before none of its other jobs is tried."""


Impossible = tuple[Size, RoleResources, tuple[TaskPlan, ...], frozenset[str]]
"""What has no place: the smallest size of a job, that of its tasks, those that stay, and the nodes out of its reach."""


def _waiting_jobs(jobs: Mapping[str, Job]) -> tuple[list[Job], int]:
    """Those that wait, in the order of `jobs`; and the lowest priority of all."""
    waiting = [job for job in jobs.values() if waits(job)]
    return waiting, min((job.request.priority for job in jobs.values()), default=0)


waiting_jobs: Kept[Mapping[str, Job], tuple[list[Job], int]] = Kept(_waiting_jobs, 8)


def claimants(
    jobs: Mapping[str, Job], now: float, rules: Rules, opened_s: float = 0.0
) -> tuple[list[Job], float | None]:
    """The waiting jobs for which something is to be reserved, first the one to serve first; and when there will be
    another one. `opened_s`: when the newest node came, or came back.
    """
    if not rules.reserve_after_s:
        return [], None
    waiting, lowest = waiting_jobs(jobs)
    found, next_due_s = list[Job](), inf
    for job in waiting:
        due_s = since_s(job) + rules.reserve_after_s
        if due_s > now:
            next_due_s = min(next_due_s, due_s)
        has_claim = due_s <= now or job.request.priority > lowest
        if has_claim and not (_pauses(job, now, rules) or _may_come_back(job, now, rules, opened_s)):
            found.append(job)
    return found, None if next_due_s == inf else next_due_s


def _is_overdue(job: Job, now: float, rules: Rules) -> bool:
    return now >= since_s(job) + rules.reserve_after_s


def _pauses(job: Job, now: float, rules: Rules) -> bool:
    return job.abandonments >= max(1, rules.max_start_failures) and now < retry_s(job, rules)


def _may_come_back(job: Job, now: float, rules: Rules, opened_s: float) -> bool:
    """Return whether a job has just lost tasks, or nodes are coming back, so that its own room may come back."""
    return job.wanted is not None and now < max(since_s(job), opened_s) + rules.settle_s


class Reserve:
    """The reservations of one pass. While they are held, the room has less free."""

    def __init__(
        self,
        state: State,
        jobs: Mapping[str, Job],
        verdicts: Mapping[str, Verdict],
        room: Room,
        now: float,
        rules: Rules,
    ) -> None:
        """`jobs`: in the order of priority and submission; who has a verdict gives nothing up."""
        self.room, self.reach, self.rules = room, Reach(state, rules), rules
        found, self.wake_s = claimants(jobs, now, rules, state.opened_s)
        self.reservations: dict[str, Reservation] = {}
        self.victims: list[Victim] = []
        self._held: tuple[Reservation, ...] = ()
        self._free: dict[str, Resources] = {}
        self._purses: dict[str, Resources] = {}
        self._nowhere: defaultdict[str, set[Impossible]] = defaultdict(set)
        if found:
            supply = Supply(state, room)
            candidates = Candidates([job for key, job in jobs.items() if key not in verdicts], now, rules)
            for job in found:
                if len(self.reservations) == MOST:
                    break
                if job.key not in verdicts or verdicts[job.key].action is None:
                    self._reserve(job, candidates, supply, now)

    # ------------------------------------------------------------ what is reserved

    def _reserve(self, job: Job, candidates: Candidates, supply: Supply, now: float) -> None:
        earlier = tuple(self.reservations.values())
        keep, size, sizes = staying(job), smallest(job), wanted_sizes(job, None, self.rules)
        whole, claim = growth(keep, size, sizes, stretched=False), _claim(job, now, self.rules)

        def placed(room: Room) -> tuple[TaskPlan, ...] | None:
            with self.reach.of(job, room):
                return place(room, job.key, keep, size, sizes, job.serials)

        keeps = job.key if keep else ""
        nowhere = self._nowhere[job.request.namespace]
        outside = self.reach.unreachable_nodes(job)
        if (size, sizes, keep, outside) in nowhere or len(nowhere) == TRIES:
            return
        if not supply.holds(placed, earlier, keeps):
            nowhere.add((size, sizes, keep, outside))
            return
        soon = supply.trial(-inf, earlier)
        purse = soon.purse(job.key)
        is_short = purse is not None and not fits(whole, purse)
        tasks = placed(soon)
        if tasks is None:
            found = find_victims(claim, placed, supply, earlier, candidates)
            if found is not None:
                victims, tasks = found
                self.victims += victims
                is_short = False
        tasks = tasks or supply.earliest(placed, earlier, keeps)
        if tasks is not None:
            stay = {task.serial for task in keep}
            held = {} if is_short else needed_nodes(task for task in tasks if task.serial not in stay)
            quota = whole if job.request.namespace in self.room.purses else NO_MORE
            self.reservations[job.key] = replace(claim, nodes=held, quota=quota)

    # ------------------------------------------------------------ holding it back

    def hold_all(self) -> None:
        self._hold(tuple(self.reservations.values()))

    def hold_for(self, job: Job) -> None:
        """Hold what is reserved from this job."""
        if self.reservations:
            self._hold(tuple(each for each in self.reservations.values() if is_reserved_from(each, job)))

    def _hold(self, wanted: tuple[Reservation, ...]) -> None:
        if wanted == self._held:
            return
        free, purses = dict[str, Resources](), dict[str, Resources]()
        for name, held in self._free.items():
            free[name] = plus(self.room.nodes[name].free, held)
        for space, held in self._purses.items():
            purses[space] = plus(self.room.purses[space], held)
        nodes, quotas = _reserved_amounts(wanted)
        self._free, self._purses = {}, {}
        for name in nodes.keys() & self.room.nodes.keys():
            has = free.get(name, self.room.nodes[name].free)
            self._free[name] = _part(has, nodes[name])
            free[name] = less(has, self._free[name])
        for space in quotas.keys() & self.room.purses.keys():
            has = purses.get(space, self.room.purses[space])
            self._purses[space] = _part(has, quotas[space])
            purses[space] = less(has, self._purses[space])
        self._held = wanted
        self.room.set_free(free, purses)

    # ------------------------------------------------------------ who uses it

    def start_want(self, job: Job, want: Want | None) -> Want | None:
        """The want of a job; one that has a reservation starts as soon as it can, whatever its policy says."""
        claim = self.reservations.get(job.key)
        if claim is None or job.wanted is not None:
            return want
        if want is not None and not want.waits and self._fits(job, wanted_sizes(job, want.sizes, self.rules)):
            return want
        if want is not None and not want.waits and not self._fits(job, wanted_sizes(job, None, self.rules)):
            return want
        return at_start(seen(job, self.rules), f"starts first: it {describe_claim(claim)}")

    def _fits(self, job: Job, sizes: RoleResources) -> bool:
        return has_room(self.room, job.key, (), smallest(job), sizes)

    def note(self, job: Job, *, wants_more: bool) -> str:
        """What is reserved for a job that waits, or for another one before it; empty if that does not concern it."""
        own = self.reservations.get(job.key)
        if own is not None:
            return f"reserved for it, because it {describe_claim(own)}: {describe_amounts(own)}"
        if job.wanted is not None and not wants_more:
            return ""
        other = self._in_the_way(job)
        return f"reserved for {other.job}: {describe_amounts(other)}" if other else ""

    def _in_the_way(self, job: Job) -> Reservation | None:
        """The first reservation of what the job could use, rather one in its namespace or on its nodes."""
        space, nodes = job.request.namespace, {task.node for task in staying(job)}
        all_other = [each for each in self.reservations.values() if is_reserved_from(each, job)]
        usable = [each for each in all_other if each.nodes or each.namespace == space]
        return max(usable, key=lambda each: each.namespace == space or not nodes.isdisjoint(each.nodes), default=None)


def is_reserved_from(claim: Reservation, job: Job) -> bool:
    """Whether the job may not use what is reserved."""
    priority = job.request.priority
    if claim.job == job.key or claim.priority < priority:
        return False
    if claim.priority > priority:
        return True
    return claim.overdue and (job.wanted is not None or job.uid > claim.uid)


def _claim(job: Job, now: float, rules: Rules) -> Reservation:
    return Reservation(
        job=job.key,
        uid=job.uid,
        priority=job.request.priority,
        after_s=rules.reserve_after_s,
        overdue=_is_overdue(job, now, rules),
    )


def _reserved_amounts(claims: Iterable[Reservation]) -> tuple[dict[str, Resources], dict[str, Resources]]:
    """By node, and by namespace."""
    nodes: defaultdict[str, Resources] = defaultdict(lambda: NO_MORE)
    quotas: defaultdict[str, Resources] = defaultdict(lambda: NO_MORE)
    for claim in claims:
        quotas[claim.namespace] = plus(quotas[claim.namespace], claim.quota)
        for name, amount in claim.nodes.items():
            nodes[name] = plus(nodes[name], amount)
    return nodes, quotas


def _part(has: Resources, wanted: Resources) -> Resources:
    """As much as there is."""
    return Resources(
        cpu=min(has.cpu, wanted.cpu), memory_gib=min(has.memory_gib, wanted.memory_gib), gpu=min(has.gpu, wanted.gpu)
    )
