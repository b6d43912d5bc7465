"""Names and durations on the command line.

Points in time, as people write them.

Facts are named by both words, by the area, or by the last word alone.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from services.cli.parameters import NAMED, duration, kinds, moment, name
from services.console.text.sentences import describe_metrics
from shared.bus.subjects import BY_TAG


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1.5d", 129_600)]
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_what_the_evaluation_said_is_told_apart_from_training() -> None:
    assert describe_metrics({"loss": 0.0801, "accuracy": 0.97}) == [
        "evaluation: loss 0.0801, accuracy 0.9700"
    ]
    assert describe_metrics({}) == []


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5w", "5 m", "inf", "1e3"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        duration(text)


@pytest.mark.parametrize("text", ["*", ">", "a.b", "A", "", "a b", "digits\n"])
def test_a_name_that_means_something_else_to_nats_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        name(text)


NOW = datetime(2026, 11, 21, 14, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", ["10m ago", "-10m", "10m", " 10m  ago ", "600", "600s ago"])
def test_an_age_is_so_long_before_now(text: str) -> None:
    assert moment(text, UTC)(NOW) == NOW - 600


@pytest.mark.parametrize(
    ("text", "before"), [("now", 0), ("13:45", 900), ("13:45:30", 870), ("0:00", 14 * 3600)]
)
def test_a_time_of_day_is_todays(text: str, before: int) -> None:
    assert moment(text, UTC)(NOW) == NOW - before


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T13:45",
        "2026-11-21 13:45:00",
        "2026-11-21T13:45:00Z",
        "2026-11-21T14:45:00+01:00",
    ],
)
def test_a_date_may_say_its_zone(text: str) -> None:
    assert moment(text, UTC)(NOW) == NOW - 900


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "13:60", "2026-13-01", "10 parsecs ago", "--3m"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        moment(text, UTC)


def test_a_fact_is_named_in_three_ways() -> None:
    assert kinds("training.resumed") == kinds("resumed") == ("training.resumed",)
    assert kinds("capacity") == ("capacity.changed", "capacity.quota", "capacity.claims")
    assert set(kinds("job, allocation")) == {
        t for t in BY_TAG if t.startswith(("job.", "allocation."))
    }


def test_what_is_named_twice_is_meant_once() -> None:
    assert kinds("resumed,training.resumed") == ("training.resumed",)


def test_a_last_word_that_two_kinds_share_means_both() -> None:
    assert kinds("changed") == ("job.changed", "capacity.changed")


def test_a_name_is_an_area_or_a_last_word_and_never_both() -> None:
    lasts = {tag.partition(".")[2] for tag in BY_TAG}
    areas = {tag.partition(".")[0] for tag in BY_TAG}

    assert not areas & lasts
    assert set(NAMED) == {*lasts, *areas, *BY_TAG}


@pytest.mark.parametrize("text", ["", ",", "resum", "training.", "decided,nothing"])
def test_who_names_none_is_told_which_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"there are job\.requested, .*job\.finished"):
        kinds(text)
