"""What the ResourceQuotas and LimitRanges of one namespace leave, in the units of tasks: pure functions of its fact.

    left    =  hard - used                    of each resource, the least of all quotas that name it
    others  =  used - what our tasks have     not below nothing: a new pod counts in `used` before it is on a node

Limits of cpu and memory count as requests: a task's are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec.structs import replace

from services.allocator.placing.amounts import larger, smaller
from services.allocator.policies.contract import TaskLimits
from shared.messages import QuotaBound, QuotaChanged, Resources

RESOURCES = {"cpu": "cpu", "requests.cpu": "cpu", "limits.cpu": "cpu"}
RESOURCES |= {"memory": "memory_gib", "requests.memory": "memory_gib", "limits.memory": "memory_gib"}
RESOURCES |= {"requests.nvidia.com/gpu": "gpu", "pods": "pods", "count/pods": "pods"}
"""What each resource of a quota limits; others limit no task."""
MANY = 1 << 53  # devices or pods, where no number of them is too large
WITHOUT_LIMIT = Resources(cpu=math.inf, memory_gib=math.inf, gpu=MANY)


def unused(fact: QuotaChanged) -> Resources:
    """Return what every quota of the namespace leaves."""
    left = _least((RESOURCES.get(bound.resource, ""), bound.hard - bound.used) for bound in fact.bounds)
    return Resources(
        cpu=left.get("cpu", math.inf), memory_gib=left.get("memory_gib", math.inf), gpu=int(left.get("gpu", MANY))
    )


def unused_pods(fact: QuotaChanged) -> int | None:
    """Return how many more pods every quota of the namespace allows; None: any number."""
    left = _least((RESOURCES.get(bound.resource, ""), bound.hard - bound.used) for bound in fact.bounds)
    return int(left["pods"]) if "pods" in left else None


def ours_in_all(fact: QuotaChanged, ours: Resources, pods: int) -> dict[str, float]:
    """Return what all our tasks together may have of each limited resource, beside what others use."""
    has = _by_name(ours, pods)
    return _least(
        (name, bound.hard - max(0.0, bound.used - has[name]))
        for bound in fact.bounds
        if (name := RESOURCES.get(bound.resource))
    )


def moved(fact: QuotaChanged, had: Resources, pods_had: int, has: Resources, pods_has: int) -> QuotaChanged:
    """Return the fact once our tasks, which had so much, have something else."""
    before, after = _by_name(had, pods_had), _by_name(has, pods_has)
    bounds = [
        replace(bound, used=max(0.0, bound.used - before[name]) + after[name])
        if (name := RESOURCES.get(bound.resource))
        else bound
        for bound in fact.bounds
    ]
    return replace(fact, bounds=tuple(bounds))


def _by_name(amount: Resources, pods: int) -> dict[str, float]:
    return {"cpu": amount.cpu, "memory_gib": amount.memory_gib, "gpu": amount.gpu, "pods": pods}


def limits_of(fact: QuotaChanged) -> TaskLimits:
    """Return the limits of one task, and which quota leaves least of each resource."""
    least, most, names = Resources(), WITHOUT_LIMIT, []
    for each in fact.task_bounds:
        cpu, memory_gib, gpu = each.most.cpu, each.most.memory_gib, each.most.gpu
        least = larger(least, Resources(cpu=each.least.cpu, memory_gib=each.least.memory_gib))
        most = smaller(
            most,
            Resources(
                cpu=math.inf if cpu is None else cpu,
                memory_gib=math.inf if memory_gib is None else memory_gib,
                gpu=MANY if gpu is None else gpu,
            ),
        )
        names.append(each.limit_range)
    return TaskLimits(
        least=least,
        most=None if most == WITHOUT_LIMIT else most,
        limit_range=", ".join(names),
        quotas=tuple(sorted(_narrowest(fact.bounds).items())),
    )


def _narrowest(bounds: Iterable[QuotaBound]) -> dict[str, str]:
    """Return the name of the quota that leaves least, by resource."""
    left: dict[str, tuple[float, str]] = {}
    for bound in bounds:
        if name := RESOURCES.get(bound.resource):
            found = bound.hard - bound.used, bound.quota
            left[name] = min(left.get(name, found), found)
    return {name: quota for name, (_, quota) in left.items()}


def _least(amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the least amount of each name, not below nothing."""
    found: dict[str, float] = {}
    for name, amount in amounts:
        found[name] = max(0.0, min(found.get(name, amount), amount))
    return found
