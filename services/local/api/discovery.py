"""API discovery, and the OpenAPI schemas for `kubectl explain`.

Schemas come from the models of the official client. Written by hand: the client can read discovery
documents, but cannot produce them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kubernetes.client import models

from services.local.api.request import NESTED, PLAIN, model_of, subresource_names
from services.local.kubelet.kubelet import VERSION
from services.local.objects.bodies import Body
from services.local.objects.kinds import KINDS, POD, SERVICE, Kind

SUBRESOURCE_VERBS = ["get", "patch", "update"]
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
IN_ALL = (POD, SERVICE)
"""The kinds of `kubectl get all`."""
METRICS = "metrics.k8s.io"
METRIC_KINDS = (("nodes", "NodeMetrics", False), ("pods", "PodMetrics", True))


def version_info() -> Body:
    major, minor = VERSION.removeprefix("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"{VERSION}+weir",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux",
    }


def core_versions() -> Body:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_versions() -> list[str]:
    versions = {f"{METRICS}/v1beta1"}
    for kind in KINDS:
        if kind.group:
            versions.add(kind.api_version)
    return sorted(versions)


def api_group(group_version: str) -> Body:
    name, _, number = group_version.partition("/")
    one = {"groupVersion": group_version, "version": number}
    return {"name": name, "versions": [one], "preferredVersion": one}


def group_list() -> Body:
    groups = list(map(api_group, group_versions()))
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def find_group(name: str) -> Body | None:
    for each in group_versions():
        if each.partition("/")[0] == name:
            return {"kind": "APIGroup", "apiVersion": "v1", **api_group(each)}
    return None


def resource_entry(kind: Kind) -> Body:
    entry = _entry(kind.plural, kind.name, kind.namespaced, VERBS)
    entry["singularName"] = kind.name.lower()
    if kind.short:
        entry["shortNames"] = list(kind.short)
    if kind in IN_ALL:
        entry["categories"] = ["all"]
    return entry


def _entry(plural: str, name: str, namespaced: bool, verbs: list[str]) -> Body:
    return {
        "name": plural,
        "singularName": "",
        "namespaced": namespaced,
        "kind": name,
        "verbs": verbs,
    }


def subresource_entries(kind: Kind) -> list[Body]:
    entries = []
    for name in subresource_names(kind):
        entry = _entry(f"{kind.plural}/{name}", kind.name, kind.namespaced, SUBRESOURCE_VERBS)
        entries.append(entry | OF_ITS_OWN.get(name, {}))
    return entries


OF_ITS_OWN: dict[str, Body] = {
    "eviction": {"group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]},
}
"""Subresources with a kind of their own; `kubectl drain` looks for it."""


def resource_list(group: str, version: str) -> Body | None:
    """Return the resources of a group and version; None if it is not served."""
    listed = []
    for kind in KINDS:
        if (kind.group, kind.version) == (group, version):
            listed.append(resource_entry(kind))
            listed += subresource_entries(kind)
    if (group, version) == (METRICS, "v1beta1"):
        for plural, name, namespaced in METRIC_KINDS:
            listed.append(_entry(plural, name, namespaced, ["get", "list"]))
    if not listed:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": listed,
    }


# ---- openapi: enough for kubectl to leave the validation of objects to the server, and to explain them


def openapi_index() -> Body:
    """Return the path of every group and version below /openapi/v3."""
    paths = sorted({openapi_path(kind) for kind in KINDS})
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def openapi_path(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def openapi_document(path: str) -> Body | None:
    kinds = [kind for kind in KINDS if openapi_path(kind) == path]
    if not kinds:
        return None
    paths = {}
    for kind in kinds:
        paths[f"/{path}/{kind.plural}/{{name}}"] = {"patch": patch_operation(kind)}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "components": {"schemas": openapi_schemas(kinds)},
    }


def patch_operation(kind: Kind) -> Body:
    text = {"type": "string"}
    parameters = []
    for name in ("dryRun", "fieldValidation"):
        parameters.append({"name": name, "in": "query", "schema": text})
    return {"parameters": parameters, "responses": {}, KIND_MARK: _group_version_kind(kind)}


def _group_version_kind(kind: Kind) -> Body:
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


SCHEMAS = "#/components/schemas/"
KIND_MARK = "x-kubernetes-group-version-kind"
VERSIONED = re.compile(r"^(\w*?V\d+(?:(?:alpha|beta)\d+)?)(\w+)$")
TYPES = {
    "str": "string",
    "datetime": "string",
    "bytes": "string",
    "bytearray": "string",
    "int": "integer",
}
TYPES |= {"float": "number", "bool": "boolean", "object": "object"}


def openapi_schemas(kinds: Iterable[Kind]) -> dict[str, Body]:
    """Return the schemas of these kinds and of all their parts, by name."""
    schemas: dict[str, Body] = {}
    for kind in kinds:
        model = model_of(kind)
        _add_schema(model, schemas)
        schemas[_schema_name(model)][KIND_MARK] = [_group_version_kind(kind)]
    return schemas


def _schema_name(model: str) -> str:
    """Return `V1.PodSpec` for `V1PodSpec`: kubectl shows the part after the dot."""
    return VERSIONED.sub(r"\1.\2", model)


def _add_schema(model: str, schemas: dict[str, Body]) -> None:
    name = _schema_name(model)
    if name in schemas or not hasattr(models, model):
        return
    class_ = getattr(models, model)
    about = (class_.__doc__ or "").strip().partition("\n\n")[0]
    properties: Body = {}
    schemas[name] = {
        "type": "object",
        "description": " ".join(about.split()),
        "properties": properties,
    }
    for field, type_name in class_.openapi_types.items():
        described = class_.model_fields.get(field)
        description = (described.description if described else "") or ""
        property_name = class_.attribute_map[field]
        properties[property_name] = {"description": description, **_schema(type_name)}
        _add_schema(_element_type(type_name), schemas)


def _element_type(type_name: str) -> str:
    """Return the type of the elements of a list or mapping, however deep; else the type itself."""
    nested = NESTED.fullmatch(type_name)
    return _element_type(nested[2]) if nested else type_name


def _schema(type_name: str) -> dict[str, Any]:
    if nested := NESTED.fullmatch(type_name):
        inner = _schema(nested[2])
        if nested[1] == "List":
            return {"type": "array", "items": inner}
        return {"type": "object", "additionalProperties": inner}
    if type_name in PLAIN or type_name == "object":
        return {"type": TYPES[type_name]}
    return {"allOf": [{"$ref": f"{SCHEMAS}{_schema_name(type_name)}"}]}
