"""The capacity of nodes and quotas after some of the running jobs have ended, for trial placements.

A job holds the resources of its listed pods and of its decided tasks. Pods that no decision wants
any more are about to end: every trial counts them as free. A job that lost tasks keeps the others;
their capacity is never free for the job itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from math import inf

import msgspec
from msgspec.structs import replace

from services.allocator.placement.amounts import (
    NO_MORE,
    add,
    fits,
    larger,
    smallest_enough,
    subtract,
    total_of,
)
from services.allocator.placement.placers import ROLES
from services.allocator.placement.room import Room, namespace_of
from services.allocator.placement.trial import Placed, PlacementRequest, Shortage, try_place
from services.allocator.policies.contract import Node
from services.allocator.state.job import Job, job_of
from services.allocator.state.policy_view import remaining_tasks
from services.allocator.state.state import State
from shared.messages import OwnPod, Resources, TaskPlan
from shared.text import format_some_names


class HeldCapacity(msgspec.Struct, frozen=True, gc=False):
    """Capacity of one pod. `started_s`: when its job started; `in_quota`: it counts against its
    namespace's quota.
    """

    started_s: float
    job: str
    node: str
    amount: Resources
    in_quota: bool = True

    @property
    def namespace(self) -> str:
        return namespace_of(self.job)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity held back for one waiting job. `overdue`: it has waited for longer than `after_s`,
    so it is held back from jobs of the same priority, too.
    """

    job: str
    uid: int
    priority: int
    after_s: float
    overdue: bool
    nodes: dict[str, Resources] = {}
    quota: Resources = Resources(cpu=0.0, memory_gib=0.0, gpu=0)

    @property
    def namespace(self) -> str:
        return namespace_of(self.job)


Reservations = tuple[Reservation, ...]
Pod = tuple[str, str]
"""The key of a job, and the name of one of its pods."""


def describe_claim(claim: Reservation) -> str:
    """Return why a job has a reservation, as a text that follows its name."""
    if claim.overdue:
        return f"has waited for more than {claim.after_s:g} s"
    return f"has priority {claim.priority}"


def describe_amounts(claim: Reservation) -> str:
    """Return the reserved amounts, by node or of the quota."""
    parts = []
    for name, amount in sorted(claim.nodes.items()):
        parts.append(f"{_describe_amount(amount)} on {name}")
    if parts:
        return format_some_names(parts, "node")
    return f"{_describe_amount(claim.quota)} of the quota of namespace {claim.namespace}"


def _describe_amount(amount: Resources) -> str:
    """Return an amount as text, without the resources that it has none of."""
    parts = []
    for number, unit in ((amount.cpu, "cpu"), (amount.memory_gib, "GiB"), (amount.gpu, "gpu")):
        if number:
            parts.append(f"{number:g} {unit}")
    return ", ".join(parts) or "nothing"


