"""What a namespace may hold in all: the chiefs, ps and workers of its jobs counted together.

Law: what the tasks of a namespace have and were promised never grows beyond its quota; to give back is always allowed,
whoever stands above a quota that was lowered. A job starts as large as the quota has room for, and never below its gang
floor; a running one grows as far, ps and workers in turn, so that their ratio stays near the one that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.allocator.placing.amounts import fits, larger, less, smaller, times, together
from services.allocator.placing.placement import ROLES, Room
from services.allocator.policies.contract import ClusterQuota, Quota, Size, TaskLimits
from shared.messages import Resources, Role, RoleResources, TaskPlan
from shared.words import counted


def gang(sizes: RoleResources, size: Size) -> Resources:
    """All tasks of a job together."""
    return together(times(getattr(sizes, role), size.of(role)) for role in ROLES)


def growth(tasks: Sequence[TaskPlan], size: Size, sizes: RoleResources, *, stretched: bool) -> Resources:
    """What a job takes beyond its tasks to come to a size. What it gives back does not count.

    `sizes`: of its new tasks, and of those that stand, if they are to be `stretched`.
    """
    more = [times(getattr(sizes, role), max(0, size.of(role) - len(_of(tasks, role)))) for role in ROLES]
    stay = [task for role in ROLES for task in _of(tasks, role)[: size.of(role)]] if stretched else []
    return together([*more, *(less(getattr(sizes, task.role), task.resources) for task in stay)])


def _of(tasks: Sequence[TaskPlan], role: Role) -> list[TaskPlan]:
    """The oldest first: these stay."""
    return sorted((task for task in tasks if task.role == role), key=lambda task: task.serial)


def shortage(room: Room, job: str, wants: Resources, tasks: int = 0) -> str:
    """Why a job's quota has no room for so much more, or for so many more tasks; empty where it has."""
    purse, slots, namespace = room.purse(job), room.slots_of(job), job.partition(".")[0]
    if purse is None or room.grants(job, wants, tasks):
        return ""
    lacks = _lack(wants, purse, tasks, slots, room.limits.get(namespace), "wants {} more, and {:.4g} is left")
    return f"quota of namespace {namespace}: {lacks}"


def too_small(quota: Quota | None, namespace: str, wants: Resources, tasks: int = 0) -> str:
    """Why a quota will never do for so much, or so many tasks; empty where it can."""
    most = quota.most() if quota else wants
    pods, limits = (quota.pods, quota.tasks) if isinstance(quota, ClusterQuota) else (None, None)
    if fits(wants, most) and (pods is None or tasks <= pods):
        return ""
    lacks = _lack(wants, most, tasks, pods, limits, "wants at least {}, and {:.4g} is all there is")
    return f"quota of namespace {namespace}: {lacks}"


def too_large(quota: Quota | None, namespace: str, roles: Iterable[Role], sizes: RoleResources) -> str:
    """Why the LimitRanges of a namespace allow no task of one of these roles; empty where they do."""
    limits = quota.tasks if isinstance(quota, ClusterQuota) else TaskLimits()
    if limits.most is None:
        return ""
    refused = [role for role in dict.fromkeys(roles) if not fits(getattr(sizes, role), limits.most)]
    told = [
        f"a {role} {_lack(getattr(sizes, role), limits.most, 0, None, None, 'wants {}, and {:.4g} is the most')}"
        for role in refused
    ]
    return f"limit range {limits.limit_range} of namespace {namespace}: {'; '.join(told)}" if told else ""


def within_limits(size: Resources, quota: Quota | None) -> Resources:
    """Return the size of a task, as near to it as the LimitRanges of the cluster allow."""
    if not isinstance(quota, ClusterQuota):
        return size
    raised = larger(size, quota.tasks.least)
    return raised if quota.tasks.most is None else smaller(raised, quota.tasks.most)


def _lack(
    wants: Resources, has: Resources, tasks: int, slots: int | None, limits: TaskLimits | None, sentence: str
) -> str:
    """Name what there is too little of, and the ResourceQuota that says so."""
    amounts = (
        ("cpu", f"{wants.cpu:g} cpu", wants.cpu, has.cpu),
        ("memory_gib", f"{wants.memory_gib:.4g} GiB", wants.memory_gib, has.memory_gib),
        ("gpu", f"{wants.gpu} gpu", wants.gpu, has.gpu),
        ("pods", counted(tasks, "pod"), tasks, tasks if slots is None else slots),
    )
    names = dict(limits.quotas) if limits else {}
    told = []
    for name, amount, wanted, there in amounts:
        if wanted > there:
            source = f" of ResourceQuota {names[name]}" if name in names else ""
            told.append(f"{sentence.format(amount, there)}{source}")
    return "; ".join(told)
