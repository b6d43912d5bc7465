"""What the ResourceQuotas of a namespace hold its pods to, as the API server and its controller
count.

    used = sum over the namespace's pods that have not ended        requests.cpu (or cpu), limits.memory, pods, ...

Only quotas without scopes, and only what pods use, is counted; all else in a quota is kept and
never used.
"""

from collections.abc import Iterable

from services.local.objects.bodies import (
    Body,
    containers_of,
    is_over,
    name_of,
    spec,
    status,
    with_status,
)
from services.local.objects.quantities import Amounts, amounts, cpu_text, plus
from services.local.objects.requests import pod_requests, resources_of, total

PLAIN = ("cpu", "memory")
PODS = ("pods", "count/pods")


def used_by(pod: Body) -> Amounts:
    """Return what one pod uses, by the names that a quota has for it."""
    if is_over(pod):
        return {}
    requests = pod_requests(pod)
    limits = total(resources_of(each, "limits") for each in containers_of(pod))
    named = {
        f"requests.{resource}": amount
        for resource, amount in requests.items()
        if resource != "pods"
    }
    named |= {f"limits.{resource}": amount for resource, amount in limits.items()}
    named |= {resource: requests[resource] for resource in PLAIN if resource in requests}
    return named | dict.fromkeys(PODS, 1)


def hard_of(quota: Body) -> Amounts:
    """In thousandths of a core, and in the units of all else; nothing for a quota with scopes."""
    if spec(quota).get("scopes") or spec(quota).get("scopeSelector"):
        return {}
    hard = spec(quota).get("hard") or {}
    cores = {name: amounts({"cpu": text})["cpu"] for name, text in hard.items() if _is_cpu(name)}
    return amounts({name: text for name, text in hard.items() if not _is_cpu(name)}) | cores


def counted(quota: Body, pods: Iterable[Body]) -> Body:
    """Return the quota with the status that its controller writes."""
    used: Amounts = {}
    for pod in pods:
        used = plus(used, used_by(pod))
    told = {name: _text(name, used.get(name, 0)) for name in hard_of(quota)}
    hard = spec(quota).get("hard") or {}
    return (
        quota
        if status(quota) == {"hard": hard, "used": told}
        else with_status(quota, hard=hard, used=told)
    )


def exceeded(quota: Body, pod: Body, pods: Iterable[Body]) -> str:
    """Why a quota refuses one more pod; empty where it does not."""
    wants, used = used_by(pod), Amounts()
    for other in pods:
        used = plus(used, used_by(other))
    hard = hard_of(quota)
    over = [
        name
        for name in sorted(hard)
        if wants.get(name) and used.get(name, 0) + wants[name] > hard[name]
    ]
    if not over:
        return ""

    def told(each: Amounts) -> str:
        return ",".join(f"{name}={_text(name, each.get(name, 0))}" for name in over)

    return f"exceeded quota: {name_of(quota)}, requested: {told(wants)}, used: {told(used)}, limited: {told(hard)}"


def _is_cpu(name: str) -> bool:
    return name.rpartition(".")[2] == "cpu"


def _text(name: str, amount: int) -> str:
    return cpu_text(amount) if _is_cpu(name) else str(amount)
