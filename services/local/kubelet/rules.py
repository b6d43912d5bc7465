"""What to do about a pod. Pure: what the store says and whether the pod has a life here in, one
order out.

         | it is gone | it is leaving | it has ended | its cpu or memory changed | otherwise
a life   | kill       | stop          | nothing      | resize                    | nothing
no life  | nothing    | take away     | nothing      | start                     | start
"""

from collections.abc import Iterable
from enum import Enum

from services.local.kubelet.cgroups import Limits
from services.local.kubelet.status import cpu_request, granted_of
from services.local.objects.bodies import (
    Body,
    containers_of,
    is_leaving,
    is_over,
    node_of,
    spec,
    status,
    uid_of,
)
from services.local.objects.quantities import Amounts, amounts, minus
from services.local.objects.requests import (
    container_requests,
    pod_limit,
    pod_requests,
    total,
    wanted_requests,
)

NO_SIDECARS = "SidecarsNotServed"


class Order(Enum):
    NOTHING = "nothing"
    START = "start"
    STOP = "stop"
    KILL = "kill"
    RESIZE = "resize"
    TAKE_AWAY = "take away"


def order_for(pod: Body, gone: bool, alive: bool, granted: dict[str, Body]) -> Order:
    """`granted`: the resources in force, by container."""
    if gone:
        return Order.KILL if alive else Order.NOTHING
    if is_leaving(pod):
        return Order.STOP if alive else Order.TAKE_AWAY
    if is_over(pod):
        return Order.NOTHING
    if not alive:
        return Order.START
    return Order.RESIZE if granted != granted_of(pod) else Order.NOTHING


def limits_of(pod: Body) -> Limits:
    return Limits(
        cpu=pod_limit(pod, "cpu"), memory=pod_limit(pod, "memory"), cpu_request=cpu_request(pod)
    )


def free_for(pod: Body, node: Body, pods: Iterable[Body]) -> Amounts:
    """What the node has for this pod: allocatable less the requests of every other pod that has not
    ended.
    """
    others = [
        p
        for p in pods
        if node_of(p) == node_of(pod) and uid_of(p) != uid_of(pod) and not is_over(p)
    ]
    return minus(amounts(status(node).get("allocatable")), total(pod_requests(p) for p in others))


def lacking(asked: Amounts, free: Amounts) -> list[str]:
    return [
        resource for resource, amount in asked.items() if amount and amount > free.get(resource, 0)
    ]


def why_not_started(pod: Body, free: Amounts) -> str:
    """The reason a kubelet refuses a pod that was bound past the scheduler; empty: let it in."""
    if any(c.get("restartPolicy") == "Always" for c in spec(pod).get("initContainers") or []):
        return NO_SIDECARS
    return next((f"OutOf{resource}" for resource in lacking(pod_requests(pod), free)), "")


def why_not_resized(pod: Body, node: Body, free: Amounts) -> str:
    """`Infeasible`: never on this node. `Deferred`: not now. Empty: go ahead. What shrinks always
    may.
    """
    wanted = wanted_requests(pod)
    grows = lacking(
        wanted,
        total(container_requests(without_wish(pod), c) for c in containers_of(without_wish(pod))),
    )
    if lacking(wanted, amounts(status(node).get("allocatable"))):
        return "Infeasible"
    return "Deferred" if [r for r in lacking(wanted, free) if r in grows] else ""


def without_wish(pod: Body) -> Body:
    """The pod with what it was granted instead of what it wants."""
    statuses = {
        s["name"]: s.get("resources") or {} for s in status(pod).get("containerStatuses") or []
    }
    kept = [
        {**c, "resources": statuses.get(c["name"], c.get("resources"))} for c in containers_of(pod)
    ]
    return {**pod, "spec": {**pod["spec"], "containers": kept}}
