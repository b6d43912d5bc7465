"""Tests of texts: counts with the right noun, times in two units, foreign text in one line."""

from __future__ import annotations

import ast
import math
import re

import pytest

from shared.text import (
    cut_middle,
    format_count,
    format_duration,
    format_names,
    format_payback,
    format_saving,
    format_size,
    format_some_names,
    headline,
    last_line,
    pause_preposition,
    single_line,
)
from tests.architecture.source import modules


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (1, "worker", "1 worker"),
        (0, "worker", "0 workers"),
        (1234, "sample", "1,234 samples"),
        (2, "ps", "2 ps"),
        (3, "batch", "3 batches"),
        (2, "epoch", "2 epochs"),
    ],
)
def test_a_count_uses_singular_and_plural(number: int, noun: str, said: str) -> None:
    assert format_count(number, noun) == said


def test_a_size_has_one_format() -> None:
    assert (format_size(1, 1), format_size(2, 3)) == ("1 ps, 1 worker", "2 ps, 3 workers")


def test_many_names_are_cut_and_counted() -> None:
    assert (format_some_names(["a"], "pod"), format_some_names(["a", "b"], "pod")) == ("a", "a, b")
    assert format_some_names(list("abcde"), "pod") == "5 pods: a, b and 3 more"
    assert (format_names(["a", "b"], 2), format_names(list("abc"), 2)) == (
        "a, b",
        "a, b and 1 more",
    )


COUNTED = (
    "workers nodes samples examples jobs sizes generations variables replicas pods tasks epochs"
    " steps"
)
BARE = re.compile(rf"(?<!0/)\0 (?:{COUNTED.replace(' ', '|')})\b(?!/| a second| left)")
"""A value (NUL stands for it) followed by the noun that it counts.

Rates, and `0/4 nodes` as Kubernetes writes it, do not match.
"""


def test_all_code_formats_counts_with_format_count() -> None:
    bare = [
        f"{module}: {text}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.JoinedStr)
        and BARE.search(
            text := "".join(
                str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values
            )
        )
    ]

    assert bare == []


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7512, "2 h 5 min"), (90_000, "1 d 1 h")],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def test_fine_durations_have_hundredths_and_may_be_negative() -> None:
    assert [format_duration(s, fine=True) for s in (0.618, 42.06, 61.0, -3.0, -75.0)] == [
        *("0.62 s", "42.1 s", "1 min 1 s", "-3.00 s"),
        "\N{MINUS SIGN}1 min 15 s",
    ]


def test_infinite_and_undefined_durations_are_shown_as_such() -> None:
    assert [
        format_duration(math.inf),
        format_duration(math.nan, fine=True),
        format_duration(-math.inf),
    ] == [
        "inf s",
        "nan s",
        "-inf s",
    ]


def test_a_long_text_keeps_its_beginning_and_end() -> None:
    assert cut_middle("x" * 40, 40) == "x" * 40
    assert cut_middle(f"what{'.' * 90}where", 39) == "what.....\n[...]\n..................where"
    assert cut_middle(f"what{'.' * 90}where", 20, head=0.5, gap=" | ") == "what...... | ..where"


def test_the_cost_of_a_change_and_its_pause_are_shown_side_by_side():
    told = [
        f"{format_saving(seconds)}{pause_preposition(seconds)} a pause"
        for seconds in (302.0, -5810.6)
    ]
    assert told == ["saves 5 min 2 s for a pause", "costs 1 h 36 min, beside a pause"]
    assert format_payback(302.0, 1.1) == "saves 5 min 2 s for a pause of 1.10 s"


def test_external_text_becomes_one_printable_line() -> None:
    assert single_line("a\x1b[31m\r\n\tb  c\x00") == "a [31m b c"
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
def test_a_cause_starts_with_its_headline_unless_it_is_a_bare_traceback(
    cause: str, said: str
) -> None:
    assert headline(cause) == said
