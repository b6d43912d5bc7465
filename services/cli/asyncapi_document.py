"""The contract on the bus, as an AsyncAPI 3 document and as a Markdown page.

The document has one channel a subject, one operation for all publishers of a message and one for
all its receivers. AsyncAPI describes one application; this describes all of them, so the tags of an
operation name the users. `job` stands for a job's own trainers, on that job's subjects.

The schemas of the bodies are JSON Schema, draft 7: the dialect that AsyncAPI reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
Schema = dict[str, Any]
Kind = type[Message] | type[DeadLetter]
KINDS: tuple[Kind, ...] = (*MESSAGES, DeadLetter)
SCHEMA_REFERENCE = "#/components/schemas/{name}"
FIXED_LENGTH_ITEMS = "prefixItems"
VERSION = "1"
"""The version of all messages: the `v1` at the end of `ce-type`."""
ABOUT = """\
Weir runs elastic TensorFlow parameter-server training on Kubernetes; its services communicate only through NATS JetStream.
A body is the JSON of one message; a field that is absent has its default. Points in time (`*_s`) are seconds since 1970
UTC, durations (`*_s`) seconds, `cpu` cores, `memory_gib` GiB. A repeated message has the same id, and receivers ignore
it. Services receive by pull consumers; a person uses `weir events`, or any NATS client."""
USERS = {
    MONITOR: "publishes the free capacity of each node",
    ALLOCATOR: "decides the size and the nodes of each job",
    LAUNCHER: "creates and removes pods to match the decisions",
    JOB: "the trainers of one job, on its own subjects only",
    OPERATOR: "a person with access to everything; may put back dead letters of any kind",
    PAGE: "shows received messages in a browser; publishes nothing",
    SUBMITTER: "a person with access to one namespace: submits jobs and sees them",
}
STREAMS = {
    ORDERS: "requests and decisions; a full stream refuses new messages",
    FACTS: "facts; a full stream drops the oldest messages",
    DEAD: "messages that no receiver could use; kept for a month",
}
PARAMETERS = {
    "namespace": "The job's Kubernetes namespace.",
    "job": "The job's name; unique in its namespace.",
    "node": "The node's name, with each dot as an underscore.",
    "service": "The service's name.",
    "subject": "The whole subject of the message, dots included.",
}
KEYS: dict[type[Message], str] = {
    CapacityChanged: "{node}",
    QuotaChanged: "{namespace}",
    ClaimsChanged: "{namespace}",
    ServiceTroubled: "{service}",
}
"""The end of the subject of the messages that are about no job."""
HEADERS = {
    "Nats-Msg-Id": (
        "the server ignores a repeated one: ce-id, then a secret of the publishing process"
    ),
    "ce-specversion": "CloudEvents 1.0",
    "ce-id": "the same for each repetition of a message",
    "ce-type": "dev.weir.<area>.<fact>.v1",
    "ce-source": "the publisher",
    "ce-subject": (
        "<namespace>.<job>; or the node, the namespace of quotas or claims, or the service"
    ),
    "ce-time": "the time of publication",
    "content-type": "application/json",
}


def build_document() -> Fields:
    """Return the AsyncAPI 3 document, as an object for JSON."""
    operations: Fields = {}
    for kind in MESSAGES:
        name = kind.__name__
        operations[f"send{name}"] = _operation_entry(kind, "send", PUBLISHED_BY[kind])
        operations[f"receive{name}"] = _operation_entry(kind, "receive", RECEIVED_BY[kind])
    bus = {
        "host": "127.0.0.1:4222",
        "protocol": "nats",
        "description": "the address that `weir up` uses",
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Weir",
            "version": VERSION,
            "description": ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {"bus": bus},
        "channels": {kind.__name__: _channel_entry(kind) for kind in KINDS},
        "operations": operations,
        "components": {
            "messages": {kind.__name__: _message_entry(kind) for kind in KINDS},
            "messageTraits": {"CloudEvent": {"headers": _header_schema()}},
            "parameters": {name: {"description": text} for name, text in PARAMETERS.items()},
            "schemas": message_schemas(),
        },
    }


def subject_address(kind: Kind) -> str:
    """Return the subject of a class, with its parameters in braces."""
    if issubclass(kind, DeadLetter):
        return f"{DeadLetter.PREFIX}.{{subject}}"
    for keyed, key in KEYS.items():
        if issubclass(kind, keyed):
            return pattern(kind, key)
    return pattern(kind, "{namespace}.{job}")


def stream_name(kind: Kind) -> str:
    """Return the stream that stores the messages of a class."""
    if issubclass(kind, DeadLetter):
        return DEAD
    return stream_holding(pattern(kind))


def first_sentence(kind: type[Any]) -> str:
    """Return the first sentence of a class's docstring."""
    sentence, _, _ = _full_description(kind).partition(". ")
    return f"{sentence.rstrip('.')}."


