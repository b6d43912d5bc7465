"""Resource amounts, the requests of a pod, and the usage of a ResourceQuota.

    requests(pod) = max(sum over containers and sidecars, each init container and the sidecars
    before it)
                    + overhead, and one of the node's `pods`

A container that is being resized in place counts with the larger of its allocated and its desired
resources, unless the node has refused them for good (Infeasible).

    used(quota) = sum over the namespace's pods that have not ended: requests.cpu (or cpu),
    limits.memory, pods ...

Only quotas without scopes, and only resources of pods, are counted. Other entries are stored and
not enforced. Amounts are whole numbers: thousandths of a core, bytes, devices, pods.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from services.local.objects.bodies import (
    Body,
    condition_reason,
    container_statuses,
    containers_of,
    has_ended,
    init_containers_of,
    name_of,
    spec,
    status,
    with_status,
)
from shared.kube.objects import whole_units


def sum_amounts(parts: Iterable[Amounts]) -> Amounts:
    result: Amounts = {}
    for part in parts:
        result = add_amounts(result, part)
    return result


def resources_of(container: Body, which: str) -> Amounts:
    return parse_amounts((container.get("resources") or {}).get(which))


def allocated_by_container(pod: Body) -> dict[str, Amounts]:
    allocated = {}
    for each in container_statuses(pod):
        if each.get("allocatedResources"):
            allocated[each["name"]] = parse_amounts(each["allocatedResources"])
    return allocated


def is_infeasible(pod: Body) -> bool:
    return condition_reason(pod, "PodResizePending") == "Infeasible"


def container_requests(pod: Body, container: Body) -> Amounts:
    desired = resources_of(container, "requests")
    allocated = allocated_by_container(pod).get(str(container.get("name")))
    if allocated is None:
        return desired
    return allocated if is_infeasible(pod) else maximum_amounts(desired, allocated)


def pod_requests(pod: Body) -> Amounts:
    running = sum_amounts(container_requests(pod, each) for each in containers_of(pod))
    starting, sidecars = init_requests(init_containers_of(pod))
    requests = maximum_amounts(add_amounts(running, sidecars), starting)
    requests |= resources_of(spec(pod), "requests")
    requests = add_amounts(requests, parse_amounts(spec(pod).get("overhead")))
    return add_amounts(requests, {"pods": 1})


def init_requests(containers: list[Body]) -> tuple[Amounts, Amounts]:
    """Return the peak amounts while the pod starts, and the amounts of its sidecars, which stay."""
    peak: Amounts = {}
    sidecars: Amounts = {}
    for container in containers:
        held = add_amounts(sidecars, resources_of(container, "requests"))
        peak = maximum_amounts(peak, held)
        if container.get("restartPolicy") == "Always":
            sidecars = held
    return peak, sidecars


def wanted_requests(pod: Body) -> Amounts:
    requests = sum_amounts(resources_of(each, "requests") for each in containers_of(pod))
    return add_amounts(requests, {"pods": 1})


def pod_limit(pod: Body, resource: str) -> int | None:
    """Return the sum over the containers; None if one of them has no limit."""
    total = None
    for container in containers_of(pod):
        limit = resources_of(container, "limits").get(resource)
        if limit is None:
            return None
        total = (total or 0) + limit
    return total


def qos_class(pod: Body) -> str:
    best_effort = guaranteed = True
    for container in [*containers_of(pod), *init_containers_of(pod)]:
        requests = resources_of(container, "requests")
        limits = resources_of(container, "limits")
        for resource in PLAIN:
            limit = limits.get(resource)
            if limit or requests.get(resource):
                best_effort = False
            if not limit or requests.get(resource, limit) != limit:
                guaranteed = False
    if best_effort:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


PLAIN = ("cpu", "memory")
PODS = ("pods", "count/pods")


def quota_usage(pod: Body) -> Amounts:
    """Return the usage of one pod, by the names that a quota has for it."""
    if has_ended(pod):
        return {}
    usage = dict.fromkeys(PODS, 1)
    for resource, amount in pod_requests(pod).items():
        if resource != "pods":
            usage[f"requests.{resource}"] = amount
        if resource in PLAIN:
            usage[resource] = amount
    limits = sum_amounts(resources_of(each, "limits") for each in containers_of(pod))
    for resource, amount in limits.items():
        usage[f"limits.{resource}"] = amount
    return usage


def total_usage(pods: Iterable[Body]) -> Amounts:
    return sum_amounts(quota_usage(pod) for pod in pods)


def quota_limits(quota: Body) -> Amounts:
    """Return the limits: thousandths of a core, and the units of all else; none for a quota with
    scopes.
    """
    if spec(quota).get("scopes") or spec(quota).get("scopeSelector"):
        return {}
    limits = {}
    for name, text in (spec(quota).get("hard") or {}).items():
        limits[name] = whole_units("cpu" if _is_cpu(name) else name, text)
    return limits


def with_usage(quota: Body, pods: Iterable[Body]) -> Body:
    """Return the quota with the status that its controller writes."""
    usage = total_usage(pods)
    used = {name: _text(name, usage.get(name, 0)) for name in quota_limits(quota)}
    hard = spec(quota).get("hard") or {}
    if status(quota) == {"hard": hard, "used": used}:
        return quota
    return with_status(quota, hard=hard, used=used)


def quota_error(quota: Body, pod: Body, pods: Iterable[Body]) -> str:
    """Return the reason that a quota refuses one more pod; empty if it does not."""
    requested = quota_usage(pod)
    used = total_usage(pods)
    limits = quota_limits(quota)
    exceeded = []
    for name in sorted(limits):
        amount = requested.get(name)
        if amount and used.get(name, 0) + amount > limits[name]:
            exceeded.append(name)
    if not exceeded:
        return ""

    def format_amounts(amounts: Amounts) -> str:
        return ",".join(f"{name}={_text(name, amounts.get(name, 0))}" for name in exceeded)

    return (
        f"exceeded quota: {name_of(quota)}, requested: {format_amounts(requested)}, "
        f"used: {format_amounts(used)}, limited: {format_amounts(limits)}"
    )


def _is_cpu(name: str) -> bool:
    return name.rpartition(".")[2] == "cpu"


def _text(name: str, amount: int) -> str:
    return cpu_text(amount) if _is_cpu(name) else str(amount)


Amounts = dict[str, int]


def parse_amounts(listed: dict[str, Any] | None) -> Amounts:
    return {resource: whole_units(resource, text) for resource, text in (listed or {}).items()}


def _combine(left: Amounts, right: Amounts, operation: Callable[[int, int], int]) -> Amounts:
    return {key: operation(left.get(key, 0), right.get(key, 0)) for key in {**left, **right}}


def add_amounts(left: Amounts, right: Amounts) -> Amounts:
    return _combine(left, right, operator.add)


def subtract_amounts(left: Amounts, right: Amounts) -> Amounts:
    return _combine(left, right, operator.sub)


def maximum_amounts(left: Amounts, right: Amounts) -> Amounts:
    return _combine(left, right, max)


def cpu_text(millis: int) -> str:
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"
