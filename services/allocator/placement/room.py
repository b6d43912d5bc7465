"""The free capacity of nodes and quotas for trial placements, and the choice of a node for a task.

Law: no node gets more cpu, memory or devices than it has free. A node that is not ready, is
cordoned or has a hard taint gets nothing. No namespace gets more than its quota has left. Traffic
between nodes is slow, so a job uses few nodes: new tasks go to nodes with tasks of the job, as far
as there is room (bin packing against fragmentation). Otherwise as many of them as possible go to
one node; of several such nodes, to the one with the least capacity left after that (best fit).

`trial.py` is the entry for the steps of a decision: it returns the placement or the shortage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

from msgspec.structs import replace

from services.allocator.placement.amounts import (
    NO_MORE,
    add,
    add_multiple,
    count_fitting,
    fits,
    multiply,
    smaller,
    subtract,
)
from services.allocator.placement.best_fit_index import (
    NO_NODES,
    BestFitIndex,
    NodeIndex,
    best_fit_key,
)
from services.allocator.policies.contract import Node, Size, TaskLimits
from shared.messages import Resources, RoleResources

Parts = Sequence[tuple[Resources, int]]
"""Tasks of a job by kind: the size of one, and their number."""
Homes = Mapping[str, frozenset[str]]
"""By job: the names of its nodes."""
NOWHERE: frozenset[str] = frozenset()
PlacementKey = tuple[
    int, Resources | None, int | None, TaskLimits | None, Size, Size, RoleResources
]
"""A placement that was tried: the moment, the remaining quota, the remaining number of tasks, the
limits of a task, the largest and the least size, and the sizes of tasks.
"""


class Room:
    """Free capacity for trial placements. Capacity that is taken here can be given back.

    `remaining_quotas`: the resources that each namespace with a quota may still take. `slots`: the
    number of tasks that it may still get, if that is limited. `limits`: the cluster's limits for
    one task. `shunned`: names of nodes that take nothing new.

    `index`: the index of nearly the same nodes. The first placement makes the index of these nodes
    from it; then it follows each change. Results are remembered as long as nothing changes.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        remaining_quotas: Mapping[str, Resources] | None = None,
        slots: Mapping[str, int] | None = None,
        limits: Mapping[str, TaskLimits] | None = None,
        shunned: Collection[str] = (),
        index: NodeIndex = NO_NODES,
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        for name in shunned:
            if name in self.nodes:
                self.nodes[name] = replace(self.nodes[name], shunned=True)
        self.remaining_quotas = dict(remaining_quotas or {})
        self.slots = dict(slots or {})
        self.limits = limits or {}
        # The index: nodes in the order of their free amounts, and the nodes that each job had at
        # first.
        self._index = index
        self._order: BestFitIndex | None = None
        self._first_homes: Homes | None = None
        self._new_homes: dict[str, set[str]] = {}
        # The state before each placement, in order, for `undo`.
        self._undo_log: list[tuple[Node, str, Resources | None, int | None]] = []
        self._ordinals = count(1)
        self._moments = [0]
        # The amounts that are held back, by node and by namespace.
        self._held_nodes: dict[str, Resources] = {}
        self._held_quotas: dict[str, Resources] = {}
        # Results that are remembered within the pass.
        self._shapes: tuple[Resources, ...] | None = None
        self._last_homes: tuple[tuple[str, int], list[Node]] = (("", 0), [])
        self._last_most_free: tuple[int, tuple[float, float, int]] = (-1, (0.0, 0.0, 0))
        self.unplaceable: set[PlacementKey] = set()
        """Requests without a placement."""
        self.shortage_texts: dict[PlacementKey, str] = {}
        """The resources that are short, as text (`trial.py`)."""
        self.wait_reasons: dict[PlacementKey, str] = {}
        """The reason of a waiting job without a quota (`trial.py`)."""

    # ------------------------------------------------------------ the index

    def order(self) -> BestFitIndex:
        """Return the nodes that take tasks, in the order of their free amounts."""
        if self._order is None:
            self._order, self._first_homes = self._build_index()
        return self._order

    def first_homes(self) -> Homes:
        """Return the nodes of each job as they were before anything was placed here."""
        if self._first_homes is None:
            self._order, self._first_homes = self._build_index()
        return self._first_homes

    def _build_index(self) -> tuple[BestFitIndex, Homes]:
        """Return the order of the nodes and each job's nodes: those of the index, changed where the
        nodes are not as they are there.
        """
        known = self._index.nodes
        order = self._index.order.copy()
        homes = dict(self._index.homes)
        others = []
        for name, node in self.nodes.items():
            before = known.get(name)
            if before is node:
                continue
            if before is not None and before.takes:
                order.remove(name, before.free)
            if node.takes:
                others.append((name, node.free))
            for job in node.hosts:
                homes[job] = homes.get(job, NOWHERE) | {name}
        order.add(others)
        return order, homes

    @property
    def shapes(self) -> tuple[Resources, ...]:
        """Return the distinct sizes of the open nodes. Placements do not change them."""
        if self._shapes is None:
            shapes: dict[Resources, None] = {}
            for node in self.nodes.values():
                if node.open:
                    shapes[node.allocatable] = None
            self._shapes = tuple(shapes)
        return self._shapes

    def with_changes(
        self,
        nodes: Iterable[Node],
        remaining_quotas: Mapping[str, Resources],
        slots: Mapping[str, int],
    ) -> Room:
        """Return another room with these nodes in place of those of the same names, and with these
        quotas.
        """
        other = Room((), remaining_quotas, slots, self.limits)
        other.nodes = self.nodes.copy()
        other._order = self.order().copy()
        other._first_homes = self.first_homes()
        other._new_homes = {job: names.copy() for job, names in self._new_homes.items()}
        for node in nodes:
            other._replace_node(other.nodes[node.name], node)
        return other

    def _homes(self, job: str) -> list[Node]:
        """Return the nodes of a job."""
        key = job, self._moments[-1]
        if self._last_homes[0] == key:
            return self._last_homes[1]
        names = self._new_homes.get(job) or self.first_homes().get(job, NOWHERE)
        homes = []
        for name in names:
            node = self.nodes[name]
            if job in node.hosts:
                homes.append(node)
        self._last_homes = key, homes
        return homes

    # ------------------------------------------------------------ quotas

    def remaining_quota(self, job: str) -> Resources | None:
        """Return the remaining quota of a job's namespace; None: there is no limit."""
        return self.remaining_quotas.get(namespace_of(job)) if self.remaining_quotas else None

    def slots_of(self, job: str) -> int | None:
        """Return how many more tasks its namespace may have; None: any number."""
        return self.slots.get(namespace_of(job)) if self.slots else None

    def limits_of(self, job: str) -> TaskLimits | None:
        """Return the limits of the cluster for the tasks of the job's namespace; None: there are
        none.
        """
        return self.limits.get(namespace_of(job)) if self.limits else None

    def allows(self, job: str, wants: Resources) -> bool:
        """Return True if a task of the job may be as large as that."""
        limits = self.limits_of(job)
        return limits is None or limits.most is None or fits(wants, limits.most)

    def grants(self, job: str, wants: Resources, tasks: int) -> bool:
        """Return True if the quota has so much left, and room for so many tasks."""
        remaining_quota = self.remaining_quota(job)
        if remaining_quota is not None and not fits(wants, remaining_quota):
            return False
        slots = self.slots_of(job)
        return slots is None or tasks <= slots

    # ------------------------------------------------------------ the choice of nodes

    def choose(
        self, job: str, wants: Resources, count: int = 1, rest: Resources = NO_MORE
    ) -> str | None:
        """Return the best node for the first of so many more tasks: a node of the job, else one
        with room for all of them and the `rest` of the job, else one with room for most of them.
        """
        beside = self._best_home(job, wants)
        if beside is not None:
            return beside
        if rest is not NO_MORE:
            name = self.order().best_fit(add_multiple(rest, wants, count))
            if name:
                return name
        return self._best_for_most(wants, count)

    def _best_home(self, job: str, wants: Resources) -> str | None:
        """Return the best fit of the nodes with tasks of the job."""
        ranks = []
        for node in self._homes(job):
            if node.takes and fits(wants, node.free):
                ranks.append(best_fit_key(node.free, node.name))
        return min(ranks)[-1] if ranks else None

    def most_free(self) -> tuple[float, float, int]:
        """Return the most cores, GiB and devices that are free on one node that takes new tasks."""
        if self._last_most_free[0] != self._moments[-1]:
            self._last_most_free = self._moments[-1], self.order().largest_free()
        return self._last_most_free[1]

    def _best_for_most(self, wants: Resources, count: int) -> str | None:
        """Return the best fit of the nodes that hold most of so many tasks."""
        order = self.order()
        best = order.best_fit(wants)
        if best is None:
            return None
        fewer, more = 1, count + 1  # `fewer` fit on a node; `more` do not, or are not needed
        while more - fewer > 1:
            middle = (fewer + more) // 2 if more <= count else count
            name = order.best_fit(multiply(wants, middle))
            if name:
                best, fewer = name, middle
            else:
                more = middle
        return best

    # ------------------------------------------------------------ taking

    def put(self, job: str, wants: Resources) -> str | None:
        """Take capacity for one task on the best node, and return the node; None: there is no
        room.
        """
        return next(iter(self.fill(job, wants, 1)), None)

    def fill(self, job: str, wants: Resources, count: int, rest: Resources = NO_MORE) -> list[str]:
        """Take capacity for so many tasks, one after the other, and return their nodes; fewer if
        there is no more room. `rest`: the amount of the job that is placed afterwards.

        The best node stays the best until it is full, because the job has a task there then, and it
        has less free than before.
        """
        count = self._granted_count(job, wants, count)
        nodes: list[str] = []
        while len(nodes) < count:
            name = self.choose(job, wants, count - len(nodes), rest)
            if not name:
                break
            number, left = count_fitting(self.nodes[name].free, wants, count - len(nodes))
            self._take(job, name, left, number)
            nodes += [name] * number
        return nodes

    def _granted_count(self, job: str, wants: Resources, count: int) -> int:
        """Return how many of so many tasks the limits and the quota allow."""
        if not self.allows(job, wants):
            return 0
        remaining_quota = self.remaining_quota(job)
        if remaining_quota is not None:
            count, _ = count_fitting(remaining_quota, wants, count)
        slots = self.slots_of(job)
        return count if slots is None else min(count, slots)

    def fill_all(self, job: str, parts: Parts) -> list[list[str]] | None:
        """Take capacity for so many tasks of each kind, one kind after the other, and return their
        nodes. None, and nothing taken, if they do not all fit.
        """
        if not self._is_allowed(job, parts):
            return None
        rest_after = [NO_MORE]  # the amounts still to be placed, in reverse order
        for wants, number in reversed(parts):
            rest_after.append(add_multiple(rest_after[-1], wants, number))
        total = rest_after.pop()
        if not self._homes(job):
            name = self._take_on_one_node(job, parts, total)
            if name:
                return [[name] * number for _, number in parts]
        return self._fill_in_turn(job, parts, rest_after)

    def _fill_in_turn(
        self, job: str, parts: Parts, rest_after: list[Resources]
    ) -> list[list[str]] | None:
        """Take the tasks of one kind after the other. `rest_after`: the amount that is placed after
        each kind, the last one first.
        """
        mark = self.mark()
        found: list[list[str]] = []
        for wants, number in parts:
            nodes = self.fill(job, wants, number, rest_after.pop())
            if len(nodes) < number:
                self.undo(mark)
                return None
            found.append(nodes)
        return found

    def _is_allowed(self, job: str, parts: Parts) -> bool:
        """Return True if the cluster allows so many tasks of each kind, and kinds as large as
        these.
        """
        slots = self.slots_of(job)
        if slots is not None and sum([number for _, number in parts]) > slots:
            return False
        if not self.limits:
            return True
        return all(self.allows(job, wants) for wants, number in parts if number)

    def _take_on_one_node(self, job: str, parts: Parts, total: Resources) -> str | None:
        """Take all tasks of a job without tasks from the one node that they would all go to, one
        after the other; None: they go to several.
        """
        tasks = sum([number for _, number in parts])
        remaining_quota = self.remaining_quota(job)
        if not tasks or (remaining_quota is not None and not fits(total, remaining_quota)):
            return None
        name = self.order().best_fit(total)
        if name is None:
            return None

        left = self.nodes[name].free
        for wants, number in parts:
            fitting, left = count_fitting(left, wants, number)
            if fitting < number:
                return None
        self._take(job, name, left, tasks)
        return name

    def extend(self, job: str, name: str, more: Resources) -> bool:
        """Take more for a task on its node. Return False, and take nothing, if the node or the
        quota has less.
        """
        if more == Resources():
            return True
        node = self.nodes.get(name)
        if node is None or not node.open or not fits(more, node.free):
            return False
        remaining_quota = self.remaining_quota(job)
        if remaining_quota is not None and not fits(more, remaining_quota):
            return False
        self._take(job, name, subtract(node.free, more), 0)
        return True

    def _take(self, job: str, name: str, left: Resources, tasks: int) -> None:
        """Take so many tasks of the job from a node; `left`: its free amount afterwards."""
        node = self.nodes[name]
        remaining_quota = self.remaining_quota(job)
        slots = self.slots_of(job)

        # Remember the state before, for `undo`.
        self._undo_log.append((node, job, remaining_quota, slots))
        self._moments.append(next(self._ordinals))

        # Take it from the quota, and from the node.
        if remaining_quota is not None:
            self.remaining_quotas[namespace_of(job)] = subtract(
                remaining_quota, subtract(node.free, left)
            )
        if slots is not None:
            self.slots[namespace_of(job)] = slots - tasks
        hosts = node.hosts if job in node.hosts else node.hosts | {job}
        self._replace_node(
            node,
            Node(name, left, node.allocatable, node.open, hosts, node.returning, node.shunned),
        )

        # Remember that the job is there now.
        came = self._new_homes.get(job)
        if came is None:
            came = self._new_homes[job] = {*self.first_homes().get(job, ())}
        came.add(name)

    def mark(self) -> int:
        """Return a mark of the present state, for `undo`."""
        return len(self._undo_log)

    def undo(self, mark: int) -> None:
        """Give back everything that was taken since the mark."""
        while len(self._undo_log) > mark:
            before, job, remaining_quota, slots = self._undo_log.pop()
            self._moments.pop()
            self._replace_node(self.nodes[before.name], before)
            if remaining_quota is not None:
                self.remaining_quotas[namespace_of(job)] = remaining_quota
            if slots is not None:
                self.slots[namespace_of(job)] = slots

    def placement_key(
        self, job: str, most: Size, least: Size, sizes: RoleResources
    ) -> PlacementKey | None:
        """Return a key of this request, equal for all jobs without tasks and with the same quota,
        as long as nothing is taken for good. None for a job with tasks.
        """
        if self._homes(job):
            return None
        remaining_quota = self.remaining_quota(job)
        slots = self.slots_of(job)
        limits = self.limits_of(job)
        return self._moments[-1], remaining_quota, slots, limits, most, least, sizes

    # ------------------------------------------------------------ other amounts for a while

    @contextmanager
    def restricted(self, avoided: Collection[str], opened: Collection[str] = ()) -> Iterator[None]:
        """Inside the context, place no new tasks on the avoided nodes. The opened nodes take new
        tasks, although they have taints.
        """
        opening = [name for name in opened if name in self.nodes and not self.nodes[name].open]
        for name in opening:
            self._replace_node(self.nodes[name], replace(self.nodes[name], open=True))
        closing = [name for name in avoided if name in self.nodes and self.nodes[name].takes]
        for name in closing:
            self._replace_node(self.nodes[name], replace(self.nodes[name], shunned=True))
        self._begin_moment(forget_shapes=bool(opening))
        try:
            yield
        finally:
            self._begin_moment(forget_shapes=bool(opening))
            for name in closing:
                self._replace_node(self.nodes[name], replace(self.nodes[name], shunned=False))
            for name in opening:
                self._replace_node(self.nodes[name], replace(self.nodes[name], open=False))

    def _begin_moment(self, *, forget_shapes: bool) -> None:
        """Forget the results that were remembered for the nodes as they were."""
        self._moments[-1] = next(self._ordinals)
        if forget_shapes:
            self._shapes = None

    @contextmanager
    def with_more(
        self, nodes: Mapping[str, Resources], quotas: Mapping[str, Resources]
    ) -> Iterator[None]:
        """Inside the context, add these amounts to the nodes and to the quotas. Everything that is
        taken inside has to be given back before its end.
        """
        free = {}
        more_free = {}
        for name in nodes.keys() & self.nodes.keys():
            free[name] = self.nodes[name].free
            more_free[name] = add(free[name], nodes[name])
        remaining_quotas = {}
        more_left = {}
        for namespace in quotas.keys() & self.remaining_quotas.keys():
            remaining_quotas[namespace] = self.remaining_quotas[namespace]
            more_left[namespace] = add(remaining_quotas[namespace], quotas[namespace])

        self._set_free(more_free, more_left)
        try:
            yield
        finally:
            self._set_free(free, remaining_quotas)

    def hold_back(self, nodes: Mapping[str, Resources], quotas: Mapping[str, Resources]) -> None:
        """Hold back these amounts, as far as they are free, in place of those that were held back
        before.
        """
        names = nodes.keys() & self.nodes.keys()
        free = {name: self.nodes[name].free for name in names | self._held_nodes.keys()}
        self._held_nodes = _move_reserve(free, self._held_nodes, nodes)

        namespaces = quotas.keys() & self.remaining_quotas.keys()
        remaining_quotas = {
            namespace: self.remaining_quotas[namespace]
            for namespace in namespaces | self._held_quotas.keys()
        }
        self._held_quotas = _move_reserve(remaining_quotas, self._held_quotas, quotas)
        self._set_free(free, remaining_quotas)

    def _set_free(
        self, free_by_node: Mapping[str, Resources], remaining_quotas: Mapping[str, Resources]
    ) -> None:
        """Change the free amounts of these nodes, and the rest of these quotas."""
        for name, free in free_by_node.items():
            self._replace_node(self.nodes[name], replace(self.nodes[name], free=free))
        self.remaining_quotas.update(remaining_quotas)
        self._moments[-1] = next(self._ordinals)

    def _replace_node(self, before: Node, after: Node) -> None:
        """Replace a node, and update the index."""
        self._last_homes = ("", 0), []
        self.nodes[before.name] = after
        order = self._order
        if order is None:
            return
        if before.takes and after.takes:
            order.move(before.name, before.free, after.free)
        elif before.takes:
            order.remove(before.name, before.free)
        elif after.takes:
            order.insert(after.name, after.free)


def _move_reserve(
    free: dict[str, Resources],
    held_before: Mapping[str, Resources],
    wanted: Mapping[str, Resources],
) -> dict[str, Resources]:
    """Give back the amounts that were held, and hold the wanted ones, as far as they are free.

    `free` is changed; the held amounts are returned.
    """
    for name, amount in held_before.items():
        free[name] = add(free[name], amount)
    holds = {}
    for name, amount_free in free.items():
        if name in wanted:
            holds[name] = smaller(amount_free, wanted[name])
            free[name] = subtract(amount_free, holds[name])
    return holds


def namespace_of(job: str) -> str:
    """Return the namespace of a job's key, `<namespace>.<job>`."""
    return job.partition(".")[0]
