"""Names and durations on the command line; clean text on the terminal."""

from __future__ import annotations

import argparse

import pytest

from services.cli.words import duration, evaluated, headline, last_line, lasting, name, plain


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1.5d", 129_600)])
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_what_the_evaluation_said_is_told_apart_from_training() -> None:
    assert evaluated({"loss": 0.0801, "accuracy": 0.97}) == ["evaluation: loss 0.0801, accuracy 0.9700"]
    assert evaluated({}) == []


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5w", "5 m", "inf", "1e3"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a duration"):
        duration(text)


@pytest.mark.parametrize("text", ["*", ">", "a.b", "A", "", "a b", "digits\n"])
def test_a_name_that_means_something_else_to_nats_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a name"):
        name(text)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7512, "2 h 5 min")]
)
def test_how_long_something_took_is_told_in_its_two_largest_units(seconds: float, said: str) -> None:
    assert lasting(seconds) == said


def test_foreign_text_becomes_one_printable_line() -> None:
    assert plain("a\x1b[31m\r\n\tb  c\x00") == "a [31m b c"
    assert last_line("one\n two \n\n\x00\n") == "two"
    assert last_line("") == ""


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            "net.py:3: KeyError: 'x'\nTraceback (most recent call last):\n  ...\nKeyError: 'x'",
            "net.py:3: KeyError: 'x'",
        ),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("\n\x00", ""),
    ],
)
def test_a_cause_begins_with_what_can_be_read_alone_unless_it_is_a_bare_traceback(cause: str, said: str) -> None:
    assert headline(cause) == said
