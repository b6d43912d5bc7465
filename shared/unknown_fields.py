"""Fields of a JSON document that a message type does not have. Pure.

The decoders pass over unknown fields, so that an older version reads what a newer one writes. A
request is the exception: a person wrote it, and a field that nobody reads is a typing error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

import msgspec


def struct_type(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a field's type is, may be (`| None`), or is a tuple of; None if it has
    none.
    """
    for candidate in (kind, *get_args(kind)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def unknown_fields(
    kind: type[msgspec.Struct], raw: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    """Yield the path of every field in `raw`, nested ones too, that `kind` does not declare."""
    declared = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in raw.items():
        if name in declared:
            yield from _unknown_in_value(declared[name], value, path + name)
        elif name != kind.__struct_config__.tag_field:
            yield path + name


def _unknown_in_value(kind: Any, value: Any, path: str) -> Iterator[str]:
    struct = struct_type(kind)
    if struct is None:
        return
    if isinstance(value, dict) and get_origin(kind) is not dict:
        yield from unknown_fields(struct, value, f"{path}.")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            if isinstance(item, dict):
                yield from unknown_fields(struct, item, f"{path}[{number}].")
