"""A story that is told as it goes on is never silent for long, and repeats nothing."""

from __future__ import annotations

from services.console.top.demo_screen import Turns
from shared.messages import ProgressReported
from tests.console.board.builders import progress

TRACES = "a step is traced"


def told(
    turns: Turns, saying: str, report: ProgressReported | None, until_s: int, since_s: int = 0
) -> dict[int, str]:
    """By second, what is said; it is asked every second."""
    lines = {now_s: turns.line(saying, report, float(now_s)) for now_s in range(since_s, until_s)}
    return {now_s: line for now_s, line in lines.items() if line}


def test_while_nothing_is_new_it_says_so_often_what_is_waited_for_and_how_long() -> None:
    lines = told(Turns(still_s=15.0), TRACES, None, 80)

    later = {15: "15 s", 30: "30 s", 45: "45 s", 60: "1 min", 75: "1 min 15 s"}
    assert lines == {0: TRACES} | {
        now_s: f"{long} so far: {TRACES}" for now_s, long in later.items()
    }


def test_what_was_just_said_is_not_followed_by_a_sign_of_life() -> None:
    turns = Turns(report_s=5.0, still_s=15.0)
    reports = [progress(samples) for samples in range(100, 900, 100)]

    lines = [turns.line("it trains", reports[now_s // 10], float(now_s)) for now_s in range(80)]

    said = [line for line in lines if line]
    assert (
        said[0] == "it trains"
        and all("% done" in line for line in said[1:])
        and len(said) == 1 + len(reports)
    )


def test_a_turn_begins_to_count_anew() -> None:
    turns = Turns(still_s=15.0)
    told(turns, TRACES, None, 20)

    assert told(turns, "it trains", None, 40, since_s=20) == {
        20: "it trains",
        35: "15 s so far: it trains",
    }


def test_before_the_first_turn_there_is_nothing_to_say() -> None:
    assert told(Turns(), "", None, 40) == {}


def test_where_a_picture_stays_its_heading_counts() -> None:
    turns = Turns()

    assert [turns.heading(TRACES, now_s) for now_s in (5.0, 6.0, 70.0)] == [
        f"{TRACES} ({long})" for long in ("0 s", "1 s", "1 min 5 s")
    ]
    assert turns.heading("it trains", 71.0) == "it trains (0 s)"
