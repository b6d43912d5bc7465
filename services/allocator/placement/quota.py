"""Quotas of namespaces: their limits, the use by jobs, and the reasons for a refusal.

Law: the tasks of a namespace, with those that are promised, never grow beyond its quota. Giving
capacity back is always allowed, even if a quota was lowered below the present use. A job starts as
large as the quota allows, and never below its gang floor. A running job grows as far, ps and
workers in turn, so that their ratio stays near the desired one.

The ResourceQuotas of a namespace give, for each resource:

    left    =  hard - used                   the least of all quotas that name the resource
    others  =  used - use of our tasks       at least 0: a new pod counts in `used` before it is on
                                             a node

Limits of cpu and memory count as requests: a task has equal limits and requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from services.allocator.placement.amounts import fits, larger, multiply, smaller, subtract, total_of
from services.allocator.placement.placers import ROLES
from services.allocator.placement.room import Room, namespace_of
from services.allocator.policies.contract import ClusterQuota, Quota, Size, TaskLimits
from shared.messages import (
    QuotaBound,
    QuotaChanged,
    Resources,
    Role,
    RoleResources,
    TaskBounds,
    TaskPlan,
)
from shared.text import format_count

# ---------------------------------------------------------------- the resources of a job


def gang_resources(sizes: RoleResources, size: Size) -> Resources:
    """Return the resources of all tasks of a job."""
    parts = []
    for role in ROLES:
        each: Resources = getattr(sizes, role)
        parts.append(multiply(each, size.of(role)))
    return total_of(parts)


def added_resources(
    tasks: Sequence[TaskPlan], size: Size, sizes: RoleResources, *, stretched: bool
) -> Resources:
    """Return the resources that a job takes beyond its tasks to come to a size; nothing is
    subtracted for tasks that it gives up. `sizes`: of its new tasks, and of its present tasks if
    they are to be `stretched`.
    """
    more: list[Resources] = []
    for role in ROLES:
        each: Resources = getattr(sizes, role)
        count = size.of(role)
        existing = [task for task in tasks if task.role == role]
        more.append(multiply(each, max(0, count - len(existing))))
        if not stretched:
            continue
        existing.sort(key=lambda task: task.serial)  # the oldest stay
        for task in existing[:count]:
            more.append(subtract(each, task.resources))
    return total_of(more)


def new_tasks(tasks: Sequence[TaskPlan], size: Size) -> int:
    """Return how many tasks a job needs beyond those that it has, to come to a size."""
    roles = [task.role for task in tasks]
    number = 0
    for role in ROLES:
        number += max(0, size.of(role) - roles.count(role))
    return number


def roles_of(size: Size) -> list[Role]:
    """Return the roles with tasks at this size."""
    return [role for role in ROLES if size.of(role)]


# ---------------------------------------------------------------- remaining quota


def gang_shortage(
    room: Room, job: str, size: Size, sizes: RoleResources, quota: Quota | None
) -> str:
    """Return why the quota has no room, now or ever, for a job of this size without tasks; empty:
    it has room.
    """
    never = never_allowed_reason(namespace_of(job), size, sizes, quota)
    if never:
        return never
    wants = gang_resources(sizes, size)
    return quota_shortage(room, job, wants, new_tasks((), size))


def quota_shortage(room: Room, job: str, wants: Resources, tasks: int = 0) -> str:
    """Return why a job's quota has no room for this amount more, or for this number of tasks more;
    empty: it has room.
    """
    remaining_quota = room.remaining_quota(job)
    slots = room.slots_of(job)
    limits = room.limits_of(job)
    return describe_shortage(namespace_of(job), wants, tasks, remaining_quota, slots, limits)


def describe_shortage(
    namespace: str,
    wants: Resources,
    tasks: int,
    remaining_quota: Resources | None,
    slots: int | None,
    limits: TaskLimits | None,
) -> str:
    """Return the reason for a quota with this remaining amount (None: no limit) and this number of
    free slots (None: any number).
    """
    if remaining_quota is None or _is_within(wants, remaining_quota, tasks, slots):
        return ""
    sentence = "needs {} more, and {:.4g} is left"
    lacks = _describe_lack(wants, remaining_quota, tasks, slots, limits, sentence)
    return f"quota of namespace {namespace}: {lacks}"


def never_allowed_reason(
    namespace: str, size: Size, sizes: RoleResources, quota: Quota | None
) -> str:
    """Return why a quota or the LimitRanges never allow a job of this size; empty: they do."""
    refused = limit_range_reason(quota, namespace, roles_of(size), sizes)
    if refused:
        return refused
    wants = gang_resources(sizes, size)
    return quota_too_small(quota, namespace, wants, new_tasks((), size))


def quota_too_small(quota: Quota | None, namespace: str, wants: Resources, tasks: int = 0) -> str:
    """Return why a quota never allows this amount, or this number of tasks; empty: it allows
    them.
    """
    if quota is None:
        return ""
    most = quota.most()
    pods = None
    limits = None
    if isinstance(quota, ClusterQuota):
        pods = quota.pods
        limits = quota.tasks
    if _is_within(wants, most, tasks, pods):
        return ""
    sentence = "needs at least {}, and the limit is {:.4g}"
    lacks = _describe_lack(wants, most, tasks, pods, limits, sentence)
    return f"quota of namespace {namespace}: {lacks}"


def limit_range_reason(
    quota: Quota | None, namespace: str, roles: Iterable[Role], sizes: RoleResources
) -> str:
    """Return why the LimitRanges of a namespace do not allow a task of one of these roles; empty:
    they allow all.
    """
    if not isinstance(quota, ClusterQuota) or quota.tasks.most is None:
        return ""

    most = quota.tasks.most
    refused = []
    for role in dict.fromkeys(roles):
        wants = getattr(sizes, role)
        if not fits(wants, most):
            lacks = _describe_lack(
                wants, most, 0, None, None, "needs {}, and at most {:.4g} is allowed"
            )
            refused.append(f"a {role} {lacks}")

    if not refused:
        return ""
    limit_range = f"limit range {quota.tasks.limit_range} of namespace {namespace}"
    return f"{limit_range}: {'; '.join(refused)}"


def clamp_to_limits(size: Resources, quota: Quota | None) -> Resources:
    """Return the size of a task, as near to it as the LimitRanges of the cluster allow."""
    if not isinstance(quota, ClusterQuota):
        return size
    raised = larger(size, quota.tasks.least)
    if quota.tasks.most is None:
        return raised
    return smaller(raised, quota.tasks.most)


def _is_within(wants: Resources, limit: Resources, tasks: int, slots: int | None) -> bool:
    """Return True if an amount and a number of tasks are within limits; no `slots`: any number."""
    return fits(wants, limit) and (slots is None or tasks <= slots)


def _describe_lack(
    wants: Resources,
    limit: Resources,
    tasks: int,
    slots: int | None,
    limits: TaskLimits | None,
    sentence: str,
) -> str:
    """Return the resources that are short, and the ResourceQuota of each."""
    compared = [
        ("cpu", f"{wants.cpu:g} cpu", wants.cpu, limit.cpu),
        ("memory_gib", f"{wants.memory_gib:.4g} GiB", wants.memory_gib, limit.memory_gib),
        ("gpu", f"{wants.gpu} gpu", wants.gpu, limit.gpu),
    ]
    if slots is not None:
        compared.append(("pods", format_count(tasks, "pod"), tasks, slots))

    quotas = dict(limits.quotas) if limits else {}
    lacks = []
    for name, amount, wanted, available in compared:
        if wanted <= available:
            continue
        lack = sentence.format(amount, available)
        if name in quotas:
            lack += f" (ResourceQuota {quotas[name]})"
        lacks.append(lack)
    return "; ".join(lacks)


RESOURCES = {
    "cpu": "cpu",
    "requests.cpu": "cpu",
    "limits.cpu": "cpu",
    "memory": "memory_gib",
    "requests.memory": "memory_gib",
    "limits.memory": "memory_gib",
    "requests.nvidia.com/gpu": "gpu",
    "pods": "pods",
    "count/pods": "pods",
}
"""The amount of a task that each resource of a quota limits; others limit no task."""
MANY = 1 << 53  # devices or pods, without a limit
WITHOUT_LIMIT = Resources(cpu=math.inf, memory_gib=math.inf, gpu=MANY)


def unused_quota(fact: QuotaChanged) -> Resources:
    """Return the capacity that every quota of the namespace leaves."""
    unused = _unused_by_name(fact)
    return Resources(
        cpu=unused.get("cpu", math.inf),
        memory_gib=unused.get("memory_gib", math.inf),
        gpu=int(unused.get("gpu", MANY)),
    )


def unused_pods(fact: QuotaChanged) -> int | None:
    """Return the number of pods that every quota of the namespace still allows; None: any
    number.
    """
    left = _unused_by_name(fact)
    if "pods" not in left:
        return None
    return int(left["pods"])


def _unused_by_name(fact: QuotaChanged) -> dict[str, float]:
    """Return the least amount that a quota leaves, by resource of a task."""
    left: dict[str, float] = {}
    for name, bound in _bounds_of_tasks(fact.bounds):
        _note_least(left, name, bound.hard - bound.used)
    return left


def allowed_in_total(fact: QuotaChanged, own_amount: Resources, pods: int) -> dict[str, float]:
    """Return the amount of each limited resource that all our tasks together may have, beside the
    use of others. `own_amount` and `pods`: the amounts that our tasks have now.
    """
    has = _by_name(own_amount, pods)
    allowed: dict[str, float] = {}
    for name, bound in _bounds_of_tasks(fact.bounds):
        others = max(0.0, bound.used - has[name])
        _note_least(allowed, name, bound.hard - others)
    return allowed


def with_own_usage(
    fact: QuotaChanged, used_before: Resources, pods_had: int, used_after: Resources, pods_has: int
) -> QuotaChanged:
    """Return the fact once our tasks have other amounts than before."""
    before = _by_name(used_before, pods_had)
    after = _by_name(used_after, pods_has)
    bounds = []
    for bound in fact.bounds:
        name = RESOURCES.get(bound.resource)
        if name is not None:
            others = max(0.0, bound.used - before[name])
            bound = replace(bound, used=others + after[name])
        bounds.append(bound)
    return replace(fact, bounds=tuple(bounds))


def _by_name(amount: Resources, pods: int) -> dict[str, float]:
    """Return cores, GiB, devices and the number of pods by the names of their limits."""
    return {"cpu": amount.cpu, "memory_gib": amount.memory_gib, "gpu": amount.gpu, "pods": pods}


def limits_of(fact: QuotaChanged) -> TaskLimits:
    """Return the limits of one task, and the quota that leaves least of each resource."""
    least = Resources()
    most = WITHOUT_LIMIT
    names = []
    for bounds in fact.task_bounds:
        demanded = Resources(cpu=bounds.least.cpu, memory_gib=bounds.least.memory_gib)
        least = larger(least, demanded)
        most = smaller(most, _most_of(bounds))
        names.append(bounds.limit_range)
    narrowest = _narrowest_quotas(fact.bounds)
    return TaskLimits(
        least=least,
        most=None if most == WITHOUT_LIMIT else most,
        limit_range=", ".join(names),
        quotas=tuple(sorted(narrowest.items())),
    )


def _most_of(bounds: TaskBounds) -> Resources:
    """Return the most that one LimitRange allows a task."""
    most = WITHOUT_LIMIT
    if bounds.most.cpu is not None:
        most = replace(most, cpu=bounds.most.cpu)
    if bounds.most.memory_gib is not None:
        most = replace(most, memory_gib=bounds.most.memory_gib)
    if bounds.most.gpu is not None:
        most = replace(most, gpu=bounds.most.gpu)
    return most


def _narrowest_quotas(bounds: Iterable[QuotaBound]) -> dict[str, str]:
    """Return the name of the quota that leaves least, by resource."""
    left: dict[str, tuple[float, str]] = {}
    for name, bound in _bounds_of_tasks(bounds):
        found = (bound.hard - bound.used, bound.quota)
        left[name] = min(left.get(name, found), found)
    return {name: quota for name, (_, quota) in left.items()}


def _bounds_of_tasks(bounds: Iterable[QuotaBound]) -> Iterator[tuple[str, QuotaBound]]:
    """Yield the bounds that limit tasks, each with the name of the amount that it limits."""
    for bound in bounds:
        name = RESOURCES.get(bound.resource)
        if name is not None:
            yield name, bound


def _note_least(amounts: dict[str, float], name: str, amount: float) -> None:
    """Lower a named amount to this one, if that is less, but not below 0."""
    least = min(amounts.get(name, amount), amount)
    amounts[name] = max(0.0, least)
