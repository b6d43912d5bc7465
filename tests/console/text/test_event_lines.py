"""Tests of a stored message as a line of columns with a wrapped sentence, and as JSON."""

from __future__ import annotations

import json
from datetime import UTC

import pytest
from rich.text import Text

from services.console.log_entry import Entry
from services.console.text.event_lines import (
    WIDTHS,
    cells_and_sentence,
    event_json,
    event_line,
    event_numbers,
    event_object,
    short_event_line,
)
from services.console.text.sentences import sentence
from shared.bus.subjects import subject_of
from shared.messages import CancelRequested, DeadLetter, JobFinished, Message, ProgressReported
from tests.shared.sample_messages import JOB, one_of_each

EACH = pytest.mark.parametrize("said", one_of_each(), ids=lambda m: type(m).__name__)
STORED_S = 1_700_000_000.25


def entry(said: Message) -> Entry:
    return Entry(said, subject_of(said), "weir-orders", 7, STORED_S)


@EACH
def test_every_kind_is_one_line_with_its_sentence_at_the_end(said: Message) -> None:
    drawn = event_line(entry(said), UTC).plain

    assert drawn.startswith("2023-11-14 22:13:20 ")
    assert drawn.endswith(sentence(said))
    assert "\n" not in drawn


@EACH
def test_every_kind_fits_the_width_of_the_terminal(said: Message) -> None:
    drawn = short_event_line(entry(said), UTC, 80).plain

    assert drawn.startswith("22:13:20 o7     ")
    assert max(map(len, drawn.splitlines())) <= 80
    assert " ".join(drawn.split()).endswith(sentence(said).replace("  ", " ")) or "\n" in drawn


@EACH
def test_every_kind_as_json_has_the_complete_message(said: Message) -> None:
    told = json.loads(event_json(entry(said)))

    assert told["message"]["fact"] == told["fact"]
    assert told["sequence"] == 7 and told["sentence"] == sentence(said)
    assert (told["event"], told["id"]) == ("o7", said.id())
    assert told["time"] == "2023-11-14T22:13:20.250000+00:00"


def test_columns_are_aligned() -> None:
    drawn = {
        event_line(entry(said), UTC).plain.index(sentence(said))
        for said in one_of_each()
        if type(said) in (JobFinished, ProgressReported)
    }

    assert drawn == {sum(WIDTHS) + len(WIDTHS)}


def test_a_request_shows_the_uid_of_its_job() -> None:
    assert event_numbers(entry(one_of_each()[0])) == "uid=7"
    assert (
        event_numbers(entry(JobFinished(**JOB, outcome="failed", step=3))) == "uid=7 gen=2 step=3"
    )


def test_a_namespace_other_than_the_default_is_shown() -> None:
    assert event_object(CancelRequested(job="digits")) == "digits"
    assert event_object(CancelRequested(job="digits", namespace="red")) == "red/digits"


def test_events_that_need_attention_are_red() -> None:
    failed = JobFinished(**JOB, outcome="failed", cause="x")
    dead = DeadLetter(stream="s", sequence=1, subject="weir.x", error="bad", body="", said_by="-")

    for said in (failed, dead):
        assert any(
            "red" in str(span.style)
            for span in event_line(Entry(said, "s", "weir-orders", 1, STORED_S), UTC).spans
        )


CELLS = [("12:00:00", 8, "dim"), ("o12", 6, "")]
FRONT = "12:00:00 o12    "
LONG = Text("one two three four five six seven eight nine ten")


def test_without_a_width_a_line_is_not_wrapped() -> None:
    assert cells_and_sentence(CELLS, LONG, None).plain == FRONT + LONG.plain


def test_a_wrapped_line_is_indented() -> None:
    folded = cells_and_sentence(CELLS, LONG, len(FRONT) + 24).plain.splitlines()

    assert folded == [
        FRONT + "one two three four five",
        " " * len(FRONT) + "six seven eight nine ten",
    ]


def test_without_room_beside_the_text_starts_on_the_next_line() -> None:
    folded = cells_and_sentence(CELLS, LONG, len(FRONT) + 20).plain.splitlines()

    assert folded == [
        FRONT.rstrip(),
        "      one two three four five six",
        "      seven eight nine ten",
    ]


@pytest.mark.parametrize("foreign", ["a\nb", "\x1b[31m", "日本語の名前"])
def test_external_text_does_not_break_columns(foreign: str) -> None:
    drawn = cells_and_sentence([(foreign, 14, ""), *CELLS], Text("sentence"), 200)

    assert drawn.plain.isprintable()
    assert drawn[: drawn.plain.index("12:00:00")].cell_len == 15
