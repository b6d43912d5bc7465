"""The cluster on one machine, as its user describes it. The cluster file: the nodes, the tenants and
the quotas.

    nodes:
      - {name: small, count: 2, cpu: 2, memory_gib: 4}         # small-1, small-2
      - {name: big, cpu: 4, memory_gib: 8, gpu: 1}             # big
      - name: other
        labels: {pool: other}                                  # for node_selector and affinity
        taints: [{key: team, value: other, effect: NoSchedule}]
    tenants:
      - {node: small-1, cpu: 1.5, from_s: 30, to_s: 90}        # pods that are not Weir's
    quotas:
      team-a: {cpu: 4, memory_gib: 8, gpu: 1}                  # the most that the namespace's jobs may hold

The namespaces are `default` and those that `quotas` name; `team-b: {}` has no limit.

An error message gives all faults of the file, one a line.

Secrets and ConfigMaps come from files, too: `[NAMESPACE/]NAME=PATH` (`DataSource`). PATH is a folder
(each of its files is a value), a file that ends with `.env` (each line is `NAME=value`, as a shell
would export it, without quotes), or any other file (one value of the file's name).
"""

from __future__ import annotations

import base64
import difflib
import re
import reprlib
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from services.local.objects import admission
from services.local.objects.bodies import Body
from shared import documents
from shared.bus.subjects import DEFAULT_NAMESPACE
from shared.messages import (
    DATA_KEY,
    DNS_LABEL,
    SUBDOMAIN,
    Cores,
    LabelKey,
    LabelMap,
    LabelValue,
    Namespace,
    NotNegative,
)

ERROR_TYPE = re.compile(r", got `\w+`$")
"""The end of a decoder's error, which names a type."""
SECTIONS = ("nodes", "tenants", "quotas")
NAMESPACE_RULE = (
    "Expected lower-case letters, digits and hyphens, beginning with a letter, at most 63"
    " characters"
)
AboveZero = Annotated[float, Meta(gt=0)]


class TaintSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A taint of a node, as in Kubernetes."""

    key: LabelKey
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node, or `count` equal ones."""

    name: str = "node"
    count: Annotated[int, Meta(ge=1)] = 1
    cpu: AboveZero = 1.0  # cores
    memory_gib: AboveZero = 4.0
    gpu: Annotated[int, Meta(ge=0)] = 0
    labels: LabelMap = {}
    taints: tuple[TaintSpec, ...] = ()

    def node_names(self) -> list[str]:
        if self.count == 1:
            return [self.name]
        return [f"{self.name}-{number}" for number in range(1, self.count + 1)]


class TenantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pod that is not Weir's, on one node for some time."""

    node: str
    cpu: AboveZero  # cores
    from_s: Annotated[float, Meta(ge=0)] = 0.0  # seconds after the cluster's start
    to_s: float | None = None  # None: for ever


