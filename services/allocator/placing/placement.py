"""Which task goes on which node.

Law: no node is given more cpu, memory or devices than it has free, and none that is not ready, is cordoned or has a
hard taint is given anything; no namespace is given more than its quota has left. Tasks that stay keep node and serial,
and their index where the numbers stay dense; a new one gets a new serial, which was never used before. What leaves a
node is slow, so a job stands on few: new tasks go beside the job's others as far as they can, and else as many of them
as possible onto one node, of such nodes onto the one where they leave the least behind (best fit).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import count

from msgspec.structs import replace

from services.allocator.placing.amounts import NO_MORE, fits, less, plus_times, taken, times
from services.allocator.placing.order import Order, rank
from services.allocator.placing.survey import Survey, surveyed
from services.allocator.policies.contract import Node, Size, TaskLimits
from shared.messages import Resources, Role, RoleResources, TaskPlan

ROLES: tuple[Role, ...] = ("chief", "ps", "worker")
LADDERS = 256
"""So many are remembered."""
FILLED: tuple[Role, ...] = ("worker", "ps", "chief")
"""Who chooses first: a lone chief must not draw the workers to where there is room for one of them."""


def shunning(nodes: Sequence[Node], names: Collection[str]) -> Sequence[Node]:
    """The same nodes; those of these names take nothing new."""
    return [replace(node, shunned=True) if node.name in names else node for node in nodes] if names else nodes


Placing = Callable[["Room", str, Sequence[TaskPlan], Size, RoleResources, int], tuple[TaskPlan, ...] | None]
"""As `place`."""
NEVER = -1, (0.0, 0.0, 0)
"""At no moment."""
Question = tuple[int, Resources | None, int | None, TaskLimits | None, Size, Size, RoleResources]
"""At which moment, with how much and how many tasks left of the quota, within which limits of a task: the largest and
the least size, and that of the tasks."""


class Room:
    """Free capacity to try things on: what is taken here is taken nowhere else, and can be given back.

    `purses`: what each namespace that has a quota may still take; a job's key begins with its namespace. `slots`: how
    many more tasks, where that is limited; `limits`: what the cluster allows them besides.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        purses: Mapping[str, Resources] | None = None,
        slots: Mapping[str, int] | None = None,
        limits: Mapping[str, TaskLimits] | None = None,
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.purses, self.slots, self.limits = dict(purses or {}), dict(slots or {}), limits or {}
        self._came: dict[str, set[str]] = {}
        self._before: list[tuple[Node, str, Resources | None, int | None]] = []
        self._ordinals, self._moments = count(1), [0]
        self._stands: tuple[tuple[str, int], list[Node]] = (("", 0), [])
        self._most = NEVER
        self.refused: set[Question] = set()
        """What nobody without tasks could have, at which moment."""
        self.lacks: dict[Question, str] = {}
        """What of it there is too little of (`lacking.py`)."""
        self.waits: dict[Question, str] = {}
        """By question: the reason for which a job without a quota waits (`change.py`)."""

    @cached_property
    def _order(self) -> Order:
        return self._survey.order.copy()

    @cached_property
    def _survey(self) -> Survey:
        """Of the nodes as they were at first."""
        return surveyed(self.nodes)

    @cached_property
    def shapes(self) -> tuple[Resources, ...]:
        """What there are of empty nodes that take tasks; to take changes nothing of it."""
        return tuple(dict.fromkeys(node.allocatable for node in self.nodes.values() if node.open))

    def _homes(self, job: str) -> list[Node]:
        """The nodes on which it has tasks."""
        asked = job, self._moments[-1]
        if self._stands[0] != asked:
            names = self._came.get(job) or self._survey.homes.get(job, ())
            self._stands = asked, [node for name in names if job in (node := self.nodes[name]).hosts]
        return self._stands[1]

    def purse(self, job: str) -> Resources | None:
        """None: without a limit."""
        return self.purses.get(_space(job)) if self.purses else None

    def slots_of(self, job: str) -> int | None:
        """How many more tasks its namespace may have; None: any number."""
        return self.slots.get(_space(job)) if self.slots else None

    def allows(self, job: str, wants: Resources) -> bool:
        """Return whether a task of the job may be as large as that."""
        limits = self.limits.get(_space(job)) if self.limits else None
        return limits is None or limits.most is None or fits(wants, limits.most)

    def grants(self, job: str, wants: Resources, tasks: int) -> bool:
        """Return whether the quota has so much left, and room for so many tasks."""
        purse, slots = self.purse(job), self.slots_of(job)
        return (purse is None or fits(wants, purse)) and (slots is None or tasks <= slots)

    def choose(self, job: str, wants: Resources, count: int = 1, rest: Resources = NO_MORE) -> str | None:
        """The best node for the first of so many more tasks: beside the job's others, else where all of them and the
        `rest` of the job fit, else where most of them do.
        """
        beside = [rank(n.free, n.name) for n in self._homes(job) if n.takes and fits(wants, n.free)]
        if beside:
            return min(beside)[-1]
        if rest is not NO_MORE and (name := self._order.first(plus_times(rest, wants, count))):
            return name
        return self._for_most(wants, count)

    def most_free(self) -> tuple[float, float, int]:
        """Of cores, GiB and devices each: the most on one node that takes new tasks."""
        if self._most[0] != self._moments[-1]:
            self._most = self._moments[-1], self._order.most()
        return self._most[1]

    def _for_most(self, wants: Resources, count: int) -> str | None:
        """The best fit of those nodes that hold most of so many tasks."""
        best, more = self._order.first(wants), count + 1
        fewer = 1 if best else more  # so many fit somewhere; `more` do not, or are not asked for
        while more - fewer > 1:
            middle = (fewer + more) // 2 if more <= count else count
            name = self._order.first(times(wants, middle))
            best, fewer, more = (name, middle, more) if name else (best, fewer, middle)
        return best

    def put(self, job: str, wants: Resources) -> str | None:
        """Choose and take."""
        return next(iter(self.fill(job, wants, 1)), None)

    def fill(self, job: str, wants: Resources, count: int, rest: Resources = NO_MORE) -> list[str]:
        """The nodes of so many tasks, chosen and taken one after the other; fewer where there is no more room. `rest`:
        what else of the job is to be placed.

        The best node stays the best until it is full: it is the job's then, and has less free than before.
        """
        nodes: list[str] = []
        purse, slots = self.purse(job), self.slots_of(job)
        count = count if purse is None else taken(purse, wants, count)[0]
        count = count if slots is None else min(count, slots)
        if not self.allows(job, wants):
            return []
        while len(nodes) < count and (name := self.choose(job, wants, count - len(nodes), rest)):
            times, left = taken(self.nodes[name].free, wants, count - len(nodes))
            self._give(job, name, left, times)
            nodes += [name] * times
        return nodes

    def fill_all(self, job: str, parts: Sequence[tuple[Resources, int]]) -> list[list[str]] | None:
        """The nodes of so many tasks of each kind, one kind after the other; None, and nothing taken, where they do
        not all fit.
        """
        if not self._may_have(job, parts):
            return None
        mark, rests = self.mark(), [NO_MORE]
        for wants, number in reversed(parts):
            rests.append(plus_times(rests[-1], wants, number))
        whole = rests.pop()
        if not self._homes(job) and (name := self._at_once(job, parts, whole)):
            return [[name] * number for _, number in parts]
        found: list[list[str]] = []
        for wants, number in parts:
            found.append(self.fill(job, wants, number, rests.pop()))
            if len(found[-1]) < number:
                self.undo(mark)
                return None
        return found

    def _may_have(self, job: str, parts: Sequence[tuple[Resources, int]]) -> bool:
        """Return whether the cluster allows so many tasks of each kind, and kinds as large as these."""
        slots = self.slots_of(job)
        if slots is not None and sum(number for _, number in parts) > slots:
            return False
        return not self.limits or all(self.allows(job, wants) for wants, number in parts if number)

    def _at_once(self, job: str, parts: Sequence[tuple[Resources, int]], whole: Resources) -> str | None:
        """The node to which all tasks of a job that stands nowhere would go one after the other; they are taken."""
        if self.purse(job) is not None or not any(number for _, number in parts):
            return None
        name = self._order.first(whole)
        if name is None:
            return None
        left = self.nodes[name].free
        for wants, number in parts:
            fitting, left = taken(left, wants, number)
            if fitting < number:
                return None
        self._give(job, name, left, sum(number for _, number in parts))
        return name

    def extend(self, job: str, name: str, more: Resources) -> bool:
        """Take more for a task that stands on a node; nothing, where the node or the quota has not so much."""
        if more == Resources():
            return True
        here, purse = self.nodes.get(name), self.purse(job)
        if here is None or not here.open or not fits(more, here.free) or not (purse is None or fits(more, purse)):
            return False
        self._give(job, name, less(here.free, more), 0)
        return True

    def _give(self, job: str, name: str, left: Resources, tasks: int) -> None:
        here, purse, slots = self.nodes[name], self.purse(job), self.slots_of(job)
        self._before.append((here, job, purse, slots))
        self._moments.append(next(self._ordinals))
        if purse is not None:
            self.purses[_space(job)] = less(purse, less(here.free, left))
        if slots is not None:
            self.slots[_space(job)] = slots - tasks
        hosts = here.hosts if job in here.hosts else here.hosts | {job}
        self._swap(here, Node(name, left, here.allocatable, here.open, hosts, here.returning, here.shunned))
        if job not in self._came:
            self._came[job] = {*self._survey.homes.get(job, ())}
        self._came[job].add(name)

    def question(self, job: str, most: Size, least: Size, sizes: RoleResources) -> Question | None:
        """The same for all that have no task yet, while nothing is taken, or what was taken is given back. So is the
        answer, where it is no. None for a job that has tasks.
        """
        if self._homes(job):
            return None
        limits = self.limits.get(_space(job)) if self.limits else None
        return self._moments[-1], self.purse(job), self.slots_of(job), limits, most, least, sizes

    @contextmanager
    def avoiding(self, names: Collection[str]) -> Iterator[None]:
        """Meanwhile no new task goes to these nodes."""
        avoided = [node for name in names if (node := self.nodes.get(name)) and node.takes]
        for node in avoided:
            self._swap(node, replace(node, shunned=True))
        self._moments[-1] = next(self._ordinals)
        try:
            yield
        finally:
            self._moments[-1] = next(self._ordinals)
            for node in avoided:
                self._swap(self.nodes[node.name], replace(self.nodes[node.name], shunned=False))

    def set_free(self, frees: Mapping[str, Resources], purses: Mapping[str, Resources]) -> None:
        """Change what these nodes have free, and what these namespaces may still take."""
        for name, free in frees.items():
            self._swap(self.nodes[name], replace(self.nodes[name], free=free))
        self.purses.update(purses)
        self._moments[-1] = next(self._ordinals)

    def mark(self) -> int:
        """The room as it is now, to come back to."""
        return len(self._before)

    def undo(self, mark: int) -> None:
        """Give back everything that was taken since."""
        while len(self._before) > mark:
            before, job, purse, slots = self._before.pop()
            self._moments.pop()
            self._swap(self.nodes[before.name], before)
            if purse is not None:
                self.purses[_space(job)] = purse
            if slots is not None:
                self.slots[_space(job)] = slots

    def _swap(self, here: Node, other: Node) -> None:
        self._stands = ("", 0), []
        if here.takes and other.takes:
            self._order.move(here.name, here.free, other.free)
        elif here.takes:
            self._order.leave(here.name, here.free)
        elif other.takes:
            self._order.come(other.name, other.free)
        self.nodes[here.name] = other


