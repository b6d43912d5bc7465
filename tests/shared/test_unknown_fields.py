"""An older version reads what a newer one writes; only what a person sends is refused for a field
that nobody reads.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.bus import subjects
from shared.messages import BY_PERSONS, ChangeRequested, JobRequested, Message
from shared.unknown_fields import unknown_fields
from tests.shared.words import one_of_each

WRITTEN_BY_SERVICES = [message for message in one_of_each() if not isinstance(message, BY_PERSONS)]


def with_new_fields(value: Any) -> Any:
    """Return a JSON value with an unknown field in each of its objects."""
    if isinstance(value, list):
        return [with_new_fields(item) for item in value]
    if isinstance(value, dict):
        return {
            **{name: with_new_fields(item) for name, item in value.items()},
            "of_next_year": {"a": [1]},
        }
    return value


def in_structs_only(message: Message) -> Any:
    """Return the message's JSON with an unknown field in every struct; dictionaries of plain values
    stay.
    """
    body = json.loads(subjects.encode(message))
    grown = with_new_fields(body)
    for name in ("labels", "metrics"):
        if name in body:
            grown[name] = body[name]
    return grown


@pytest.mark.parametrize("message", WRITTEN_BY_SERVICES, ids=lambda m: type(m).__name__)
def test_a_newer_message_is_read_without_the_fields_that_are_unknown_here(message: Message) -> None:
    body = json.dumps(in_structs_only(message)).encode()

    assert subjects.decode(subjects.subject_of(message), body) == message


@pytest.mark.parametrize("place", ["", "ps", "checkpoint", "program"])
def test_a_request_with_an_unknown_field_is_refused_by_its_path(place: str) -> None:
    asked = next(message for message in one_of_each() if isinstance(message, JobRequested))
    body = json.loads(subjects.encode(asked))
    (body.setdefault(place, {}) if place else body)["colour"] = "red"

    with pytest.raises(
        subjects.Unusable, match=rf"^{place + '.' if place else ''}colour: no such field$"
    ):
        subjects.decode(subjects.subject_of(asked), json.dumps(body).encode())


def test_a_change_with_an_unknown_field_is_refused_by_its_path() -> None:
    asked = next(message for message in one_of_each() if isinstance(message, ChangeRequested))
    body = json.loads(subjects.encode(asked))
    body["workers"]["most"] = 3

    with pytest.raises(subjects.Unusable, match=r"^workers\.most: no such field$"):
        subjects.decode(subjects.subject_of(asked), json.dumps(body).encode())


def test_unknown_fields_are_found_in_lists_too() -> None:
    raw = {
        "job": "net",
        "volumes": [{"name": "a"}, {"nmae": "b"}],
        "resources": {"ps": {"cpus": 1}},
    }

    assert list(unknown_fields(JobRequested, raw)) == ["volumes[1].nmae", "resources.ps.cpus"]
