"""The fields of each kind as OpenAPI has them, for `kubectl explain`: made from the official
client's models. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kubernetes.client import models

from services.local.api.decoding import NESTED, PLAIN, model_of
from services.local.objects.bodies import Body
from services.local.objects.kinds import Kind

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


def schemas(kinds: Iterable[Kind]) -> dict[str, Body]:
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