def _space(job: str) -> str:
    return job.partition(".")[0]


def place(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """The tasks of a job at a size, taken from `room`; None, and nothing taken, where they do not all fit.

    `keep` are the tasks that stand already (the newest of a role go first when there are too many), `serial` the first
    unused one.
    """
    if not keep:
        return _place_first(room, job, size, sizes, serial)
    stays = {role: _stay([t for t in keep if t.role == role], size.of(role)) for role in ROLES}
    missing = {role: _gaps(stays[role], size.of(role)) for role in ROLES}
    filled = room.fill_all(job, [(getattr(sizes, role), len(missing[role])) for role in FILLED])
    if filled is None:
        return None
    nodes = dict(zip(FILLED, filled, strict=True))
    tasks, serials = [], count(serial)
    for role in ROLES:
        new = _tasks(role, zip(missing[role], nodes[role], strict=True), getattr(sizes, role), serials)
        tasks += sorted([*stays[role].values(), *new], key=lambda task: task.index)
    return tuple(tasks)


def _place_first(room: Room, job: str, size: Size, sizes: RoleResources, serial: int) -> tuple[TaskPlan, ...] | None:
    """The same for a job that has no task yet."""
    filled = room.fill_all(job, [(sizes.worker, size.workers), (sizes.ps, size.ps), (sizes.chief, 1)])
    if filled is None:
        return None
    (workers, ps, chief), serials = map(enumerate, filled), count(serial)
    return (
        *_tasks("chief", chief, sizes.chief, serials),
        *_tasks("ps", ps, sizes.ps, serials),
        *_tasks("worker", workers, sizes.worker, serials),
    )


def _tasks(role: Role, where: Iterable[tuple[int, str]], each: Resources, serials: Iterator[int]) -> list[TaskPlan]:
    """`where`: the index of each, and its node."""
    return [TaskPlan(role=role, index=index, serial=next(serials), node=node, resources=each) for index, node in where]


def _gaps(stays: Mapping[int, TaskPlan], count: int) -> Sequence[int]:
    """The indices below `count` that nobody has."""
    return [index for index in range(count) if index not in stays] if stays else range(count)


def _stay(tasks: list[TaskPlan], count: int) -> dict[int, TaskPlan]:
    """Who stays, by index: an index below `count` is kept, a higher one moves down into a gap."""
    if not tasks:
        return {}
    oldest = sorted(tasks, key=lambda t: t.serial)[:count] if len(tasks) > count else tasks
    fixed = {t.index: t for t in oldest if t.index < count}
    gaps = _gaps(fixed, count)
    movers = sorted((t for t in oldest if t.index >= count), key=lambda t: t.index)
    return fixed | {i: replace(t, index=i) for i, t in zip(gaps, movers, strict=False)}


def place_most(
    room: Room, job: str, keep: Sequence[TaskPlan], most: Size, least: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """As `place`, at the largest size between `most` and `least` that fits; None where not even `least` does."""
    if room.refused and not keep and room.question(job, most, least, sizes) in room.refused:
        return None
    found = _place_most(room, job, keep, most, least, sizes, serial)
    if found is None and not keep and (question := room.question(job, most, least, sizes)):
        room.refused.add(question)
    return found


def _place_most(
    room: Room, job: str, keep: Sequence[TaskPlan], most: Size, least: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    found = place(room, job, keep, most, sizes, serial)
    if found is not None or most == least or not has_room(room, job, keep, least, sizes):
        return found
    steps = ladder(most, least)
    low, high = 0, len(steps) - 1  # steps[high:] fit
    while low < high:
        middle = (low + high) // 2
        if has_room(room, job, keep, steps[middle], sizes):
            high = middle
        else:
            low = middle + 1
    return place(room, job, keep, steps[low], sizes, serial)


def has_room(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, how: Placing = place
) -> bool:
    """Whether so the job would find room; nothing is taken. `place` need not make the tasks for that: as many are new
    as there are fewer than wanted.
    """
    mark = room.mark()
    if how is place:
        stand = Counter(task.role for task in keep)
        missing = [(getattr(sizes, role), max(0, size.of(role) - stand[role])) for role in FILLED]
        found = room.fill_all(job, missing) is not None
    else:
        found = how(room, job, keep, size, sizes, 0) is not None
    room.undo(mark)
    return found


@lru_cache(LADDERS)
def ladder(most: Size, least: Size) -> tuple[Size, ...]:
    """Sizes from `most` down to `least`, one task fewer each, giving up whichever has more of its range left."""
    steps, ps, workers = [most], most.ps, most.workers
    while ps > least.ps or workers > least.workers:
        if _share(workers, most.workers, least.workers) >= _share(ps, most.ps, least.ps):
            workers -= 1
        else:
            ps -= 1
        steps.append(Size(ps, workers))
    return tuple(steps)


def _share(now: int, most: int, least: int) -> float:
    return (now - least) / (most - least) if most > least else -1.0
