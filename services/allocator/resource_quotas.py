"""The capacity that the ResourceQuotas and LimitRanges of one namespace leave, in the units of
tasks: pure functions of its fact.

    left    =  hard - used                   of each resource, the least of all quotas that name it
    others  =  used - what our tasks have    not below nothing: a new pod counts in `used` before it
                                             is on a node

Limits of cpu and memory count as requests: a task's are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from services.allocator.placing.amounts import larger, smaller
from services.allocator.policies.contract import TaskLimits
from shared.messages import QuotaBound, QuotaChanged, Resources, TaskBounds

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
MANY = 1 << 53  # devices or pods, where no number of them is too large
WITHOUT_LIMIT = Resources(cpu=math.inf, memory_gib=math.inf, gpu=MANY)


def unused(fact: QuotaChanged) -> Resources:
    """Return the capacity that every quota of the namespace leaves."""
    left = _unused_by_name(fact)
    return Resources(
        cpu=left.get("cpu", math.inf),
        memory_gib=left.get("memory_gib", math.inf),
        gpu=int(left.get("gpu", MANY)),
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


def ours_in_all(fact: QuotaChanged, ours: Resources, pods: int) -> dict[str, float]:
    """Return the amount of each limited resource that all our tasks together may have, beside the
    use of others. `ours` and `pods`: the amounts that our tasks have now.
    """
    has = _by_name(ours, pods)
    allowed: dict[str, float] = {}
    for name, bound in _bounds_of_tasks(fact.bounds):
        others = max(0.0, bound.used - has[name])
        _note_least(allowed, name, bound.hard - others)
    return allowed


def moved(
    fact: QuotaChanged, had: Resources, pods_had: int, has: Resources, pods_has: int
) -> QuotaChanged:
    """Return the fact once our tasks have other amounts than before."""
    before = _by_name(had, pods_had)
    after = _by_name(has, pods_has)
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
    """Lower a named amount to this one, if that is less, but not below nothing."""
    least = min(amounts.get(name, amount), amount)
    amounts[name] = max(0.0, least)
