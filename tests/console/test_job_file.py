"""Tests of job files: errors in reading them, the request from them, and reasons against it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from services.console.job_file import (
    complete_fields,
    encode_fields,
    parse_fields,
    read_text,
    reasons_against,
    subject_key,
    subject_of,
    unsendable_params,
    with_params,
)
from services.console.trouble import WRONG_USE, Trouble
from shared.bus.subjects import DEFAULT_NAMESPACE


def test_text_is_read_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes("job: naïve\n".encode())

    assert read_text(tmp_path / "job.yaml", "") == "job: naïve\n"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none.yaml", "cannot read {}: No such file or directory; give another"),
        ("folder", "cannot read {}: Is a directory; give another"),
        ("latin.yaml", "{} is not text in UTF-8: invalid continuation byte; save it as UTF-8"),
    ],
)
def test_what_is_no_text_is_wrong_use(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.yaml").write_bytes("job: naïve\n".encode("latin-1"))

    with pytest.raises(Trouble) as caught:
        read_text(tmp_path / name, "give another")

    assert (str(caught.value), caught.value.code) == (told.format(tmp_path / name), WRONG_USE)


NAMED = {"name": "digits.py", "digest": "sha256-00"}


def test_a_plain_number_stands_for_a_span_of_itself() -> None:
    sent = complete_fields(
        {"ps": 2, "workers": {"start": 1, "min": 1, "max": 3}, "batch": 32}, None, "r1"
    )

    assert sent["ps"] == {"start": 2, "min": 2, "max": 2}
    assert sent["batch"] == {"start": 32, "min": 32, "max": 32}
    assert sent["workers"] == {"start": 1, "min": 1, "max": 3}


def test_what_is_wrong_or_unknown_goes_as_it_is() -> None:
    written = {"job": 7, "ps": "many", "workers": True, "workrs": 2}

    assert complete_fields(written, None, "r1") == {**written, "request_id": "r1"}


def test_a_program_is_sent_by_its_digest() -> None:
    assert complete_fields({"program": "digits.py"}, NAMED, "r1")["program"] == NAMED


def test_a_request_id_in_the_file_does_not_make_two_requests_one() -> None:
    assert complete_fields({"request_id": "mine"}, None, "r1")["request_id"] == "r1"


def test_the_subject_is_the_jobs() -> None:
    assert subject_of({"job": "digits", "namespace": "red"}) == "weir.job.requested.red.digits"


@pytest.mark.parametrize(
    "job", [None, "", "My Job", "a.b", "*", ">", 7, ["digits"], "x" * 300, "digits\n"]
)
def test_a_name_that_cannot_stand_in_a_subject_is_sent_all_the_same(job: object) -> None:
    assert subject_key({"job": job}) == f"{DEFAULT_NAMESPACE}.-"


@pytest.mark.parametrize("text", ["", "- digits", "digits", "7"])
def test_what_is_no_request_at_all_is_wrong_use(text: str) -> None:
    with pytest.raises(Trouble, match=r"d\.yaml is not a job request") as told:
        parse_fields(text, "d.yaml")
    assert told.value.code == 2


def test_a_slip_of_yaml_is_told_with_its_place() -> None:
    with pytest.raises(Trouble, match=r"d\.yaml is not YAML: line 2, column"):
        parse_fields("job: a\nps: 1: 2\n", "d.yaml")


def test_a_field_may_be_there_once_wherever_it_is_and_a_part_may_be_used_twice() -> None:
    with pytest.raises(Trouble) as told:
        parse_fields("a: 1\nlist:\n- {b: 1, c: {d: 2, d: 3}}\na: 2\n", "d.yaml")
    assert str(told.value).splitlines()[1:] == [
        "  - list[0].c.d: again on line 3",
        "  - a: again on line 4",
    ]
    assert parse_fields("one: &s {b: 1}\ntwo: *s\n", "d.yaml")["two"] == {"b": 1}


def test_what_only_a_cluster_knows_is_no_reason_here() -> None:
    good = {"job": "digits", "program": "sha", "epochs": 1, "batch": 8, "ps": 1, "workers": 1}
    asked = complete_fields(good, {**NAMED, "digest": f"sha256-{'0' * 64}"}, "r1")
    volume = {"name": "data", "mount_path": "/data", "host_path": "/srv"}

    assert (
        reasons_against(asked | {"policy": "mine:fair", "image": "any/image", "volumes": [volume]})
        == []
    )
    assert [
        r.partition(":")[0] for r in reasons_against(asked | {"policy": "fair", "epochs": None})
    ] == [
        "epochs",
        "policy",
    ]


def test_dates_and_the_like_are_sent_as_text_for_the_allocator_to_refuse() -> None:
    assert msgspec.json.decode(
        encode_fields(parse_fields("job: 2024-01-01", "d.yaml"), "d.yaml")
    ) == {"job": "2024-01-01"}


def test_a_file_that_contains_itself_is_refused_in_words() -> None:
    with pytest.raises(Trouble, match="a part of it contains itself"):
        parse_fields("job: &a [*a]", "d.yaml")


def test_parameters_at_the_prompt_replace_those_of_the_file() -> None:
    fields = {"job": "a", "params": {"rate": 1, "width": 2}}

    assert with_params(fields, [("rate", 3), ("depth", 4)])["params"] == {
        "rate": 3, "width": 2, "depth": 4,
    }  # fmt: skip
    assert with_params({"job": "a"}, [("rate", 3)])["params"] == {"rate": 3}
    assert with_params(fields, []) is fields
    assert with_params({"params": [1]}, [("rate", 3)])["params"] == [1], "refused as it is"


def test_values_that_json_would_change_are_refused() -> None:
    text = "params: {a: .nan, b: 2026-01-01, c: [1, {2: x}], d: [1, 2.5, null, true, x]}"

    assert list(unsendable_params(parse_fields(text, "job.yaml")["params"])) == [
        "params.a: nan cannot be sent as a number; write it as a string, in quotes",
        "params.b: `2026-01-01` is read as a date; write it in quotes",
        "params.c[1]: the name 2 is not a string; write it in quotes",
    ]
