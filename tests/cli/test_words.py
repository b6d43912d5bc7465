"""Names and durations on the command line."""

from __future__ import annotations

import argparse

import pytest

from services.cli.words import duration, name
from services.console.text.sentences import evaluated


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1.5d", 129_600)]
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_what_the_evaluation_said_is_told_apart_from_training() -> None:
    assert evaluated({"loss": 0.0801, "accuracy": 0.97}) == [
        "evaluation: loss 0.0801, accuracy 0.9700"
    ]
    assert evaluated({}) == []


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5w", "5 m", "inf", "1e3"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a duration"):
        duration(text)


@pytest.mark.parametrize("text", ["*", ">", "a.b", "A", "", "a b", "digits\n"])
def test_a_name_that_means_something_else_to_nats_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a name"):
        name(text)
