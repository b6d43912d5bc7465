"""Placement of devices on as few nodes as possible.

Devices exchange gradients at every step, over the slowest link between any two of them. Devices on
one node are several times as fast as the same devices on two nodes. A job that pauses anyway loses
nothing by a move, so its workers are colocated again. Of each of its nodes, from the one with most
of its workers on, all tasks stay or all tasks go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from services.allocator.placement.room import Room, place
from services.allocator.policies.contract import Size
from shared.messages import RoleResources, TaskPlan


def place_colocated(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """As `place`, on as few nodes as possible: tasks on nodes with few of the job's workers may
    have to move.
    """
    best_stays = None
    fewest = 0
    for stays in _possible_stays(keep):
        mark = room.mark()
        tasks = place(room, job, stays, size, sizes, serial)
        room.undo(mark)
        if tasks is None:
            continue
        nodes = worker_node_count(tasks)
        if best_stays is None or nodes < fewest:
            best_stays = stays
            fewest = nodes

    # Each trial was undone: place the best one again.
    if best_stays is None:
        return None
    return place(room, job, best_stays, size, sizes, serial)


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
    """As `gathered`; None, and nothing taken, where one node cannot hold all workers."""
    mark = room.mark()
    tasks = place_colocated(room, job, keep, size, sizes, serial)
    if tasks is not None and worker_node_count(tasks) > 1:
        room.undo(mark)
        return None
    return tasks


def worker_node_count(tasks: Iterable[TaskPlan]) -> int:
    """Return the number of nodes with workers."""
    return len({task.node for task in tasks if task.role == "worker"})
