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

from services.local.objects.api_errors import bad_request, no_such_path, unsupported_media
from services.local.objects.bodies import Body
from services.local.objects.kinds import BY_PATH, NEW_EVENT, Kind
from services.local.objects.label_selectors import Match, field_selector, label_selector, match_both
from services.local.store import Deletion


class ResourcePath(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    namespace: str = ""  # empty: all of them, or the kind has none
    name: str = ""  # empty: the collection
    sub: str = ""


def parse_path(path: str) -> ResourcePath:
    """Raises NotFound for a path that is not served."""
    steps = [step for step in path.split("/") if step]
    if steps[:2] == ["api", "v1"]:
        return parse_resource_path("", "v1", steps[2:])
    if steps[:1] == ["apis"] and len(steps) >= 4:
        return parse_resource_path(steps[1], steps[2], steps[3:])
    raise no_such_path()


def parse_resource_path(group: str, version: str, steps: list[str]) -> ResourcePath:
    inner = (
        BY_PATH.get((group, version, steps[2]))
        if steps[:1] == ["namespaces"] and len(steps) >= 3
        else None
    )
    if inner is not None:
        return resource_path(inner, steps[1], steps[3:]) if inner.namespaced else refuse()
    if steps[:1] == ["namespaces"] and len(steps) == 3 and steps[2] == "bindings":
        return ResourcePath(kind=BY_PATH["", "v1", "pods"], namespace=steps[1], sub="binding")
    kind = BY_PATH.get((group, version, steps[0])) if steps else None
    if kind is None or (kind.namespaced and len(steps) > 1):
        return refuse()
    return resource_path(kind, "", steps[1:])


def resource_path(kind: Kind, namespace: str, rest: list[str]) -> ResourcePath:
    name, sub = (*rest, "", "")[:2]
    known = (*kind.subresources, *(("status",) if kind.has_status else ()))
    if len(rest) > 2 or (sub and sub not in known):
        return refuse()
    return ResourcePath(kind=kind, namespace=namespace, name=name, sub=sub)


def refuse() -> ResourcePath:
    raise no_such_path()


JSON = "application/json"


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    match: Match
    selects: bool = False  # whether there is a selector
    limit: int = 0
    go_on: str = ""
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
    initial = query.get("sendInitialEvents")
    return ListOptions(
        match=match_both(
            label_selector(query.get("labelSelector", "")),
            field_selector(query.get("fieldSelector", ""), kind.fields),
        ),
        selects=bool(query.get("labelSelector") or query.get("fieldSelector")),
        limit=parse_number(query, "limit") or 0,
        go_on=query.get("continue", ""),
        revision=query.get("resourceVersion", ""),
        timeout_s=parse_number(query, "timeoutSeconds"),
        bookmarks=parse_boolean(query.get("allowWatchBookmarks")),
        initial_events=None if initial is None else parse_boolean(initial),
    )


async def read_body(request: web.Request, *media: str) -> Any:
    """The decoded body; a body of no stated type is JSON. Raises what a bad one deserves."""
    given = request.content_type if "Content-Type" in request.headers else JSON
    if given not in media:
        raise unsupported_media(given, ", ".join(media))
    if given == PROTOBUF:
        return body_in(await request.read())
    try:
        return msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from error


async def read_deletion(request: web.Request) -> Deletion:
    """From the body and from the query; the query wins, as it does in a real one."""
    raw: Body = (
        await read_body(request, JSON, PROTOBUF)
        if request.can_read_body and await request.read()
        else {}
    )
    asked = parse_number(request.query, "gracePeriodSeconds")
    policy = request.query.get("propagationPolicy") or raw.get("propagationPolicy")
    legacy = parse_boolean(request.query.get("orphanDependents")) or bool(
        raw.get("orphanDependents")
    )
    before = raw.get("preconditions") or {}
    return Deletion(
        grace_s=raw.get("gracePeriodSeconds") if asked is None else asked,
        uid=before.get("uid"),
        revision=before.get("resourceVersion"),
        orphan=legacy or policy == "Orphan",
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
TOLD = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}
NESTED = re.compile(r"(List|Dict)\[(?:str, )?(.+)\]")


def check_types(kind: Kind, body: Any, strict: bool = False) -> Any:
    """The body as it is; raises a refusal (400) that names the first field of a wrong type, or all
    unknown ones.
    """
    wrong = _wrong(body, model_of(kind), "")
    if wrong:
        raise bad_request(f"{kind.name} in version {kind.version!r} cannot be handled: {wrong}")
    if strict and (
        unknown := [f'unknown field "{path}"' for path in unknown_fields(body, model_of(kind), "")]
    ):
        told = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}'
        raise bad_request(f"{told}: strict decoding error: {', '.join(unknown)}")
    return body


