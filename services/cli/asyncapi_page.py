"""The same contract as a page for people, in Markdown: every subject, who says and hears it, and
every field. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from services.cli.asyncapi_document import (
    ABOUT,
    HEADERS,
    KINDS,
    STREAMS,
    USERS,
    Kind,
    Schema,
    address,
    schemas,
    stream,
    summary,
)
from shared.auth.permissions import PUBLISHED_BY, RECEIVED_BY
from shared.messages import MESSAGES

MADE = "Made from the message classes by `weir asyncapi --page`; a test holds it against them."
LISTEN = """    weir events --follow                        # one line a fact; --json, --kind, --job, --since
    nats --creds FILE sub 'weir.>'              # the same with any NATS client: subject, headers, JSON
    weir asyncapi > weir.json                   # this page for machines: AsyncAPI 3"""
BOUNDS = {
    "minimum": "at least {:.16g}",
    "maximum": "at most {:.16g}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}
WIDEST = 1 << 53
"""A bound beyond this is only that of the numbers themselves."""


def page() -> str:
    found = schemas()
    return "\n".join([*_head(), *_overview(), *_messages(found), *_parts(found)]) + "\n"


def _head() -> Iterator[str]:
    yield from ("# Every message on the bus", "", MADE, "", ABOUT, "", LISTEN, "")
    yield from _table(
        ("stream", "what it holds"), ((f"`{name}`", said) for name, said in STREAMS.items())
    )
    yield from _table(("who", "what they are"), USERS.items())
    yield from ("Headers of each message:", "")
    yield from _table(
        ("header", "what it says"),
        ((f"`{name}`", said.replace("<", "\\<")) for name, said in HEADERS.items()),
    )


def _overview() -> Iterator[str]:
    yield from ("## Subjects", "")
    rows = (
        (
            f"[`{address(k)}`](#{k.__name__.lower()})",
            _who(PUBLISHED_BY[k]),
            _who(RECEIVED_BY[k]),
            summary(k),
        )
        for k in MESSAGES
    )
    yield from _table(("subject", "said by", "heard by", "in one sentence"), rows)
    short = (
        "`weir.job.requested.{job}` (and so for `cancel`, `change`, `suspend`, `resume` and `forget`) is short for the"
        " namespace"
    )
    yield from (f"{short} `default`.", "")


def _messages(found: dict[str, Schema]) -> Iterator[str]:
    yield from ("## Messages", "")
    for kind in KINDS:
        yield from _message(kind, found[kind.__name__])


def _message(kind: Kind, schema: Schema) -> Iterator[str]:
    yield from (
        f"### {kind.__name__}",
        "",
        _about(kind),
        "",
        f"`{address(kind)}`, in `{stream(kind)}`",
        "",
    )
    yield from _fields(schema)


def _parts(found: dict[str, Schema]) -> Iterator[str]:
    yield from ("## Parts", "")
    whole = {kind.__name__ for kind in KINDS}
    for name in sorted(set(found) - whole):
        yield from (f"### {name}", "")
        if said := found[name].get("description"):
            yield from (" ".join(said.split()), "")
        yield from _fields(found[name])


def _about(kind: type[Any]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _fields(schema: Schema) -> Iterator[str]:
    required = schema.get("required", [])
    rows = (
        (f"`{name}`", _type(told), _default(name, told, required))
        for name, told in schema["properties"].items()
    )
    yield from _table(("field", "type", "if absent"), rows)


def _default(name: str, told: Schema, required: list[str]) -> str:
    if name in required:
        return "must be there"
    if told.get("default", {}) == {}:
        return "its own defaults"
    return f"`{msgspec.json.encode(told['default']).decode()}`"


def _type(told: Schema) -> str:
    """In words: what may stand there, and within which bounds."""
    if "$ref" in told:
        name = told["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in told:
        return " or ".join(f"`{value}`" for value in told["enum"])
    if several := told.get("anyOf"):
        return " or ".join(map(_type, several))
    return f"{_shape(told)}{_bounds(told)}"


def _shape(told: Schema) -> str:
    kind = told.get("type", "anything")
    if kind == "array":
        items = told.get("items", {})
        return (
            f"list of {' and '.join(map(_type, items))}"
            if isinstance(items, list)
            else f"list of {_type(items)}"
        )
    if kind == "object" and isinstance(told.get("additionalProperties"), dict):
        return f"object of {_type(told['additionalProperties'])}"
    return str(kind)


def _bounds(told: Schema) -> str:
    said = [
        words.format(told[name])
        for name, words in BOUNDS.items()
        if abs(told.get(name, WIDEST)) < WIDEST
    ]
    form = [f"as `{told['pattern']}`"] if "pattern" in told else []
    return "".join(f", {each}" for each in [*said, *form])


def _who(users: Iterable[str]) -> str:
    return ", ".join(users)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = tuple(heads)
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""
