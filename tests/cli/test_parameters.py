"""Tests of values on the command line: names, durations, times, message kinds, parameters."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from services.cli.command_line import (
    TAGS_BY_NAME,
    parse_duration,
    parse_kinds,
    parse_moment,
    parse_name,
    parse_param,
)
from services.console.text.sentences import describe_metrics
from shared.bus.subjects import BY_TAG


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1.5d", 129_600)]
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_metrics_of_the_evaluation_are_shown_apart_from_training() -> None:
    assert describe_metrics({"loss": 0.0801, "accuracy": 0.97}) == [
        "evaluation: loss 0.0801, accuracy 0.9700"
    ]
    assert describe_metrics({}) == []


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5w", "5 m", "inf", "1e3"])
def test_an_invalid_duration_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["*", ">", "a.b", "A", "", "a b", "digits\n"])
def test_a_name_with_special_characters_of_nats_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        parse_name(text)


NOW = datetime(2026, 11, 21, 14, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", ["10m ago", "-10m", "10m", " 10m  ago ", "600", "600s ago"])
def test_an_age_is_a_time_before_now(text: str) -> None:
    assert parse_moment(text, UTC)(NOW) == NOW - 600


@pytest.mark.parametrize(
    ("text", "before"), [("now", 0), ("13:45", 900), ("13:45:30", 870), ("0:00", 14 * 3600)]
)
def test_a_time_of_day_is_of_today(text: str, before: int) -> None:
    assert parse_moment(text, UTC)(NOW) == NOW - before


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T13:45",
        "2026-11-21 13:45:00",
        "2026-11-21T13:45:00Z",
        "2026-11-21T14:45:00+01:00",
    ],
)
def test_a_date_may_have_a_time_zone(text: str) -> None:
    assert parse_moment(text, UTC)(NOW) == NOW - 900


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "13:60", "2026-13-01", "10 parsecs ago", "--3m"]
)
def test_an_invalid_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_moment(text, UTC)


def test_a_kind_has_three_names() -> None:
    assert parse_kinds("training.resumed") == parse_kinds("resumed") == ("training.resumed",)
    assert parse_kinds("capacity") == ("capacity.changed", "capacity.quota", "capacity.claims")
    assert set(parse_kinds("job, allocation")) == {
        t for t in BY_TAG if t.startswith(("job.", "allocation."))
    }


def test_a_kind_named_twice_is_returned_once() -> None:
    assert parse_kinds("resumed,training.resumed") == ("training.resumed",)


def test_a_last_word_shared_by_two_kinds_means_both() -> None:
    assert parse_kinds("changed") == ("job.changed", "capacity.changed")


def test_no_area_is_also_a_last_word() -> None:
    lasts = {tag.partition(".")[2] for tag in BY_TAG}
    areas = {tag.partition(".")[0] for tag in BY_TAG}

    assert not areas & lasts
    assert set(TAGS_BY_NAME) == {*lasts, *areas, *BY_TAG}


@pytest.mark.parametrize("text", ["", ",", "resum", "training.", "decided,nothing"])
def test_an_unknown_kind_is_an_error_with_the_known_kinds(text: str) -> None:
    with pytest.raises(ValueError, match=r"use job\.requested, .*job\.finished"):
        parse_kinds(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0.01", 0.01), ("1e-3", 0.001), ("8", 8), ("true", True), ("off", False)),
        *(("null", None), ("", ""), ("wide net", "wide net"), ("'8'", "8"), ("a=b", "a=b")),
        *(("[1, 2]", [1, 2]), ("{a: 1}", {"a": 1}), ("[1,", "[1,"), ("a: b", "a: b")),
    ],
)
def test_a_parameter_is_read_as_in_a_jobs_file(text: str, value: object) -> None:
    assert parse_param(f"rate={text}") == ("rate", value)
    assert type(parse_param(f"rate={text}")[1]) is type(value)


@pytest.mark.parametrize("text", ["rate", "=1", "learning-rate=1", "a.b=1", "1a=2", "é=1"])
def test_a_parameter_has_the_name_of_an_argument(text: str) -> None:
    with pytest.raises(ValueError, match="is not NAME=VALUE"):
        parse_param(text)
