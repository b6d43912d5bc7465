"""Word a decoder's error for a person: a rule in words instead of a pattern, an object by its
fields, and the value that was found instead of its type alone.
"""

from __future__ import annotations

import re
import reprlib
from typing import Any, Literal, get_args, get_origin

import msgspec

from shared.bounds import struct_type
from shared.messages import DNS_LABEL, Digest, Span

NAME = "a name: small letters, digits and -, beginning with a letter, not ending with -"
(DIGEST,) = (meta.pattern for meta in get_args(Digest)[1:])
PATTERNS = {
    DNS_LABEL: NAME,
    r"^/": "an absolute path",
    DIGEST: "`sha256-` and 64 hexadecimal digits",
}
TYPE = re.compile(r", got `\w+`$")
LONGEST_FOUND = 60  # characters


def reworded(kind: Any, error: str, value: object) -> str:
    """Return the decoder's `error` about a field of this kind with this value, in plainer words."""
    if get_origin(kind) is Literal:
        choices = ", ".join(map(repr, get_args(kind)))
        return f"{_with_value(error, value)}; there are {choices}"
    return _with_value(_expected(kind, error), value)


def _with_value(error: str, value: object) -> str:
    """Return the error with the value that was found in place of its type. An error about a choice
    has the value in it already.
    """
    if error.startswith("Invalid enum value"):
        return error
    return f"{TYPE.sub('', error)}, got {found(value)}"


def found(value: object) -> str:
    """Return a value as it was written, shortened."""
    text = _Written().repr(value)
    if len(text) <= LONGEST_FOUND:
        return text
    return f"{text[:LONGEST_FOUND]}..."


class _Written(reprlib.Repr):
    """A value as a file or a message has it: Python writes these two in another way."""

    def repr_bool(self, value: bool, level: int) -> str:
        return str(value).lower()

    def repr_NoneType(self, value: None, level: int) -> str:
        return "null"


def _expected(kind: Any, error: str) -> str:
    """Return the error with an object by its fields, or with a rule in words."""
    struct = struct_type(kind)
    if struct is not None:
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(struct))
        plain = " (a job's file may have one number)" if struct is Span else ""
        return error.replace("`object", f"`{{{fields}}}").replace("}`", "}`" + plain)
    if "got" in error:
        return error
    for meta in get_args(kind)[1:]:
        rule = _rule(meta)
        if rule:
            return rule
    return error


def _rule(meta: Any) -> str:
    """Return a pattern, and the most characters of a text, in words; empty: it has no words."""
    words = PATTERNS.get(getattr(meta, "pattern", None) or "")
    if not words:
        return ""
    longest = getattr(meta, "max_length", None)
    if longest:
        return f"Expected {words}, at most {longest} characters"
    return f"Expected {words}"