def _channel_entry(kind: Kind) -> Fields:
    name = kind.__name__
    subject = subject_address(kind)
    parameters = {}
    for parameter in PARAMETERS:
        if f"{{{parameter}}}" in subject:
            parameters[parameter] = {"$ref": f"#/components/parameters/{parameter}"}
    return {
        "address": subject,
        "title": name,
        "summary": first_sentence(kind),
        "messages": {name: _reference_to("components/messages", kind)},
        "parameters": parameters,
        "x-stream": stream_name(kind),
    }


def _operation_entry(kind: type[Message], action: str, users: tuple[str, ...]) -> Fields:
    name = kind.__name__
    return {
        "action": action,
        "channel": _reference_to("channels", kind),
        "messages": [{"$ref": f"#/channels/{name}/messages/{name}"}],
        "tags": [{"name": user, "description": USERS[user]} for user in users],
    }


def _message_entry(kind: Kind) -> Fields:
    entry: Fields = {
        "title": kind.__name__,
        "summary": first_sentence(kind),
        "contentType": "application/json",
        "payload": _reference_to("components/schemas", kind),
    }
    if issubclass(kind, DeadLetter):
        return {"name": DeadLetter.PREFIX, **entry}
    traits = [{"$ref": "#/components/messageTraits/CloudEvent"}]
    return {"name": f"{PREFIX}.{tag_of(kind)}", **entry, "traits": traits}


def _header_schema() -> Fields:
    properties = {}
    for name, meaning in HEADERS.items():
        properties[name] = {"type": "string", "description": meaning}
    return {"type": "object", "properties": properties}


def _reference_to(section: str, kind: type[msgspec.Struct]) -> Fields:
    return {"$ref": f"#/{section}/{kind.__name__}"}


def message_schemas() -> dict[str, Schema]:
    """Return the schemas of the messages and of their parts, by class name."""
    _, schemas = msgspec.json.schema_components(KINDS, ref_template=SCHEMA_REFERENCE)
    return {name: _as_draft_7(schema) for name, schema in schemas.items()}


def _as_draft_7(value: Any) -> Any:
    """Translate a schema of msgspec (draft 2020-12): the keyword for lists of fixed length differs,
    and a pattern ends with Python's `\\Z`.
    """
    if isinstance(value, list):
        return [_as_draft_7(each) for each in value]
    if not isinstance(value, dict):
        return value
    schema = {name: _as_draft_7(each) for name, each in value.items()}
    if FIXED_LENGTH_ITEMS in schema:
        schema |= {"items": schema.pop(FIXED_LENGTH_ITEMS), "additionalItems": False}
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = schema["pattern"].replace(r"\Z", "$")
    return schema


MADE = "Made from the message classes by `weir asyncapi --page`; a test compares the two."
LISTEN = """    weir events --follow                        # one line a fact; --json, --kind, --job, --since
    nats --creds FILE sub 'weir.>'              # the same with any NATS client: subject, headers, JSON
    weir asyncapi > weir.json                   # the same as AsyncAPI 3"""
