"""Points in time, as people write them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import pytest

from services.cli.moments import moment

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
    with pytest.raises(argparse.ArgumentTypeError):
        moment(text, UTC)
