"""The scheduler: choose a node for a pod, or give the reasons that there is none.

A node is feasible if it passes these checks. The first failed check of a node is its reason:

    unschedulable  the node is not cordoned
    taints         every NoSchedule or NoExecute taint is tolerated; a node that is not Ready has such a taint
    affinity       nodeSelector, and at least one term of the required node affinity, on labels and on
                   metadata.name
    resources      requests <= allocatable - requests of every pod there that has not ended

The feasible node with the highest score wins; on a tie, the first by name. The score is the mean of
the free cpu and the free memory after placement, as shares of allocatable (least allocated), plus
the weights of preferred affinity. Pod affinity, topology spread, volumes and preemption are left
out.
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
PREFERENCE_WEIGHT = 1 / 100
"""The largest weight of one preferred term counts as much as a whole empty node."""


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
        """Return a key; pods with the same key fit the same nodes."""
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
    """Return the taints that the node controller of a real cluster puts on the node."""
    ready = (condition(node, "Ready") or {}).get("status", "False")
    if ready == "True":
        return []
    not_ready, unreachable = NODE_TROUBLES
    return [taint(unreachable if ready == "Unknown" else not_ready)]


def taint(key: str) -> Body:
    return {"key": key, "effect": "NoSchedule"}


def tolerates(toleration: Body, taint: Body) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    if toleration["key"] != taint.get("key"):
        return False
    return exists or (toleration.get("value") or "") == (taint.get("value") or "")


def untolerated_taint(pod: PodRequirements, node: NodeInfo) -> Body | None:
    for each in node.taints:
        if each.get("effect") not in ("NoSchedule", "NoExecute"):
            continue
        if not any(tolerates(toleration, each) for toleration in pod.tolerations):
            return each
    return None


def matches_affinity(pod: PodRequirements, node: NodeInfo) -> bool:
    for key, value in pod.selector.items():
        if node.labels.get(key) != value:
            return False
    if not pod.required:
        return True
    return any(term_matches(term, node.labels, node.name) for term in pod.required)


def insufficient_resources(pod: PodRequirements, node: NodeInfo) -> list[str]:
    lacking = []
    for resource, amount in pod.requests.items():
        if amount and amount > node.free.get(resource, 0):
            lacking.append(resource)
    return lacking


def filter_reasons(pod: PodRequirements, node: NodeInfo) -> list[str]:
    """Return the reasons that the pod cannot go to this node; empty if it can."""
    if node.cordoned:
        return [CORDONED]
    if bad := untolerated_taint(pod, node):
        return [f"node(s) had untolerated taint(s) {{{bad.get('key')}: {bad.get('value') or ''}}}"]
    if not matches_affinity(pod, node):
        return [MISMATCH]
    reasons = []
    for resource in insufficient_resources(pod, node):
        reasons.append("Too many pods" if resource == "pods" else f"Insufficient {resource}")
    return reasons


def free_share(pod: PodRequirements, node: NodeInfo, resource: str) -> float:
    """Return the share of a resource that is free after placement."""
    allocatable = node.allocatable.get(resource, 0)
    if not allocatable:
        return 0.0
    return (node.free.get(resource, 0) - pod.requests.get(resource, 0)) / allocatable


def node_score(pod: PodRequirements, node: NodeInfo) -> float:
    preference = 0
    for term in pod.preferred:
        if term_matches(term.get("preference") or {}, node.labels, node.name):
            preference += term.get("weight", 0)
    free = (free_share(pod, node, "cpu") + free_share(pod, node, "memory")) / 2
    return free + float(preference) * PREFERENCE_WEIGHT


def choose_node(pod: PodRequirements, nodes: list[NodeInfo]) -> Choice:
    rejections: Counter[str] = Counter()
    best: tuple[float, str] | None = None
    for node in nodes:
        reasons = filter_reasons(pod, node)
        rejections.update(reasons)
        if not reasons:
            best = min(best or (1e9, ""), (-node_score(pod, node), node.name))
    if best is not None:
        return Choice(node=best[1])
    return Choice(why_not=unschedulable_message(len(nodes), rejections))


def unschedulable_message(nodes: int, rejections: Counter[str]) -> str:
    if not nodes:
        return "no nodes available to schedule pods"
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in rejections.items()))
    return f"0/{nodes} nodes are available: {reasons}."


def reserve(node: NodeInfo, requests: Amounts) -> NodeInfo:
    return msgspec.structs.replace(node, free=subtract_amounts(node.free, requests))
