"""Documents as a newer version writes them, with one more field in every struct."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec

from shared.bounds import struct_type
from shared.bus import subjects

NAME = "of_next_year"
VALUE = {"a": [1, {"b": None}]}


def with_new_fields(kind: Any, raw: Any) -> Any:
    """Return a JSON value of this type with an unknown field in every struct, at any depth."""
    if isinstance(raw, dict) and (struct := _struct_of(kind, raw)):
        types = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        return {
            **{name: with_new_fields(types.get(name), value) for name, value in raw.items()},
            NAME: VALUE,
        }
    inner = _values_of(kind)
    if isinstance(raw, dict):
        return {name: with_new_fields(inner, value) for name, value in raw.items()}
    if isinstance(raw, list):
        return [with_new_fields(inner, value) for value in raw]
    return raw


def rewritten(subject: str, body: bytes) -> bytes:
    """Return the body of a message as a newer version would write it."""
    raw = msgspec.json.decode(body)
    return msgspec.json.encode(with_new_fields(subjects.kind_of(subject), raw))


def rewritten_as(kind: Any, document: Any) -> bytes:
    """Return a document of this type as a newer version would write it."""
    return msgspec.json.encode(
        with_new_fields(kind, msgspec.json.decode(msgspec.json.encode(document)))
    )


def structs_in(kind: Any, raw: Any) -> set[str]:
    """Return the names of the structs that a JSON value of this type is made of."""
    names: set[str] = set()
    if isinstance(raw, dict) and (struct := _struct_of(kind, raw)):
        types = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        return {struct.__name__}.union(
            *(structs_in(types.get(name), value) for name, value in raw.items())
        )
    values = raw.values() if isinstance(raw, dict) else raw if isinstance(raw, list) else ()
    return names.union(*(structs_in(_values_of(kind), value) for value in values))


def _struct_of(kind: Any, raw: dict[str, Any]) -> type[msgspec.Struct] | None:
    """Return the struct type of this object; of several possible types, that of its tag."""
    if get_origin(kind) in (dict, list, tuple):
        return None
    for candidate in (kind, *get_args(kind)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            config = candidate.__struct_config__
            if config.tag is None or raw.get(str(config.tag_field)) == config.tag:
                return candidate
    return None


def _values_of(kind: Any) -> Any:
    """Return the type of the values of a list or dictionary, also if it is optional or bounded."""
    if struct_type(kind) is kind:
        return None
    for candidate in (kind, *get_args(kind)):
        if getattr(candidate, "__origin__", None) in (list, tuple, dict):
            arguments = [each for each in get_args(candidate) if each is not ...]
            return arguments[-1] if arguments else None
        if hasattr(candidate, "__metadata__"):
            return _values_of(candidate.__origin__)
    return None
