"""The AsyncAPI 3 document: one channel a subject, one operation for all who say a message and one
for all who hear it.

AsyncAPI describes one application; this describes all of them, so who it is stands in an
operation's tags. What is said on a job's subjects by its own trainers is said by `job`.

The bodies' schemas, in the dialect that AsyncAPI reads: JSON Schema, draft 7. Pure.
"""

from __future__ import annotations

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


def document() -> Fields:
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
        "channels": {kind.__name__: _channel(kind) for kind in KINDS},
        "operations": {name: told for kind in MESSAGES for name, told in _operations(kind)},
        "components": {
            "messages": {kind.__name__: _message(kind) for kind in KINDS},
            "messageTraits": {"CloudEvent": {"headers": _headers()}},
            "parameters": {name: {"description": said} for name, said in PARAMETERS.items()},
            "schemas": schemas(),
        },
    }


def address(kind: Kind) -> str:
    """The subject, with its names in braces."""
    if issubclass(kind, DeadLetter):
        return f"{DeadLetter.PREFIX}.{{subject}}"
    return pattern(
        kind, next((key for one, key in KEYS.items() if issubclass(kind, one)), "{namespace}.{job}")
    )


def stream(kind: Kind) -> str:
    return DEAD if issubclass(kind, DeadLetter) else stream_holding(pattern(kind))


def summary(kind: type[Any]) -> str:
    """The first sentence of what the class says of itself."""
    whole = " ".join((kind.__doc__ or "").split())
    return f"{whole.partition('. ')[0].rstrip('.')}."


def _channel(kind: Kind) -> Fields:
    subject = address(kind)
    return {
        "address": subject,
        "title": kind.__name__,
        "summary": summary(kind),
        "messages": {kind.__name__: _ref("components/messages", kind)},
        "parameters": {
            name: {"$ref": f"#/components/parameters/{name}"}
            for name in PARAMETERS
            if f"{{{name}}}" in subject
        },
        "x-stream": stream(kind),
    }


def _operations(kind: type[Message]) -> list[tuple[str, Fields]]:
    says, hears = PUBLISHED_BY[kind], RECEIVED_BY[kind]
    return [
        (f"{action}{kind.__name__}", _operation(kind, action, who))
        for action, who in (("send", says), ("receive", hears))
    ]


def _operation(kind: type[Message], action: str, who: tuple[str, ...]) -> Fields:
    return {
        "action": action,
        "channel": _ref("channels", kind),
        "messages": [{"$ref": f"#/channels/{kind.__name__}/messages/{kind.__name__}"}],
        "tags": [{"name": user, "description": USERS[user]} for user in who],
    }


def _message(kind: Kind) -> Fields:
    told: Fields = {
        "name": DeadLetter.PREFIX if issubclass(kind, DeadLetter) else f"{PREFIX}.{tag_of(kind)}",
        "title": kind.__name__,
        "summary": summary(kind),
        "contentType": "application/json",
        "payload": _ref("components/schemas", kind),
    }
    return (
        told
        if issubclass(kind, DeadLetter)
        else told | {"traits": [{"$ref": "#/components/messageTraits/CloudEvent"}]}
    )


def _headers() -> Fields:
    return {
        "type": "object",
        "properties": {n: {"type": "string", "description": d} for n, d in HEADERS.items()},
    }


def _ref(where: str, kind: type[msgspec.Struct]) -> Fields:
    return {"$ref": f"#/{where}/{kind.__name__}"}


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
