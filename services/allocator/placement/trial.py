"""One trial placement: the tasks of a job at a size, or why there is no room for them.

`try_place` takes capacity from the room, and returns the tasks as `Placed`; `undo` gives all of it
back. If there is no room, it takes nothing and returns a `Shortage`. The reasons of a shortage are
computed on demand, from the room at that time.

The cause of a shortage: a resource that is scarce now, or a task that no node can ever hold.

`missing_resources` places the tasks again, on trial, without their demand for one resource. If they
fit then, this resource is scarce. If one resource does not explain the shortage, combinations are
tried. There is no result if no node takes tasks, or if the quota is the cause. The free capacity of
all nodes together may look sufficient; then the text names the task that is larger than the largest
free part of a node.

`unschedulable_reason`: a task that is larger than every node waits forever. The text gives the
demand and the size of the largest node. If no node takes tasks at all, size is not the cause.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations

import msgspec
from msgspec.structs import replace

from services.allocator.placement.amounts import (
    ROUNDING,
    UNITS,
    WORDS,
    amounts,
    fits,
    smallest_enough,
)
from services.allocator.placement.placers import ROLES, Placer, has_room, ladder, place, place_most
from services.allocator.placement.quota import (
    added_resources,
    describe_shortage,
    limit_range_reason,
    never_allowed_reason,
    new_tasks,
    quota_shortage,
    roles_of,
)
from services.allocator.placement.resizing import place_all_resized, place_resized
from services.allocator.placement.room import Room, namespace_of
from services.allocator.policies.contract import Quota, Size
from shared.messages import Resources, Role, RoleResources, TaskPlan

Amounts = Mapping[str, Resources]
"""By node, or by namespace."""


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be placed at a size from `most` down to `least`, beside the tasks that it keeps.
    `sizes`: of its new tasks. `serial`: the first unused one. `placer`: any other than `place`
    places `most` as a whole. `avoid`: nodes that take nothing new. `opened`: nodes with taints that
    the job tolerates. `quota`: the whole quota of its namespace, by the settings and the cluster.
    """

    job: str
    keep: Sequence[TaskPlan]
    most: Size
    least: Size
    sizes: RoleResources
    serial: int
    placer: Placer = place
    avoid: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()
    quota: Quota | None = None

    def restriction(self, room: Room) -> AbstractContextManager[None]:
        """Restrict a room to the nodes that the request may use."""
        if self.avoid or self.opened:
            return room.restricted(self.avoid, self.opened)
        return nullcontext()

    @property
    def namespace(self) -> str:
        return namespace_of(self.job)

    def growth(self, size: Size) -> Resources:
        """Return the resources that the job takes beyond its tasks to come to a size."""
        is_stretched = self.placer is place_all_resized or self.placer is place_resized
        return added_resources(self.keep, size, self.sizes, stretched=is_stretched)


class Placed(msgspec.Struct):
    """Tasks that have a place. It stays taken until `undo`."""

    tasks: tuple[TaskPlan, ...]
    room: Room
    request: PlacementRequest
    mark: int
    remaining_quota: Resources | None
    slots: int | None

    @property
    def is_whole(self) -> bool:
        """Return True if the job has the largest size of the request."""
        return len(self.tasks) == 1 + self.request.most.ps + self.request.most.workers

    def undo(self) -> None:
        """Give back all that was placed."""
        self.room.undo(self.mark)

    def missing(self) -> Shortage:
        """Return why the job is no larger."""
        most = self.request.most
        return Shortage(self.room, self.request, most, self.tasks, self.remaining_quota, self.slots)

    def has_more_room_later(self, nodes: Amounts, quotas: Amounts) -> bool:
        """Return True if the job were larger with these amounts added. Its tasks stay taken."""
        self.undo()
        with self.room.with_more(nodes, quotas):
            later = try_place(self.room, self.request)
            if isinstance(later, Placed):
                later.undo()
        again = try_place(self.room, self.request)
        if isinstance(again, Placed):
            self.tasks = again.tasks
        return isinstance(later, Placed) and len(later.tasks) > len(self.tasks)


