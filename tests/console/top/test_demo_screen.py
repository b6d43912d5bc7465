"""Tests of the demo's progress lines: never silent for long, and no news shown twice."""

from __future__ import annotations

from services.cli.demo import ProgressLines
from shared.messages import ProgressReported
from tests.console.board.builders import progress

TRACES = "a step is traced"


def told(
    turns: ProgressLines,
    saying: str,
    report: ProgressReported | None,
    until_s: int,
    since_s: int = 0,
) -> dict[int, str]:
    """Return the lines by second, with one call each second."""
    lines = {now_s: turns.line(saying, report, float(now_s)) for now_s in range(since_s, until_s)}
    return {now_s: line for now_s, line in lines.items() if line}


def test_without_news_the_demo_repeats_the_awaited_step_and_its_duration() -> None:
    lines = told(ProgressLines(still_s=15.0), TRACES, None, 80)

    later = {15: "15 s", 30: "30 s", 45: "45 s", 60: "1 min", 75: "1 min 15 s"}
    assert lines == {0: TRACES} | {
        now_s: f"{long} so far: {TRACES}" for now_s, long in later.items()
    }


def test_a_new_line_is_not_followed_by_a_repetition_at_once() -> None:
    turns = ProgressLines(report_s=5.0, still_s=15.0)
    reports = [progress(samples) for samples in range(100, 900, 100)]

    lines = [turns.line("it trains", reports[now_s // 10], float(now_s)) for now_s in range(80)]

    said = [line for line in lines if line]
    assert (
        said[0] == "it trains"
        and all("% done" in line for line in said[1:])
        and len(said) == 1 + len(reports)
    )


def test_a_new_step_restarts_the_count() -> None:
    turns = ProgressLines(still_s=15.0)
    told(turns, TRACES, None, 20)

    assert told(turns, "it trains", None, 40, since_s=20) == {
        20: "it trains",
        35: "15 s so far: it trains",
    }


def test_before_the_first_step_nothing_is_printed() -> None:
    assert told(ProgressLines(), "", None, 40) == {}


def test_an_unchanged_picture_counts_in_its_heading() -> None:
    turns = ProgressLines()

    assert [turns.heading(TRACES, now_s) for now_s in (5.0, 6.0, 70.0)] == [
        f"{TRACES} ({long})" for long in ("0 s", "1 s", "1 min 5 s")
    ]
    assert turns.heading("it trains", 71.0) == "it trains (0 s)"
