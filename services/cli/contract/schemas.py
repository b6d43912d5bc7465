"""The bodies' schemas, in the dialect that AsyncAPI reads: JSON Schema, draft 7. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.messages import MESSAGES, DeadLetter, Message

Schema = dict[str, Any]
Kind = type[Message] | type[DeadLetter]
KINDS: tuple[Kind, ...] = (*MESSAGES, DeadLetter)
WHERE = "#/components/schemas/{name}"
PAIRS = "prefixItems"


def schemas() -> dict[str, Schema]:
    """By class name: each message, and each part that they are made of."""
    _, found = msgspec.json.schema_components(KINDS, ref_template=WHERE)
    return {name: _as_draft_7(schema) for name, schema in found.items()}


def _as_draft_7(value: Any) -> Any:
    """Our classes' schemas are of 2020-12: lists of fixed length are called otherwise; patterns end
    Python's way.
    """
    if isinstance(value, list):
        return [_as_draft_7(each) for each in value]
    if not isinstance(value, dict):
        return value
    told = {name: _as_draft_7(each) for name, each in value.items()}
    if PAIRS in told:
        told |= {"items": told.pop(PAIRS), "additionalItems": False}
    if isinstance(told.get("pattern"), str):
        told["pattern"] = told["pattern"].replace(r"\Z", "$")
    return told
