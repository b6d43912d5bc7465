"""What kubectl sends in Kubernetes' protobuf: an eviction and the options of a deletion (`drain`),
a namespace (`create ns`), and whether one may do something (`auth can-i`). Nothing else is read.

The bytes `k8s\\0`, then a message whose field 1 tells what it is (1: apiVersion, 2: kind) and whose
field 2 is that, encoded (k8s.io/apimachinery, `runtime.Unknown`). Field numbers are those of the
.proto files of k8s.io/api (`Eviction`) and of k8s.io/apimachinery (`DeleteOptions`,
`Preconditions`, `ObjectMeta`).
"""

from __future__ import annotations

from typing import Any

from services.local.objects.bodies import Body
from services.local.objects.refusals import bad_request

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
        whole = _fields(raw.removeprefix(MAGIC)) if raw.startswith(MAGIC) else {}
        kind = _fields(whole[1][-1])[2][-1].decode()
        return {"kind": kind, **_message(kind, whole.get(2, [b""])[-1])}
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise bad_request("the body is no protobuf of a kind that is read here") from error


def _message(kind: str, raw: bytes) -> Body:
    names, found = NAMED[kind], _fields(raw)
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


def _fields(raw: bytes) -> Fields:
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
