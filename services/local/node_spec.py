"""The cluster file: which nodes there are, and which tenants come and go.

    nodes:
      - {name: small, count: 2, cpu: 2, memory_gib: 4}         # small-1, small-2
      - {name: big, cpu: 4, memory_gib: 8, gpu: 1}             # big
    tenants:
      - {node: small-1, cpu: 1.5, from_s: 30, to_s: 90}        # somebody else's work

Every reason why a file is no good is told, not only the first.
"""

from collections import Counter
from typing import Any

import msgspec
import yaml

from services.local.objects.naming import SUBDOMAIN


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node, or `count` alike."""

    name: str = "node"
    count: int = 1
    cpu: float = 1.0  # cores
    memory_gib: float = 4.0
    gpu: int = 0

    def names(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}-{number}" for number in range(1, self.count + 1)]


class TenantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work that is not ours, on one node for some time."""

    node: str
    cpu: float  # cores
    from_s: float = 0.0  # seconds after the cluster's start
    to_s: float | None = None  # None: for ever


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeSpec, ...]
    tenants: tuple[TenantSpec, ...] = ()

    def named(self) -> dict[str, NodeSpec]:
        return {name: node for node in self.nodes for name in node.names()}


class BadCluster(ValueError):
    """Every reason, one a line."""


def parse(text: str) -> ClusterSpec:
    """Raises BadCluster."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadCluster(f"this is no YAML: {error}") from error
    if not isinstance(document, dict):
        raise BadCluster("a cluster file is a mapping with `nodes` and perhaps `tenants`")
    reasons = [f"{key}: unknown; there are nodes, tenants" for key in document if key not in ("nodes", "tenants")]
    nodes = converted("nodes", document.get("nodes"), NodeSpec, reasons)
    tenants = converted("tenants", document.get("tenants"), TenantSpec, reasons)
    spec = ClusterSpec(nodes=tuple(nodes), tenants=tuple(tenants))
    reasons += wrong_nodes(spec) + wrong_tenants(spec)
    if reasons:
        raise BadCluster("\n".join(reasons))
    return spec


def converted(field: str, entries: Any, kind: type[Any], reasons: list[str]) -> list[Any]:
    if not isinstance(entries or [], list):
        reasons.append(f"{field}: must be a list")
        return []
    good = []
    for index, entry in enumerate(entries or []):
        try:
            good.append(msgspec.convert(entry, kind))
        except msgspec.ValidationError as error:
            reasons.append(f"{field}[{index}]: {error}")
    return good


def wrong_nodes(spec: ClusterSpec) -> list[str]:
    reasons = [] if spec.nodes else ["nodes: there must be at least one"]
    for index, node in enumerate(spec.nodes):
        where = f"nodes[{index}]"
        reasons += [
            f"{where}.{field}: must be above 0" for field in ("count", "cpu", "memory_gib") if getattr(node, field) <= 0
        ]
        reasons += [f"{where}.gpu: must not be negative"] if node.gpu < 0 else []
        reasons += [] if SUBDOMAIN.match(node.name) else [f"{where}.name: {node.name!r} is no good name for a node"]
    seen = Counter(name for node in spec.nodes for name in node.names())
    return reasons + [f"nodes: {name!r} is there {count} times" for name, count in seen.items() if count > 1]


def wrong_tenants(spec: ClusterSpec) -> list[str]:
    reasons, known = [], spec.named()
    for index, tenant in enumerate(spec.tenants):
        where = f"tenants[{index}]"
        reasons += [] if tenant.node in known else [f"{where}.node: there is no node {tenant.node!r}"]
        reasons += [] if tenant.cpu > 0 else [f"{where}.cpu: must be above 0"]
        reasons += [] if tenant.from_s >= 0 else [f"{where}.from_s: must not be negative"]
        late = tenant.to_s is not None and tenant.to_s <= tenant.from_s
        reasons += [f"{where}.to_s: must be later than from_s"] if late else []
    return reasons
