"""The picture of the cluster: which nodes there are, and which pods are bound to each.

Law: every change returns the names of the nodes whose capacity it may have changed, so that one
pod's event costs one node's recount.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.monitor.capacity import node_capacity, node_gone, same_picture
from services.monitor.facts import NodeFact, PodFact
from shared.messages import CapacityChanged


class Picture:
    """What has been seen, and what was last said of each node."""

    def __init__(self, said: Iterable[CapacityChanged] = ()) -> None:
        self.said = {told.node: told for told in said}
        self.nodes: dict[str, NodeFact] = {}
        self.bound: dict[str, dict[str, PodFact]] = {}
        self.where: dict[str, str] = {}
        self.revisions: dict[str, str] = {}

    def begin_from(self, said: Iterable[CapacityChanged]) -> set[str]:
        """Take these for what was said; every node may differ from that."""
        before = set(self.said)
        self.said = {told.node: told for told in said}
        return before | set(self.said) | set(self.nodes)

    # ------------------------------------------------------------ seeing

    def see_nodes(self, nodes: Iterable[NodeFact], revision: str) -> set[str]:
        """All nodes there are; those that we knew of and that are not among them are gone."""
        before = set(self.nodes) | {name for name, told in self.said.items() if not told.gone}
        self.nodes = {n.name: n for n in nodes}
        return self._touch(before | set(self.nodes), revision)

    def see_node(self, node: NodeFact, revision: str) -> set[str]:
        self.nodes[node.name] = node
        return self._touch({node.name}, revision)

    def miss_node(self, node: NodeFact, revision: str) -> set[str]:
        self.nodes.pop(node.name, None)
        return self._touch({node.name}, revision)

    def see_pods(self, pods: Iterable[PodFact], revision: str) -> set[str]:
        """All pods there are, and no others."""
        before = set(self.bound)
        self.bound, self.where = {}, {}
        for pod in pods:
            self._bind(pod)
        return self._touch(before | set(self.bound), revision)

    def see_pod(self, pod: PodFact, revision: str) -> set[str]:
        return self._touch(self._forget(pod) | self._bind(pod), revision)

    def miss_pod(self, pod: PodFact, revision: str) -> set[str]:
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

    # ------------------------------------------------------------ saying

    def news(self, names: Iterable[str], now: float) -> list[CapacityChanged]:
        """Of these nodes, what is truly new; it counts as said."""
        fresh = [told for told in (self._told(name, now) for name in sorted(names)) if told]
        self.said.update({told.node: told for told in fresh})
        return fresh

    def _told(self, name: str, now: float) -> CapacityChanged | None:
        last, revision = self.said.get(name), self.revisions.get(name, "")
        if name in self.nodes:
            told = node_capacity(self.nodes[name], self.bound.get(name, {}).values(), revision, now)
        elif last:
            told = node_gone(last, revision, now)
        else:
            return None
        return None if same_picture(last, told) else told
