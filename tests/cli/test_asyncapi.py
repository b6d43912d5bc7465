"""Tests of `weir asyncapi`: the document, the page for people, and the page's copy in deploy/."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from services.cli.asyncapi_document import (
    USERS,
    VERSION,
    build_document,
    build_page,
    first_sentence,
    message_schemas,
    stream_name,
    subject_address,
)
from shared.auth.permissions import PUBLISHED_BY, RECEIVED_BY
from shared.bus.subjects import encode_message, message_headers, subject_of
from shared.messages import MESSAGES, DeadLetter, Message
from tests.cli.conftest import Prompt
from tests.shared.sample_messages import one_of_each


async def test_asyncapi_writes_json(prompt: Prompt) -> None:
    said = await prompt("asyncapi")

    assert said.code == 0 and json.loads(said.out) == json.loads(json.dumps(build_document()))


async def test_asyncapi_writes_the_page(prompt: Prompt) -> None:
    assert (await prompt("asyncapi", "--page")).out == build_page()


WHOLE = build_document()
DRAFT = jsonschema.Draft7Validator
KINDS = {kind.__name__: kind for kind in (*MESSAGES, DeadLetter)}
FIELDS = {
    "": {
        "asyncapi",
        "info",
        "defaultContentType",
        "servers",
        "channels",
        "operations",
        "components",
    },
    "channels": {"address", "title", "summary", "messages", "parameters", "x-stream"},
    "operations": {"action", "channel", "messages", "tags"},
    "components/messages": {"name", "title", "summary", "contentType", "payload", "traits"},
    "components/parameters": {"description"},
    "components/messageTraits": {"headers"},
}
"""The fields of AsyncAPI 3.0 that the document uses, by kind of object.

AsyncAPI refuses fields that it does not define, except those that start with `x-`.
"""


def at(path: str) -> Any:
    found = WHOLE
    for name in path.strip("#/").split("/"):
        found = found[name] if name else found
    return found


def body_of(said: Message) -> Any:
    """Return the message as the JSON value that a reader of the bus gets."""
    return msgspec.json.decode(encode_message(said))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


@pytest.mark.parametrize("where", FIELDS)
def test_every_object_has_only_asyncapi_fields(where: str) -> None:
    objects = [WHOLE] if not where else list(at(where).values())

    assert objects and all(set(each) <= FIELDS[where] for each in objects)


def test_every_reference_has_a_target() -> None:
    found = list(references(WHOLE))

    assert len(found) > 100 and all(at(reference) is not None for reference in found)


def test_the_document_is_asyncapi_3_with_the_required_fields() -> None:
    assert WHOLE["asyncapi"] == "3.0.0" and {"title", "version"} <= set(WHOLE["info"])
    assert {"host", "protocol"} <= set(WHOLE["servers"]["bus"])
    assert all(
        re.fullmatch(r"[A-Za-z0-9._-]+", name)
        for part in WHOLE["components"].values()
        for name in part
    )


def test_every_subject_is_a_channel_with_its_names_declared() -> None:
    assert list(WHOLE["channels"]) == list(KINDS)
    for name, channel in WHOLE["channels"].items():
        assert set(re.findall(r"{(\w+)}", channel["address"])) == set(channel["parameters"])
        assert list(channel["messages"]) == [name] and channel["x-stream"] == stream_name(
            KINDS[name]
        )


@pytest.mark.parametrize("said", one_of_each(), ids=lambda m: type(m).__name__)
def test_a_messages_subject_matches_its_channel(said: Message) -> None:
    names = {
        "namespace": getattr(said, "namespace", ""),
        "job": getattr(said, "job", ""),
        "node": said.key(),
        "service": said.key(),
    }

    assert subject_address(type(said)).format(**names) == subject_of(said)


def test_operations_match_the_permissions() -> None:
    for kind in MESSAGES:
        for action, table in (("send", PUBLISHED_BY), ("receive", RECEIVED_BY)):
            operation = WHOLE["operations"][f"{action}{kind.__name__}"]
            assert operation["action"] == action
            assert tuple(tag["name"] for tag in operation["tags"]) == table[kind]
            assert at(operation["channel"]["$ref"])["title"] == kind.__name__
    assert len(WHOLE["operations"]) == 2 * len(MESSAGES)
    assert {
        user for users in (*PUBLISHED_BY.values(), *RECEIVED_BY.values()) for user in users
    } <= set(USERS)


def test_an_operations_message_is_one_of_its_channel() -> None:
    for operation in WHOLE["operations"].values():
        for message in operation["messages"]:
            assert message["$ref"].startswith(f"{operation['channel']['$ref']}/messages/")


@pytest.mark.parametrize("said", one_of_each(), ids=lambda m: type(m).__name__)
def test_every_message_is_valid_under_its_schema(said: Message) -> None:
    jsonschema.validate(
        body_of(said), {"$ref": f"#/components/schemas/{type(said).__name__}", **WHOLE}, DRAFT
    )


@pytest.mark.parametrize("said", one_of_each(), ids=lambda m: type(m).__name__)
def test_invalid_messages_are_invalid_under_their_schema(said: Message) -> None:
    body = body_of(said)
    schema = {"$ref": f"#/components/schemas/{type(said).__name__}", **WHOLE}

    for wrong in ({**body, "fact": "job.wished"}, {}, []):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema, DRAFT)


def test_every_schema_is_one_of_draft_7() -> None:
    for schema in WHOLE["components"]["schemas"].values():
        DRAFT.check_schema(schema)
    assert "prefixItems" not in str(WHOLE) and r"\Z" not in str(WHOLE["components"]["schemas"])


def test_documented_headers_are_those_that_are_sent() -> None:
    said = one_of_each()[0]
    sent = message_headers(said, "x")

    assert set(WHOLE["components"]["messageTraits"]["CloudEvent"]["headers"]["properties"]) == set(
        sent
    )
    assert sent["ce-type"].endswith(f".v{VERSION}")


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.__name__)
def test_every_message_kind_has_a_summary(kind: type[Any]) -> None:
    assert (
        len(first_sentence(kind)) > 10
        and first_sentence(kind).endswith(".")
        and "Struct" not in first_sentence(kind)
    )


FILE = Path(__file__).parents[2] / "deploy" / "events.md"
SAID = build_page()


def test_the_page_in_deploy_is_up_to_date() -> None:
    assert FILE.read_text("utf-8") == SAID, "weir asyncapi --page > deploy/events.md"


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda k: k.__name__)
def test_every_message_has_its_subject_and_every_field(kind: type) -> None:
    part = SAID.partition(f"\n### {kind.__name__}\n")[2].partition("\n### ")[0]

    assert f"`{subject_address(kind)}`" in part
    for name in message_schemas()[kind.__name__]["properties"]:
        assert f"\n| `{name}` | " in part


def test_every_link_leads_to_a_heading() -> None:
    headings = {
        line.removeprefix("### ").lower() for line in SAID.splitlines() if line.startswith("### ")
    }
    linked = {part.partition(")")[0] for part in SAID.split("](#")[1:]}

    assert linked and linked <= headings


def test_every_table_row_has_the_same_number_of_columns() -> None:
    lines = SAID.splitlines()
    for above, below in itertools.pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert above.replace(r"\|", "").count("|") == below.replace(r"\|", "").count("|"), below
