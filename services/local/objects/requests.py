"""What a pod asks of its node.

    requests(pod) = max(sum over containers and sidecars, each init container and the sidecars
    before it)
                    + overhead, and one of the node's `pods`

A container that is being resized in place counts with the larger of what it has and what it wants,
unless the node has said that it will never get it (Infeasible).
"""

from collections.abc import Iterable

from services.local.objects.bodies import Body, condition, containers_of, spec, status
from services.local.objects.quantities import Amounts, amounts, at_least, plus


def total(parts: Iterable[Amounts]) -> Amounts:
    result: Amounts = {}
    for part in parts:
        result = plus(result, part)
    return result


def resources_of(container: Body, which: str) -> Amounts:
    return amounts((container.get("resources") or {}).get(which))


def granted(pod: Body) -> dict[str, Amounts]:
    statuses = status(pod).get("containerStatuses") or []
    return {
        s["name"]: amounts(s["allocatedResources"]) for s in statuses if s.get("allocatedResources")
    }


def is_infeasible(pod: Body) -> bool:
    return (condition(pod, "PodResizePending") or {}).get("reason") == "Infeasible"


def container_requests(pod: Body, container: Body) -> Amounts:
    wanted, has = resources_of(container, "requests"), granted(pod).get(str(container.get("name")))
    if has is None:
        return wanted
    return has if is_infeasible(pod) else at_least(wanted, has)


def pod_requests(pod: Body) -> Amounts:
    running = total(container_requests(pod, c) for c in containers_of(pod))
    starting, sidecars = init_requests(spec(pod).get("initContainers") or [])
    running = at_least(plus(running, sidecars), starting)
    whole = {**running, **amounts((spec(pod).get("resources") or {}).get("requests"))}
    return plus(plus(whole, amounts(spec(pod).get("overhead"))), {"pods": 1})


def init_requests(containers: list[Body]) -> tuple[Amounts, Amounts]:
    """The most that is held while the pod starts, and what its sidecars hold for good."""
    most: Amounts = {}
    sidecars: Amounts = {}
    for container in containers:
        held = plus(sidecars, resources_of(container, "requests"))
        most = at_least(most, held)
        sidecars = held if container.get("restartPolicy") == "Always" else sidecars
    return most, sidecars


def wanted_requests(pod: Body) -> Amounts:
    return plus(total(resources_of(c, "requests") for c in containers_of(pod)), {"pods": 1})


def pod_limit(pod: Body, resource: str) -> int | None:
    """The sum over the containers, or None as soon as one of them has no limit."""
    limits = [resources_of(c, "limits").get(resource) for c in containers_of(pod)]
    known = [limit for limit in limits if limit is not None]
    return sum(known) if known and len(known) == len(limits) else None


def quality_of(pod: Body) -> str:
    every = [*containers_of(pod), *(spec(pod).get("initContainers") or [])]
    pairs = [(resources_of(c, "requests"), resources_of(c, "limits")) for c in every]
    if not any(a.get(r) for pair in pairs for a in pair for r in ("cpu", "memory")):
        return "BestEffort"
    same = all(
        lim.get(r) and req.get(r, lim[r]) == lim[r] for req, lim in pairs for r in ("cpu", "memory")
    )
    return "Guaranteed" if same else "Burstable"
