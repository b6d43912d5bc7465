"""Subjects, streams and the codec: where each message is stored, and how it is read.

Law: a subject is declared once, as the tag of its message class; everything here is derived from
the tag.

Messages of a kind that only a newer version knows arrive while its services run beside this one. A
message that a service published is ignored: as a dead letter, each one would use up the namespace's
budget and report an upgrade as a fault. A request of a person becomes a dead letter; it can be put
back after the upgrade. The header alone proves nothing, but permissions let nobody publish on such
a subject unless the newer version has given that right to a user of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from shared.bounds import unknown_fields
from shared.messages import BY_PERSONS, DNS_LABEL, MESSAGES, Message

PREFIX = "weir"
ORDERS = "weir-orders"
FACTS = "weir-facts"
DEAD = "weir-dead"
NODES = "weir-nodes"
"""The last capacity fact of each node, and the last of each namespace's quotas and claims; the
server copies them from the facts, of which the oldest are discarded.
"""
PROGRAMS = "weir-programs"
STATE = "weir-state"
JOBS = "weir-jobs"
LEDGER = "weir-ledger"

CAPACITY = f"{PREFIX}.capacity.>"
"""The pattern of all facts about nodes, and about quotas and claims of namespaces."""

DEFAULT_NAMESPACE = "default"
LONGEST_NAME = 63
"""Characters of a name that is one token of a subject."""

BY_TAG: dict[str, type[Message]] = {str(m.__struct_config__.tag): m for m in MESSAGES}
_decoders = {m: msgspec.json.Decoder(m) for m in MESSAGES}


class UnreadableMessage(ValueError):
    """The body does not match its subject; the text is the reason."""


class UnknownMessage(UnreadableMessage):
    """No message of this version has this subject."""


def is_name(text: object) -> bool:
    """Return True for a DNS label: it may stand as one token of a subject."""
    if not isinstance(text, str) or len(text) > LONGEST_NAME:
        return False
    return re.fullmatch(DNS_LABEL, text) is not None


def program_bucket(namespace: str) -> str:
    """Return the name of the object store bucket that holds the programs of one namespace."""
    return f"{PROGRAMS}-{namespace}"


def tag_of(kind: type[Message]) -> str:
    return str(kind.__struct_config__.tag)


def subject_of(message: Message) -> str:
    return f"{PREFIX}.{tag_of(type(message))}.{message.key()}"


def pattern(kind: type[Message], key: str = ">") -> str:
    """Return the pattern of all messages of a kind, or of those with one key (`namespace.job`, or
    a node).
    """
    return f"{PREFIX}.{tag_of(kind)}.{key}"


def area_pattern(key: str, area: str) -> str:
    """Return the pattern of all messages with one key in one area (the first word of a tag)."""
    return f"{PREFIX}.{area}.*.{key}"


def stream_holding(subject: str) -> str:
    """Return the stream of messages that stores a subject, or a pattern that names its area."""
    area = subject.split(".")[1]
    return ORDERS if area in ("job", "allocation", "cluster") else FACTS


def covering_filter(filters: Sequence[str]) -> str:
    """Return the narrowest single filter that matches all that these filters match."""
    split = [each.split(".") for each in filters]
    length = min(map(len, split))
    open_ended = any(each.endswith(">") for each in filters)
    if open_ended or any(len(tokens) != length for tokens in split):
        length -= 1
        open_ended = True
    covering = []
    for position in range(length):
        tokens = {each[position] for each in split}
        covering.append(tokens.pop() if len(tokens) == 1 else "*")
    if open_ended:
        covering.append(">")
    return ".".join(covering)


def matches_filter(pattern: str, subject: str) -> bool:
    """Return True if a subscription to the pattern receives messages on the subject."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    if len(wanted) != len(tokens):
        return False
    return all(want in ("*", token) for want, token in zip(wanted, tokens, strict=True))


def kind_of(subject: str) -> type[Message]:
    """Return the message class of a subject. Raises `UnknownMessage` if there is none."""
    tag = tag_in(subject)
    if tag not in BY_TAG:
        raise UnknownMessage(f"no message is called {tag!r}")
    return BY_TAG[tag]


def tag_in(subject: str) -> str:
    """Return the words of a subject that are a tag if it is the subject of a message."""
    return ".".join(subject.split(".")[1:3])


def encode_message(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode_message(subject: str, body: bytes) -> Message:
    """Decode a body as the kind that its subject names. Raises `UnreadableMessage` if they differ.

    Unknown fields are ignored, except in a request of a person.
    """
    kind = kind_of(subject)
    unknown = ""
    try:
        message = _decoders[kind].decode(body)
        if isinstance(message, BY_PERSONS):
            # Only this check finds a name that is not text: the decoder skips unknown fields
            # unread.
            unknown = next(unknown_fields(kind, msgspec.json.decode(body)), "")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableMessage(str(error)) from error
    if subject_of(message) not in (subject, _in_default_namespace(subject)):
        raise UnreadableMessage(f"the body belongs on {subject_of(message)}, not on {subject}")
    if unknown:
        raise UnreadableMessage(f"{unknown}: no such field")
    return message


def _in_default_namespace(subject: str) -> str:
    """Return the whole subject: `weir.job.requested.<job>` is short for
    `weir.job.requested.default.<job>`.
    """
    tokens = subject.split(".")
    if len(tokens) != 4:
        return subject
    return ".".join([*tokens[:3], DEFAULT_NAMESPACE, *tokens[3:]])


# ---------------------------------------------------------------- headers

SERVICES = ("monitor", "allocator", "launcher", "trainer")
"""The publishers of messages, by the names of their connections."""
MESSAGE_ID = "Nats-Msg-Id"
"""The header by which the server recognises a repeated message."""
SOURCE, TYPE = "ce-source", "ce-type"
UNKNOWN_SOURCE = "unknown"


def event_type(tag: str) -> str:
    """Return the CloudEvents type of a message."""
    return f"dev.weir.{tag}.v1"


def message_headers(message: Message, source: str, secret: str = "") -> dict[str, str]:
    """Return the headers of a message; see `event_headers`."""
    return event_headers(tag_of(type(message)), message.key(), message.id(), source, secret)


def event_headers(
    tag: str, key: str, message_id: str, source: str, secret: str = ""
) -> dict[str, str]:
    """Return the CloudEvents 1.0 attributes of a message, and the id for the server.

    The server drops a message if another message of the stream has the same id, whoever published
    it. Ids of messages can be guessed, so a tenant could suppress messages of another tenant.
    `secret` is added to the id so that nobody else can guess it; it is the same for all tries of
    one process.
    """
    return {
        MESSAGE_ID: f"{message_id}.{secret}" if secret else message_id,
        "ce-specversion": "1.0",
        "ce-id": message_id,
        TYPE: event_type(tag),
        SOURCE: source,
        "ce-subject": key,
        "ce-time": datetime.now(UTC).isoformat(),
        "content-type": "application/json",
    }


def source_of(headers: Mapping[str, str] | None) -> str:
    """Return the name of the connection that published a message."""
    return (headers or {}).get(SOURCE, UNKNOWN_SOURCE)


def is_from_newer_service(subject: str, headers: Mapping[str, str] | None) -> bool:
    """Return True if a service of a newer version published a message of a kind unknown here."""
    known = headers or {}
    return known.get(SOURCE) in SERVICES and known.get(TYPE) == event_type(tag_in(subject))
