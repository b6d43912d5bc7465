"""The free capacity of each node, and the metrics of the cluster.

Law: free = allocatable minus the effective requests of every pod that is bound to the node and has
not ended, Weir's or not. A terminating pod holds its resources until it is deleted. Judge a node by
its Ready condition and a pod by its deletion, never by phase alone: on a dead node pods stay
`Running` for minutes.

Law of `ClusterPicture`: every change returns the names of the nodes whose capacity it may have
changed, so that an event of one pod costs one recount of one node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import msgspec

from services.monitor.facts import NodeFact, PodFact, sum_amounts
from shared.messages import CapacityChanged, OwnPod, Resources
from shared.runtime.metrics import Family, Labels, Measure


def node_capacity(
    node: NodeFact, pods: Iterable[PodFact], revision: str, now: float
) -> CapacityChanged:
    """Return the fact about a node. `revision`: the API's, of the newest event it is based on."""
    holding = [p for p in pods if not p.ended]
    free = node.allocatable.minus(sum_amounts(p.requests for p in holding))
    own = [_own_pod(pod) for pod in holding if pod.job]
    told = CapacityChanged(
        node=node.name,
        node_uid=node.uid,
        seen="",
        allocatable=node.allocatable.resources(),
        free=free.resources(),
        ready=node.ready,
        schedulable=node.schedulable,
        taints=node.taints,
        own=tuple(sorted(own, key=lambda pod: (pod.namespace, pod.pod))),
        labels=node.labels,
        observed_s=now,
    )
    return msgspec.structs.replace(told, seen=capacity_digest(told, revision))


def deleted_node(last: CapacityChanged, revision: str, now: float) -> CapacityChanged:
    """Return the fact about a node that was deleted."""
    told = CapacityChanged(
        node=last.node,
        node_uid=last.node_uid,
        seen="",
        allocatable=Resources(),
        free=Resources(),
        ready=False,
        schedulable=False,
        gone=True,
        observed_s=now,
    )
    return msgspec.structs.replace(told, seen=capacity_digest(told, revision))


def is_unchanged(one: CapacityChanged | None, other: CapacityChanged) -> bool:
    """Return True if two facts have the same content, times and digests apart."""
    return one is not None and _without_times(one) == _without_times(other)


def capacity_digest(fact: CapacityChanged, revision: str) -> str:
    """Return the digest of a fact and the revision, so that a node that returns to an old state has
    a new fact.
    """
    body = revision.encode() + msgspec.json.encode(_without_times(fact))
    return hashlib.sha256(body).hexdigest()[:16]


def _without_times(told: CapacityChanged) -> CapacityChanged:
    return msgspec.structs.replace(told, seen="", observed_s=0.0)


def _own_pod(pod: PodFact) -> OwnPod:
    return OwnPod(
        namespace=pod.namespace,
        job=pod.job,
        pod=pod.name,
        resources=pod.requests.resources(),
        terminating=pod.terminating,
    )


