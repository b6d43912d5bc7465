"""Placers: functions that take capacity from a room for all tasks of a job at a size.

Law: a placer returns the tasks, or None; if it returns None, it has taken nothing. Tasks that stay
keep node and serial, and their index where the numbers stay dense. A new task gets a new serial
that was never used before.

`place` is the usual one. `place_colocated` and `place_on_one_node` put devices on as few nodes as
possible: devices exchange gradients at every step, over the slowest link between any two of them,
so devices on one node are several times as fast as the same devices on two nodes. A job that pauses
anyway loses nothing by a move, so its workers are colocated again. Its nodes are taken in the order
of their number of its workers, the largest first: all tasks on the first nodes stay, and all tasks
on the others move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from services.allocator.placement.room import Room
from services.allocator.policies.contract import Size
from shared.messages import Resources, Role, RoleResources, TaskPlan

ROLES: tuple[Role, ...] = ("chief", "ps", "worker")
FILLED: tuple[Role, ...] = ("worker", "ps", "chief")
"""The order of placement by role. A chief that is placed first could draw the workers to a node
with room for only one of them.
"""
Placer = Callable[
    [Room, str, Sequence[TaskPlan], Size, RoleResources, int], tuple[TaskPlan, ...] | None
]
"""A function like `place`."""


def place(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """Return the tasks of a job at a size, taken from `room`; None, and nothing taken, if they do
    not all fit.

    `keep`: the tasks that exist already; if there are too many, the newest of a role go first.
    `serial`: the first unused one.
    """
    if not keep:
        return _place_first(room, job, size, sizes, serial)

    # 1. The tasks that stay, and the indices of those that are missing.
    staying: dict[Role, dict[int, TaskPlan]] = {}
    missing: dict[Role, Sequence[int]] = {}
    for role in ROLES:
        staying[role] = _tasks_that_stay(keep, role, size.of(role))
        missing[role] = _missing_indices(staying[role], size.of(role))

    # 2. Nodes for those that are missing.
    parts = [(getattr(sizes, role), len(missing[role])) for role in FILLED]
    filled = room.fill_all(job, parts)
    if filled is None:
        return None
    nodes = dict(zip(FILLED, filled, strict=True))

    # 3. All tasks, by role and index.
    tasks: list[TaskPlan] = []
    for role in ROLES:
        each = getattr(sizes, role)
        new = _new_tasks(role, missing[role], nodes[role], each, serial)
        serial += len(new)
        tasks += sorted([*staying[role].values(), *new], key=_index)
    return tuple(tasks)


def _place_first(
    room: Room, job: str, size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """Return the tasks of a job that has none yet, as `place` does."""
    ps, workers = size.ps, size.workers
    filled = room.fill_all(job, [(sizes.worker, workers), (sizes.ps, ps), (sizes.chief, 1)])
    if filled is None:
        return None

    worker_nodes, ps_nodes, chief_nodes = filled
    return (
        *_new_tasks("chief", range(1), chief_nodes, sizes.chief, serial),
        *_new_tasks("ps", range(ps), ps_nodes, sizes.ps, serial + 1),
        *_new_tasks("worker", range(workers), worker_nodes, sizes.worker, serial + 1 + ps),
    )


def _new_tasks(
    role: Role, indices: Sequence[int], nodes: Sequence[str], each: Resources, serial: int
) -> list[TaskPlan]:
    """Return the tasks with these indices, each on its node."""
    tasks = []
    for index, node in zip(indices, nodes, strict=True):
        tasks.append(TaskPlan(role=role, index=index, serial=serial, node=node, resources=each))
        serial += 1
    return tasks


def _missing_indices(staying: Mapping[int, TaskPlan], count: int) -> Sequence[int]:
    """Return the indices below `count` that no task has."""
    if not staying:
        return range(count)
    return [index for index in range(count) if index not in staying]


def _tasks_that_stay(keep: Sequence[TaskPlan], role: Role, count: int) -> dict[int, TaskPlan]:
    """Return the tasks of a role that stay, by index: an index below `count` is kept, a higher one
    moves down into a gap.
    """
    tasks = [task for task in keep if task.role == role]
    if len(tasks) > count:
        tasks = sorted(tasks, key=_serial)[:count]

    staying = {}
    movers = []
    for task in tasks:
        if task.index < count:
            staying[task.index] = task
        else:
            movers.append(task)

    if movers:
        gaps = _missing_indices(staying, count)
        for index, task in zip(gaps, sorted(movers, key=_index), strict=False):
            staying[index] = replace(task, index=index)
    return staying


def _index(task: TaskPlan) -> int:
    return task.index


def _serial(task: TaskPlan) -> int:
    return task.serial


def shrink_tasks(tasks: Sequence[TaskPlan], size: Size) -> tuple[TaskPlan, ...]:
    """Return the tasks that a job keeps at a smaller size: the oldest of each role."""
    kept: list[TaskPlan] = []
    for role in ROLES:
        staying = _tasks_that_stay(tasks, role, size.of(role))
        kept += sorted(staying.values(), key=_index)
    return tuple(kept)


def place_most(
    room: Room,
    job: str,
    keep: Sequence[TaskPlan],
    most: Size,
    least: Size,
    sizes: RoleResources,
    serial: int,
) -> tuple[TaskPlan, ...] | None:
    """Place a job as `place` does, at the largest size between `most` and `least` that fits; None
    if not even `least` does.
    """
    if (
        not keep
        and room.unplaceable
        and room.placement_key(job, most, least, sizes) in room.unplaceable
    ):
        return None

    tasks = place(room, job, keep, most, sizes, serial)
    if tasks is not None:
        return tasks
    if most == least or not has_room(room, job, keep, least, sizes):
        key = None if keep else room.placement_key(job, most, least, sizes)
        if key is not None:
            room.unplaceable.add(key)
        return None

    # Binary search: where a size fits, all smaller ones do.
    steps = ladder(most, least)
    low = 0
    high = len(steps) - 1  # steps[high:] fit
    while low < high:
        middle = (low + high) // 2
        if has_room(room, job, keep, steps[middle], sizes):
            high = middle
        else:
            low = middle + 1
    return place(room, job, keep, steps[low], sizes, serial)


def has_room(
    room: Room,
    job: str,
    keep: Sequence[TaskPlan],
    size: Size,
    sizes: RoleResources,
    placer: Placer = place,
) -> bool:
    """Return True if there is room for the job at this size; nothing is taken. For `place` no tasks
    are made.
    """
    mark = room.mark()
    if placer is not place:
        found = placer(room, job, keep, size, sizes, 0) is not None
        room.undo(mark)
        return found

    # For `place` it is enough that the missing tasks fit.
    counts = Counter([task.role for task in keep])
    missing = []
    for role in FILLED:
        count = size.of(role) - counts[role]
        missing.append((getattr(sizes, role), max(0, count)))
    found = room.fill_all(job, missing) is not None
    room.undo(mark)
    return found


def ladder(most: Size, least: Size) -> tuple[Size, ...]:
    """Return the sizes from `most` down to `least`, each with one task fewer. The role with the
    larger rest of its range loses a task; workers, if both rests are equal.
    """
    floor = Size(min(most.ps, least.ps), min(most.workers, least.workers))
    left_ps = more_ps = most.ps - floor.ps
    left_workers = more_workers = most.workers - floor.workers

    steps = [most]
    while left_ps or left_workers:
        # left_workers / more_workers >= left_ps / more_ps, without the divisions.
        has_more_workers = left_workers * more_ps >= left_ps * more_workers
        if left_workers and (not left_ps or has_more_workers):
            left_workers -= 1
        else:
            left_ps -= 1
        steps.append(Size(floor.ps + left_ps, floor.workers + left_workers))
    return tuple(steps)


# ---------------------------------------------------------------- on few nodes


def place_colocated(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """Place a job as `place` does, on as few nodes as possible. Tasks on nodes with few of its
    workers may have to move.
    """
    best_staying = None
    fewest = 0
    for staying in _possible_stays(keep):
        mark = room.mark()
        tasks = place(room, job, staying, size, sizes, serial)
        room.undo(mark)
        if tasks is None:
            continue
        nodes = worker_node_count(tasks)
        if best_staying is None or nodes < fewest:
            best_staying = staying
            fewest = nodes

    # Each trial was undone: place the best one again.
    if best_staying is None:
        return None
    return place(room, job, best_staying, size, sizes, serial)


def _possible_stays(keep: Sequence[TaskPlan]) -> list[Sequence[TaskPlan]]:
    """Return the tasks that may stay: all of them, then those on the nodes with most workers, from
    none of these nodes to all but the last.
    """
    workers_on: Counter[str] = Counter()
    for task in keep:
        if task.role == "worker":
            workers_on[task.node] += 1
    homes = [node for node, _ in workers_on.most_common()]
    choices = [keep]
    for number in range(len(homes)):
        nodes = homes[:number]
        choices.append([task for task in keep if task.node in nodes])
    return choices


def place_on_one_node(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """Place a job as `place_colocated` does; None, and nothing taken, if its workers need more than
    one node.
    """
    mark = room.mark()
    tasks = place_colocated(room, job, keep, size, sizes, serial)
    if tasks is not None and worker_node_count(tasks) > 1:
        room.undo(mark)
        return None
    return tasks


def worker_node_count(tasks: Iterable[TaskPlan]) -> int:
    """Return the number of nodes with workers."""
    return len({task.node for task in tasks if task.role == "worker"})
