"""The capacity that nodes and quotas will have once some of the running jobs have ended, to try placements on. Pure.

A job holds what its pods are listed with, and what its decided tasks are promised. Pods that no decision wants any more
are about to end: they count as free in every trial. A job that lost tasks keeps the others: what these hold is never
free for the job itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, takewhile
from math import inf

import msgspec
from msgspec.structs import replace

from services.allocator.bisection import least
from services.allocator.placing.amounts import larger, less, plus, together
from services.allocator.placing.placement import Room
from services.allocator.policies.contract import Node
from services.allocator.state import State
from services.allocator.waiting import staying
from shared.messages import Resources, TaskPlan
from shared.words import some


class Held(msgspec.Struct, frozen=True, gc=False):
    """Capacity of one pod. `started_s`: when its job started; `in_quota`: it counts against its namespace's quota."""

    started_s: float
    job: str
    node: str
    amount: Resources
    in_quota: bool = True


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What is held back for one waiting job. `overdue`: it has waited for more than
    `after_s`, and what is reserved is so from jobs of its own priority, too.
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
        return self.job.partition(".")[0]


Placed = Callable[[Room], tuple[TaskPlan, ...] | None]
"""Place a waiting job at its smallest size."""


def describe_claim(claim: Reservation) -> str:
    """Why something is reserved for a job, to be put behind its name."""
    if claim.overdue:
        return f"has waited for more than {claim.after_s:g} s"
    return f"has priority {claim.priority}"


def describe_amounts(claim: Reservation) -> str:
    """What is reserved, and where."""
    parts = [f"{_describe(amount)} on {name}" for name, amount in sorted(claim.nodes.items())]
    quota = f"{_describe(claim.quota)} of the quota of namespace {claim.namespace}"
    return some(parts, "node") if parts else quota


def _describe(amount: Resources) -> str:
    told = ((amount.cpu, "cpu"), (amount.memory_gib, "GiB"), (amount.gpu, "gpu"))
    return ", ".join(f"{number:g} {unit}" for number, unit in told if number) or "nothing"


class Supply:
    """`starts`: when the running jobs started, in order; what is about to end comes first."""

    def __init__(self, state: State, room: Room) -> None:
        self.room = room
        self.held = sorted(_all_held(state), key=lambda held: held.started_s)
        self.starts = (-inf, *sorted({held.started_s for held in self.held} - {-inf}))
        self._end: tuple[tuple[Reservation, ...], str, Room] | None = None

    def trial(
        self, until_s: float, reserved: Sequence[Reservation], freed: Iterable[Held] = (), keeps: str = ""
    ) -> Room:
        """The room without the jobs that started up to then, except the one that `keeps` its tasks; without `freed`,
        and less what is `reserved`.
        """
        back = [*takewhile(lambda held: held.started_s <= until_s, self.held), *freed]
        back = [held for held in back if held.job != keeps or held.started_s == -inf] if keeps else back
        given = _sums((held.node, held.amount) for held in back)
        gone = _sums(chain.from_iterable(each.nodes.items() for each in reserved))
        nodes = [_changed(node, given.get(node.name), gone.get(node.name)) for node in self.room.nodes.values()]
        given = _sums((held.job.partition(".")[0], held.amount) for held in back if held.in_quota)
        gone = _sums((each.namespace, each.quota) for each in reserved)
        purses = {space: _balance(has, given.get(space), gone.get(space)) for space, has in self.room.purses.items()}
        back_in = Counter(held.job.partition(".")[0] for held in back if held.in_quota)
        slots = {space: number + back_in[space] for space, number in self.room.slots.items()}
        return Room(nodes, purses, slots, self.room.limits)

    def holds(self, placed: Placed, reserved: tuple[Reservation, ...], keeps: str) -> bool:
        """Return whether there is a place once all running tasks have ended, except those that the job keeps."""
        if self._end is None or self._end[:2] != (reserved, keeps):
            self._end = reserved, keeps, self.trial(self.starts[-1], reserved, keeps=keeps)
        room = self._end[-1]
        mark = room.mark()
        tasks = placed(room)
        room.undo(mark)
        return tasks is not None

    def earliest(self, placed: Placed, reserved: Sequence[Reservation], keeps: str) -> tuple[TaskPlan, ...] | None:
        """Place what the capacity `holds` where only the jobs that started first have to end."""

        def tasks_at(number: int) -> tuple[TaskPlan, ...] | None:
            return placed(self.trial(self.starts[number], reserved, keeps=keeps))

        last = len(self.starts) - 1
        first = least(last, lambda n: tasks_at(n) is not None)
        return tasks_at(last if first is None else first)


def needed_nodes(tasks: Iterable[TaskPlan]) -> dict[str, Resources]:
    """What the tasks want of each node."""
    return _sums((task.node, task.resources) for task in tasks)


def _sums(parts: Iterable[tuple[str, Resources]]) -> dict[str, Resources]:
    found: defaultdict[str, list[Resources]] = defaultdict(list)
    for name, amount in parts:
        found[name].append(amount)
    return {name: together(listed) for name, listed in found.items()}


def _balance(has: Resources, given: Resources | None, gone: Resources | None) -> Resources:
    total = has if given is None else plus(has, given)
    return total if gone is None else less(total, gone)


def _changed(node: Node, given: Resources | None, gone: Resources | None) -> Node:
    if given is None and gone is None:
        return node
    return replace(node, free=_balance(node.free, given, gone))


# ---------------------------------------------------------------- what is held now


def _all_held(state: State) -> Iterator[Held]:
    wanted = {(job.key, job.pod(task)): (job, task) for job in state.jobs.values() for task in staying(job)}
    listed: set[tuple[str, str]] = set()
    for node in state.nodes.values():
        for own in node.own:
            key, name = f"{own.namespace}.{own.job}", own.pod
            listed.add((key, name))
            if (key, name) in wanted:
                job, task = wanted[key, name]
                yield Held(job.started_s, key, node.node, larger(own.resources, task.resources))
            else:
                ended = key in state.jobs and name in state.jobs[key].exits
                yield Held(-inf, key, node.node, own.resources, in_quota=not ended)
    for (key, name), (job, task) in wanted.items():
        if (key, name) not in listed:
            yield Held(job.started_s, key, task.node, task.resources)
