"""The sizes of a job's tasks, and the resize of running tasks: in place, without a pause.

Law: a task grows by no more than its node has free, and only on a node that takes tasks. The part
that a task gives up counts as free only after its node reports it. Devices cannot change in place.
A role that ran out of memory never gets so little again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from services.allocator.placement.amounts import subtract
from services.allocator.placement.placers import ROLES, Placer, place
from services.allocator.placement.quota import clamp_to_limits
from services.allocator.placement.room import Room
from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.allocator.state.job import OUT_OF_MEMORY, Job
from services.allocator.state.policy_view import task_sizes
from shared.messages import Resources, Role, RoleResources, TaskPlan

# ---------------------------------------------------------------- how large


def wanted_sizes(job: Job, sizes: RoleResources | None, rules: Rules) -> RoleResources:
    """Return the sizes that a policy wants; without any, those of the tasks now."""
    requested_sizes = task_sizes(job, rules)
    if sizes is None and job.newest_decision is None:
        return requested_sizes

    quota = rules.quotas.get(job.request.namespace)
    wanted: dict[str, Resources] = {}
    for role in ROLES:
        requested = getattr(requested_sizes, role)
        if sizes is None:
            wanted[role] = _present_size(job, role, requested, rules)
        else:
            size = clamp_to_limits(getattr(sizes, role), quota)
            wanted[role] = _policy_size(job, role, size, requested)
    return RoleResources(**wanted)


def _policy_size(job: Job, role: Role, size: Resources, requested: Resources) -> Resources:
    """Return the size that a policy wants, with no less memory than requested once a task of the
    role ran out of it.
    """
    memory = size.memory_gib
    for ended in job.exits.values():
        if ended.role == role and ended.reason == OUT_OF_MEMORY:
            memory = max(memory, requested.memory_gib)
    return Resources(cpu=size.cpu, memory_gib=memory, gpu=requested.gpu)


def _present_size(job: Job, role: Role, requested: Resources, rules: Rules) -> Resources:
    """Return the size of the role's largest task, with more memory if one ran out of it; as
    requested, if there is no task.
    """
    planned = job.newest_decision.tasks if job.newest_decision else ()
    tasks = [task for task in planned if task.role == role]
    if not tasks:
        return requested

    cpu = max([task.resources.cpu for task in tasks])
    memory = max([task.resources.memory_gib for task in tasks])
    if any(_ran_out_of_memory(job, task) for task in tasks):
        memory *= rules.oom_memory_factor
        if rules.oom_memory_factor > 1:
            memory = max(memory, requested.memory_gib)
    return Resources(cpu=cpu, memory_gib=memory, gpu=requested.gpu)


def _ran_out_of_memory(job: Job, task: TaskPlan) -> bool:
    """Return True if the task's pod was killed because it exceeded its memory limit."""
    ended = job.exit_of(task) if job.exits else None
    return ended is not None and ended.reason == OUT_OF_MEMORY


# ---------------------------------------------------------------- in place


def resize_tasks(
    room: Room, job: str, tasks: Sequence[TaskPlan], sizes: RoleResources
) -> tuple[TaskPlan, ...]:
    """Return the same tasks, each with its new size if its node has room for that."""
    resized = []
    for task in tasks:
        size = getattr(sizes, task.role)
        resized.append(_resize_in_place(room, job, task, size))
    return tuple(resized)


def _resize_in_place(room: Room, job: str, task: TaskPlan, size: Resources) -> TaskPlan:
    """Return the task with its new size; as it is, if node or limits have no room for that."""
    new = _resized_task(task, size)
    if not room.allows(job, new.resources):
        return task
    more = subtract(new.resources, task.resources)
    return new if room.extend(job, task.node, more) else task


def _resized_task(task: TaskPlan, size: Resources) -> TaskPlan:
    """Return the task with a new size, and the devices that it has."""
    return replace(task, resources=replace(size, gpu=task.resources.gpu))


def place_resized(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """Resize the tasks that exist, each if there is room on its node. None if no task changes. A
    placer: see `place`.
    """
    tasks = resize_tasks(room, job, keep, sizes)
    return None if tasks == tuple(keep) else tasks


def place_all_resized(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, serial: int
) -> tuple[TaskPlan, ...] | None:
    """Place a job as `place` does, and give every task its new size; None, and nothing taken, if
    they do not all fit.
    """
    mark = room.mark()
    placed = place(room, job, keep, size, sizes, serial)
    if placed is None:
        return None
    tasks = resize_tasks(room, job, placed, sizes)
    if have_sizes(tasks, sizes):
        return tasks
    room.undo(mark)
    return None


def placer_with_memory(limits: Mapping[Role, float]) -> Placer:
    """Return a placer that gives the tasks of these roles this memory (GiB): in place if possible,
    else on another node. Nothing else of the tasks changes.
    """

    def place_with_memory(
        room: Room,
        job: str,
        keep: Sequence[TaskPlan],
        size: Size,
        sizes: RoleResources,
        serial: int,
    ) -> tuple[TaskPlan, ...] | None:
        mark = room.mark()
        grown = _grow_in_place(room, job, keep, limits)
        if len(grown) == len(keep):
            return tuple(grown)
        raised = _raised_sizes(sizes, limits)
        placed = place(room, job, grown, size, raised, serial)
        if placed is None:
            room.undo(mark)
        return placed

    return place_with_memory


def _grow_in_place(
    room: Room, job: str, tasks: Sequence[TaskPlan], limits: Mapping[Role, float]
) -> list[TaskPlan]:
    """Return the tasks with their new limits; those without room on their nodes are left out."""
    grown = []
    for task in tasks:
        size = task.resources
        memory = max(size.memory_gib, limits.get(task.role, 0.0))
        new = replace(size, memory_gib=memory)
        if room.extend(job, task.node, subtract(new, size)):
            grown.append(replace(task, resources=new))
    return grown


def _raised_sizes(sizes: RoleResources, limits: Mapping[Role, float]) -> RoleResources:
    """Return the sizes with so much memory for each of these roles."""
    raised = {}
    for role, gib in limits.items():
        raised[role] = replace(getattr(sizes, role), memory_gib=gib)
    return replace(sizes, **raised)


def have_sizes(tasks: Sequence[TaskPlan], sizes: RoleResources) -> bool:
    """Return True if every task has its role's size."""
    return all(_resized_task(task, getattr(sizes, task.role)) == task for task in tasks)
