"""Which message lives where: subjects, streams, and the codec that holds a body against its
subject.

Law: a subject is declared once, as the tag on its message class; everything here is derived from
that.

Messages of a kind that only a newer version has, while its services run beside this one. Pure.

What a service says in words of a later version is for that version's services, and is passed over:
each one as a dead letter would fill the namespace's budget, and tell the operator of an upgrade as
if it were a fault. What a person asks for becomes a dead letter, from where it can be put back
after the upgrade. A header alone proves nothing; but the permissions let nobody publish on such a
subject unless a newer version has given that right to a user of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shared.bounds import unknown_fields
from shared.messages import BY_PERSONS, MESSAGES, Message

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
"""A subscription to every fact about nodes, and about the quotas and claims of namespaces."""

DEFAULT_NAMESPACE = "default"

BY_TAG: dict[str, type[Message]] = {str(m.__struct_config__.tag): m for m in MESSAGES}
_decoders = {m: msgspec.json.Decoder(m) for m in MESSAGES}


class UnreadableMessage(ValueError):
    """A body that is not what its subject says; the text says why."""


class UnknownMessage(UnreadableMessage):
    """A subject that no message has, as far as this version knows."""


def program_bucket(namespace: str) -> str:
    """Return the name of the object store bucket that holds the programs of one namespace."""
    return f"{PROGRAMS}-{namespace}"


def tag_of(kind: type[Message]) -> str:
    return str(kind.__struct_config__.tag)


def subject_of(message: Message) -> str:
    return f"{PREFIX}.{tag_of(type(message))}.{message.key()}"


def pattern(kind: type[Message], key: str = ">") -> str:
    """A subscription to every message of a kind, or to those of one key (`namespace.job`, or a
    node).
    """
    return f"{PREFIX}.{tag_of(kind)}.{key}"


def stream_holding(subject: str) -> str:
    """Which of the two streams of messages holds a subject (or a pattern that begins with its
    area).
    """
    return ORDERS if subject.split(".")[1] in ("job", "allocation", "cluster") else FACTS


def area_pattern(key: str, area: str) -> str:
    """A subscription to all that is said of one key in one area (the first word of a tag)."""
    return f"{PREFIX}.{area}.*.{key}"


def covering_filter(filters: Sequence[str]) -> str:
    """One filter that lets through all that these do, and as little else as a single one can."""
    split = [each.split(".") for each in filters]
    shortest, open_ended = min(map(len, split)), any(each.endswith(">") for each in filters)
    uneven = open_ended or len({len(tokens) for tokens in split}) > 1
    kept = shortest - 1 if uneven else shortest
    tokens = [same.pop() if len(same := {t[i] for t in split}) == 1 else "*" for i in range(kept)]
    return ".".join([*tokens, ">"] if uneven else tokens)


def matches_filter(pattern: str, subject: str) -> bool:
    """Whether a filter does."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        w in ("*", t) for w, t in zip(wanted, tokens, strict=True)
    )


def kind_of(subject: str) -> type[Message]:
    """The message class that a subject carries; raises `UnknownKind` for a subject that is none of
    ours.
    """
    tag = tag_in(subject)
    if tag not in BY_TAG:
        raise UnknownMessage(f"no message is called {tag!r}")
    return BY_TAG[tag]


def tag_in(subject: str) -> str:
    """Return what stands where a tag is in the subject of a message."""
    return ".".join(subject.split(".")[1:3])


def encode_message(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode_message(subject: str, body: bytes) -> Message:
    """Read a body as what its subject says it is; raises `Unusable` where the two disagree.

    Unknown fields are passed over, except in what a person asks for.
    """
    try:
        message = _decoders[kind_of(subject)].decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableMessage(str(error)) from error
    if subject_of(message) not in (subject, _in_default_namespace(subject)):
        raise UnreadableMessage(f"the body belongs on {subject_of(message)}, not on {subject}")
    if isinstance(message, BY_PERSONS) and (
        unknown := next(unknown_fields(type(message), msgspec.json.decode(body)), "")
    ):
        raise UnreadableMessage(f"{unknown}: no such field")
    return message


def _in_default_namespace(subject: str) -> str:
    """`weir.job.requested.<job>` is short for `weir.job.requested.default.<job>`."""
    tokens = subject.split(".")
    return ".".join([*tokens[:3], "default", *tokens[3:]]) if len(tokens) == 4 else subject


SERVICES = ("monitor", "allocator", "launcher", "trainer")
"""Who publishes messages, by the names of their connections."""


def event_type(tag: str) -> str:
    """Return the CloudEvents type of a message."""
    return f"dev.weir.{tag}.v1"


def is_from_newer_service(subject: str, headers: Mapping[str, str] | None) -> bool:
    """Return whether a service says this in a word that is unknown here; `subject`: of an unknown
    kind.
    """
    said = headers or {}
    return said.get("ce-source") in SERVICES and said.get("ce-type") == event_type(tag_in(subject))
