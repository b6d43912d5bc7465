"""Decode a request: its path, query and body.

Body types are those of the official client's models. Unknown fields are ignored, unless the request
asks for strict validation (`fieldValidation=Strict`), as kubectl does. null counts as absent. A
quantity may be a number: the client calls it a string, so a number is accepted where a mapping
holds strings.

kubectl sends some bodies in Kubernetes' protobuf: an eviction and the options of a deletion
(`drain`), a namespace (`create ns`), and an access review (`auth can-i`). Only these are read: the
bytes `k8s `, then a message. Its field 1 is the type (1: apiVersion, 2: kind), its field 2 the
encoded object (k8s.io/apimachinery, `runtime.Unknown`). Field numbers are those of the .proto files
of k8s.io/api (`Eviction`) and k8s.io/apimachinery (`DeleteOptions`, `Preconditions`, `ObjectMeta`).

Written by hand: four small messages do not justify protobuf with generated code of all of
Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from aiohttp import web
from kubernetes.client import models

from services.local.objects.bodies import Body, bad_request, no_such_path, unsupported_media
from services.local.objects.kinds import BY_PATH, NEW_EVENT, Kind
from services.local.objects.label_selectors import Match, field_selector, label_selector, match_both
from services.local.store import Deletion


class ResourcePath(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    namespace: str = ""  # empty: all of them, or the kind has none
    name: str = ""  # empty: the collection
    sub: str = ""


def parse_path(path: str) -> ResourcePath:
    """Return the resource of a path. Raises NotFound if it is not served."""
    steps = [step for step in path.split("/") if step]
    if steps[:2] == ["api", "v1"]:
        return parse_resource_path("", "v1", steps[2:])
    if steps[:1] == ["apis"] and len(steps) >= 4:
        return parse_resource_path(steps[1], steps[2], steps[3:])
    raise no_such_path()


def parse_resource_path(group: str, version: str, steps: list[str]) -> ResourcePath:
    """Return the resource of a path. `steps`: its part after the group and version. Raises
    NotFound.
    """
    if steps[:1] == ["namespaces"] and len(steps) >= 3:
        _, namespace, plural, *rest = steps
        kind = BY_PATH.get((group, version, plural))
        if kind is not None:
            if not kind.namespaced:
                raise no_such_path()
            return resource_path(kind, namespace, rest)
        if plural == "bindings" and not rest:
            pods = BY_PATH["", "v1", "pods"]
            return ResourcePath(kind=pods, namespace=namespace, sub="binding")
    kind = BY_PATH.get((group, version, steps[0])) if steps else None
    if kind is None or (kind.namespaced and len(steps) > 1):
        raise no_such_path()
    return resource_path(kind, "", steps[1:])


def resource_path(kind: Kind, namespace: str, rest: list[str]) -> ResourcePath:
    name, sub = (*rest, "", "")[:2]
    if len(rest) > 2 or (sub and sub not in subresource_names(kind)):
        raise no_such_path()
    return ResourcePath(kind=kind, namespace=namespace, name=name, sub=sub)


def subresource_names(kind: Kind) -> tuple[str, ...]:
    return ("status", *kind.subresources) if kind.has_status else kind.subresources


JSON = "application/json"


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    match: Match
    selects: bool = False  # there is a selector
    limit: int = 0
    continue_token: str = ""
    revision: str = ""
    timeout_s: float | None = None
    bookmarks: bool = False
    initial_events: bool | None = None  # None: as the revision says


def parse_boolean(text: str | None) -> bool:
    return text in ("true", "1", "True")


def parse_number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(f"{name}: {text!r} is no whole number")
    return int(text)


def list_options(kind: Kind, query: Mapping[str, str]) -> ListOptions:
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    initial = query.get("sendInitialEvents")
    return ListOptions(
        match=match_both(label_selector(labels), field_selector(fields, kind.fields)),
        selects=bool(labels or fields),
        limit=parse_number(query, "limit") or 0,
        continue_token=query.get("continue", ""),
        revision=query.get("resourceVersion", ""),
        timeout_s=parse_number(query, "timeoutSeconds"),
        bookmarks=parse_boolean(query.get("allowWatchBookmarks")),
        initial_events=None if initial is None else parse_boolean(initial),
    )


async def read_body(request: web.Request, *media: str) -> Any:
    """Return the decoded body. A body without a type is JSON. Raises a refusal (400, 415)."""
    given = request.content_type if "Content-Type" in request.headers else JSON
    if given not in media:
        raise unsupported_media(given, ", ".join(media))
    if given == PROTOBUF:
        return decode_protobuf(await request.read())
    try:
        return msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error


async def read_deletion(request: web.Request) -> Deletion:
    """Return the options in the body and in the query. The query has precedence, as in a real API
    server.
    """
    raw: Body = {}
    if request.can_read_body and await request.read():
        raw = await read_body(request, JSON, PROTOBUF)
    query = request.query
    grace_s = parse_number(query, "gracePeriodSeconds")
    if grace_s is None:
        grace_s = raw.get("gracePeriodSeconds")
    policy = query.get("propagationPolicy") or raw.get("propagationPolicy")
    orphans = parse_boolean(query.get("orphanDependents")) or bool(raw.get("orphanDependents"))
    preconditions = raw.get("preconditions") or {}
    return Deletion(
        grace_s=grace_s,
        uid=preconditions.get("uid"),
        revision=preconditions.get("resourceVersion"),
        orphan=orphans or policy == "Orphan",
        foreground=policy == "Foreground",
    )


def is_dry_run(request: web.Request) -> bool:
    return "All" in request.query.getall("dryRun", [])


PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bytes": (str,),  # in base64
    "bytearray": (str,),
    "datetime": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
}
TYPE_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}
NESTED = re.compile(r"(List|Dict)\[(?:str, )?(.+)\]")


def check_types(kind: Kind, body: Any, strict: bool = False) -> None:
    """Raise a refusal (400) that names the first field of a wrong type. `strict`: refuse unknown
    fields, too, and name all of them.
    """
    fault = _type_fault(body, model_of(kind), "")
    if fault:
        raise bad_request(f"{kind.name} in version {kind.version!r} cannot be handled: {fault}")
    if not strict:
        return
    unknown = [f'unknown field "{path}"' for path in unknown_fields(body, model_of(kind), "")]
    if unknown:
        why = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}'
        raise bad_request(f"{why}: strict decoding error: {', '.join(unknown)}")


def unknown_fields(value: Any, type_name: str, where: str) -> Iterator[str]:
    """Yield the path of each field that its type does not have."""
    nested = NESTED.fullmatch(type_name)
    if nested and nested[1] == "List":
        for index, item in enumerate(value or []):
            yield from unknown_fields(item, nested[2], f"{where}[{index}]")
    elif nested:
        for name, item in (value or {}).items():
            yield from unknown_fields(item, nested[2], f"{where}.{name}")
    elif isinstance(value, dict) and type_name not in PLAIN and type_name != "object":
        fields = _field_types(type_name)
        for name, item in value.items():
            path = f"{where}.{name}".lstrip(".")
            if name in fields:
                yield from unknown_fields(item, fields[name], path)
            else:
                yield path


def _type_fault(value: Any, type_name: str, where: str) -> str:
    """Return the first field of a wrong type; empty: there is none."""
    if value is None or type_name == "object":
        return ""
    if type_name in PLAIN:
        return _mismatch(value, PLAIN[type_name], where)
    nested = NESTED.fullmatch(type_name)
    if nested is None:
        return _object_fault(value, type_name, where)
    if nested[1] == "List":
        return _list_fault(value, nested[2], where)
    return _map_fault(value, nested[2], where)


def _list_fault(value: Any, type_name: str, where: str) -> str:
    if not isinstance(value, list):
        return _mismatch(value, (list,), where)
    if None in value:
        return f"{where}: null is not a valid element"
    for index, item in enumerate(value):
        if fault := _type_fault(item, type_name, f"{where}[{index}]"):
            return fault
    return ""


def _map_fault(value: Any, type_name: str, where: str) -> str:
    if not isinstance(value, dict):
        return _mismatch(value, (dict,), where)
    for name, item in value.items():
        if type_name == "str" and type(item) in (int, float):  # a quantity may be a number
            continue
        if fault := _type_fault(item, type_name, f"{where}.{name}"):
            return fault
    return ""


def _object_fault(value: Any, type_name: str, where: str) -> str:
    if not isinstance(value, dict):
        return _mismatch(value, (dict,), where)
    fields = _field_types(type_name)
    for name, item in value.items():
        if name not in fields:
            continue
        if fault := _type_fault(item, fields[name], f"{where}.{name}"):
            return fault
    return ""


def _mismatch(value: Any, wanted: tuple[type, ...], where: str) -> str:
    if isinstance(value, wanted) and (bool in wanted or not isinstance(value, bool)):
        return ""
    found, expected = TYPE_NAMES[type(value)], TYPE_NAMES[wanted[0]]
    return f"{where or 'the body'}: expected {expected}, got {found}"


@lru_cache(256)
def _field_types(model: str) -> dict[str, str]:
    """Return the types of a model's fields, by their names in JSON."""
    class_ = getattr(models, model)
    return {class_.attribute_map[name]: type_ for name, type_ in class_.openapi_types.items()}