BOUNDS = {
    "minimum": "at least {:.16g}",
    "maximum": "at most {:.16g}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}
SHORT_SUBJECTS = (
    "`weir.job.requested.{job}` (likewise `cancel`, `change`, `suspend`, `resume` and `forget`) "
    "is short for the namespace `default`."
)
WIDEST = 1 << 53
"""A larger bound is only the limit of the number's type, and is left out."""


def build_page() -> str:
    """Return the page for people, in Markdown."""
    schemas = message_schemas()
    lines = [
        *_introduction_lines(),
        *_overview_lines(),
        *_message_sections(schemas),
        *_part_sections(schemas),
    ]
    return "\n".join(lines) + "\n"


def _introduction_lines() -> Iterator[str]:
    yield from ("# Every message on the bus", "", MADE, "", ABOUT, "", LISTEN, "")
    streams = [(f"`{name}`", content) for name, content in STREAMS.items()]
    yield from _table_lines(("stream", "content"), streams)
    yield from _table_lines(("user", "role"), USERS.items())
    yield from ("Headers of each message:", "")
    headers = [(f"`{name}`", text.replace("<", "\\<")) for name, text in HEADERS.items()]
    yield from _table_lines(("header", "meaning"), headers)


def _overview_lines() -> Iterator[str]:
    yield from ("## Subjects", "")
    rows = []
    for kind in MESSAGES:
        link = f"[`{subject_address(kind)}`](#{kind.__name__.lower()})"
        publishers = ", ".join(PUBLISHED_BY[kind])
        receivers = ", ".join(RECEIVED_BY[kind])
        rows.append((link, publishers, receivers, first_sentence(kind)))
    yield from _table_lines(("subject", "published by", "received by", "in one sentence"), rows)
    yield from (SHORT_SUBJECTS, "")


def _message_sections(schemas: dict[str, Schema]) -> Iterator[str]:
    yield from ("## Messages", "")
    for kind in KINDS:
        place = f"`{subject_address(kind)}`, in `{stream_name(kind)}`"
        yield from (f"### {kind.__name__}", "", _full_description(kind), "", place, "")
        yield from _field_table(schemas[kind.__name__])


def _part_sections(schemas: dict[str, Schema]) -> Iterator[str]:
    yield from ("## Parts", "")
    messages = {kind.__name__ for kind in KINDS}
    for name in sorted(schemas.keys() - messages):
        yield from (f"### {name}", "")
        if description := schemas[name].get("description"):
            yield from (" ".join(description.split()), "")
        yield from _field_table(schemas[name])


def _full_description(kind: type[Any]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _field_table(schema: Schema) -> Iterator[str]:
    required = schema.get("required", [])
    rows = []
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default_text(field)
        rows.append((f"`{name}`", _type_text(field), default))
    yield from _table_lines(("field", "type", "if absent"), rows)


def _default_text(field: Schema) -> str:
    if field.get("default", {}) == {} and field.get("type") != "object":
        return "its own defaults"
    return f"`{msgspec.json.encode(field['default']).decode()}`"


def _type_text(schema: Schema) -> str:
    """Return the type of a field in words, with its bounds."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if alternatives := schema.get("anyOf"):
        return " or ".join(map(_type_text, alternatives))
    return ", ".join([_shape_text(schema), *_bound_texts(schema)])


def _shape_text(schema: Schema) -> str:
    kind = schema.get("type", "anything")
    if kind == "array":
        items = schema.get("items", {})
        item_types = items if isinstance(items, list) else [items]
        return f"list of {' and '.join(map(_type_text, item_types))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type_text(schema['additionalProperties'])}"
    return str(kind)


def _bound_texts(schema: Schema) -> Iterator[str]:
    for name, text in BOUNDS.items():
        if abs(schema.get(name, WIDEST)) < WIDEST:
            yield text.format(schema[name])
    if "pattern" in schema:
        yield f"as `{schema['pattern']}`"


def _table_lines(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield _table_row(heads)
    yield _table_row("---" for _ in heads)
    for row in rows:
        yield _table_row(cell.replace("|", "\\|") for cell in row)
    yield ""


def _table_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
