"""What a field should have been, for a person: a rule in words instead of a pattern, an object by its fields; and what
it is, instead of its type alone."""

from __future__ import annotations

import re
import reprlib
from typing import Any, Literal, get_args, get_origin

import msgspec

from shared.messages import DNS_LABEL, Digest, Span
from shared.unknown_fields import struct_type

NAME = "a name: small letters, digits and -, beginning with a letter, not ending with -"
PATTERNS = {DNS_LABEL: NAME, r"^/": "an absolute path"}
PATTERNS |= {meta.pattern: "`sha256-` and 64 hexadecimal digits" for meta in get_args(Digest)[1:]}


TYPE = re.compile(r", got `\w+`$")
LONGEST_FOUND = 60  # characters


def reworded(kind: Any, error: str, value: object) -> str:
    """The decoder's `error` about a field of this kind, which has this value."""
    if get_origin(kind) is Literal:
        return f"{_with(value, error)}; there are {', '.join(map(repr, get_args(kind)))}"
    return _with(value, _expected(kind, error))


def _with(value: object, said: str) -> str:
    return said if said.startswith("Invalid enum value") else f"{TYPE.sub('', said)}, got {found(value)}"


def found(value: object) -> str:
    """It as it was written, shortened."""
    said = _Written().repr(value)
    return said if len(said) <= LONGEST_FOUND else f"{said[:LONGEST_FOUND]}..."


class _Written(reprlib.Repr):
    """In a file or a message: Python writes these two in another way."""

    def repr_bool(self, value: bool, level: int) -> str:
        return str(value).lower()

    def repr_NoneType(self, value: None, level: int) -> str:
        return "null"


def _expected(kind: Any, error: str) -> str:
    if struct := struct_type(kind):
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(struct))
        plain = " (a job's file may have one number)" if struct is Span else ""
        return error.replace("`object", f"`{{{fields}}}").replace("}`", "}`" + plain)
    return next((said for meta in get_args(kind)[1:] if (said := _rule(meta)) and "got" not in error), error)


def _rule(meta: Any) -> str:
    """A pattern, and how long a text may be, in words."""
    said = PATTERNS.get(getattr(meta, "pattern", None) or "")
    length = getattr(meta, "max_length", None)
    return f"Expected {said}" + (f", at most {length} characters" if length else "") if said else ""
