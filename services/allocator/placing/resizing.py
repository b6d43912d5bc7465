"""How large a job's tasks are to be, and how those that stand become so: in place, without a pause.

Law: a task grows by no more than its node has free, and only on a node that takes tasks; what a task gives up is free
when it is seen free. Devices cannot change in place. A role whose tasks ran out of memory never gets so little again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from services.allocator.exits import OUT_OF_MEMORY
from services.allocator.job import Job
from services.allocator.placing.amounts import less
from services.allocator.placing.placement import ROLES, Room, place
from services.allocator.placing.quota import within_limits
from services.allocator.policies.contract import Size
from services.allocator.rules import Rules
from services.allocator.seen import task_sizes
from shared.messages import Resources, Role, RoleResources, TaskPlan


def wanted_sizes(job: Job, sizes: RoleResources | None, rules: Rules) -> RoleResources:
    """Those that a policy wants; where it says nothing, what the tasks have now."""
    asked = task_sizes(job, rules)
    if sizes is None and job.wanted is None:
        return asked
    if sizes is None:
        return RoleResources(**{role: _held(job, role, getattr(asked, role), rules) for role in ROLES})
    quota = rules.quotas.get(job.request.namespace)
    chosen: dict[str, Resources] = {}
    for role in ROLES:
        size = within_limits(getattr(sizes, role), quota)
        chosen[role] = _chosen(job, role, size, getattr(asked, role))
    return RoleResources(**chosen)


def _chosen(job: Job, role: Role, size: Resources, asked: Resources) -> Resources:
    starved = any(ended.role == role and ended.reason == OUT_OF_MEMORY for ended in job.exits.values())
    memory = max(size.memory_gib, asked.memory_gib) if starved else size.memory_gib
    return Resources(cpu=size.cpu, memory_gib=memory, gpu=asked.gpu)


def _held(job: Job, role: Role, asked: Resources, rules: Rules) -> Resources:
    """What the role's largest task has, and more memory if one ran out of it; as asked for where there is no task."""
    tasks = [task for task in (job.wanted.tasks if job.wanted else ()) if task.role == role]
    if not tasks:
        return asked
    ends = [ended for task in tasks if (ended := job.exit_of(task))]
    factor = rules.oom_memory_factor if any(ended.reason == OUT_OF_MEMORY for ended in ends) else 1.0
    memory = factor * max(task.resources.memory_gib for task in tasks)
    memory = max(memory, asked.memory_gib) if factor > 1 else memory
    return Resources(cpu=max(task.resources.cpu for task in tasks), memory_gib=memory, gpu=asked.gpu)


def in_place(room: Room, job: str, tasks: Sequence[TaskPlan], sizes: RoleResources) -> tuple[TaskPlan, ...]:
    """The same tasks, each of its new size where its node has room for that, else as it was."""
    return tuple(_stretched(room, job, task, getattr(sizes, task.role)) for task in tasks)


def replaced(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """As `place`, with every task of its new size; None, and nothing taken, where they do not all fit."""
    mark = room.mark()
    placed = place(room, job, keep, size, sizes, serial)
    if placed is None:
        return None
    tasks = in_place(room, job, placed, sizes)
    if alike(tasks, sizes):
        return tasks
    room.undo(mark)
    return None


def alike(tasks: Sequence[TaskPlan], sizes: RoleResources) -> bool:
    """Is every task of its role's size?"""
    return all(_resized(task, getattr(sizes, task.role)) == task for task in tasks)


def _stretched(room: Room, job: str, task: TaskPlan, size: Resources) -> TaskPlan:
    new = _resized(task, size)
    if not room.allows(job, new.resources):
        return task
    return new if room.extend(job, task.node, less(new.resources, task.resources)) else task


def _resized(task: TaskPlan, size: Resources) -> TaskPlan:
    return replace(task, resources=replace(size, gpu=task.resources.gpu))
