"""Devices side by side on as few nodes as can be.

They exchange gradients at every step, over the slowest link between any two of them: what stands on one node is several
times as fast as the same on two. A job that pauses anyway loses nothing by moving, so then it is put together again:
of each of its nodes, from the one with most of its workers on, all stay or all go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from services.allocator.placing.placement import Room, place
from services.allocator.policies.contract import Size
from shared.messages import RoleResources, TaskPlan


def gathered(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """As `place`, on as few nodes as can be: who stands where few of the job do may have to move."""
    homes = [node for node, _ in Counter(task.node for task in keep if task.role == "worker").most_common()]
    best: tuple[TaskPlan, ...] | None = None
    for stays in [keep, *([task for task in keep if task.node in homes[:n]] for n in range(len(homes)))]:
        mark = room.mark()
        tasks = place(room, job, stays, size, sizes, serial)
        room.undo(mark)
        if tasks is not None and (best is None or spread(tasks) < spread(best)):
            best, kept = tasks, stays
    return None if best is None else place(room, job, kept, size, sizes, serial)


def spread(tasks: Iterable[TaskPlan]) -> int:
    """On how many nodes workers stand."""
    return len({task.node for task in tasks if task.role == "worker"})
