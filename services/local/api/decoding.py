"""Does a body have the types that its kind has? A real server decodes into typed fields, and
refuses what does not fit.

The types are those of the official client's models. Unknown fields are passed over, unless the
request asks for strict validation (`fieldValidation=Strict`), as kubectl does; null is as good as
absent, as on a real server. A quantity may be a number; the client calls it a string, so where
strings stand by name numbers may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from kubernetes.client import models

from services.local.objects.kinds import NEW_EVENT, Kind
from services.local.objects.refusals import bad_request

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


def decoded(kind: Kind, body: Any, strict: bool = False) -> Any:
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