class Shortage(msgspec.Struct, frozen=True):
    """A size without room. `tasks`: the tasks that exist or were placed. `remaining_quota`,
    `slots`: the rest of the quota at the time of the trial; None: there is no limit.
    """

    room: Room
    request: PlacementRequest
    size: Size
    tasks: Sequence[TaskPlan]
    remaining_quota: Resources | None
    slots: int | None

    # ------------------------------------------------------------ why

    def missing_resources(self) -> str:
        """Return the resources that are short, to be put behind `waits for room`."""
        request = self.request
        return missing_resources(
            self.room, request.job, self.tasks, self.size, request.sizes, request.placer
        )

    def quota_reason(self, roles: Sequence[Role] = ()) -> str:
        """Return why the quota has no room for it, now or ever; empty: it has room. `roles`: those
        of the new tasks of a running job.
        """
        if self.remaining_quota is None:
            return ""
        request = self.request
        if request.keep:
            never = limit_range_reason(request.quota, request.namespace, roles, request.sizes)
        else:
            never = never_allowed_reason(request.namespace, self.size, request.sizes, request.quota)
        if never:
            return never
        limits = self.room.limits_of(request.job)
        tasks = new_tasks(request.keep, self.size)
        wants = request.growth(self.size)
        return describe_shortage(
            request.namespace, wants, tasks, self.remaining_quota, self.slots, limits
        )

    def describe(self) -> str:
        """Return why there is no room for a job without tasks: the size of the nodes, the quota, or
        the room now. Jobs of one size without a quota share the reason as long as nothing changes.
        """
        request = self.request
        key = None
        if self.remaining_quota is None:
            key = self.room.placement_key(request.job, self.size, self.size, request.sizes)
        if key is not None and key in self.room.wait_reasons:
            return self.room.wait_reasons[key]
        roles = roles_of(self.size)
        reason = self.describe_for(roles, f"for a chief, {self.size.describe()}")
        if key is not None:
            self.room.wait_reasons[key] = reason
        return reason

    def describe_for(self, roles: Sequence[Role], purpose: str) -> str:
        """Return why there is no room for tasks of these roles."""
        never = unschedulable_reason(self.room, roles, self.request.sizes) or self.quota_reason(
            roles
        )
        return never or f"waits for room{self.missing_resources()} {purpose}"

    # ------------------------------------------------------------ a part of it

    def largest_part(self, now: Size) -> Size:
        """Return the largest size with room, between the wanted one and `now`. There is rarely room
        for even one task more, so that is tried first.
        """
        steps = ladder(self.request.most, now)[:-1]
        if not steps or steps[-1] == now or not self._has_room(steps[-1]):
            return now
        step = smallest_enough(len(steps) - 1, lambda number: self._has_room(steps[number]))
        return now if step is None else steps[step]

    def place_part(self, now: Size) -> Placed | None:
        """Place the part of a growth that there is room for; None: there is no room for any."""
        size = self.largest_part(now)
        if size == now:
            return None
        request = msgspec.structs.replace(self.request, most=size, least=size)
        placed = try_place(self.room, request)
        return placed if isinstance(placed, Placed) else None

    def has_more_room_later(self, now: Size, nodes: Amounts, quotas: Amounts) -> bool:
        """Return True if there were room for more tasks with these amounts added."""
        largest = self.largest_part(now)
        with self.room.with_more(nodes, quotas):
            return self._has_room(self.request.most) or self.largest_part(now) != largest

    def _has_room(self, size: Size) -> bool:
        """Return True if the job fits at this size into the capacity that is free now. Nothing is
        taken.
        """
        request = self.request
        with request.restriction(self.room):
            return has_room(
                self.room, request.job, request.keep, size, request.sizes, request.placer
            )


def try_place(room: Room, request: PlacementRequest) -> Placed | Shortage:
    """Place a job at the largest size that fits; take nothing if not even the least does."""
    mark = room.mark()
    remaining_quota = room.remaining_quota(request.job)
    slots = room.slots_of(request.job)
    with request.restriction(room):
        tasks = _place(room, request)
    if tasks is None:
        return Shortage(room, request, request.least, request.keep, remaining_quota, slots)
    return Placed(tasks, room, request, mark, remaining_quota, slots)


def quota_grant(room: Room, request: PlacementRequest) -> tuple[Size, str]:
    """Return the largest size from `most` down to `least` that the quota has room for, and why it
    is no larger. It is never smaller than `least`.
    """
    for size in ladder(request.most, request.least):
        if room.grants(request.job, request.growth(size), new_tasks(request.keep, size)):
            break
    if size == request.most:
        return size, ""
    wants = request.growth(request.most)
    return size, quota_shortage(room, request.job, wants, new_tasks(request.keep, request.most))


def _place(room: Room, request: PlacementRequest) -> tuple[TaskPlan, ...] | None:
    """Take capacity for the tasks of a request; None: there is no room. Only plain placement tries
    sizes below `most`.
    """
    job = request.job
    keep = request.keep
    sizes = request.sizes
    serial = request.serial
    if request.placer is not place:
        return request.placer(room, job, keep, request.most, sizes, serial)
    return place_most(room, job, keep, request.most, request.least, sizes, serial)


# ---------------------------------------------------------------- the cause of a shortage