class ProjectedCapacity:
    """The capacity that pods hold. `starts`: the start times (s) of the running jobs, in order;
    pods that are about to end come first, at -inf.
    """

    def __init__(self, state: State, room: Room) -> None:
        self.room = room
        self.held = sorted(_held_by_pods(state), key=lambda held: held.started_s)
        starts = {held.started_s for held in self.held}
        starts.discard(-inf)
        self.starts = (-inf, *sorted(starts))
        self._end: tuple[Reservations, str, Room] | None = None
        self._empty: dict[frozenset[str], tuple[Resources, Resources]] = {}

    def trial(
        self,
        until_s: float,
        reserved: Sequence[Reservation],
        freed: Iterable[HeldCapacity] = (),
        keeps: str = "",
    ) -> Room:
        """Return the room without the jobs that started up to then, except the one that `keeps` its
        tasks; with the `freed` capacity, less all that is `reserved`.
        """
        freed_capacity = self._held_until(until_s)
        freed_capacity += freed
        if keeps:
            freed_capacity = [
                held for held in freed_capacity if held.job != keeps or held.started_s == -inf
            ]
        in_quota = [held for held in freed_capacity if held.in_quota]
        nodes = self._nodes_with(freed_capacity, reserved)
        remaining_quotas = self._quotas_with(in_quota, reserved)
        return self.room.with_changes(nodes, remaining_quotas, self._slots_with(in_quota))

    def _held_until(self, until_s: float) -> list[HeldCapacity]:
        """Return the capacity of the jobs that started up to then."""
        count = bisect_right(self.held, until_s, key=lambda held: held.started_s)
        return self.held[:count]

    def _nodes_with(
        self, freed: Sequence[HeldCapacity], reserved: Sequence[Reservation]
    ) -> list[Node]:
        """Return the nodes with a changed free capacity."""
        freed_by_node = _sums([(held.node, held.amount) for held in freed])
        amounts_reserved: list[tuple[str, Resources]] = []
        for claim in reserved:
            amounts_reserved += claim.nodes.items()
        reserved_by_node = _sums(amounts_reserved)

        nodes = []
        for name in freed_by_node.keys() | reserved_by_node.keys():
            node = self.room.nodes.get(name)
            if node is not None:
                free = _free_after(node.free, freed_by_node.get(name), reserved_by_node.get(name))
                nodes.append(replace(node, free=free))
        return nodes

    def _slots_with(self, freed: Sequence[HeldCapacity]) -> dict[str, int]:
        """Return how many more tasks each namespace may have."""
        slots = dict(self.room.slots)
        for held in freed:
            namespace = held.namespace
            if namespace in slots:
                slots[namespace] += 1
        return slots

    def _quotas_with(
        self, freed: Sequence[HeldCapacity], reserved: Sequence[Reservation]
    ) -> dict[str, Resources]:
        """Return the remaining amount of each quota."""
        freed_by_namespace = _sums([(held.namespace, held.amount) for held in freed])
        reserved_by_namespace = _sums([(claim.namespace, claim.quota) for claim in reserved])
        remaining_quotas = {}
        for namespace, remaining in self.room.remaining_quotas.items():
            remaining_quotas[namespace] = _free_after(
                remaining, freed_by_namespace.get(namespace), reserved_by_namespace.get(namespace)
            )
        return remaining_quotas

    def place(
        self,
        request: PlacementRequest,
        until_s: float,
        reserved: Sequence[Reservation],
        freed: Iterable[HeldCapacity] = (),
        keeps: str = "",
    ) -> tuple[TaskPlan, ...] | None:
        """Place a job in the room at that time; None if it does not fit."""
        trial = try_place(self.trial(until_s, reserved, freed, keeps), request)
        return trial.tasks if isinstance(trial, Placed) else None

    def may_hold(self, request: PlacementRequest) -> bool:
        """Return False if a new task is larger than every node, or all new tasks together are
        larger than all nodes, once all running tasks have ended. True does not mean that there is a
        place.
        """
        total, largest = self._empty_cluster(request.opened)
        if not fits(request.growth(request.most), total):
            return False
        kept = Counter([task.role for task in request.keep])
        for role in ROLES:
            is_new = request.most.of(role) > kept[role]
            if is_new and not fits(getattr(request.sizes, role), largest):
                return False
        return True

    def _empty_cluster(self, opened: frozenset[str]) -> tuple[Resources, Resources]:
        """Return the capacity of all open nodes together, and the largest amount of each resource
        on one node, once all running tasks have ended. `opened`: nodes that are open, too.
        """
        if opened not in self._empty:
            room = self.trial(self.starts[-1], ())
            free = [node.free for node in room.nodes.values() if node.open or node.name in opened]
            self._empty[opened] = total_of(free), reduce(larger, free, NO_MORE)
        return self._empty[opened]

    def holds(self, request: PlacementRequest, reserved: Reservations, keeps: str) -> bool:
        """Return True if there is a place once all running tasks have ended, except those that the
        job keeps.
        """
        if self._end is None or self._end[:2] != (reserved, keeps):
            empty_room = self.trial(self.starts[-1], reserved, keeps=keeps)
            self._end = reserved, keeps, empty_room
        trial = try_place(self._end[-1], request)
        if isinstance(trial, Shortage):
            return False
        trial.undo()
        return True

    def earliest(
        self, request: PlacementRequest, reserved: Sequence[Reservation], keeps: str
    ) -> tuple[TaskPlan, ...] | None:
        """Place the job as early as possible: as few of the jobs that started first as possible
        have to end.
        """

        def tasks_at(number: int) -> tuple[TaskPlan, ...] | None:
            return self.place(request, self.starts[number], reserved, keeps=keeps)

        last = len(self.starts) - 1
        first = smallest_enough(last, lambda number: tasks_at(number) is not None)
        return tasks_at(last if first is None else first)


def needed_nodes(tasks: Iterable[TaskPlan]) -> dict[str, Resources]:
    """Return the resources that the tasks need, by node."""
    return _sums([(task.node, task.resources) for task in tasks])


def _sums(parts: Iterable[tuple[str, Resources]]) -> dict[str, Resources]:
    """Return the sum of the amounts of each name."""
    found: defaultdict[str, list[Resources]] = defaultdict(list)
    for name, amount in parts:
        found[name].append(amount)
    sums = {}
    for name, amounts in found.items():
        sums[name] = total_of(amounts)
    return sums


def _free_after(free: Resources, freed: Resources | None, reserved: Resources | None) -> Resources:
    """Return the free amount after one amount is freed and another one is reserved; None: no such
    amount.
    """
    total = free
    if freed is not None:
        total = add(total, freed)
    if reserved is not None:
        total = subtract(total, reserved)
    return total


# ---------------------------------------------------------------- capacity that is held now


def _held_by_pods(state: State) -> Iterator[HeldCapacity]:
    """Yield the capacity of each listed pod, then that of decided tasks without a listed pod."""
    wanted = _wanted_tasks(state)
    listed = set[Pod]()
    for node in state.nodes.values():
        for listed_pod in node.own:
            pod = job_of(listed_pod), listed_pod.pod
            listed.add(pod)
            if pod in wanted:
                job, task = wanted[pod]
                amount = larger(listed_pod.resources, task.resources)
                yield HeldCapacity(job.started_s, job.key, node.node, amount)
            else:
                yield _held_by_ending_pod(state, node.node, listed_pod)

    for pod, (job, task) in wanted.items():
        if pod not in listed:
            yield HeldCapacity(job.started_s, job.key, task.node, task.resources)


def _wanted_tasks(state: State) -> dict[Pod, tuple[Job, TaskPlan]]:
    """Return the tasks of the newest decisions that have not ended, with their job, by pod."""
    wanted = {}
    for job in state.jobs.values():
        for task in remaining_tasks(job):
            wanted[job.key, job.pod(task)] = job, task
    return wanted


def _held_by_ending_pod(state: State, node: str, pod: OwnPod) -> HeldCapacity:
    """Return the capacity of a listed pod that no decision wants any more."""
    key = job_of(pod)
    job = state.jobs.get(key)
    has_ended = job is not None and pod.pod in job.exits
    return HeldCapacity(-inf, key, node, pod.resources, in_quota=not has_ended)
