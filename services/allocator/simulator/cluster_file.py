"""The cluster file: which machines there are, and which tenants come and go. Every reason against it is told at once.

    nodes:
      - {name: small, count: 2, cpu: 2, memory_gib: 4}         # small-1, small-2
      - {name: big, cpu: 4, memory_gib: 8, gpu: 1}             # big
    tenants:
      - {node: small-1, cpu: 1.5, from_s: 30, to_s: 90}        # somebody else's work
    quotas:
      team-a: {cpu: 4, memory_gib: 8, gpu: 1}                  # what that namespace may hold in all; absent: no limit

It is the one of `weir up`; names may be left out (`node`, or `node-a`, `node-b`, ... for several kinds).
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
from services.allocator.simulator.scenario import Cluster, Machine, Tenant
from services.allocator.simulator.tables import Bad, Reason
from shared import yaml_text

KINDS: dict[str, type[msgspec.Struct]] = {"nodes": Machine, "tenants": Tenant}


def cluster(text: str) -> Cluster:
    """Raises `Bad`."""
    document, tree = _read(text)
    said = [*_against_shape(document), *quota_reasons(document.get("quotas") or {}, "quotas")]
    said += [why for field, kind in KINDS.items() for why in _against_entries(document, field, kind)]
    if not said:
        spec = _cluster(document)
        said = [*_against_names(spec), *_against_tenants(spec)]
    if said:
        raise Bad(_placed(tree, why) for why in said)
    return spec


def _read(text: str) -> tuple[dict[str, Any], yaml.Node]:
    try:
        document, tree = yaml_text.load(text), yaml_text.compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise Bad([Reason(place[0], f", column {place[1]}: this is no YAML: {error.problem}")]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Bad([Reason(1, f": this is no YAML: {error}")]) from error
    if not isinstance(document, dict) or tree is None:
        raise Bad([Reason(1, ": a cluster file is a mapping with `nodes` and perhaps `tenants`")])
    return document, tree


def _cluster(document: dict[str, Any]) -> Cluster:
    nodes = msgspec.convert(document["nodes"], tuple[Machine, ...])
    tenants = msgspec.convert(document.get("tenants") or [], tuple[Tenant, ...])
    quotas = msgspec.convert(document.get("quotas") or {}, Quotas)
    return Cluster(nodes=tuple(_named(nodes)), tenants=tenants, quotas=quotas)


def _named(nodes: tuple[Machine, ...]) -> Iterator[Machine]:
    for number, machine in enumerate(nodes):
        letter = ascii_lowercase[number] if number < len(ascii_lowercase) else str(number)
        yield machine if machine.name else replace(machine, name="node" if len(nodes) == 1 else f"node-{letter}")


# ---------------------------------------------------------------- reasons: a path, and what is wrong there


def _against_shape(document: dict[str, Any]) -> Iterator[str]:
    known = (*KINDS, "quotas")
    yield from (f"{key}: unknown; there are {', '.join(known)}" for key in document if key not in known)
    if not document.get("nodes"):
        yield "nodes: there must be at least one"


def _against_entries(document: dict[str, Any], field: str, kind: type[msgspec.Struct]) -> Iterator[str]:
    entries = document.get(field) or []
    if not isinstance(entries, list):
        yield f"{field}: is not a list"
        return
    for number, entry in enumerate(entries):
        where = f"{field}[{number}]"
        yield from field_reasons(kind, entry, f"{where}.") if isinstance(entry, dict) else (f"{where}: no mapping",)


def _against_names(spec: Cluster) -> Iterator[str]:
    times = Counter(name for machine in spec.nodes for name in machine.names())
    for number, machine in enumerate(spec.nodes):
        yield from (f"nodes[{number}].name: {n!r} is there {times[n]} times" for n in machine.names() if times[n] > 1)


def _against_tenants(spec: Cluster) -> Iterator[str]:
    has = spec.named()
    for number, tenant in enumerate(spec.tenants):
        where = f"tenants[{number}]"
        if tenant.node not in has:
            yield f"{where}.node: there is no node {tenant.node!r}"
        elif tenant.cpu > has[tenant.node].cpu:
            yield f"{where}.cpu: {tenant.node!r} has {has[tenant.node].cpu:g}"
        if tenant.to_s is not None and tenant.to_s <= tenant.from_s:
            yield f"{where}.to_s: must be later than from_s"


# ---------------------------------------------------------------- where in the text a path is


def _placed(tree: yaml.Node, why: str) -> Reason:
    line, column = _mark(tree, re.findall(r"[\w-]+", why.partition(":")[0]))
    return Reason(line, f", column {column}: {why}")


def _mark(tree: yaml.Node, path: Iterable[str]) -> tuple[int, int]:
    """Line and column, from one, of as much of the path as there is."""
    for step in path:
        below = _below(tree, step)
        if below is None:
            break
        tree = below
    return tree.start_mark.line + 1, tree.start_mark.column + 1


def _below(tree: yaml.Node, step: str) -> yaml.Node | None:
    if isinstance(tree, yaml.SequenceNode) and step.isdigit() and int(step) < len(tree.value):
        return tree.value[int(step)]  # type: ignore[no-any-return]
    if isinstance(tree, yaml.MappingNode):
        return next((value for key, value in tree.value if key.value == step), None)
    return None
