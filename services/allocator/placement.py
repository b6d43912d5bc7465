"""Which task goes on which node.

Law: no node is given more cpu, memory or devices than it has free, and none that is not ready, is cordoned or has a
hard taint is given anything. Tasks that stay keep node and serial, and their index where the numbers stay dense; a new
one gets a new serial, which was never used before, and goes beside the job's other tasks if it can, else where it
leaves the least behind (best fit).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from shared.messages import Resources, Role, RoleResources, TaskPlan

ROLES: tuple[Role, ...] = ("chief", "ps", "worker")
ROUNDING = 1e-9


class Node(msgspec.Struct, frozen=True):
    """What a policy sees of a node. `open`: new tasks may go there; `hosts`: keys of the jobs with tasks on it."""

    name: str
    free: Resources
    allocatable: Resources = Resources()
    open: bool = True
    hosts: frozenset[str] = frozenset()


class Size(msgspec.Struct, frozen=True):
    """How many ps and workers; the chief is one, always."""

    ps: int
    workers: int

    def of(self, role: Role) -> int:
        return {"chief": 1, "ps": self.ps, "worker": self.workers}[role]


class Room:
    """Free capacity to try things on: `take` here changes nothing anywhere else."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._largest: tuple[object, Resources] = (None, Resources())

    @cached_property
    def shapes(self) -> tuple[Resources, ...]:
        """What there are of empty nodes that take tasks; to take changes nothing of it."""
        return tuple(dict.fromkeys(node.allocatable for node in self.nodes.values() if node.open))

    def copy(self) -> Room:
        twin = Room(())
        twin.nodes, twin._largest = self.nodes, (self.nodes, self.largest())  # neither is ever changed in place
        return twin

    def largest(self) -> Resources:
        """Of each resource the most that any one node has free; what asks for more fits nowhere."""
        if self._largest[0] is not self.nodes:
            self._largest = (self.nodes, _most(node.free for node in self.nodes.values() if node.open))
        return self._largest[1]

    def choose(self, job: str, wants: Resources) -> str | None:
        """The best node for one more task of a job."""
        fitting = (n for n in self.nodes.values() if n.open and fits(wants, n.free))
        best = min(fitting, key=lambda n: (job not in n.hosts, *_left(n.free, wants), n.name), default=None)
        return best.name if best else None

    def take(self, job: str, node: str, wants: Resources) -> None:
        if node in self.nodes:
            here = self.nodes[node]
            left = replace(here, free=less(here.free, wants), hosts=here.hosts | {job})
            self.nodes = self.nodes | {node: left}

    def put(self, job: str, wants: Resources) -> str | None:
        """Choose and take."""
        node = self.choose(job, wants)
        if node is not None:
            self.take(job, node, wants)
        return node


def fits(wants: Resources, free: Resources) -> bool:
    return wants.cpu <= free.cpu + ROUNDING and wants.memory_gib <= free.memory_gib + ROUNDING and wants.gpu <= free.gpu


def less(free: Resources, taken: Resources) -> Resources:
    return Resources(
        cpu=max(0.0, free.cpu - taken.cpu),
        memory_gib=max(0.0, free.memory_gib - taken.memory_gib),
        gpu=max(0, free.gpu - taken.gpu),
    )


def _most(free: Iterable[Resources]) -> Resources:
    cpu = memory = gpu = 0.0
    for one in free:
        cpu, memory, gpu = max(cpu, one.cpu), max(memory, one.memory_gib), max(gpu, one.gpu)
    return Resources(cpu=cpu, memory_gib=memory, gpu=int(gpu))


def _left(free: Resources, wants: Resources) -> tuple[float, float, float]:
    return (free.gpu - wants.gpu, free.cpu - wants.cpu, free.memory_gib - wants.memory_gib)


def place(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """The tasks of a job at a size, taken from `room`; None, and nothing taken, where they do not all fit.

    `keep` are the tasks that stand already (the newest of a role go first when there are too many), `serial` the first
    unused one.
    """
    tried = room.copy()
    staying = {role: _stay([t for t in keep if t.role == role], size.of(role)) for role in ROLES}
    missing = [(role, i) for role in ROLES for i in range(size.of(role)) if i not in staying[role]]
    if not all(fits(getattr(sizes, role), room.largest()) for role, _ in missing):
        return None
    chosen: list[TaskPlan] = []
    for number, (role, index) in enumerate(missing):
        wants: Resources = getattr(sizes, role)
        node = tried.put(job, wants)
        if node is None:
            return None
        chosen.append(TaskPlan(role=role, index=index, serial=serial + number, node=node, resources=wants))
    room.nodes = tried.nodes
    stand = [task for role in ROLES for task in staying[role].values()]
    return tuple(sorted([*stand, *chosen], key=lambda t: (ROLES.index(t.role), t.index)))


def _stay(tasks: list[TaskPlan], count: int) -> Mapping[int, TaskPlan]:
    """Who stays, by index: an index below `count` is kept, a higher one moves down into a gap."""
    oldest = sorted(tasks, key=lambda t: t.serial)[:count]
    fixed = {t.index: t for t in oldest if t.index < count}
    gaps = [i for i in range(count) if i not in fixed]
    movers = sorted((t for t in oldest if t.index >= count), key=lambda t: t.index)
    return fixed | {i: replace(t, index=i) for i, t in zip(gaps, movers, strict=False)}


def place_most(
    room: Room, job: str, keep: Sequence[TaskPlan], most: Size, least: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """As `place`, at the largest size between `most` and `least` that fits; None where not even `least` does."""
    steps = ladder(most, least)
    low, high = 0, len(steps) - 1  # steps[high:] fit
    if place(room.copy(), job, keep, least, sizes, serial) is None:
        return None
    while low < high:
        middle = (low + high) // 2
        if place(room.copy(), job, keep, steps[middle], sizes, serial) is None:
            low = middle + 1
        else:
            high = middle
    return place(room, job, keep, steps[low], sizes, serial)


def ladder(most: Size, least: Size) -> list[Size]:
    """Sizes from `most` down to `least`, one task fewer each, giving up whichever has more of its range left."""
    steps, ps, workers = [most], most.ps, most.workers
    while ps > least.ps or workers > least.workers:
        if _share(workers, most.workers, least.workers) >= _share(ps, most.ps, least.ps):
            workers -= 1
        else:
            ps -= 1
        steps.append(Size(ps, workers))
    return steps


def _share(now: int, most: int, least: int) -> float:
    return (now - least) / (most - least) if most > least else -1.0
