"""API discovery, and the OpenAPI schemas for `kubectl explain`.

Schemas come from the models of the official client. Written by hand: the client can read discovery
documents, but cannot produce them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kubernetes.client import models

from services.local.api.request import NESTED, PLAIN, model_of
from services.local.kubelet.kubelet import VERSION
from services.local.objects.bodies import Body
from services.local.objects.kinds import KINDS, POD, SERVICE, Kind

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
IN_ALL = (POD, SERVICE)  # what `kubectl get all` shows
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
    return sorted(
        {f"{kind.group}/{kind.version}" for kind in KINDS if kind.group} | {f"{METRICS}/v1beta1"}
    )


def api_group(group_version: str) -> Body:
    name, _, number = group_version.partition("/")
    one = {"groupVersion": group_version, "version": number}
    return {"name": name, "versions": [one], "preferredVersion": one}


def group_list() -> Body:
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [api_group(each) for each in group_versions()],
    }


def find_group(name: str) -> Body | None:
    found = next((each for each in group_versions() if each.partition("/")[0] == name), None)
    return {"kind": "APIGroup", "apiVersion": "v1", **api_group(found)} if found else None


def resource_entry(kind: Kind) -> Body:
    short = {"shortNames": list(kind.short)} if kind.short else {}
    shown = {"categories": ["all"]} if kind in IN_ALL else {}
    return {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": VERBS,
        **short,
        **shown,
    }


def subresource_entries(kind: Kind) -> list[Body]:
    names = [*(("status",) if kind.has_status else ()), *kind.subresources]
    return [
        {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind.name,
            "verbs": ["get", "patch", "update"],
            **OF_ITS_OWN.get(name, {}),
        }
        for name in names
    ]


OF_ITS_OWN: dict[str, Body] = {
    "eviction": {"group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]},
}
"""What a subresource takes that is not the object itself; `kubectl drain` looks for it."""


def resource_list(group: str, version: str) -> Body | None:
    """None: no such group and version."""
    here = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    listed = [
        entry for kind in here for entry in (resource_entry(kind), *subresource_entries(kind))
    ]
    if (group, version) == (METRICS, "v1beta1"):
        listed = [
            {
                "name": plural,
                "singularName": "",
                "namespaced": namespaced,
                "kind": name,
                "verbs": ["get", "list"],
            }
            for plural, name, namespaced in METRIC_KINDS
        ]
    if not listed:
        return None
    whole = f"{group}/{version}" if group else version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": whole,
        "resources": listed,
    }


# ---- openapi: enough for kubectl to leave the validation of objects to the server, and to explain them


def openapi_index() -> Body:
    """The path of every group and version below /openapi/v3."""
    paths = sorted({openapi_path(kind) for kind in KINDS})
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def openapi_path(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def openapi_document(path: str) -> Body | None:
    here = [kind for kind in KINDS if openapi_path(kind) == path]
    if not here:
        return None
    paths = {f"/{path}/{kind.plural}/{{name}}": {"patch": patch_operation(kind)} for kind in here}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "components": {"schemas": openapi_schemas(here)},
    }


def patch_operation(kind: Kind) -> Body:
    named = {"group": kind.group, "version": kind.version, "kind": kind.name}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}}
        for name in ("dryRun", "fieldValidation")
    ]
    return {"parameters": parameters, "responses": {}, "x-kubernetes-group-version-kind": named}


WHERE = "#/components/schemas/"
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
    """Return the schemas of these kinds, by name, and of all that they are made of."""
    found: dict[str, Body] = {}
    for kind in kinds:
        named = {"group": kind.group, "version": kind.version, "kind": kind.name}
        _add(model_of(kind), found)
        found[_name(model_of(kind))] |= {"x-kubernetes-group-version-kind": [named]}
    return found


def _name(model: str) -> str:
    """`V1PodSpec` as `V1.PodSpec`: kubectl shows what is behind the dot."""
    return VERSIONED.sub(r"\1.\2", model)


def _add(model: str, found: dict[str, Body]) -> None:
    if _name(model) in found or not hasattr(models, model):
        return
    of = getattr(models, model)
    about = (of.__doc__ or "").strip().partition("\n\n")[0]
    said = {name: field.description or "" for name, field in of.model_fields.items()}
    properties: Body = {}
    found[_name(model)] = {
        "type": "object",
        "description": " ".join(about.split()),
        "properties": properties,
    }
    for field, wanted in of.openapi_types.items():
        name = of.attribute_map[field]
        properties[name] = {"description": said.get(field, ""), **_schema(wanted)}
        _add(_inner(wanted), found)


def _inner(wanted: str) -> str:
    """The type of what a list or a mapping holds."""
    nested = NESTED.fullmatch(wanted)
    return _inner(nested[2]) if nested else wanted


def _schema(wanted: str) -> dict[str, Any]:
    if nested := NESTED.fullmatch(wanted):
        inner = _schema(nested[2])
        if nested[1] == "List":
            return {"type": "array", "items": inner}
        return {"type": "object", "additionalProperties": inner}
    if wanted in PLAIN or wanted == "object":
        return {"type": TYPES[wanted]}
    return {"allOf": [{"$ref": f"{WHERE}{_name(wanted)}"}]}
