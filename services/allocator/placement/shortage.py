"""The cause of a shortage: a resource that is scarce now, or a task that no node can ever hold.

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
from collections.abc import Iterable, Sequence
from itertools import combinations

from msgspec.structs import replace

from services.allocator.placement.amounts import ROUNDING, UNITS, WORDS, amounts, fits
from services.allocator.placement.placers import ROLES, Placer, has_room, place
from services.allocator.placement.room import Room
from services.allocator.policies.contract import Size
from shared.messages import Resources, Role, RoleResources, TaskPlan


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
    question = None if keep else room.placement_key(job, size, size, sizes)
    if question is not None and question in room.shortage_texts:
        return room.shortage_texts[question]
    text = ""
    names = _short_resources(room, job, keep, size, sizes, placer)
    if names:
        missing = _missing_roles(keep, size)
        text = _describe_shortage(names, _oversized_tasks(room, missing, sizes, names))
    if question is not None:
        room.shortage_texts[question] = text
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
    return f"a {role} wants {amount:g} {UNITS[name]}, and the most free on one node is {free:g}"


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
        sentence = f"it wants {describe_resources(wants)}, and the largest has {describe_resources(largest)}"
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