class NamespaceQuota(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The most that the jobs of a namespace may hold; None: no limit."""

    cpu: Cores | None = None
    memory_gib: Cores | None = None
    gpu: NotNegative | None = None


Quotas = dict[Namespace, NamespaceQuota]


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeSpec, ...]
    tenants: tuple[TenantSpec, ...] = ()
    quotas: Quotas = {}

    def nodes_by_name(self) -> dict[str, NodeSpec]:
        return {name: node for node in self.nodes for name in node.node_names()}


class InvalidClusterFile(ValueError):
    """The faults of a cluster file, one a line."""


def parse_cluster(text: str) -> ClusterSpec:
    """Return the content of a cluster file. Raises `InvalidClusterFile`."""
    try:
        document = documents.load_yaml(text)
    except yaml.YAMLError as error:
        raise InvalidClusterFile(f"not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise InvalidClusterFile("a cluster file is a mapping with `nodes` and perhaps `tenants`")
    reasons = []
    for key in document:
        if key not in SECTIONS:
            reasons.append(f"{key}: no such section; use {', '.join(SECTIONS)}")
    nodes = read_entries("nodes", document.get("nodes"), NodeSpec, reasons)
    tenants = read_entries("tenants", document.get("tenants"), TenantSpec, reasons)
    quotas = read_quotas(document.get("quotas") or {}, reasons)
    spec = ClusterSpec(nodes=tuple(nodes.values()), tenants=tuple(tenants.values()), quotas=quotas)
    has_all_nodes = not any(reason.startswith("nodes") for reason in reasons)
    reasons += node_reasons(nodes)
    reasons += tenant_reasons(tenants, spec.nodes_by_name() if has_all_nodes else None)
    if not document.get("nodes"):
        reasons.append("nodes: there must be at least one")
    if reasons:
        raise InvalidClusterFile("\n".join(reasons))
    return spec


def read_quotas(raw: Any, reasons: list[str]) -> Quotas:
    """Return the quotas. If one of them is wrong, return none and add the faults to `reasons`."""
    wrong = quota_reasons(raw)
    reasons += wrong
    if wrong:
        return {}
    return msgspec.convert(raw, Quotas)


def quota_reasons(raw: Any) -> list[str]:
    """Return the faults of the quotas, each with its place."""
    if not isinstance(raw, dict):
        return [f"quotas: {conversion_error(Quotas, raw)}"]
    reasons = []
    for namespace, quota in raw.items():
        where = f"quotas.{namespace}"
        if not (isinstance(namespace, str) and is_namespace(namespace)):
            reasons.append(f"quotas: {NAMESPACE_RULE}, got {namespace!r}")
        elif isinstance(quota, dict):
            reasons += field_reasons(NamespaceQuota, quota, f"{where}.")
        else:
            reasons.append(f"{where}: must be a mapping")
    return reasons


def is_namespace(name: str) -> bool:
    return len(name) <= 63 and re.match(DNS_LABEL, name) is not None


def field_reasons(kind: type[msgspec.Struct], raw: Mapping[str, Any], path: str) -> list[str]:
    """Return the faults of the fields of a mapping. `path`: the text before a field's name."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    reasons = []
    for name in raw:
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            reasons.append(f"{path}{name}: no such field{hint}")
    for name, field in fields.items():
        if name in raw:
            error = conversion_error(field.type, raw[name])
            if error:
                reasons.append(f"{path}{name}: {error}")
        elif field.required:
            reasons.append(f"{path}{name}: is required")
    return reasons


def conversion_error(kind: Any, value: object) -> str:
    """Return the decoder's error about a value, with the value that was found; empty: no error."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        return f"{ERROR_TYPE.sub('', str(error))}, got {written_value(value)}"
    return ""


def written_value(value: object) -> str:
    """Return a value in YAML, shortened."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return reprlib.repr(value)


def read_entries(field: str, entries: Any, kind: type[Any], reasons: list[str]) -> dict[int, Any]:
    """Return the valid entries, by index. Add the faults of the others to `reasons`."""
    if not isinstance(entries or [], list):
        reasons.append(f"{field}: must be a list")
        return {}
    valid = {}
    for index, entry in enumerate(entries or []):
        where = f"{field}[{index}]"
        if not isinstance(entry, dict):
            reasons.append(f"{where}: must be a mapping")
            continue
        faults = field_reasons(kind, entry, f"{where}.")
        reasons += faults
        if not faults:
            valid[index] = msgspec.convert(entry, kind)
    return valid


def node_reasons(nodes: Mapping[int, NodeSpec]) -> list[str]:
    reasons = []
    counts: Counter[str] = Counter()
    for index, node in nodes.items():
        counts.update(node.node_names())
        if not admission.SUBDOMAIN.match(node.name):
            reasons.append(f"nodes[{index}].name: {node.name!r} is not a valid name for a node")
    for name, count in counts.items():
        if count > 1:
            reasons.append(f"nodes: {name!r} occurs {count} times")
    return reasons


def tenant_reasons(tenants: Mapping[int, TenantSpec], known: Container[str] | None) -> list[str]:
    """Return the faults of the tenants. `known`: the names of the nodes; None if some of them could
    not be read.
    """
    reasons = []
    for index, tenant in tenants.items():
        where = f"tenants[{index}]"
        if known is not None and tenant.node not in known:
            reasons.append(f"{where}.node: there is no node {tenant.node!r}")
        if tenant.to_s is not None and tenant.to_s <= tenant.from_s:
            reasons.append(f"{where}.to_s: must be later than from_s")
    return reasons


# ---------------------------------------------------------------- Secrets and ConfigMaps


LARGEST = 1 << 20
"""Bytes of one object, as in Kubernetes."""
FORM = "[NAMESPACE/]NAME=PATH"


class DataSource(msgspec.Struct, frozen=True, kw_only=True):
    """One Secret or ConfigMap, and the file or folder with its values."""

    kind: str
    namespace: str
    name: str
    path: Path

    @property
    def option(self) -> str:
        return f"{self.namespace}/{self.name}={self.path}"


def parse_source(text: str, kind: str) -> DataSource:
    """Return the object that a text names. Raises `ValueError` with the reason."""
    place, sign, path = text.partition("=")
    namespace, slash, name = place.rpartition("/")
    if not slash:
        namespace = DEFAULT_NAMESPACE
    if not sign or not path:
        raise ValueError(f"{text!r} is not {FORM}")
    if not re.fullmatch(DNS_LABEL, namespace):
        raise ValueError(f"{namespace!r} is not the name of a namespace")
    if not re.fullmatch(SUBDOMAIN, name):
        raise ValueError(
            f"{name!r} is not the name of an object: lower-case letters, digits, - and ."
        )
    return DataSource(kind=kind, namespace=namespace, name=name, path=Path(path))


def read_values(path: Path) -> dict[str, bytes]:
    """Return the values in a file or folder. Raises `ValueError` with every fault, and `OSError`."""
    if path.is_dir():
        values = {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.is_file()}
    elif path.suffix == ".env" or path.name == ".env":
        values = parse_variables(path.read_text("utf-8"), str(path))
    else:
        values = {path.name: path.read_bytes()}
    faults = [
        f"{path}: {key!r} cannot be a key" for key in values if not re.fullmatch(DATA_KEY, key)
    ]
    size = sum(map(len, values.values()))
    if size > LARGEST:
        faults.append(f"{path}: {size:,} bytes are more than {LARGEST:,}")
    if faults:
        raise ValueError("\n".join(faults))
    return values


def parse_variables(text: str, file: str) -> dict[str, bytes]:
    """Return the variables of a file with lines `NAME=value`. Empty lines and lines that begin with
    # are left out.
    """
    values = {}
    faults = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, sign, value = line.partition("=")
        name = name.strip().removeprefix("export ").strip()
        if not sign or not name:
            faults.append(f"{file}, line {number}: is not NAME=value")
        elif name in values:
            faults.append(f"{file}, line {number}: {name} occurs twice")
        values[name] = value.encode()
    if faults:
        raise ValueError("\n".join(faults))
    return values


def data_fields(source: DataSource, values: dict[str, bytes]) -> Body:
    """Return the fields of the object beside its metadata."""
    encoded = {key: base64.b64encode(value).decode() for key, value in values.items()}
    if source.kind == "Secret":
        return {"type": "Opaque", "data": encoded}
    plain = {}
    binary = {}
    for key, value in values.items():
        try:
            plain[key] = value.decode()
        except UnicodeDecodeError:
            binary[key] = encoded[key]
    return {"data": plain, "binaryData": binary} if binary else {"data": plain}


def repeated_objects(sources: tuple[DataSource, ...]) -> Iterator[str]:
    """Yield a fault for each object that is there twice."""
    seen = set()
    for source in sources:
        key = source.kind, source.namespace, source.name
        if key in seen:
            yield f"{source.kind} {source.namespace}/{source.name} is given twice"
        seen.add(key)