class ClusterPicture:
    """The nodes and pods that exist, and the fact that was last published about each node."""

    def __init__(self, said: Iterable[CapacityChanged] = ()) -> None:
        self.published = {told.node: told for told in said}
        self.nodes: dict[str, NodeFact] = {}
        self.bound: dict[str, dict[str, PodFact]] = {}
        self.where: dict[str, str] = {}
        self.revisions: dict[str, str] = {}

    def restart_from(self, said: Iterable[CapacityChanged]) -> set[str]:
        """Replace the published facts; return all nodes, because each may differ."""
        before = set(self.published)
        self.published = {told.node: told for told in said}
        return before | set(self.published) | set(self.nodes)

    # ------------------------------------------------------------ changes

    def replace_nodes(self, nodes: Iterable[NodeFact], revision: str) -> set[str]:
        """Take the complete list of nodes; known ones that are not in it are gone."""
        before = set(self.nodes) | {name for name, told in self.published.items() if not told.gone}
        self.nodes = {n.name: n for n in nodes}
        return self._touch(before | set(self.nodes), revision)

    def update_node(self, node: NodeFact, revision: str) -> set[str]:
        self.nodes[node.name] = node
        return self._touch({node.name}, revision)

    def remove_node(self, node: NodeFact, revision: str) -> set[str]:
        self.nodes.pop(node.name, None)
        return self._touch({node.name}, revision)

    def replace_pods(self, pods: Iterable[PodFact], revision: str) -> set[str]:
        """Take the complete list of pods."""
        before = set(self.bound)
        self.bound, self.where = {}, {}
        for pod in pods:
            self._bind(pod)
        return self._touch(before | set(self.bound), revision)

    def update_pod(self, pod: PodFact, revision: str) -> set[str]:
        return self._touch(self._forget(pod) | self._bind(pod), revision)

    def remove_pod(self, pod: PodFact, revision: str) -> set[str]:
        return self._touch(self._forget(pod), revision)

    def _bind(self, pod: PodFact) -> set[str]:
        if not pod.node or pod.ended:
            return set()
        self.bound.setdefault(pod.node, {})[pod.uid] = pod
        self.where[pod.uid] = pod.node
        return {pod.node}

    def _forget(self, pod: PodFact) -> set[str]:
        node = self.where.pop(pod.uid, "")
        return {node} if self.bound.get(node, {}).pop(pod.uid, None) else set()

    def _touch(self, names: set[str], revision: str) -> set[str]:
        self.revisions.update(dict.fromkeys(names, revision))
        return names

    # ------------------------------------------------------------ facts

    def take_changes(self, names: Iterable[str], now: float) -> list[CapacityChanged]:
        """Return the new facts about these nodes; they count as published."""
        fresh = [told for told in (self._changed_fact(name, now) for name in sorted(names)) if told]
        self.published.update({told.node: told for told in fresh})
        return fresh

    def _changed_fact(self, name: str, now: float) -> CapacityChanged | None:
        last, revision = self.published.get(name), self.revisions.get(name, "")
        if name in self.nodes:
            told = node_capacity(self.nodes[name], self.bound.get(name, {}).values(), revision, now)
        elif last:
            told = deleted_node(last, revision, now)
        else:
            return None
        return None if is_unchanged(last, told) else told


GIB = 1 << 30  # bytes
SHARES = "by share: allocatable, free of every pod's requests, or requested by our own pods (ours)."
CPU = Family(
    name="weir_capacity_cpu_cores",
    kind="gauge",
    help=f"Cores of all nodes, {SHARES}",
    labels=("share",),
)
MEMORY = Family(
    name="weir_capacity_memory_bytes",
    kind="gauge",
    help=f"Memory of all nodes, {SHARES}",
    labels=("share",),
)
DEVICES = Family(
    name="weir_capacity_devices",
    kind="gauge",
    help=f"GPUs of all nodes, {SHARES}",
    labels=("share",),
)
NODES = Family(
    name="weir_capacity_nodes",
    kind="gauge",
    help="Nodes, by state: ready, cordoned, or not ready (unready).",
    labels=("state",),
)
REACTION = Family(
    name="weir_monitor_reaction_seconds",
    kind="histogram",
    help="From when a change of the cluster was seen to when what came of it was on the bus.",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10, 30),
)
Amount = Callable[[Resources], float]


def capacity_measures(told: Iterable[CapacityChanged]) -> tuple[Measure, ...]:
    """Return the metrics of the cluster from the last fact about each node."""
    here = [fact for fact in told if not fact.gone]
    return (
        Measure(CPU, _shares(here, lambda has: has.cpu)),
        Measure(MEMORY, _shares(here, lambda has: has.memory_gib * GIB)),
        Measure(DEVICES, _shares(here, lambda has: has.gpu)),
        Measure(NODES, _states(here)),
    )


def _shares(told: list[CapacityChanged], amount: Amount) -> dict[Labels, float]:
    return {
        ("allocatable",): sum(amount(fact.allocatable) for fact in told),
        ("free",): sum(amount(fact.free) for fact in told),
        ("ours",): sum(amount(pod.resources) for fact in told for pod in fact.own),
    }


def _states(told: list[CapacityChanged]) -> dict[Labels, float]:
    cordoned = sum(fact.ready and not fact.schedulable for fact in told)
    unready = sum(not fact.ready for fact in told)
    return {
        ("ready",): len(told) - cordoned - unready,
        ("cordoned",): cordoned,
        ("unready",): unready,
    }