def unknown_fields(value: Any, wanted: str, where: str) -> Iterator[str]:
    """Yield the path of each field that its type does not have."""
    if nested := NESTED.fullmatch(wanted):
        within = enumerate(value or []) if nested[1] == "List" else (value or {}).items()
        for at, one in within:
            yield from unknown_fields(
                one, nested[2], f"{where}[{at}]" if nested[1] == "List" else f"{where}.{at}"
            )
    elif isinstance(value, dict) and wanted not in PLAIN and wanted != "object":
        fields = _fields(wanted)
        for name, one in value.items():
            path = f"{where}.{name}".lstrip(".")
            if name in fields:
                yield from unknown_fields(one, fields[name], path)
            else:
                yield path


def model_of(kind: Kind) -> str:
    """Return the name of the official client's model of a kind."""
    if kind.name == "Event":
        return "EventsV1Event" if kind is NEW_EVENT else "CoreV1Event"
    return f"V1{kind.name}"


def _wrong(value: Any, wanted: str, where: str) -> str:
    """Empty where it fits."""
    if value is None or wanted == "object":
        return ""
    if wanted in PLAIN:
        return _unlike(value, PLAIN[wanted], where)
    if nested := NESTED.fullmatch(wanted):
        return (
            _wrong_list(value, nested[2], where)
            if nested[1] == "List"
            else _wrong_map(value, nested[2], where)
        )
    return _wrong_object(value, wanted, where)


def _wrong_list(value: Any, wanted: str, where: str) -> str:
    if not isinstance(value, list):
        return _unlike(value, (list,), where)
    if None in value:
        return f"{where}: null where an element is wanted"
    return _first(_wrong(one, wanted, f"{where}[{at}]") for at, one in enumerate(value))


def _wrong_map(value: Any, wanted: str, where: str) -> str:
    if not isinstance(value, dict):
        return _unlike(value, (dict,), where)
    number = wanted == "str"
    return _first(
        "" if number and type(one) in (int, float) else _wrong(one, wanted, f"{where}.{name}")
        for name, one in value.items()
    )


def _wrong_object(value: Any, wanted: str, where: str) -> str:
    if not isinstance(value, dict):
        return _unlike(value, (dict,), where)
    fields = _fields(wanted)
    return _first(
        _wrong(one, fields[name], f"{where}.{name}")
        for name, one in value.items()
        if name in fields
    )


def _first(found: Any) -> str:
    return next((wrong for wrong in found if wrong), "")


def _unlike(value: Any, wanted: tuple[type, ...], where: str) -> str:
    if isinstance(value, wanted) and (bool in wanted or not isinstance(value, bool)):
        return ""
    return f"{where or 'the body'}: {TOLD[type(value)]} where {TOLD[wanted[0]]} is wanted"


@lru_cache(256)
def _fields(model: str) -> dict[str, str]:
    """By the name in JSON: what type it has."""
    of = getattr(models, model)
    return {of.attribute_map[name]: kind for name, kind in of.openapi_types.items()}


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
"""By message: of each field that is read its name in JSON, and what it holds."""


def body_in(raw: bytes) -> Body:
    """As it would stand in JSON. Raises a refusal (400) for what cannot be read, or is something
    else.
    """
    try:
        whole = _protobuf_fields(raw.removeprefix(MAGIC)) if raw.startswith(MAGIC) else {}
        kind = _protobuf_fields(whole[1][-1])[2][-1].decode()
        return {"kind": kind, **_message(kind, whole.get(2, [b""])[-1])}
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise bad_request("the body is no protobuf of a kind that is read here") from error


def _message(kind: str, raw: bytes) -> Body:
    names, found = NAMED[kind], _protobuf_fields(raw)
    return {
        names[number][0]: _value(names[number][1], found[number][-1])
        for number in names
        if number in found
    }


def _value(what: str, value: Any) -> Any:
    if what == "number":
        return value - (1 << 64) if value >> 63 else value
    if what == "truth":
        return bool(value)
    return value.decode() if what == "text" else _message(what, value)


def _protobuf_fields(raw: bytes) -> Fields:
    """The values of each field, in their order: numbers and bytes."""
    found: Fields = {}
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(raw, at)
            found.setdefault(number, []).append(value)
            continue
        size, at = _varint(raw, at) if wire == BYTES else (SIZES[wire], at)
        if at + size > len(raw):
            raise ValueError("a value is cut off")
        found.setdefault(number, []).append(raw[at : at + size])
        at += size
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number, seven bits a byte, the lowest first; and where the next thing begins."""
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
