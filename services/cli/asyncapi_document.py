"""The AsyncAPI 3 document: one channel a subject, one operation for all who say a message and one
for all who hear it.

AsyncAPI describes one application; this describes all of them, so who it is stands in an
operation's tags. What is said on a job's subjects by its own trainers is said by `job`.

The bodies' schemas, in the dialect that AsyncAPI reads: JSON Schema, draft 7. Pure.

The same contract as a page for people, in Markdown: every subject, who says and hears it, and
every field. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from shared.auth.permissions import (
    ALLOCATOR,
    JOB,
    LAUNCHER,
    MONITOR,
    OPERATOR,
    PAGE,
    PUBLISHED_BY,
    RECEIVED_BY,
    SUBMITTER,
)
from shared.bus.subjects import DEAD, FACTS, ORDERS, PREFIX, pattern, stream_holding, tag_of
from shared.messages import (
    MESSAGES,
    CapacityChanged,
    ClaimsChanged,
    DeadLetter,
    Message,
    QuotaChanged,
    ServiceTroubled,
)

Fields = dict[str, Any]
VERSION = "1"
"""Of all messages: the `v1` at the end of `ce-type`."""
ABOUT = """\
Weir runs elastic TensorFlow parameter-server training on Kubernetes; its services meet on NATS JetStream alone.
A body is the JSON of one message; a field that is absent has its default. Points in time (`*_s`) are seconds since 1970
UTC, durations (`*_s`) seconds, `cpu` cores, `memory_gib` GiB. The same said twice has the same id; who hears it ignores
the second. Services hear by pull consumers; a person uses `weir events`, or any NATS client."""
USERS = {
    MONITOR: "says what is free on each node",
    ALLOCATOR: "decides what should run",
    LAUNCHER: "makes it so",
    JOB: "the trainers of one job: on its own subjects only",
    OPERATOR: "a person who may see all; puts back dead letters of any kind",
    PAGE: "shows in a browser what it hears; says nothing",
    SUBMITTER: "a person who asks for jobs in one namespace, and sees those",
}
STREAMS = {
    ORDERS: "what is wanted and decided; a full stream refuses more",
    FACTS: "what happens; the oldest go when it is full",
    DEAD: "what nobody could use; kept for a month",
}
PARAMETERS = {
    "namespace": "The job's Kubernetes namespace.",
    "job": "The job's name; unique in its namespace.",
    "node": "The node's name, with each dot as an underscore.",
    "service": "The service's name.",
    "subject": "The whole subject, dots included, on which the message was.",
}
KEYS: dict[type[Message], str] = {
    CapacityChanged: "{node}",
    QuotaChanged: "{namespace}",
    ClaimsChanged: "{namespace}",
    ServiceTroubled: "{service}",
}
"""The end of the subject of what is about no job."""
HEADERS = {
    "Nats-Msg-Id": "by which the server ignores a repetition: ce-id, and a secret of the publishing process behind it",
    "ce-specversion": "CloudEvents 1.0",
    "ce-id": "the same each time the same is said",
    "ce-type": "dev.weir.<area>.<fact>.v1",
    "ce-source": "who said it",
    "ce-subject": "<namespace>.<job>, or the node, or the namespace of quotas or claims, or the service",
    "ce-time": "when it was said",
    "content-type": "application/json",
}


def build_document() -> Fields:
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Weir",
            "version": VERSION,
            "description": ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "bus": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "where `weir up` puts it",
            }
        },
        "channels": {kind.__name__: _channel_entry(kind) for kind in KINDS},
        "operations": {name: told for kind in MESSAGES for name, told in _operation_entries(kind)},
        "components": {
            "messages": {kind.__name__: _message_entry(kind) for kind in KINDS},
            "messageTraits": {"CloudEvent": {"headers": _header_schema()}},
            "parameters": {name: {"description": said} for name, said in PARAMETERS.items()},
            "schemas": message_schemas(),
        },
    }


def subject_address(kind: Kind) -> str:
    """The subject, with its names in braces."""
    if issubclass(kind, DeadLetter):
        return f"{DeadLetter.PREFIX}.{{subject}}"
    return pattern(
        kind, next((key for one, key in KEYS.items() if issubclass(kind, one)), "{namespace}.{job}")
    )


def stream_name(kind: Kind) -> str:
    return DEAD if issubclass(kind, DeadLetter) else stream_holding(pattern(kind))


def first_sentence(kind: type[Any]) -> str:
    """The first sentence of what the class says of itself."""
    whole = " ".join((kind.__doc__ or "").split())
    return f"{whole.partition('. ')[0].rstrip('.')}."


def _channel_entry(kind: Kind) -> Fields:
    subject = subject_address(kind)
    return {
        "address": subject,
        "title": kind.__name__,
        "summary": first_sentence(kind),
        "messages": {kind.__name__: _reference_to("components/messages", kind)},
        "parameters": {
            name: {"$ref": f"#/components/parameters/{name}"}
            for name in PARAMETERS
            if f"{{{name}}}" in subject
        },
        "x-stream": stream_name(kind),
    }


def _operation_entries(kind: type[Message]) -> list[tuple[str, Fields]]:
    says, hears = PUBLISHED_BY[kind], RECEIVED_BY[kind]
    return [
        (f"{action}{kind.__name__}", _operation_entry(kind, action, who))
        for action, who in (("send", says), ("receive", hears))
    ]


def _operation_entry(kind: type[Message], action: str, who: tuple[str, ...]) -> Fields:
    return {
        "action": action,
        "channel": _reference_to("channels", kind),
        "messages": [{"$ref": f"#/channels/{kind.__name__}/messages/{kind.__name__}"}],
        "tags": [{"name": user, "description": USERS[user]} for user in who],
    }


def _message_entry(kind: Kind) -> Fields:
    told: Fields = {
        "name": DeadLetter.PREFIX if issubclass(kind, DeadLetter) else f"{PREFIX}.{tag_of(kind)}",
        "title": kind.__name__,
        "summary": first_sentence(kind),
        "contentType": "application/json",
        "payload": _reference_to("components/schemas", kind),
    }
    return (
        told
        if issubclass(kind, DeadLetter)
        else told | {"traits": [{"$ref": "#/components/messageTraits/CloudEvent"}]}
    )


def _header_schema() -> Fields:
    return {
        "type": "object",
        "properties": {n: {"type": "string", "description": d} for n, d in HEADERS.items()},
    }


def _reference_to(where: str, kind: type[msgspec.Struct]) -> Fields:
    return {"$ref": f"#/{where}/{kind.__name__}"}


Schema = dict[str, Any]
Kind = type[Message] | type[DeadLetter]
KINDS: tuple[Kind, ...] = (*MESSAGES, DeadLetter)
WHERE = "#/components/schemas/{name}"
PAIRS = "prefixItems"


def message_schemas() -> dict[str, Schema]:
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


def build_page() -> str:
    found = message_schemas()
    return (
        "\n".join(
            [
                *_introduction_lines(),
                *_overview_lines(),
                *_message_sections(found),
                *_part_sections(found),
            ]
        )
        + "\n"
    )


def _introduction_lines() -> Iterator[str]:
    yield from ("# Every message on the bus", "", MADE, "", ABOUT, "", LISTEN, "")
    yield from _table_lines(
        ("stream", "what it holds"), ((f"`{name}`", said) for name, said in STREAMS.items())
    )
    yield from _table_lines(("who", "what they are"), USERS.items())
    yield from ("Headers of each message:", "")
    yield from _table_lines(
        ("header", "what it says"),
        ((f"`{name}`", said.replace("<", "\\<")) for name, said in HEADERS.items()),
    )


def _overview_lines() -> Iterator[str]:
    yield from ("## Subjects", "")
    rows = (
        (
            f"[`{subject_address(k)}`](#{k.__name__.lower()})",
            _user_list(PUBLISHED_BY[k]),
            _user_list(RECEIVED_BY[k]),
            first_sentence(k),
        )
        for k in MESSAGES
    )
    yield from _table_lines(("subject", "said by", "heard by", "in one sentence"), rows)
    short = (
        "`weir.job.requested.{job}` (and so for `cancel`, `change`, `suspend`, `resume` and `forget`) is short for the"
        " namespace"
    )
    yield from (f"{short} `default`.", "")


def _message_sections(found: dict[str, Schema]) -> Iterator[str]:
    yield from ("## Messages", "")
    for kind in KINDS:
        yield from _message_section(kind, found[kind.__name__])


def _message_section(kind: Kind, schema: Schema) -> Iterator[str]:
    yield from (
        f"### {kind.__name__}",
        "",
        _full_description(kind),
        "",
        f"`{subject_address(kind)}`, in `{stream_name(kind)}`",
        "",
    )
    yield from _field_table(schema)


def _part_sections(found: dict[str, Schema]) -> Iterator[str]:
    yield from ("## Parts", "")
    whole = {kind.__name__ for kind in KINDS}
    for name in sorted(set(found) - whole):
        yield from (f"### {name}", "")
        if said := found[name].get("description"):
            yield from (" ".join(said.split()), "")
        yield from _field_table(found[name])


def _full_description(kind: type[Any]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _field_table(schema: Schema) -> Iterator[str]:
    required = schema.get("required", [])
    rows = (
        (f"`{name}`", _type_text(told), _default_text(name, told, required))
        for name, told in schema["properties"].items()
    )
    yield from _table_lines(("field", "type", "if absent"), rows)


def _default_text(name: str, told: Schema, required: list[str]) -> str:
    if name in required:
        return "must be there"
    if told.get("default", {}) == {}:
        return "its own defaults"
    return f"`{msgspec.json.encode(told['default']).decode()}`"


def _type_text(told: Schema) -> str:
    """In words: what may stand there, and within which bounds."""
    if "$ref" in told:
        name = told["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in told:
        return " or ".join(f"`{value}`" for value in told["enum"])
    if several := told.get("anyOf"):
        return " or ".join(map(_type_text, several))
    return f"{_shape_text(told)}{_bound_texts(told)}"


def _shape_text(told: Schema) -> str:
    kind = told.get("type", "anything")
    if kind == "array":
        items = told.get("items", {})
        return (
            f"list of {' and '.join(map(_type_text, items))}"
            if isinstance(items, list)
            else f"list of {_type_text(items)}"
        )
    if kind == "object" and isinstance(told.get("additionalProperties"), dict):
        return f"object of {_type_text(told['additionalProperties'])}"
    return str(kind)


def _bound_texts(told: Schema) -> str:
    said = [
        words.format(told[name])
        for name, words in BOUNDS.items()
        if abs(told.get(name, WIDEST)) < WIDEST
    ]
    form = [f"as `{told['pattern']}`"] if "pattern" in told else []
    return "".join(f", {each}" for each in [*said, *form])


def _user_list(users: Iterable[str]) -> str:
    return ", ".join(users)


def _table_lines(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = tuple(heads)
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""
