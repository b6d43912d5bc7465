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

from services.monitor.facts import Amount, NodeFact, PodFact
from shared.messages import GIB, CapacityChanged, OwnPod, Resources
from shared.runtime.metrics import Family, Labels, Measure


def node_capacity(
    node: NodeFact, pods: Iterable[PodFact], revision: str, now: float
) -> CapacityChanged:
    """Return the fact about a node. `revision`: the API's, of the newest event it is based on."""
    used = Amount()
    own = []
    for pod in pods:
        if pod.ended:
            continue
        used = used + pod.requests
        if pod.job:
            own.append(_own_pod(pod))
    own.sort(key=lambda pod: (pod.namespace, pod.pod))
    fact = CapacityChanged(
        node=node.name,
        node_uid=node.uid,
        seen="",
        allocatable=node.allocatable.resources(),
        free=node.allocatable.minus(used).resources(),
        ready=node.ready,
        schedulable=node.schedulable,
        taints=node.taints,
        own=tuple(own),
        labels=node.labels,
        observed_s=now,
    )
    return msgspec.structs.replace(fact, seen=capacity_digest(fact, revision))


def deleted_node(last: CapacityChanged, revision: str, now: float) -> CapacityChanged:
    """Return the fact about a node that was deleted."""
    fact = CapacityChanged(
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
    return msgspec.structs.replace(fact, seen=capacity_digest(fact, revision))


def is_unchanged(one: CapacityChanged | None, other: CapacityChanged) -> bool:
    """Return True if two facts have the same content, apart from their times and digests."""
    return one is not None and _without_times(one) == _without_times(other)


def capacity_digest(fact: CapacityChanged, revision: str) -> str:
    """Return the digest of a fact and the revision, so that a node that returns to an old state has
    a new fact.
    """
    body = revision.encode() + msgspec.json.encode(_without_times(fact))
    return hashlib.sha256(body).hexdigest()[:16]


def _without_times(fact: CapacityChanged) -> CapacityChanged:
    return msgspec.structs.replace(fact, seen="", observed_s=0.0)


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

    def __init__(self, published: Iterable[CapacityChanged] = ()) -> None:
        self.published = {fact.node: fact for fact in published}
        self.nodes: dict[str, NodeFact] = {}
        self.bound: dict[str, dict[str, PodFact]] = {}
        self.where: dict[str, str] = {}
        self.revisions: dict[str, str] = {}

    def restart_from(self, published: Iterable[CapacityChanged]) -> set[str]:
        """Replace the published facts; return all nodes, because each may differ."""
        before = set(self.published)
        self.published = {fact.node: fact for fact in published}
        return before | set(self.published) | set(self.nodes)

    # ------------------------------------------------------------ changes

    def replace_nodes(self, nodes: Iterable[NodeFact], revision: str) -> set[str]:
        """Take the complete list of nodes; known ones that are not in it are gone."""
        names = set(self.nodes)
        for name, fact in self.published.items():
            if not fact.gone:
                names.add(name)
        self.nodes = {node.name: node for node in nodes}
        return self._touch(names | set(self.nodes), revision)

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
        changes = []
        for name in sorted(names):
            fact = self._changed_fact(name, now)
            if fact is not None:
                changes.append(fact)
        for fact in changes:
            self.published[fact.node] = fact
        return changes

    def _changed_fact(self, name: str, now: float) -> CapacityChanged | None:
        last = self.published.get(name)
        revision = self.revisions.get(name, "")
        if name in self.nodes:
            pods = self.bound.get(name, {}).values()
            fact = node_capacity(self.nodes[name], pods, revision, now)
        elif last:
            fact = deleted_node(last, revision, now)
        else:
            return None
        return None if is_unchanged(last, fact) else fact


SHARES = "by share: allocatable, free (requested by no pod), or requested by pods of jobs (ours)."
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
    help="Time from an event of the cluster until the facts about it are stored.",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10, 30),
)
AmountOf = Callable[[Resources], float]


def capacity_measures(facts: Iterable[CapacityChanged]) -> tuple[Measure, ...]:
    """Return the metrics of the cluster from the last fact about each node."""
    existing = [fact for fact in facts if not fact.gone]
    return (
        Measure(CPU, _shares(existing, lambda resources: resources.cpu)),
        Measure(MEMORY, _shares(existing, lambda resources: resources.memory_gib * GIB)),
        Measure(DEVICES, _shares(existing, lambda resources: resources.gpu)),
        Measure(NODES, _states(existing)),
    )


def _shares(facts: list[CapacityChanged], amount: AmountOf) -> dict[Labels, float]:
    allocatable: float = 0
    free: float = 0
    ours: float = 0
    for fact in facts:
        allocatable += amount(fact.allocatable)
        free += amount(fact.free)
        for pod in fact.own:
            ours += amount(pod.resources)
    return {("allocatable",): allocatable, ("free",): free, ("ours",): ours}


def _states(facts: list[CapacityChanged]) -> dict[Labels, float]:
    nodes: dict[Labels, float] = {("ready",): 0, ("cordoned",): 0, ("unready",): 0}
    for fact in facts:
        if not fact.ready:
            state = "unready"
        elif fact.schedulable:
            state = "ready"
        else:
            state = "cordoned"
        nodes[state,] += 1
    return nodes
