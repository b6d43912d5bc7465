"""Tests of unknown fields: an older version reads what a newer one writes.

Only input from people is refused for a field that is not read. YAML from outside is measured before
it is expanded.
"""

from __future__ import annotations

import json
import resource
from typing import Any

import pytest
import yaml

from shared import documents
from shared.bounds import unknown_fields
from shared.bus import subjects
from shared.messages import BY_PERSONS, ChangeRequested, JobRequested, Message
from tests.shared.sample_messages import one_of_each

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
    """Return the message's JSON with an unknown field in every struct.

    Dictionaries of plain values do not change.
    """
    body = json.loads(subjects.encode_message(message))
    grown = with_new_fields(body)
    for name in ("labels", "metrics"):
        if name in body:
            grown[name] = body[name]
    return grown


@pytest.mark.parametrize("message", WRITTEN_BY_SERVICES, ids=lambda m: type(m).__name__)
def test_a_newer_message_is_read_without_the_fields_that_are_unknown_here(message: Message) -> None:
    body = json.dumps(in_structs_only(message)).encode()

    assert subjects.decode_message(subjects.subject_of(message), body) == message


@pytest.mark.parametrize("place", ["", "ps", "checkpoint", "program"])
def test_a_request_with_an_unknown_field_is_refused_by_its_path(place: str) -> None:
    asked = next(message for message in one_of_each() if isinstance(message, JobRequested))
    body = json.loads(subjects.encode_message(asked))
    (body.setdefault(place, {}) if place else body)["colour"] = "red"

    with pytest.raises(
        subjects.UnreadableMessage, match=rf"^{place + '.' if place else ''}colour: no such field$"
    ):
        subjects.decode_message(subjects.subject_of(asked), json.dumps(body).encode())


def test_a_change_with_an_unknown_field_is_refused_by_its_path() -> None:
    asked = next(message for message in one_of_each() if isinstance(message, ChangeRequested))
    body = json.loads(subjects.encode_message(asked))
    body["workers"]["most"] = 3

    with pytest.raises(subjects.UnreadableMessage, match=r"^workers\.most: no such field$"):
        subjects.decode_message(subjects.subject_of(asked), json.dumps(body).encode())


def test_unknown_fields_are_found_in_lists_too() -> None:
    raw = {
        "job": "net",
        "volumes": [{"name": "a"}, {"nmae": "b"}],
        "resources": {"ps": {"cpus": 1}},
    }

    assert list(unknown_fields(JobRequested, raw)) == ["volumes[1].nmae", "resources.ps.cpus"]


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
"""Less than 1,000 bytes, which expand to 9^12 values."""
MERGES = "b0: &b0 {x: 1}\n" + "".join(
    f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)
LONG = f"s: &s {'x' * 100_000}\nt: [{', '.join(['*s'] * 1_000)}]\n"


@pytest.mark.parametrize("text", [LAUGHS, MERGES, LONG], ids=["aliases", "merges", "a long text"])
def test_aliases_that_multiply_are_refused_before_they_take_memory(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(documents.TooLarge, match="expanded it is larger"):
        documents.load_yaml(text, 256 << 10)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * 200, "it has 200 characters, more than 100"),
        ("a: &a [*a]", "a part of it contains itself"),
        ("a: *b", "undefined alias"),
        ("a: 1\n---\nb: 2", "several documents"),
        ("{", "expected"),
    ],
)
def test_an_unreadable_document_gives_the_reason(text: str, why: str) -> None:
    with pytest.raises(yaml.YAMLError, match=why):
        documents.load_yaml(text, 100)


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(documents.TooLarge, match="nested too deeply"):
        documents.load_yaml("[" * 100_000)


def test_a_number_with_too_many_digits_is_refused() -> None:
    with pytest.raises(yaml.YAMLError, match="digits"):
        documents.load_yaml(f"a: {'1' * 10_000}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 1e-3), ("1E3", 1000.0), ("-2.5e+3", -2500.0), (".5e1", 5.0), ("1.e2", 100.0)),
        *(("'1e-3'", "1e-3"), ("1e", "1e"), ("e3", "e3"), ("1e-3x", "1e-3x"), ("1.5", 1.5)),
    ],
)
def test_numbers_of_json_are_numbers(text: str, value: object) -> None:
    assert documents.load_yaml(text) == value
    assert type(documents.load_yaml(text)) is type(value)


def test_ordinary_aliases_and_merges_are_read() -> None:
    text = "base: &base {cpu: 1, memory_gib: 2}\nps: *base\nworker: {<<: *base, cpu: 3}"

    assert documents.load_yaml(text) == {
        "base": {"cpu": 1, "memory_gib": 2},
        "ps": {"cpu": 1, "memory_gib": 2},
        "worker": {"cpu": 3, "memory_gib": 2},
    }
    assert documents.load_yaml("") is None and documents.load_yaml_documents("a: 1\n---\n2") == [
        {"a": 1},
        2,
    ]