def decode_protobuf(raw: bytes) -> Body:
    """Return a body in protobuf as it is in JSON. Raises a refusal (400) for a body that cannot be
    read, or is of another kind.
    """
    try:
        whole = _protobuf_fields(raw.removeprefix(MAGIC)) if raw.startswith(MAGIC) else {}
        kind = _protobuf_fields(whole[1][-1])[2][-1].decode()
        return {"kind": kind, **_message(kind, whole.get(2, [b""])[-1])}
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise bad_request("the body is not a protobuf message of a supported kind") from error


def model_of(kind: Kind) -> str:
    """Return the name of the official client's model of a kind."""
    if kind.name == "Event":
        return "EventsV1Event" if kind is NEW_EVENT else "CoreV1Event"
    return f"V1{kind.name}"


PROTOBUF = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
VARINT, BYTES = 0, 2
SIZES = {1: 8, 5: 4}  # of fixed-width values
Fields = dict[int, list[Any]]

NAMED: dict[str, dict[int, tuple[str, str]]] = {
    "Namespace": {1: ("metadata", "ObjectMeta")},
    "SelfSubjectAccessReview": {2: ("spec", "AccessSpec")},
    "AccessSpec": {
        1: ("resourceAttributes", "Resource"),
        2: ("nonResourceAttributes", "NonResource"),
    },
    "Resource": {
        1: ("namespace", "text"),
        2: ("verb", "text"),
        3: ("group", "text"),
        4: ("version", "text"),
        5: ("resource", "text"),
        6: ("subresource", "text"),
        7: ("name", "text"),
    },
    "NonResource": {1: ("path", "text"), 2: ("verb", "text")},
    "Eviction": {1: ("metadata", "ObjectMeta"), 2: ("deleteOptions", "DeleteOptions")},
    "ObjectMeta": {1: ("name", "text"), 3: ("namespace", "text")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "number"),
        2: ("preconditions", "Preconditions"),
        3: ("orphanDependents", "truth"),
        4: ("propagationPolicy", "text"),
    },
    "Preconditions": {1: ("uid", "text"), 2: ("resourceVersion", "text")},
}
"""By message and field number: the field's name in JSON, and its content."""


def _message(kind: str, raw: bytes) -> Body:
    found = _protobuf_fields(raw)
    message = {}
    for number, (name, content) in NAMED[kind].items():
        if number in found:
            message[name] = _value(content, found[number][-1])
    return message


def _value(content: str, value: Any) -> Any:
    if content == "number":
        return value - (1 << 64) if value >> 63 else value
    if content == "truth":
        return bool(value)
    return value.decode() if content == "text" else _message(content, value)


def _protobuf_fields(raw: bytes) -> Fields:
    """Return the values of each field in their order: numbers and bytes."""
    found: Fields = {}
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        number, wire_type = key >> 3, key & 7
        value: int | bytes
        if wire_type == VARINT:
            value, at = _varint(raw, at)
        else:
            size, at = _varint(raw, at) if wire_type == BYTES else (SIZES[wire_type], at)
            end = at + size
            if end > len(raw):
                raise ValueError("a value is cut off")
            value, at = raw[at:end], end
        found.setdefault(number, []).append(value)
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number, stored in seven bits of each byte, the lowest first; and the next
    position.
    """
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