def missing_resources(
    room: Room,
    job: str,
    keep: Sequence[TaskPlan],
    size: Size,
    sizes: RoleResources,
    placer: Placer = place,
) -> str:
    """Return the resources that are short, to be put behind `waits for room`: ` (too little
    memory)`; empty: there is nothing to name.
    """
    key = None if keep else room.placement_key(job, size, size, sizes)
    if key is not None and key in room.shortage_texts:
        return room.shortage_texts[key]
    text = ""
    names = _short_resources(room, job, keep, size, sizes, placer)
    if names:
        missing = _missing_roles(keep, size)
        text = _describe_shortage(names, _oversized_tasks(room, missing, sizes, names))
    if key is not None:
        room.shortage_texts[key] = text
    return text


def _missing_roles(keep: Sequence[TaskPlan], size: Size) -> list[Role]:
    """Return the roles with fewer tasks than at a size."""
    counts = Counter([task.role for task in keep])
    return [role for role in ROLES if size.of(role) > counts[role]]


def _short_resources(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, placer: Placer
) -> tuple[str, ...]:
    """Return the fewest resources that would have to be plenty, in the order of `WORDS`. The caller
    has found that there is no room.
    """
    wanted = [name for name in WORDS if _largest_amount(sizes, ROLES, name)[0]]
    for count in range(1, len(wanted) + 1):
        for names in combinations(wanted, count):
            if has_room(room, job, keep, size, _sizes_without(sizes, names), placer):
                return names
    return ()


def _largest_amount(sizes: RoleResources, roles: Sequence[Role], name: str) -> tuple[float, Role]:
    """Return the most that a task of these roles wants of a resource, and the first such role."""
    largest = 0.0
    largest_role = roles[0]
    for role in roles:
        amount = getattr(getattr(sizes, role), name)
        if amount > largest:
            largest = amount
            largest_role = role
    return largest, largest_role


def _sizes_without(sizes: RoleResources, names: Sequence[str]) -> RoleResources:
    """Return the sizes of tasks that want nothing of these resources."""
    nothing = dict.fromkeys(names, 0)
    return RoleResources(
        chief=replace(sizes.chief, **nothing),
        ps=replace(sizes.ps, **nothing),
        worker=replace(sizes.worker, **nothing),
    )


def _oversized_tasks(
    room: Room, roles: Sequence[Role], sizes: RoleResources, names: Sequence[str]
) -> list[str]:
    """Return, for each resource, the task that wants most of it, if no node has so much free."""
    texts: list[str] = []
    if not roles:
        return texts
    most = dict(zip(WORDS, room.most_free(), strict=True))
    for name in names:
        amount, role = _largest_amount(sizes, roles, name)
        if amount > most[name] + ROUNDING:
            texts.append(_describe_task(role, amount, name, most[name]))
    return texts


def _describe_task(role: Role, amount: float, name: str, most: float) -> str:
    """Return the text for a task that is larger than the free part of every node."""
    if most <= ROUNDING:
        return f"no node has any {WORDS[name]} free"
    free = math.floor(100 * (most + ROUNDING)) / 100
    return f"a {role} needs {amount:g} {UNITS[name]}, and the most free on one node is {free:g}"


def _describe_shortage(names: Sequence[str], too_large: Sequence[str]) -> str:
    """Return the text that follows `waits for room`."""
    little = "few" if names == ("gpu",) else "little"
    words = " and ".join([WORDS[name] for name in names])
    why = f": {'; '.join(too_large)}" if too_large else ""
    return f" (too {little} {words}{why})"


NEVER = "no node is large enough"
"""Each such reason begins with this, and no other reason does."""


def unschedulable_reason(room: Room, roles: Iterable[Role], sizes: RoleResources) -> str:
    """Return why freed capacity never helps; empty: a task of each of these roles fits some empty
    node.
    """
    reasons = []
    for role in dict.fromkeys(roles):
        wants = getattr(sizes, role)
        largest = _nearest_shape(wants, room.shapes)
        if largest is None or fits(wants, largest):
            continue
        sentence = (
            f"it needs {describe_resources(wants)}, and the largest has"
            f" {describe_resources(largest)}"
        )
        reasons.append(f"{NEVER} for a {role}: {sentence}")
    return "; ".join(reasons)


def describe_resources(amount: Resources) -> str:
    """Return an amount as text."""
    devices = f", {amount.gpu} gpu" if amount.gpu else ""
    return f"{amount.cpu:g} cpu, {amount.memory_gib:.4g} GiB{devices}"


def _nearest_shape(wants: Resources, shapes: tuple[Resources, ...]) -> Resources | None:
    """Return the first node size that holds the task; else the one with the smallest lack."""
    for shape in shapes:
        if fits(wants, shape):
            return shape
    return min(shapes, key=lambda shape: _missing_share(wants, shape), default=None)


def _missing_share(wants: Resources, free: Resources) -> float:
    """Return the missing shares of the wanted amounts, summed over cpu, memory and devices."""
    lack = 0.0
    for wanted, available in zip(amounts(wants), amounts(free), strict=True):
        if available < wanted:
            lack += 1 - available / wanted
    return lack
