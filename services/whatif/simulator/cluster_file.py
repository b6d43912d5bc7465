"""The cluster file: the machines that there are, and the tenants that come and go.

Every reason against it is told at once.

    nodes:
      - {name: small, count: 2, cpu: 2, memory_gib: 4}         # small-1, small-2
      - {name: big, cpu: 4, memory_gib: 8, gpu: 1}             # big
    tenants:
      - {node: small-1, cpu: 1.5, from_s: 30, to_s: 90}        # somebody else's work
    quotas:                                            # of a namespace in all; absent: no limit
      team-a: {cpu: 4, memory_gib: 8, gpu: 1}

It is the one of `weir up`; names may be left out (`node`, or `node-a`, `node-b`, ... for several
kinds).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from string import ascii_lowercase
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from services.allocator.policies.contract import Quotas
from services.allocator.requests.validate import field_reasons, quota_reasons
from services.whatif.simulator.losses import Bad, Reason
from services.whatif.simulator.scenario import Cluster, Machine, Tenant
from shared import documents

KINDS: dict[str, type[msgspec.Struct]] = {"nodes": Machine, "tenants": Tenant}


def cluster(text: str) -> Cluster:
    """Return the cluster of a file; raise `Bad`."""
    document, tree = _read(text)
    quotas = document.get("quotas") or {}
    said = list(_against_shape(document))
    said += quota_reasons(quotas, "quotas")
    for field, kind in KINDS.items():
        said += _against_entries(document, field, kind)
    if said:
        raise _bad(tree, said)

    spec = _cluster(document)
    said = [*_against_names(spec), *_against_tenants(spec)]
    if said:
        raise _bad(tree, said)
    return spec


def _read(text: str) -> tuple[dict[str, Any], yaml.Node]:
    """Return the document, and its tree, which knows the place of each node in the text."""
    try:
        document = documents.load(text)
        tree = documents.compose(text)
    except yaml.MarkedYAMLError as error:
        raise Bad([_no_yaml(error)]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Bad([Reason(1, f": this is no YAML: {error}")]) from error

    if not isinstance(document, dict) or tree is None:
        raise Bad([Reason(1, ": a cluster file is a mapping with `nodes` and perhaps `tenants`")])
    return document, tree


def _no_yaml(error: yaml.MarkedYAMLError) -> Reason:
    """Return the error at its place in the text; at the start, if it has none."""
    line = 1
    column = 1
    mark = error.problem_mark
    if mark:
        line = mark.line + 1
        column = mark.column + 1
    return Reason(line, f", column {column}: this is no YAML: {error.problem}")


def _cluster(document: dict[str, Any]) -> Cluster:
    """Return the cluster of a document without faults in its fields."""
    nodes = msgspec.convert(document["nodes"], tuple[Machine, ...])
    tenants = document.get("tenants") or []
    quotas = document.get("quotas") or {}
    return Cluster(
        nodes=tuple(_named(nodes)),
        tenants=msgspec.convert(tenants, tuple[Tenant, ...]),
        quotas=msgspec.convert(quotas, Quotas),
    )


def _named(nodes: tuple[Machine, ...]) -> Iterator[Machine]:
    """Yield the nodes, those without a name with `node`, or `node-a`, `node-b`, and so on."""
    for number, machine in enumerate(nodes):
        if machine.name:
            yield machine
        elif len(nodes) == 1:
            yield replace(machine, name="node")
        else:
            letter = str(number)
            if number < len(ascii_lowercase):
                letter = ascii_lowercase[number]
            yield replace(machine, name=f"node-{letter}")


# ---------------------------------------------------------------- reasons: a path, and a fault


def _against_shape(document: dict[str, Any]) -> Iterator[str]:
    """Yield the fields that nobody knows, and that there are no nodes."""
    known = (*KINDS, "quotas")
    for key in document:
        if key not in known:
            yield f"{key}: unknown; there are {', '.join(known)}"
    if not document.get("nodes"):
        yield "nodes: there must be at least one"


def _against_entries(
    document: dict[str, Any], field: str, kind: type[msgspec.Struct]
) -> Iterator[str]:
    """Yield the reasons against each entry of a list."""
    entries = document.get(field) or []
    if not isinstance(entries, list):
        yield f"{field}: is not a list"
        return

    for number, entry in enumerate(entries):
        where = f"{field}[{number}]"
        if isinstance(entry, dict):
            yield from field_reasons(kind, entry, f"{where}.")
        else:
            yield f"{where}: no mapping"


def _against_names(spec: Cluster) -> Iterator[str]:
    """Yield the names that more than one node has."""
    times: Counter[str] = Counter()
    for machine in spec.nodes:
        times.update(machine.names())

    for number, machine in enumerate(spec.nodes):
        for name in machine.names():
            if times[name] > 1:
                yield f"nodes[{number}].name: {name!r} is there {times[name]} times"


def _against_tenants(spec: Cluster) -> Iterator[str]:
    """Yield the tenants that have no node, more than it has, or no time."""
    has = spec.named()
    for number, tenant in enumerate(spec.tenants):
        where = f"tenants[{number}]"
        node = has.get(tenant.node)
        if node is None:
            yield f"{where}.node: there is no node {tenant.node!r}"
        elif tenant.cpu > node.cpu:
            yield f"{where}.cpu: {tenant.node!r} has {node.cpu:g}"
        if tenant.to_s is not None and tenant.to_s <= tenant.from_s:
            yield f"{where}.to_s: must be later than from_s"


# ---------------------------------------------------------------- the place of a path in the text


def _bad(tree: yaml.Node, reasons: Iterable[str]) -> Bad:
    """Return the error with all reasons, each at its place in the text."""
    placed = []
    for why in reasons:
        where, _, _ = why.partition(":")
        path = re.findall(r"[\w-]+", where)
        line, column = _mark(tree, path)
        placed.append(Reason(line, f", column {column}: {why}"))
    return Bad(placed)


def _mark(tree: yaml.Node, path: Iterable[str]) -> tuple[int, int]:
    """Return line and column, from one, of as much of the path as there is."""
    for step in path:
        below = _below(tree, step)
        if below is None:
            break
        tree = below
    mark = tree.start_mark
    return mark.line + 1, mark.column + 1


def _below(tree: yaml.Node, step: str) -> yaml.Node | None:
    """Return the node of a list by its number, or of a mapping by its name."""
    if isinstance(tree, yaml.SequenceNode) and step.isdigit():
        number = int(step)
        if number < len(tree.value):
            return tree.value[number]  # type: ignore[no-any-return]
    if isinstance(tree, yaml.MappingNode):
        for key, value in tree.value:
            if key.value == step:
                return value  # type: ignore[no-any-return]
    return None
