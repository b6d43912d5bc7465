"""Which node does a pod go to? Pure: a wish and what is left on the nodes in; a choice, or why
there is none, out.

A node is fit when, in this order (the first reason that speaks against it is the one that is told):

    cordon       the node is not unschedulable
    taints       every NoSchedule or NoExecute taint is tolerated; a node that is not Ready has such a taint
    affinity     nodeSelector, and at least one term of the required node affinity, on labels and on
                 metadata.name
    room         requests <= allocatable - requests of every pod there that has not ended

Of the fit nodes the emptiest after placement wins (least allocated: mean of free cpu and free
memory, as shares of what is allocatable), plus what preferred affinity adds; on a tie the first by
name. Pod affinity, topology spread, volumes and preemption are left out.
"""

import json
from collections import Counter
from collections.abc import Mapping

import msgspec

from services.local.objects.admission import NODE_TROUBLES
from services.local.objects.bodies import Body, condition, labels, name_of, spec, status
from services.local.objects.label_selectors import term_matches
from services.local.objects.resources import Amounts, parse_amounts, pod_requests, subtract_amounts

CORDONED = "node(s) were unschedulable"
MISMATCH = "node(s) didn't match Pod's node affinity/selector"
PREFERENCE_WEIGHT = (
    1 / 100
)  # the largest weight of one preferred term counts as much as a whole empty node


class NodeInfo(msgspec.Struct, kw_only=True):
    """A node as the scheduler sees it."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Body, ...]
    cordoned: bool
    allocatable: Amounts
    free: Amounts


class PodRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as the scheduler sees it."""

    requests: Amounts
    selector: Mapping[str, str]
    required: tuple[Body, ...]  # terms: one of them must match; empty: no demand
    preferred: tuple[Body, ...]
    tolerations: tuple[Body, ...]

    def likeness(self) -> str:
        """Pods alike in this fit the same nodes."""
        return json.dumps(msgspec.to_builtins(self), sort_keys=True)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    node: str = ""
    why_not: str = ""


def pod_requirements(pod: Body) -> PodRequirements:
    affinity = (spec(pod).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return PodRequirements(
        requests=pod_requests(pod),
        selector=spec(pod).get("nodeSelector") or {},
        required=tuple(required.get("nodeSelectorTerms") or ()),
        preferred=tuple(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()),
        tolerations=tuple(spec(pod).get("tolerations") or ()),
    )


def node_info(node: Body, used: Amounts) -> NodeInfo:
    allocatable = parse_amounts(status(node).get("allocatable") or status(node).get("capacity"))
    return NodeInfo(
        name=name_of(node),
        labels=labels(node),
        taints=(*(spec(node).get("taints") or ()), *condition_taints(node)),
        cordoned=bool(spec(node).get("unschedulable")),
        allocatable=allocatable,
        free=subtract_amounts(allocatable, used),
    )


def condition_taints(node: Body) -> list[Body]:
    """What a real cluster's node controller would put on the node."""
    ready = (condition(node, "Ready") or {}).get("status", "False")
    not_ready, unreachable = NODE_TROUBLES
    return {"True": [], "Unknown": [taint(unreachable)]}.get(ready, [taint(not_ready)])


def taint(key: str) -> Body:
    return {"key": key, "effect": "NoSchedule"}


def tolerates(toleration: Body, taint: Body) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    same = toleration["key"] == taint.get("key")
    return same and (
        toleration.get("operator") == "Exists"
        or (toleration.get("value") or "") == (taint.get("value") or "")
    )


def untolerated_taint(wish: PodRequirements, room: NodeInfo) -> Body | None:
    strict = [t for t in room.taints if t.get("effect") in ("NoSchedule", "NoExecute")]
    return next((t for t in strict if not any(tolerates(one, t) for one in wish.tolerations)), None)


def matches_affinity(wish: PodRequirements, room: NodeInfo) -> bool:
    if any(room.labels.get(key) != value for key, value in wish.selector.items()):
        return False
    return not wish.required or any(
        term_matches(term, room.labels, room.name) for term in wish.required
    )


def insufficient_resources(wish: PodRequirements, room: NodeInfo) -> list[str]:
    return [
        resource
        for resource, asked in wish.requests.items()
        if asked and asked > room.free.get(resource, 0)
    ]


def filter_reasons(wish: PodRequirements, room: NodeInfo) -> list[str]:
    """Why the pod cannot go to this node; empty if it can."""
    if room.cordoned:
        return [CORDONED]
    if bad := untolerated_taint(wish, room):
        return [f"node(s) had untolerated taint(s) {{{bad.get('key')}: {bad.get('value') or ''}}}"]
    if not matches_affinity(wish, room):
        return [MISMATCH]
    return [
        "Too many pods" if resource == "pods" else f"Insufficient {resource}"
        for resource in insufficient_resources(wish, room)
    ]


def free_share(wish: PodRequirements, room: NodeInfo, resource: str) -> float:
    whole = room.allocatable.get(resource, 0)
    return (room.free.get(resource, 0) - wish.requests.get(resource, 0)) / whole if whole else 0.0


def node_score(wish: PodRequirements, room: NodeInfo) -> float:
    liked = sum(
        p.get("weight", 0)
        for p in wish.preferred
        if term_matches(p.get("preference") or {}, room.labels, room.name)
    )
    return (free_share(wish, room, "cpu") + free_share(wish, room, "memory")) / 2 + float(
        liked
    ) * PREFERENCE_WEIGHT


def choose_node(wish: PodRequirements, rooms: list[NodeInfo]) -> Choice:
    against: Counter[str] = Counter()
    best: tuple[float, str] | None = None
    for room in rooms:
        reasons = filter_reasons(wish, room)
        against.update(reasons)
        if not reasons:
            best = min(best or (1e9, ""), (-node_score(wish, room), room.name))
    return (
        Choice(node=best[1]) if best else Choice(why_not=unschedulable_message(len(rooms), against))
    )


def unschedulable_message(nodes: int, against: Counter[str]) -> str:
    if not nodes:
        return "no nodes available to schedule pods"
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in against.items()))
    return f"0/{nodes} nodes are available: {reasons}."


def reserve(room: NodeInfo, requests: Amounts) -> NodeInfo:
    return msgspec.structs.replace(room, free=subtract_amounts(room.free, requests))
