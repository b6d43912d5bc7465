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

from collections.abc import Iterable
from typing import Any

from services.local.objects.bodies import (
    Body,
    condition,
    containers_of,
    has_ended,
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
    statuses = status(pod).get("containerStatuses") or []
    return {
        s["name"]: parse_amounts(s["allocatedResources"])
        for s in statuses
        if s.get("allocatedResources")
    }


def is_infeasible(pod: Body) -> bool:
    return (condition(pod, "PodResizePending") or {}).get("reason") == "Infeasible"


def container_requests(pod: Body, container: Body) -> Amounts:
    wanted, has = (
        resources_of(container, "requests"),
        allocated_by_container(pod).get(str(container.get("name"))),
    )
    if has is None:
        return wanted
    return has if is_infeasible(pod) else maximum_amounts(wanted, has)


def pod_requests(pod: Body) -> Amounts:
    running = sum_amounts(container_requests(pod, c) for c in containers_of(pod))
    starting, sidecars = init_requests(spec(pod).get("initContainers") or [])
    running = maximum_amounts(add_amounts(running, sidecars), starting)
    whole = {**running, **parse_amounts((spec(pod).get("resources") or {}).get("requests"))}
    return add_amounts(add_amounts(whole, parse_amounts(spec(pod).get("overhead"))), {"pods": 1})


def init_requests(containers: list[Body]) -> tuple[Amounts, Amounts]:
    """The most that is held while the pod starts, and what its sidecars hold for good."""
    most: Amounts = {}
    sidecars: Amounts = {}
    for container in containers:
        held = add_amounts(sidecars, resources_of(container, "requests"))
        most = maximum_amounts(most, held)
        sidecars = held if container.get("restartPolicy") == "Always" else sidecars
    return most, sidecars


def wanted_requests(pod: Body) -> Amounts:
    return add_amounts(
        sum_amounts(resources_of(c, "requests") for c in containers_of(pod)), {"pods": 1}
    )


def pod_limit(pod: Body, resource: str) -> int | None:
    """The sum over the containers, or None as soon as one of them has no limit."""
    limits = [resources_of(c, "limits").get(resource) for c in containers_of(pod)]
    known = [limit for limit in limits if limit is not None]
    return sum(known) if known and len(known) == len(limits) else None


def qos_class(pod: Body) -> str:
    every = [*containers_of(pod), *(spec(pod).get("initContainers") or [])]
    pairs = [(resources_of(c, "requests"), resources_of(c, "limits")) for c in every]
    if not any(a.get(r) for pair in pairs for a in pair for r in ("cpu", "memory")):
        return "BestEffort"
    same = all(
        lim.get(r) and req.get(r, lim[r]) == lim[r] for req, lim in pairs for r in ("cpu", "memory")
    )
    return "Guaranteed" if same else "Burstable"


PLAIN = ("cpu", "memory")
PODS = ("pods", "count/pods")


def quota_usage(pod: Body) -> Amounts:
    """Return what one pod uses, by the names that a quota has for it."""
    if has_ended(pod):
        return {}
    requests = pod_requests(pod)
    limits = sum_amounts(resources_of(each, "limits") for each in containers_of(pod))
    named = {
        f"requests.{resource}": amount
        for resource, amount in requests.items()
        if resource != "pods"
    }
    named |= {f"limits.{resource}": amount for resource, amount in limits.items()}
    named |= {resource: requests[resource] for resource in PLAIN if resource in requests}
    return named | dict.fromkeys(PODS, 1)


def quota_limits(quota: Body) -> Amounts:
    """In thousandths of a core, and in the units of all else; nothing for a quota with scopes."""
    if spec(quota).get("scopes") or spec(quota).get("scopeSelector"):
        return {}
    hard = spec(quota).get("hard") or {}
    cores = {
        name: parse_amounts({"cpu": text})["cpu"] for name, text in hard.items() if _is_cpu(name)
    }
    return parse_amounts({name: text for name, text in hard.items() if not _is_cpu(name)}) | cores


def with_usage(quota: Body, pods: Iterable[Body]) -> Body:
    """Return the quota with the status that its controller writes."""
    used: Amounts = {}
    for pod in pods:
        used = add_amounts(used, quota_usage(pod))
    told = {name: _text(name, used.get(name, 0)) for name in quota_limits(quota)}
    hard = spec(quota).get("hard") or {}
    return (
        quota
        if status(quota) == {"hard": hard, "used": told}
        else with_status(quota, hard=hard, used=told)
    )


def quota_error(quota: Body, pod: Body, pods: Iterable[Body]) -> str:
    """Why a quota refuses one more pod; empty where it does not."""
    wants, used = quota_usage(pod), Amounts()
    for other in pods:
        used = add_amounts(used, quota_usage(other))
    hard = quota_limits(quota)
    over = [
        name
        for name in sorted(hard)
        if wants.get(name) and used.get(name, 0) + wants[name] > hard[name]
    ]
    if not over:
        return ""

    def format_amounts(each: Amounts) -> str:
        return ",".join(f"{name}={_text(name, each.get(name, 0))}" for name in over)

    return (
        f"exceeded quota: {name_of(quota)}, requested: {format_amounts(wants)}, "
        f"used: {format_amounts(used)}, limited: {format_amounts(hard)}"
    )


def _is_cpu(name: str) -> bool:
    return name.rpartition(".")[2] == "cpu"


def _text(name: str, amount: int) -> str:
    return cpu_text(amount) if _is_cpu(name) else str(amount)


Amounts = dict[str, int]


def parse_amounts(listed: dict[str, Any] | None) -> Amounts:
    return {resource: whole_units(resource, text) for resource, text in (listed or {}).items()}


def add_amounts(left: Amounts, right: Amounts) -> Amounts:
    return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}


def subtract_amounts(left: Amounts, right: Amounts) -> Amounts:
    return {key: left.get(key, 0) - right.get(key, 0) for key in {**left, **right}}


def maximum_amounts(left: Amounts, right: Amounts) -> Amounts:
    return {key: max(left.get(key, 0), right.get(key, 0)) for key in {**left, **right}}


def cpu_text(millis: int) -> str:
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"
